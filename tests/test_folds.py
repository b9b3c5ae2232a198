"""Intervals over folds: against closed forms, and how often they hold the truth."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from lib.base import InputError
from lib.stats import (
    fold_mean,
    jackknifed,
    judge,
    last_less_mean,
    rank_correlation,
    spread_ratio,
    std_intervals,
)


def test_a_jackknifed_mean_is_the_mean_over_folds():
    scores = np.random.default_rng(0).normal(0.5, 0.1, (5, 3))
    found = jackknifed({"a": scores}, lambda m: m["a"][1])
    expected = fold_mean(scores[:, 1])
    assert (found.value, found.low, found.high) == pytest.approx(
        (expected.value, expected.low, expected.high)
    )


def test_texts_add_in_squares_and_folds_of_one_text_are_paired():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 2)), rng.normal(size=(4, 2))
    found = jackknifed({"a": a, "b": b}, lambda m: m["a"][0] - m["b"][0])
    halves = [(i.high - i.low) / 2 for i in (fold_mean(s[:, 0], 1 / (len(s) - 1)) for s in (a, b))]
    assert found.high - found.value == pytest.approx(np.hypot(*halves))
    shared = a[:, :1] + np.array([0.0, 1.0])  # what both columns share cancels
    assert np.isnan(jackknifed({"a": shared}, lambda m: m["a"][1] - m["a"][0]).low)


def test_a_jackknifed_ratio_covers_the_truth():
    """A ratio of two quantities, five folds, a hundred and fifty worlds."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(150):
        # What folds of one text share is in no spread over them: sd of half of what is.
        scores = np.array([2.0, 1.0]) * np.exp(
            0.05 * (rng.normal(size=(5, 2)) + 0.5 * rng.normal(size=2))
        )
        found = jackknifed({"a": scores}, lambda m: np.log(m["a"][0] / m["a"][1]))
        covered += found.low <= np.log(2) <= found.high
    assert covered >= 0.92 * 150


def test_one_fold_decides_nothing():
    assert np.isnan(jackknifed({"a": np.ones((1, 3))}, lambda m: m["a"].mean()).low)
    assert np.isnan(std_intervals(pd.DataFrame([[0.1, 0.2]]))[0].low)
    with pytest.raises(InputError, match="1 fold has no mean"):
        last_less_mean(pd.DataFrame([[0.1, 0.2]]))


@pytest.mark.parametrize(
    "std, expected", [(0.004, "reproduced"), (1.0, "contradicted"), (0.08, "inconclusive")]
)
def test_the_std_over_folds_is_judged_with_its_uncertainty(std, expected):
    table = pd.DataFrame(np.random.default_rng(0).normal(0.5, std, (5, 6)))
    assert judge("whipp-5.7-fold-spread-max", std_intervals(table)).verdict == expected


def test_std_intervals_hold_all_at_once():
    rng, covered = np.random.default_rng(0), 0
    for _ in range(200):
        found = std_intervals(pd.DataFrame(rng.normal(0, 0.1, (5, 8))))
        covered += all(i.low <= 0.1 <= i.high for i in found.values())
    assert covered >= 0.92 * 200


@pytest.mark.parametrize(
    "shift, std, expected",
    [(0.0, 0.002, "reproduced"), (3.0, 0.002, "contradicted"), (0.0, 0.1, "inconclusive")],
)
def test_a_last_fold_that_stands_apart_is_seen(shift, std, expected):
    table = pd.DataFrame(np.random.default_rng(0).normal(0.5, std, (40, 6)))
    table.iloc[-1, 2] += shift
    assert judge("whipp-5.7-tail-within-folds", last_less_mean(table)).verdict == expected


def test_the_last_fold_less_the_mean_has_its_closed_form():
    table = pd.DataFrame({"x": [0.1, 0.2, 0.3, 0.2, 0.5]})
    found = last_less_mean(table)["x"]
    half = scipy_stats.t.ppf(0.975, 4) * table.x.std() * 0.8**0.5
    assert found.value == pytest.approx(0.24)
    assert (found.low, found.high) == pytest.approx((max(0, 0.24 - half), 0.24 + half))


@pytest.mark.parametrize(
    "seeds, expected", [(0.001, "reproduced"), (0.02, "contradicted"), (0.0021, "inconclusive")]
)
def test_folds_over_seeds(seeds, expected):
    rng = np.random.default_rng(0)
    over_folds = rng.normal(0, 0.025, (5, 30)).std(0, ddof=1)
    over_seeds = rng.normal(0, seeds, (3, 30)).std(0, ddof=1)
    found = spread_ratio(over_folds, over_seeds)
    assert judge("whipp-5.7-fold-over-seed", found).verdict == expected
    assert np.isnan(spread_ratio([0.1], [0.1]).low) and np.isnan(spread_ratio([1, 1], [0, 0]).low)
    with pytest.raises(InputError, match="one a block for each"):
        spread_ratio([0.1], [0.1, 0.2])


def test_tight_where_linear_needs_the_order():
    rng, r2 = np.random.default_rng(0), np.linspace(0.2, 0.98, 30)
    judged = [
        judge("whipp-5.7-tight-where-linear", rank_correlation(r2, std)).verdict
        for std in (0.1 * (1 - r2), 0.1 * r2, rng.permutation(r2))
    ]
    assert judged == ["reproduced", "contradicted", "inconclusive"]
