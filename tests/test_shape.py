"""Profiles of R² over depth, token budgets and conditioning: a true world, a false one, noise."""

import numpy as np
import pandas as pd
import pytest
import torch

from lib import linear
from lib.linear.moments import Moments
from lib.linear.shape import NOTHING
from lib.stats import Interval, jackknife
from lib.stats.ratios import absolute, both, influence, transformed
from lib.stats.rules import any_above

RNG = np.random.default_rng(7)
LLAMA = [0.96, 0.47, 0.59, 0.98, 0.39, 0.37, 0.42, 0.44, 0.50, 0.50, 0.56, 0.90]
RAMP = list(np.linspace(0.2, 0.95, 12))
VEE = [0.9, 0.7, 0.5, 0.3, 0.5, 0.7, 0.9]
FLAT = [0.6] * 12


def folds(profile, noise=0.004, n_folds=5, rng=RNG) -> pd.DataFrame:
    """A table of folds: the profile with independent noise on each fold."""
    r2 = np.asarray(profile) + noise * rng.standard_normal((n_folds, len(profile)))
    index = np.indices(r2.shape)
    return pd.DataFrame({"fold": index[0].ravel(), "block": index[1].ravel(), "r2": r2.ravel()})


def test_the_range_is_read_where_it_was_not_chosen():
    assert linear.fair_range(folds(LLAMA)).low > 0.5
    found = [linear.fair_range(folds(FLAT, 0.05)) for _ in range(60)]
    # Chosen and read on the same folds, twelve equal blocks would range over more than 0.07.
    assert abs(np.mean([f.value for f in found])) < 0.02
    edge = [linear.fair_range(folds([0.6] * 5 + [0.87], 0.05)) for _ in range(60)]
    assert np.mean([f.low > 0.27 or f.high < 0.27 for f in edge]) <= 0.1


def test_a_jagged_profile_turns_and_a_ramp_does_not():
    def turns(table):
        return linear.turns(linear.step_intervals(table))

    jagged = turns(folds(LLAMA))
    assert jagged.low >= 2 and jagged.low <= jagged.value <= jagged.high
    ramp, vee = turns(folds(RAMP, 0.001)), turns(folds(VEE))
    assert (ramp.low, ramp.high) == (0, 0) and (vee.low, vee.high) == (1, 1)
    assert np.mean([turns(folds(FLAT, 0.1)).low > 1.5 for _ in range(30)]) < 0.1
    assert np.isnan(turns(folds([0.2, 0.9, 0.2])).low)  # two steps turn once at most


def test_a_step_that_may_point_either_way_is_counted_both_ways():
    sure = {"a": Interval(0.2, 0.1, 0.3), "c": Interval(0.2, 0.1, 0.3)}
    found = linear.turns({"a": sure["a"], "b": Interval(0.0, -0.1, 0.1), "c": sure["c"]})
    assert (found.value, found.low, found.high) == (0, 0, 2)
    small = linear.turns({"a": sure["a"], "b": Interval(-0.01, -0.02, 0.0), "c": sure["c"]})
    assert (small.low, small.high) == (0, 0)


def test_rises_and_falls():
    assert linear.rise_and_fall(folds(LLAMA)).low > 0.4
    for profile in (RAMP, RAMP[::-1]):
        assert linear.rise_and_fall(folds(profile)).high < 0.05
    noise = [linear.rise_and_fall(folds(FLAT, 0.05)) for _ in range(30)]
    assert np.mean([n.low > 0 for n in noise]) < 0.1
    assert np.isnan(linear.rise_and_fall(folds([0.1, 0.9])).value)


def test_a_trend_with_depth_is_told_only_where_folds_agree():
    rng = np.random.default_rng(3)
    free = rng.permutation(np.linspace(0.1, 0.9, 20))
    trend = linear.depth_trend(folds(free, 0.02))
    assert -0.75 < trend.low < trend.high < 0.75 and linear.folds_agree(folds(free, 0.02)) > 0.9
    assert linear.depth_trend(folds(np.linspace(0.1, 0.9, 20), 0.05)).low > 0.75
    assert linear.folds_agree(folds(FLAT, 0.05)) < 0.5
    assert np.isnan(linear.depth_trend(folds([0.1, 0.2, 0.3])).value)


def test_neighbours_on_either_side_of_two_thresholds():
    def verdict(profile, noise=0.001):
        each = linear.block_intervals(folds(profile, noise))
        return any_above(linear.straddling(each, 0.99, 0.3), 0)

    assert verdict([0.6, 0.996, 0.22, 0.5]) == "reproduced"
    assert verdict([0.996, 0.6, 0.22, 0.5]) == "contradicted"  # both there, but not side by side
    assert verdict([0.6, 0.99, 0.3, 0.5], 0.05) == "inconclusive"
    assert linear.straddling(linear.block_intervals(folds([0.5])), 0.99, 0.3) == {}
    assert linear.step_intervals(folds([0.5])) == {}


def test_the_printed_profile_again():
    each = linear.block_intervals(folds(LLAMA))
    printed = dict(enumerate(LLAMA))
    assert linear.largest_miss(each, printed).high < 0.1
    assert linear.largest_miss(each, printed | {3: 0.5}).low > 0.3
    assert linear.largest_miss(each, {99: 0.5}) is NOTHING
    assert linear.ends_less_middle(folds(LLAMA)).value == pytest.approx(0.525, abs=0.02)


def curves(rise, noise=0.002, budgets=(7_680, 15_360, 30_720, 61_440), n_blocks=6):
    """R² = 0.7 - rise · 30,720 / budget on five folds, four fifths of a budget being trained on."""
    rows = [
        {
            "fold": k,
            "block": b,
            "budget": j,
            "n_tokens": 0.8 * n,
            "r2": 0.7 + 0.01 * k - rise * 30_720 / n + noise * RNG.standard_normal(),
        }
        for k in range(5)
        for b in range(n_blocks)
        for j, n in enumerate(budgets)
    ]
    return pd.DataFrame(rows)


def test_the_doubling_of_the_paper_and_what_is_left_to_the_limit():
    grows, still = curves(0.06), curves(0.0)
    assert linear.doubled_to(grows).low > 0.05 and linear.doubled_to(grows).high < 0.07
    assert -0.024 < linear.doubled_to(still).low < 0 < linear.doubled_to(still).high < 0.024
    assert all(i.low > 0.024 for i in linear.left_to_limit(grows).values())
    noise = [any_above(linear.left_to_limit(curves(0.0)), 0.024) for _ in range(10)]
    assert "reproduced" not in noise
    exact = linear.left_to_limit(curves(0.06, 0.0))
    assert all(i.value == pytest.approx(0.06) for i in exact.values())


def test_a_budget_that_a_profile_does_not_reach_is_told():
    assert linear.has_budget(curves(0.0), 30_000)
    assert not linear.has_budget(curves(0.0, budgets=(2_560, 5_120)), 30_000)
    assert not linear.has_budget(curves(0.0, budgets=(30_720,)), 30_000)
    nothing = pd.DataFrame()
    assert not linear.has_budget(nothing, 30_000) and np.isnan(linear.doubled_to(nothing).value)
    assert linear.left_to_limit(nothing) == {}


def inputs(scale, n=600, mixed=False):
    """Moments of two blocks on five folds of rows: inputs of the given scale, rotated or not."""
    d = len(scale)
    turn = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64))[0] if mixed else torch.eye(d)
    found = []
    for _ in range(5):
        x = torch.randn(n, d, dtype=torch.float64) * torch.as_tensor(scale) @ turn.double()
        x = torch.cat([x, torch.ones(n, 1)], 1)  # LayerNorm's constant direction
        y = torch.randn(n, 8, dtype=torch.float64) * torch.tensor([10.0] + [1.0] * 7)
        found.append({0: Moments.of(x, y), 1: Moments.of(x, torch.randn(n, 8))})
    return linear.conditioning(found)


def test_conditioning_leaves_the_constant_direction_out_and_knows_its_cause():
    torch.manual_seed(0)
    scale = np.array([300.0] + [1.0] * 9)
    features, directions = inputs(scale), inputs(scale, mixed=True)
    for table in (features, directions):
        condition = linear.median_condition(table)
        assert condition.low > 5_500 and condition.low < condition.value < condition.high
    assert linear.decades_removed(features).low > 0.5  # one large feature, and it is scaled down
    assert linear.decades_removed(directions).high < 0.5  # a direction of many features is not
    assert linear.median_condition(inputs(np.ones(10))).high < 2.5
    # One nearly dead feature is a direction like any other, and alone makes the inputs
    # ill-conditioned.
    dead = inputs(np.array([1e-3] + [1.0] * 9))
    assert linear.median_condition(dead).low > 5_500
    assert 10 ** dead.log10_condition_but_one.max() < 2.5
    assert linear.decades_removed(dead).low > 0.5


def test_an_output_feature_that_stands_out():
    torch.manual_seed(1)
    ratio = linear.variance_ratios(inputs(np.ones(6)))
    assert ratio[0].low > 10 > ratio[1].high and ratio[0].value == pytest.approx(100, rel=0.2)


def test_ratios_of_sums_and_jackknives():
    whole, part = RNG.uniform(1, 3, 400), RNG.uniform(0, 1, 400)
    assert influence(part, whole).mean() == pytest.approx(part.sum() / whole.sum())
    # The jackknife of a mean is the t-interval of the mean.
    values = RNG.standard_normal(9)
    found = jackknife(values.mean(), [np.delete(values, k).mean() for k in range(9)])
    half = 2.306 * values.std(ddof=1) / 3
    assert found.high - found.value == pytest.approx(half, rel=1e-3)
    for without in ([1.0], [1.0, 1.0], [1.0, np.nan]):
        assert np.isnan(jackknife(1.0, without).low)
    assert both(Interval(1, 0.7, 1.3), Interval(9, 8.6, 9.4)).high == pytest.approx(1.5)
    assert absolute({"a": Interval(-0.2, -0.3, 0.1)})["a"] == Interval(0.2, 0.0, 0.3)
    assert absolute({"a": Interval(-0.2, -0.3, -0.1)})["a"] == Interval(0.2, 0.1, 0.3)
    assert transformed(Interval(2, 1, 3), lambda v: 10**v) == Interval(100, 10, 1000)
