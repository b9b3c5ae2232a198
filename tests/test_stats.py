"""The interval and its kin."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from lib.errors import InputError
from lib.paper import by_block
from lib.paper import numbers as published
from lib.stats import (
    Interval,
    contrast_of_correlations,
    contrast_of_seeds,
    explained,
    interval,
    intervals,
    median_ratio,
    order_by,
    over_seeds,
    rank_correlation,
    rank_correlations,
    spread,
    sums,
    welch,
)


def mean_of(values):
    return lambda w: w @ values / w.sum(1)


def test_the_interval_of_a_mean_covers():
    rng, hits, runs = np.random.default_rng(0), 0, 300
    for _ in range(runs):
        values = rng.normal(3, 2, 12)
        found = interval(mean_of(values), np.arange(12), draws=300)
        assert found.value == pytest.approx(values.mean())
        hits += found.low < 3 < found.high
    assert 0.91 < hits / runs < 0.99


def test_the_interval_is_the_textbooks_for_a_mean():
    values = np.random.default_rng(1).normal(size=200)
    found = interval(mean_of(values), np.arange(200), draws=4000)
    oracle = scipy.stats.t.interval(0.95, 199, values.mean(), scipy.stats.sem(values))
    np.testing.assert_allclose([found.low, found.high], oracle, atol=0.01)


def test_the_interval_draws_documents_not_rows():
    values = np.repeat(np.random.default_rng(2).normal(size=12), 50)
    document = np.repeat(np.arange(12), 50)
    rows, once = interval(mean_of(values), document), interval(mean_of(values[::50]), np.arange(12))
    assert rows == pytest.approx(once)


def test_no_interval_from_few_documents_or_no_variation():
    for n in (5, 20):
        found = interval(mean_of(np.ones(n)), np.arange(n))
        assert found.value == 1 and np.isnan([found.low, found.high]).all()


def test_sums_and_intervals():
    rng, document = np.random.default_rng(3), np.array([4, 4, 9, 2, 2, 2])
    values = rng.normal(size=(2, 6, 3))
    oracle = [[v[document == d].sum() for d in (2, 4, 9)] for v in values]
    np.testing.assert_allclose(sums(values, document), oracle)
    top, bottom = rng.random((3, 10)), 1 + rng.random((3, 10))
    joint, single = (intervals(top, bottom, joint=j) for j in (True, False))
    for a, b, t, n in zip(joint, single, top, bottom):
        assert a.value == b.value == pytest.approx(t.sum() / n.sum())
        assert a.low < b.low < b.high < a.high
    assert Interval(0.0, -1.0, 1.0).map(np.exp) == (1, np.exp(-1), np.exp(1))


def test_what_is_explained_in_the_median_block_is_by_hand():
    rng = np.random.default_rng(0)
    index = pd.MultiIndex.from_product([range(3), range(8)], names=["block", "document"])
    table = pd.DataFrame({"error": rng.random(24), "spread": 1 + rng.random(24)}, index)
    table = table.reset_index()
    found, total = explained(table), table.groupby("block")[["error", "spread"]].sum()
    assert found.value == pytest.approx(np.median(1 - total.error / total.spread))
    assert found.low < found.value < found.high


def test_spread():
    assert spread(6, None) == spread(6, 9) == [0, 1, 2, 3, 4, 5]
    assert spread(30, 4) == [0, 10, 19, 29]


def test_over_seeds_is_students():
    found, values = over_seeds([1.0, 2.0, 4.0]), [1.0, 2.0, 4.0]
    oracle = scipy.stats.ttest_1samp(values, 0).confidence_interval()
    assert (found.low, found.high) == pytest.approx((oracle.low, oracle.high))
    assert np.isnan(over_seeds([1.0]).low) and np.isnan(over_seeds([2.0, 2.0]).low)


def test_rank_correlation_is_told_from_zero_at_036():
    x = np.arange(30)
    y = np.random.default_rng(4).permutation(30)
    found = rank_correlation(x, y)
    assert found.value == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    margin = np.tanh(1.96 * np.sqrt(1.06 / 27))
    assert margin == pytest.approx(0.37, abs=0.01)
    assert found.low < found.value < found.high
    assert rank_correlation(x, x).low > 0.99 and np.isnan(rank_correlation(x[:3], y[:3]).low)


def test_published_numbers_are_filtered():
    rows = published("whipp")
    chosen = published("whipp", subject="gpt2")
    by_setting = published("whipp", table="repository", metric="r2", experiment="depth-survey")
    assert len(by_setting) == 72 and set(by_setting.candidate) == {"linear", "poly-unfrozen"}
    assert 0 < len(chosen) < len(rows) and {*chosen.subject} == {"gpt2"}
    assert rows.value.dtype == float


def test_printed_values_by_block():
    r2 = by_block("whipp", "r2", "depth-survey")
    assert r2.shape == (12, 3) and r2["gpt2"][2] == pytest.approx(0.996, abs=1e-3)
    gain = by_block("whipp", "gain", "residual-probe", candidate="poly-frozen")
    assert gain.shape == (12, 3) and gain.max().max() == pytest.approx(0.126, abs=1e-3)


def test_the_median_of_ratios():
    rng = np.random.default_rng(0)
    top, bottom, w = rng.random((5, 8)), 1 + rng.random((5, 8)), rng.integers(0, 3, (4, 8))
    by_hand = [np.median([(row @ t) / (row @ b) for t, b in zip(top, bottom)]) for row in w]
    np.testing.assert_allclose(median_ratio(top, bottom)(w), by_hand)
    same = np.tile(bottom[0], (5, 1))
    np.testing.assert_allclose(median_ratio(top, bottom[0])(w), median_ratio(top, same)(w))


def test_an_interval_ends_at_what_is_possible():
    rng = np.random.default_rng(0)
    document, hit = np.repeat(np.arange(8), 2), rng.random(16) > 0.1

    def share(w):
        return (w @ hit) / w.sum(1)

    free, cut = interval(share, document), interval(share, document, possible=(0.0, 1.0))
    assert free.high > 1 == cut.high and cut.low == free.low and cut.value == free.value


def test_correlations_are_scipys_and_their_difference_is_paired():
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=40), rng.normal(size=40)
    y = x + 0.3 * noise
    found = contrast_of_correlations((x, y), (x, noise))
    assert found.value.value == pytest.approx(scipy.stats.pearsonr(x, y).statistic)
    ends = scipy.stats.pearsonr(x, y).confidence_interval()
    assert (found.value.low, found.value.high) == pytest.approx((ends.low, ends.high), abs=1e-3)
    assert found.difference.low > 0
    assert found.difference.value == pytest.approx(found.value.value - found.against.value)
    by_rank = contrast_of_correlations((x, np.exp(5 * y)), (x, y), ranks=True)
    assert by_rank.difference.value == pytest.approx(0, abs=1e-12)


def test_a_pair_of_seeds_is_judged_by_its_differences():
    here, control = [1.0, 2.0, 4.0], [0.5, 1.4, 3.6]
    pair = contrast_of_seeds(here, control)
    assert pair.value == over_seeds(here) and pair.against == over_seeds(control)
    assert pair.difference == pytest.approx(over_seeds([0.5, 0.6, 0.4]))


def test_a_difference_of_independent_seeds_is_scipys(generator):
    a, b = np.random.default_rng(0).normal(1, 2, 12), np.random.default_rng(1).normal(0, 1, 7)
    found = welch(a, b)
    by_hand = np.sqrt(a.var(ddof=1) / 12 + b.var(ddof=1) / 7)  # the standard error
    df = by_hand**4 / ((a.var(ddof=1) / 12) ** 2 / 11 + (b.var(ddof=1) / 7) ** 2 / 6)
    half = scipy.stats.t.ppf(0.975, df) * by_hand
    value = a.mean() - b.mean()
    assert found == pytest.approx((value, value - half, value + half))
    assert np.isnan(welch([1.0], [2.0]).low)


def test_ranks_of_a_column_that_lacks_values_are_refused():
    table = pd.DataFrame({"a": [1.0, 2, 3, 4], "b": [1.0, np.nan, 2, 3], "cost": [1.0, 2, 4, 3]})
    with pytest.raises(InputError, match=r"column 'b' has no value for row 1: give it"):
        rank_correlations(table, "cost", "a")
    found = rank_correlations(table.drop(columns="b").assign(same=table.cost), "cost", "a")
    assert (found.n == 4).all() and found.rho["same"] == pytest.approx(1)
    assert np.isnan(found.low["same"]) and np.isfinite(found.low["a"])


def test_an_order_by_a_signal_is_scipys_for_the_weights_drawn(generator):
    rng = np.random.default_rng(0)
    top, bottom, signal = rng.normal(size=(9, 7)), rng.integers(5, 9, 7), rng.normal(size=9)
    weights = rng.integers(0, 3, (4, 7))
    found = order_by(signal, top, bottom)(weights)
    costs = (weights @ top.T) / (weights @ bottom)[:, None]
    assert found == pytest.approx([scipy.stats.spearmanr(signal, of).statistic for of in costs])
