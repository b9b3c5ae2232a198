"""Intervals and shares of variance against known cases, regressions and simulations."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from lib.base import InputError
from lib.stats import (
    bootstrap,
    fold_mean,
    pairwise,
    pearson,
    spearman,
    variance_shares,
)
from lib.stats.intervals import clustered, mean_interval


@given(st.lists(st.integers(2, 4), min_size=2, max_size=3), st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_variance_shares_are_those_of_nested_regressions(sizes, seed):
    """Main effects and the sum against least squares on indicator variables."""
    factors = list("abc")[: len(sizes)]
    grid = pd.MultiIndex.from_product([range(n) for n in sizes], names=factors).to_frame(
        index=False
    )
    grid["r2"] = np.random.default_rng(seed).normal(size=len(grid))
    shares = variance_shares(grid, factors).set_index("term").share
    assert shares.sum() == pytest.approx(1)
    y = grid.r2 - grid.r2.mean()
    for factor in factors:
        design = pd.get_dummies(grid[factor]).to_numpy(float)
        fitted = design @ np.linalg.lstsq(design, y, rcond=None)[0]
        assert shares[factor] == pytest.approx((fitted**2).sum() / (y**2).sum())


def test_pairs_of_runs():
    table = pd.DataFrame(
        [
            {"family": f, "seed": s, "block": b, "r2": b * (1 if f == "a" else -1) + 0.1 * s}
            for f in "ab"
            for s in (1, 2)
            for b in range(4)
        ]
    )
    found = pairwise(table, ["family", "seed"], over="block")
    assert len(found) == 6
    twins, strangers = (found[(found.family == f)] for f in ("same", "other"))
    assert twins.pearson.tolist() == pytest.approx(
        [1, 1]
    ) and twins.mean_difference.tolist() == pytest.approx([0.1, 0.1])
    assert strangers.pearson.tolist() == pytest.approx([-1] * 4) and strangers[
        strangers.seed == "same"
    ].mean_difference.iloc[0] == pytest.approx(3)


def test_variance_shares_of_a_planted_effect_and_bad_designs():
    grid = pd.MultiIndex.from_product(
        [range(3), range(2), range(4)], names=["family", "seed", "block"]
    ).to_frame(index=False)
    grid["r2"] = grid.family * (grid.block == 1)
    shares = variance_shares(grid, ["family", "seed", "block"]).set_index("term").share
    assert shares[["family", "block", "family:block"]].sum() == pytest.approx(1)
    with pytest.raises(InputError, match="not balanced"):
        variance_shares(grid.iloc[1:], ["family", "seed", "block"])
    with pytest.raises(InputError, match="does not vary"):
        variance_shares(grid.assign(r2=1.0), ["family", "seed", "block"])


def test_intervals_against_known_cases():
    x = np.random.default_rng(0).normal(size=400)
    mean = bootstrap(np.mean, x)
    assert mean.value == pytest.approx(x.mean()) and mean.high - mean.low == pytest.approx(
        2 * 1.96 / 20, rel=0.15
    )
    assert bootstrap(pearson, x, 2 * x, paired=True).low == pytest.approx(1)
    assert bootstrap(spearman, x, np.exp(x), paired=True).low == pytest.approx(1)
    assert f"{mean:.1f}".startswith(f"{x.mean():.1f} [")


def test_mean_interval_is_students_and_allows_for_shared_training_rows():
    values = np.random.default_rng(0).normal(size=(5, 3))
    plain, shared = (mean_interval(pd.DataFrame(values), 0.9, share) for share in (0.0, 0.25))
    low, high = scipy_stats.t.interval(0.9, 4, values.mean(0), scipy_stats.sem(values))
    assert np.allclose(plain["mean"], values.mean(0))
    assert np.allclose(plain[["low", "high"]], np.stack([low, high], 1))
    wider = (shared.high - shared.low) / (plain.high - plain.low)
    assert np.allclose(wider, ((1 / 5 + 1 / 4) / (1 / 5)) ** 0.5)
    for k in range(3):  # whose coverage tests/test_curve.py simulates
        one = fold_mean(values[:, k], 0.25, 0.9)
        assert [one.low, one.high] == pytest.approx(shared.loc[k, ["low", "high"]].tolist())
    alone = mean_interval(pd.Series([1.0])).iloc[0]
    assert (alone["mean"], alone.low, alone.high) == (1, -np.inf, np.inf)


def test_clustered_is_the_sandwich_by_brute_force():
    rng = np.random.default_rng(1)
    clusters = rng.permutation(np.repeat([4, 9, 2, 7, 11], [1, 2, 3, 5, 9]))
    values = rng.normal(size=20) + clusters
    found, residual = clustered(values, clusters, 0.9), values - values.mean()
    meat = sum(
        residual[i] * residual[j]
        for i in range(20)
        for j in range(20)
        if clusters[i] == clusters[j]
    )
    half = scipy_stats.t.ppf(0.95, 4) * np.sqrt(5 / 4 * meat) / 20
    assert [found.value, found.low, found.high] == pytest.approx(
        [values.mean(), values.mean() - half, values.mean() + half]
    )


def test_clustered_is_students_interval_of_draws_and_of_cluster_means():
    values = np.random.default_rng(2).normal(size=24)
    of_draws = scipy_stats.t.interval(0.95, 23, values.mean(), scipy_stats.sem(values))
    found = clustered(values, np.arange(24)[::-1])
    assert (found.low, found.high) == pytest.approx(of_draws)
    means = values.reshape(6, 4).mean(1)
    of_means = scipy_stats.t.interval(0.95, 5, means.mean(), scipy_stats.sem(means))
    found = clustered(values, np.repeat(np.arange(6), 4))
    assert (found.low, found.high) == pytest.approx(of_means)
    one = clustered(values, np.zeros(24))
    assert np.isnan([one.low, one.high]).all()


def test_clustered_covers_where_windows_of_one_document_are_alike():
    """Documents of unequal length, each with an effect as large as the windows' own spread."""
    rng, covered = np.random.default_rng(3), np.zeros(2)
    for _ in range(500):
        document = np.repeat(np.arange(20), rng.integers(1, 12, size=20))
        values = rng.normal(size=20)[document] + rng.normal(size=len(document))
        for i, clusters in enumerate((np.arange(len(values)), document)):
            found = clustered(values, clusters)
            covered[i] += found.low <= 0 <= found.high
    by_window, by_document = covered / 500
    assert by_document >= 0.9 and by_window < 0.75
