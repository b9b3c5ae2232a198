"""Routers of all blocks at once: identities, planted errors, shares."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lib.affine import AffineMap
from lib.errors import InputError
from lib.gates import Gate, Masked, Routed, fit_gates, measure_needs
from lib.routing import (
    NAMES,
    Errors,
    Routers,
    allocate,
    at_saving,
    evaluate,
    learn_errors,
    marginal_costs,
    refit,
    shrunk_fit,
)
from lib.sparse import cats, teal
from lib.swap import losses


@pytest.fixture(scope="module")
def errors(subject, fit, fits):
    return learn_errors(subject, fit[:32], fits.repaired)


def routed(subject, maps, router):
    return {b.index: Routed(b.ffn, maps[b.index], router) for b in subject.blocks}


def told(test, share):
    return Masked(np.random.default_rng(0).random(test.tokens.shape) < share)


def test_never_routed_is_the_original_and_always_is_every_map_at_once(subject, test, fits):
    models = {
        "never": routed(subject, fits.repaired, told(test, 0.0)),
        "always": routed(subject, fits.repaired, told(test, 1.1)),
        "maps": fits.repaired,
    }
    found = evaluate(subject, test, models)
    base = torch.cat([losses(subject, t) for t in test.tokens.split(8)])
    np.testing.assert_allclose(found["never"].losses, base, atol=1e-5)
    np.testing.assert_allclose(found["always"].losses, found["maps"].losses, atol=1e-5)
    assert found["never"].linear_share == 0 and found["always"].linear_share > 0.99
    assert found["never"].saved_share == 0 and not found["never"].cost.value


def test_allocation_takes_the_cheapest_evaluations_of_all_blocks():
    cost = np.array([[[0.1, 5.0, 3.0]], [[0.2, 0.3, np.inf]]])
    assert allocate(cost, 0.5).tolist() == [[[True, False, False]], [[True, True, False]]]
    assert allocate(cost, 1.0).sum() == 5  # what must stay is never routed


def test_marginal_costs_rise_with_the_predicted_error_and_keep_what_must_stay():
    rng = np.random.default_rng(0)
    predicted = rng.normal(size=(2, 4, 50))
    error = np.exp(predicted) * rng.uniform(0.5, 1.5, predicted.shape)
    massive = rng.random(predicted.shape) > 0.9
    cost = marginal_costs(Errors(error, massive, predicted, []), [2.0, 3.0])
    for b, rate in enumerate((2.0, 3.0)):
        ordinary = ~massive[b]
        order = np.argsort(predicted[b][ordinary])
        assert (np.diff(cost[b][ordinary][order]) > 0).all() and np.isinf(cost[b][massive[b]]).all()
        total = rate * error[b][ordinary].sum()
        assert cost[b][ordinary].sum() == pytest.approx(total, rel=1e-3)


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
            b.index: Routed(b.ffn, maps[b.index], Masked(best[b.index])) for b in subject.blocks
        },
        "random": routed(subject, maps, told(test, 0.4)),
    }
    found = evaluate(subject, test, models)
    assert found["oracle"].linear_share == pytest.approx(found["random"].linear_share, abs=0.02)
    assert found["oracle"].cost.value < found["random"].cost.value


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
        module = Routed(linear, start, Masked(np.ones(tuple(fit.tokens.shape), bool)))
        found = refit(subject, fit, {2: module})[2].surrogate
    finally:
        setattr(block.layer, block.ffn_name, original)
    x = rows[2]  # inputs of that block on other text
    assert (found(x) - linear(x)).norm() < 0.05 * linear(x).norm()


def test_refits_walk_on_the_routed_model(subject, fit, fits):
    """The refitted map of a later block is fitted on inputs that the earlier map has changed."""
    every = Masked(np.ones(tuple(fit.tokens.shape), bool))
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


@pytest.fixture(scope="module")
def routers(subject, fit, test, fits, errors):
    maps = fits.repaired
    gates = {
        b: kinds["linear"] for b, kinds in fit_gates(subject, fit[:32], maps, ("linear",)).items()
    }
    needs = measure_needs(subject, fit[:32], maps)
    return Routers(subject, maps, errors, gates, needs, test)


@pytest.mark.parametrize("name", NAMES)
def test_a_router_at_share_0_and_1_is_the_original_and_the_linear_model(
    subject, test, fits, routers, name
):
    blocks = range(len(subject))
    models = {s: routers.at(name, dict.fromkeys(blocks, s)) for s in (0.0, 1.0)}
    found = evaluate(subject, test, models | {"maps": fits.repaired})
    assert found[0.0].linear_share == 0
    np.testing.assert_allclose(found[0.0].losses, found[0.0].base, atol=1e-5)
    if name in ("error", "gate", "random"):
        np.testing.assert_allclose(found[1.0].losses, found["maps"].losses, atol=1e-5)
    else:  # an error or a token larger than any of the text for gates keeps its FFN
        assert found[1.0].linear_share > 0.9


@pytest.mark.parametrize("name", NAMES)
def test_equal_shares_are_equal(subject, fit, routers, name):
    """On the text where thresholds were set, on the original model's inputs."""
    share = 0.3
    needs = routers.needs
    on_own_text = replace(routers, test=fit[:32])
    module = on_own_text.at(name, {1: share})[1]
    x = torch.from_numpy(needs.x[1]).contiguous()
    used = module.router(x).float().mean().item()
    assert used == pytest.approx(share, abs=0.05)


def test_an_unknown_router_or_share_is_refused(routers):
    with pytest.raises(InputError, match="unknown router 'best'"):
        routers.at("best", {0: 0.5})
    with pytest.raises(InputError, match=r"a share of 1\.2 is not possible"):
        routers.at("random", {0: 1.2})
    with pytest.raises(InputError, match=r"a share of -0\.1 is not possible"):
        allocate(np.zeros((1, 1, 4)), -0.1)


def test_savings_are_counted_by_hand(subject, test, fits):
    """One window: a map saves all but its d² multiplications, a gate costs its own."""
    block, d, window = subject.blocks[2], subject.d_model, test[:1]
    n = block.n_params
    torch.manual_seed(0)
    gate = Gate([torch.randn(1, d)], [torch.zeros(1)])
    models = {
        "gate": {2: Routed(block.ffn, fits.plain[2], gate)},
        "map": {2: fits.plain[2]},
        "teal": teal(subject, test, 0.3),
        "both": {2: Routed(teal(subject, test, 0.3)[2], fits.plain[2], gate)},
    }
    found = evaluate(subject, window, models)
    x = []
    handle = block.ffn.register_forward_hook(lambda _, args, y: x.append(args[0]))
    losses(subject, window.tokens)
    handle.remove()
    used = gate(x[0])[0].float().mean().item()
    of_map = 1 - d * d / n
    assert found["gate"].linear[2, 0] == pytest.approx(used)
    assert found["gate"].saved[2, 0] == pytest.approx(used * of_map - d / n)
    assert found["map"].saved[2, 0] == pytest.approx(of_map) and found["map"].saved[:2].sum() == 0
    assert 0.2 < found["teal"].saved_share < 0.4
    assert found["both"].saved[2, 0] > found["gate"].saved[2, 0] + 0.1


def test_leaving_nothing_out_is_the_original(subject, test):
    models = {"teal": teal(subject, test, 0.0), "cats": cats(subject, test, 0.0)}
    found = evaluate(subject, test[:2], models)
    for name in models:
        assert np.array_equal(found[name].losses, found[name].base)


def test_losses_at_a_saving_lie_between_the_runs(subject, test, fits):
    blocks = range(len(subject))
    models = {k: {b: fits.plain[b] for b in blocks[:k]} for k in (1, 3)}
    found = evaluate(subject, test, models)
    few, many = found[1], found[3]
    half = (few.saved_share + many.saved_share) / 2
    np.testing.assert_allclose(at_saving([many, few], half), (few.added + many.added) / 2)
    np.testing.assert_allclose(at_saving([few], few.saved_share / 2), few.added / 2)
    with pytest.raises(InputError, match="no run saves 99% of the FFN arithmetic"):
        at_saving([few, many], 0.99)
