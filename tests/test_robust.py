"""Maps that a few positions do not rule, against scikit-learn and a planted few."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from lib.errors import InputError
from lib.hooks import capture
from lib.linear import regression, robust
from lib.linear.moments import Moments
from lib.models.parts import as_subject
from lib.swap.sweep import sweep

BLOCK = 2


@pytest.fixture(scope="module")
def maps(subject, fit_text):
    return regression.fit(subject, fit_text)


@pytest.fixture(scope="module")
def limit(maps):
    return maps.facts.limit.to_numpy()


def weights(y, limit, power):
    norm = np.linalg.norm(y, axis=1)
    return np.maximum(norm, limit / robust.MASSIVE) ** -power


@pytest.mark.parametrize("power", [0, 1, 2])
def test_a_weighted_map_is_that_of_scikit_learn(subject, fit_text, maps, limit, rows, power):
    x, y = (part.double().numpy() for part in rows[:2])
    found = robust.weighted(subject, maps, power)[BLOCK]
    oracle = LinearRegression().fit(x, y, weights(y, limit[BLOCK], power))
    np.testing.assert_allclose(found(rows[0]).numpy(), oracle.predict(x), atol=2e-4)
    if power == 0:  # every position counts as much
        np.testing.assert_allclose(found.weight, maps.maps[BLOCK].weight, atol=1e-5)


def test_weighted_moments_are_those_of_repeated_rows(rows):
    x, y = rows[0][:50], rows[1][:50]
    weight = (x[:, 0] > x[:, 0].median()).double() + 1  # the half of large ones stand twice
    twice = Moments.of(x.repeat_interleave(weight.int(), 0), y.repeat_interleave(weight.int(), 0))
    found = Moments.of(x, y, weight)
    assert found.n == twice.n
    for name in ("mean_x", "mean_y", "sxx", "sxy", "syy"):
        np.testing.assert_allclose(getattr(found, name), getattr(twice, name), rtol=1e-9, atol=1e-9)


def test_scores_are_those_of_scikit_learn(subject, test, maps, limit, rows):
    chosen = {(BLOCK, "affine"): maps.maps[BLOCK]}
    row = robust.scores(subject, test, maps, chosen).iloc[0]
    v = rows[3].double().numpy()
    ours = maps.maps[BLOCK](rows[2]).double().numpy()
    how = dict(multioutput="variance_weighted")
    ordinary = np.linalg.norm(v, axis=1) <= limit[BLOCK]
    assert row["all"] == pytest.approx(r2_score(v, ours, **how), abs=1e-6)
    assert row["ordinary"] == pytest.approx(r2_score(v[ordinary], ours[ordinary], **how), abs=1e-6)
    weight = weights(v, limit[BLOCK], 2)
    top = weight @ ((v - ours) ** 2).sum(1)
    bottom = weight @ ((v - np.average(v, 0, weight)) ** 2).sum(1)
    assert row["relative"] == pytest.approx(1 - top / bottom, abs=1e-6)
    assert row["all"] == pytest.approx(regression.r2(subject, test, maps).r2[BLOCK], abs=1e-6)


@pytest.fixture
def few_rule(subject, fit_text):
    """A model in memory with a block whose FFN adds 200 medians on one position in a hundred, or
    nothing, as another feature of x says."""
    x, y = capture(subject, fit_text, [BLOCK])[BLOCK]
    cut, size = x[..., 0].quantile(0.99), 200 * y.norm(dim=-1).median()

    def louder(_, args, y):
        x = args[0]
        return y + ((x[..., :1] > cut) & (x[..., 1:2] > 0)) * size

    handle = subject.blocks[BLOCK].ffn.register_forward_hook(louder)
    yield replace(subject, loaded_as=None)
    handle.remove()


def test_without_massive_positions_the_others_are_fitted(few_rule, fit_text, test):
    """The planted few take the least-squares map away from all other positions; left out of the
    fit, or weighed down, they do not. Leaving them to the FFN alone mends nothing."""
    fit = regression.fit(few_rule, fit_text)
    assert BLOCK in fit.massive_blocks
    without = robust.fitted_without(few_rule, fit)
    maps = {
        (BLOCK, "all"): fit.maps[BLOCK],
        (BLOCK, "without"): without[BLOCK],
        (BLOCK, "weighted"): robust.weighted(few_rule, fit, 2)[BLOCK],
        (BLOCK, "stay"): robust.massive_stay(few_rule, fit)[BLOCK],
    }
    ordinary = robust.scores(few_rule, test, fit, maps).set_index("map").ordinary
    assert ordinary["all"] == pytest.approx(ordinary["stay"], abs=1e-6)
    assert ordinary["all"] < 0 < min(ordinary["without"], ordinary["weighted"])
    # One map fits as the kept one's weights say, over a limit that is lower and finds more.
    np.testing.assert_array_equal(without[BLOCK].weight, fit.massive_kept[BLOCK].weight)
    x, y = (part.flatten(0, 1) for part in capture(few_rule, fit_text, [BLOCK])[BLOCK])
    norm = y.norm(dim=-1)
    low = robust.fitted_without(few_rule, fit, over=10)[BLOCK]
    few = norm <= 10 * norm.median()
    np.testing.assert_allclose(low.weight, Moments.of(x[few], y[few]).fit().weight, atol=1e-3)


def test_where_the_ffn_stays_the_map_is_not_asked(few_rule, fit_text, test):
    fit = regression.fit(few_rule, fit_text)
    stay = robust.massive_stay(few_rule, fit)[BLOCK]
    x, _ = capture(few_rule, test, [BLOCK])[BLOCK]
    stays = stay.massive(x)
    assert 0 < stays.sum() < stays.numel() / 5
    np.testing.assert_array_equal(stay.weight, fit.maps[BLOCK].weight)
    losses = sweep(few_rule, test, {(BLOCK, "stay"): stay, (BLOCK, "all"): fit.maps[BLOCK]})
    assert losses.nats("stay")[BLOCK] != losses.nats("all")[BLOCK]


def test_maps_of_a_model_that_changed_in_between_are_refused(subject, fit_text):
    """Their words are those of the model for which they were asked."""
    of_blocks = as_subject(copy.deepcopy(subject.model), subject.tokenizer, "own")
    maps = robust.weighted(of_blocks, regression.fit(of_blocks, fit_text), 2)
    with torch.no_grad():
        next(of_blocks.model.parameters()).mul_(1.1)
    with pytest.raises(InputError, match="the model changed between"):
        maps[BLOCK](torch.zeros(1, subject.d_model))
