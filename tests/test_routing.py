"""Routers of all blocks at once: identities, planted errors, shares."""

import contextlib
import copy

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lib.errors import InputError
from lib.gating.gates import Gate, GateText, Routed, best_of_four
from lib.gating.increases import loss_increases
from lib.gating.routers import (
    RIDGES,
    Errors,
    FixedScores,
    by_token,
    learn_errors,
    learned_errors,
    learned_increases,
    random_scores,
    small_norms,
    true_errors,
)
from lib.gating.routing import (
    TopShare,
    allocate,
    cheapest,
    document_losses,
    marginal_costs,
    refit,
    routed,
    shrunk_fit,
    sweep,
)
from lib.gating.sparse import cats, teal
from lib.hooks import capture, swap
from lib.keys import describe
from lib.linear import regression
from lib.linear.affine import AffineMap
from lib.models.parts import as_subject
from lib.stats import sums
from lib.swap.sweep import token_losses


@pytest.fixture(scope="module")
def errors(subject, fit, fits):
    return learn_errors(subject, fit[:32], fits.repaired)


def test_never_routed_is_the_original_and_always_is_every_map_at_once(subject, test, fits):
    scores = random_scores(test, range(len(subject)))
    models = {
        "never": routed(subject, fits.repaired, scores, 0.0),
        "always": routed(subject, fits.repaired, scores, 1.0),
        "maps": fits.repaired,
    }
    found = sweep(subject, test, models)
    base = torch.cat([token_losses(subject, t) for t in test.tokens.split(8)]).numpy()
    np.testing.assert_allclose(found.unchanged, sums(base, test.document), rtol=1e-6)
    np.testing.assert_allclose(found.changed["never"], found.unchanged, rtol=1e-6)
    np.testing.assert_allclose(found.changed["always"], found.changed["maps"], rtol=1e-6)
    assert found.shares.affine["never"] == 0 and found.shares.affine["always"] > 0.99
    assert found.shares.saved["never"] == 0
    with contextlib.ExitStack() as stack:  # by hand
        for b, affine in fits.repaired.items():
            stack.enter_context(swap(subject.blocks[b], affine))
        by_hand = torch.cat([token_losses(subject, t) for t in test.tokens.split(8)]).numpy()
    np.testing.assert_allclose(found.changed["maps"], sums(by_hand, test.document), rtol=1e-5)


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
        error = (y - fits.maps[b](x)).square().sum(-1)[0]
        if fits.repaired[b] is fits.maps[b]:
            np.testing.assert_allclose(errors.error[b, 0], error, rtol=1e-3)
        router = errors.routers[b]
        np.testing.assert_allclose(errors.predicted[b, 0], -router.score(x)[0], atol=1e-3)
    off = ~errors.massive[4]
    actual = np.log(errors.error[4][off])
    assert np.corrcoef(errors.predicted[4][off], actual)[0, 1] > 0.3


def test_random_positions_do_not_beat_the_true_error(subject, test, fits):
    maps = fits.repaired
    scores = {
        "oracle": true_errors(subject, maps),
        "random": random_scores(test, maps),
    }
    found = sweep(subject, test, {n: routed(subject, maps, s, 0.4) for n, s in scores.items()})
    assert found.shares.affine["oracle"] == pytest.approx(found.shares.affine["random"], abs=0.01)
    assert found.difference("oracle").value < found.difference("random").value


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
        module = Routed(linear, start, TopShare(FixedScores(np.ones(tuple(fit.tokens.shape))), 1.0))
        found = refit(subject, fit, {2: module})[2].surrogate
    finally:
        setattr(block.layer, block.ffn_name, original)
    x = rows[2]  # inputs of that block on other text
    assert (found(x) - linear(x)).norm() < 0.05 * linear(x).norm()


def test_refits_walk_on_the_routed_model(subject, fit, fits):
    """The refitted map of a later block is fitted on inputs that the earlier map has changed."""
    every = TopShare(FixedScores(np.ones(tuple(fit.tokens.shape))), 1.0)
    modules = {b: Routed(subject.blocks[b].ffn, fits.maps[b], every) for b in (1, 3)}
    found = {b: handle.module for b, handle in refit(subject, fit[:32], modules).items()}
    seen = {}
    before = subject.blocks[1].ffn.register_forward_hook(lambda _, a, y: found[1].surrogate(a[0]))
    after = subject.blocks[3].ffn.register_forward_hook(lambda _, a, y: seen.update(x=a[0], y=y))
    subject.model(fit.tokens[:32])
    before.remove()
    after.remove()
    x, y = seen["x"].flatten(0, 1), seen["y"].flatten(0, 1)
    by_hand = shrunk_fit(x, y, fits.maps[3])
    np.testing.assert_allclose(by_hand(x), found[3].surrogate(x), atol=2e-3)


def test_few_rows_leave_the_old_map_as_it_is():
    torch.manual_seed(1)
    old = AffineMap(torch.randn(6, 6), torch.randn(6))
    x = torch.randn(3, 6)
    assert (shrunk_fit(x, torch.zeros(3, 6), old).weight - old.weight).norm() < old.weight.norm()
    many = torch.randn(5_000, 6)
    assert shrunk_fit(many, many, old)(many).sub(many).norm() < 0.02 * many.norm()


@pytest.fixture(scope="module")
def scorers(subject, fit, test, fits):
    maps, text = fits.repaired, fit[:32]
    return {
        "gate": best_of_four(subject, GateText(text[:24], text[24:]), maps),
        "error": learned_errors(subject, text, maps),
        "token": by_token(subject, text, test, maps),
        "increase": learned_increases(subject, text, maps),
        "token's loss": by_token(subject, text, test, maps, "loss increase"),
        "token's frequency": by_token(subject, text, test, maps, "frequency"),
        "random": random_scores(test, maps),
        "norm": small_norms(maps),
        "oracle": true_errors(subject, maps),
    }


OF_TEST = ("token", "token's loss", "token's frequency", "random")
NAMES = ("gate", "error", "increase", "norm", "oracle", *OF_TEST)


@pytest.mark.parametrize("name", NAMES)
def test_the_share_asked_for_is_the_share_of_every_window(subject, test, fits, scorers, name):
    share = 0.25
    x = capture(subject, test[:4], [1])[1][0]  # [4, position, d]
    at = (slice(0, 4),) if name in OF_TEST else ()
    router = TopShare(scorers[name][1], share)
    router = router.at(*at) if at else router
    used = router(x)
    assert (used.sum(1) == round(share * x.shape[1])).all()
    score = router.scorer.score(x)[:, : x.shape[1]]
    for row in range(4):  # none left out scores higher than one taken
        assert score[row][~used[row]].max() <= score[row][used[row]].min()


@pytest.mark.parametrize("name", NAMES)
def test_shares_0_and_1_are_the_original_and_the_linear_model(subject, test, fits, scorers, name):
    models = {str(s): routed(subject, fits.repaired, scorers[name], s) for s in (0.0, 1.0)}
    found = sweep(subject, test, models | {"maps": fits.repaired})
    np.testing.assert_allclose(found.changed["0.0"], found.unchanged, rtol=1e-6)
    np.testing.assert_allclose(found.changed["1.0"], found.changed["maps"], rtol=1e-6)


def test_a_learned_increase_is_scikit_learns_ridge(subject, fit, fits, scorers):
    maps = {2: fits.repaired[2]}
    increases = loss_increases(subject, fit[:32], maps)
    x, increase = increases.rows(2)
    ordinary = ~fits.repaired[2].massive(torch.tensor(x)).numpy()
    ridge = make_pipeline(StandardScaler(), RidgeCV(RIDGES)).fit(x[ordinary], increase[ordinary])
    score = scorers["increase"][2].module.score(torch.tensor(x)).numpy()
    np.testing.assert_allclose(score, -ridge.predict(x), rtol=1e-3, atol=1e-4)


def test_by_frequency_common_tokens_get_the_map(subject, fit, test, scorers):
    told = scorers["token's frequency"][2].module
    seen = fit[:32].tokens.numpy()[:, subject.n_start :]
    counts = np.bincount(seen.ravel(), minlength=int(test.tokens.max()) + 1)
    np.testing.assert_array_equal(told.scores, counts[test.tokens.numpy()])


def test_one_token_is_routed_alike_wherever_it_stands(subject, fit, test, scorers):
    told = scorers["token"][2].module
    tokens = test.tokens.numpy()
    same = tokens == np.bincount(tokens.ravel()).argmax()
    assert np.unique(told.scores[same]).size == 1 and np.unique(told.scores).size > 10


def test_shares_of_blocks_chosen_sum_to_the_share_asked(subject, fit, fits, test):
    text = GateText(fit[:32], fit[32:40])
    modules = cheapest(subject, text, fits.repaired, 0.3)
    of_blocks = [m.module.router.share for m in modules.values()]
    assert np.mean(of_blocks) == pytest.approx(0.3, abs=0.01) and np.std(of_blocks) > 0.02
    found = sweep(subject, test, {"cheapest": modules})
    assert found.shares.affine["cheapest"] == pytest.approx(0.3, abs=0.02)


def test_what_is_routed_has_words_before_it_is_made(subject, fit, test):
    """A page whose losses are kept fits nothing: the key is there before any map or gate."""
    maps = regression.fit(subject, fit).maps
    text = GateText(fit[:24], fit[24:32])
    models = {
        "gate": routed(subject, maps, best_of_four(subject, text, maps), 0.4),
        "error": routed(subject, maps, learned_errors(subject, text.train, maps), 0.4),
        "increase": routed(subject, maps, learned_increases(subject, text.train, maps), 0.4),
        "token": routed(subject, maps, by_token(subject, text.train, test, maps), 0.4),
        "frequency": routed(
            subject, maps, by_token(subject, text.train, test, maps, "frequency"), 0.4
        ),
        "random": routed(subject, maps, random_scores(test, maps), 0.4),
        "norm": routed(subject, maps, small_norms(maps), 0.4),
        "oracle": routed(subject, maps, true_errors(subject, maps), 0.4),
        "cheapest": cheapest(subject, text, maps, 0.4),
        "refitted": refit(subject, fit[:16], cheapest(subject, text, maps, 0.4)),
        "teal": teal(subject, text.train, 0.4),
    }
    words = {name: describe(modules) for name, modules in models.items()}
    assert all(words.values()) and len({*words.values()}) == len(words)
    assert max(map(len, words.values())) < 3_000  # blocks alike are said together
    assert not any("made" in m._modules for m in maps.values())
    sweep(subject, test, {"cheapest": models["cheapest"], "gate": models["gate"]})
    assert any("made" in m._modules for m in maps.values())
    assert {n: describe(m) for n, m in models.items()} == words  # and after they are
    with torch.no_grad():
        maps[1].module.weight += 1.0
    assert describe(models["gate"]) is None


def test_what_is_first_used_in_a_sweep_is_made_on_the_model_as_it_is(subject, fit, test):
    """The gate of a later block is fitted when its earlier blocks are not swapped yet."""
    # A model in memory, whose errors are computed each time.
    subject = as_subject(copy.deepcopy(subject.model), subject.tokenizer)
    text = GateText(fit[:24], fit[24:32])
    models = []
    for _ in range(2):
        maps = regression.fit(subject, fit).maps
        models.append(routed(subject, maps, learned_errors(subject, text.train, maps), 0.4))
    for module in models[0].values():
        assert module.router.scorer.module is not None  # made beforehand
    one, other = (document_losses.__wrapped__(subject, test, m) for m in models)
    np.testing.assert_allclose(one["sum"], other["sum"], rtol=1e-9)


def test_what_cannot_be_asked_for_is_refused(subject, fit, test, fits):
    with pytest.raises(InputError, match=r"a share of 1\.2 is not possible"):
        routed(subject, fits.repaired, random_scores(test, [0]), 1.2)
    with pytest.raises(InputError, match=r"a share of -0\.1 is not possible"):
        allocate(np.zeros((1, 1, 4)), -0.1)
    with pytest.raises(InputError, match="unknown mean of a token 'eror': did you mean 'error'"):
        by_token(subject, fit[:8], test, fits.repaired, "eror")


def test_savings_are_counted_by_hand(subject, test, fits):
    """One window: a map saves all but its d² multiplications, a gate costs its own."""
    block, d, window = subject.blocks[2], subject.d_model, test[:1]
    n = block.n_params
    torch.manual_seed(0)
    gate = Gate([torch.randn(1, d)], [torch.zeros(1)])
    models = {
        "gate": {2: Routed(block.ffn, fits.maps[2], gate)},
        "map": {2: fits.maps[2]},
        "teal": teal(subject, test, 0.3),
        "both": {2: Routed(teal(subject, test, 0.3)[2], fits.maps[2], gate)},
    }
    found = sweep(subject, window, models).shares * len(subject)  # one block of all
    x = []
    handle = block.ffn.register_forward_hook(lambda _, args, y: x.append(args[0]))
    token_losses(subject, window.tokens)
    handle.remove()
    used = gate(x[0])[0].float().mean().item()
    of_map = 1 - d * d / n
    assert found.affine["gate"] == pytest.approx(used)
    assert found.saved["gate"] == pytest.approx(used * of_map - d / n)
    assert found.saved["map"] == pytest.approx(of_map)
    assert 0.2 < found.saved["teal"] / len(subject) < 0.4
    assert found.saved["both"] > found.saved["gate"] + 0.1


def test_leaving_nothing_out_is_the_original(subject, test):
    models = {"teal": teal(subject, test, 0.0), "cats": cats(subject, test, 0.0)}
    found = sweep(subject, test[:2], models)
    for name in models:
        np.testing.assert_array_equal(found.changed[name], found.unchanged)
