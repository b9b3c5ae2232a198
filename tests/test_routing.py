"""Routers of all blocks at once: identities, planted errors, shares."""

import numpy as np
import pytest
import torch

from lib.affine import AffineMap
from lib.gates import Masked, Routed
from lib.routing import allocate, learn_errors, marginal_costs, price, refit, shrunk_fit
from lib.swap import losses


@pytest.fixture(scope="module")
def errors(subject, fit, fits):
    return learn_errors(subject, fit[:32], fits.repaired)


def routed(subject, maps, router):
    return {b.index: Routed(b.ffn, maps[b.index], router) for b in subject.blocks}


def told(test, share, name):
    return Masked(np.random.default_rng(0).random(test.tokens.shape) < share, name)


def test_never_routed_is_the_original_and_always_is_every_map_at_once(subject, test, fits):
    models = {
        "never": routed(subject, fits.repaired, told(test, 0.0, "never")),
        "always": routed(subject, fits.repaired, told(test, 1.1, "always")),
        "maps": fits.repaired,
    }
    found = price(subject, test, models)
    base = torch.cat([losses(subject, t) for t in test.tokens.split(8)])
    np.testing.assert_allclose(found["never"].losses, base, atol=1e-5)
    np.testing.assert_allclose(found["always"].losses, found["maps"].losses, atol=1e-5)
    assert found["never"].share == 0 and found["always"].share > 0.99
    assert np.abs(found["never"].kl).max() < 1e-6 < found["always"].kl.mean()
    assert not found["never"].cost().value


def test_kl_is_scipys(subject, test, fits):
    from scipy.stats import entropy

    found = price(subject, test[:1], {"one": {3: fits.plain[3]}})["one"]
    p = subject.model(test.tokens[:1]).logits.softmax(-1)[0, :-1].double()
    handle = subject.blocks[3].ffn.register_forward_hook(lambda _, a, y: fits.plain[3](a[0]))
    q = subject.model(test.tokens[:1]).logits.softmax(-1)[0, :-1].double()
    handle.remove()
    np.testing.assert_allclose(found.kl[0], entropy(p, q, axis=1), atol=1e-5)


def test_allocation_takes_the_cheapest_evaluations_of_all_blocks():
    cost = np.array([[[0.1, 5.0, 3.0]], [[0.2, 0.3, np.inf]]])
    assert allocate(cost, 0.5).tolist() == [[[True, False, False]], [[True, True, False]]]
    assert allocate(cost, 1.0).sum() == 5  # what must stay is never routed


def test_marginal_costs_fall_with_the_score_and_keep_what_must_stay():
    rng = np.random.default_rng(0)
    score = rng.normal(size=(4, 50))
    error, off = np.exp(-score) * rng.uniform(0.5, 1.5, score.shape), rng.random((4, 50)) < 0.9
    cost = marginal_costs(score, error, off, 2.0)
    order = np.argsort(score[off])
    assert (np.diff(cost[off][order]) < 0).all() and np.isinf(cost[~off]).all()
    assert cost[off].sum() == pytest.approx(2.0 * error[off].sum(), rel=1e-3)


def test_learned_errors_are_the_errors_and_their_routers_know_them(subject, fit, fits, errors):
    seen = {}
    for b in (0, 4):

        def hook(_, args, y, b=b):
            return seen.update({b: (args[0], y)})

        handle = subject.blocks[b].ffn.register_forward_hook(hook)
        subject.model(fit.tokens[:1])
        handle.remove()
        x, y = seen[b]
        error = (y - fits.plain[b](x)).square().sum(-1)[0]
        if fits.repaired[b] is fits.plain[b]:
            np.testing.assert_allclose(errors.error[b, 0], error, rtol=1e-3)
        router = errors.routers[b]
        np.testing.assert_allclose(errors.predicted[b, 0], -router.score(x)[0], atol=1e-3)
    off = ~errors.massive[4]
    actual = np.log(errors.error[4][off])
    assert np.corrcoef(errors.predicted[4][off], actual)[0, 1] > 0.3


def test_no_share_of_random_positions_beats_the_true_error(subject, test, fits):
    maps = fits.repaired
    wrong = learn_errors(subject, test, maps).error
    best = allocate(wrong, 0.4)
    models = {
        "oracle": {
            b.index: Routed(b.ffn, maps[b.index], Masked(best[b.index], f"least error {b.index}"))
            for b in subject.blocks
        },
        "random": routed(subject, maps, told(test, 0.4, "random .4")),
    }
    found = price(subject, test, models)
    assert found["oracle"].share == pytest.approx(found["random"].share, abs=0.02)
    assert found["oracle"].cost().value < found["random"].cost().value


def test_a_refit_of_what_is_linear_already_finds_it(subject, fit, rows):
    """Where an FFN is an affine map itself, the refitted map is that map."""
    torch.manual_seed(0)
    d = subject.d_model
    linear = torch.nn.Linear(d, d).requires_grad_(False)
    block = subject.blocks[2]
    original = block.ffn
    setattr(block.layer, block.ffn_name, linear)
    try:
        start = AffineMap(torch.zeros(d, d), torch.zeros(d))
        module = Routed(linear, start, Masked(np.ones((8, fit.tokens.shape[1]), bool)))
        found = refit(subject, fit, {2: module})[2].surrogate
    finally:
        setattr(block.layer, block.ffn_name, original)
    x = rows[2]  # inputs of that block on other text
    assert (found(x) - linear(x)).norm() < 0.05 * linear(x).norm()


def test_refits_walk_on_the_routed_model(subject, fit, fits):
    """The refitted map of a later block is fitted on inputs that the earlier map has changed."""
    every = Masked(np.ones((8, fit.tokens.shape[1]), bool), "every")
    modules = {b: Routed(subject.blocks[b].ffn, fits.plain[b], every) for b in (1, 3)}
    found = refit(subject, fit[:32], modules)
    seen = {}
    before = subject.blocks[1].ffn.register_forward_hook(lambda _, a, y: found[1].surrogate(a[0]))
    after = subject.blocks[3].ffn.register_forward_hook(lambda _, a, y: seen.update(x=a[0], y=y))
    subject.model(fit.tokens[:32])
    before.remove()
    after.remove()
    x, y = seen["x"].flatten(0, 1), seen["y"].flatten(0, 1)
    by_hand = shrunk_fit(x, y, fits.plain[3])
    np.testing.assert_allclose(by_hand(x), found[3].surrogate(x), atol=2e-3)


def test_few_rows_leave_the_old_map_as_it_is():
    torch.manual_seed(1)
    old = AffineMap(torch.randn(6, 6), torch.randn(6))
    x = torch.randn(3, 6)
    assert (shrunk_fit(x, torch.zeros(3, 6), old).weight - old.weight).norm() < old.weight.norm()
    many = torch.randn(5_000, 6)
    assert shrunk_fit(many, many, old)(many).sub(many).norm() < 0.02 * many.norm()
