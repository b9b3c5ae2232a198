"""Every rule on a world where its sentence is true, on one where it is false, and on noise.

The worlds are simulated from raw data, through the intervals that a notebook would use: tokens in
documents whose effect all blocks share, seeds, and blocks as units.
"""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.base import InputError
from lib.stats import (
    Interval,
    concentrated,
    guarded,
    joint_level,
    jointly,
    largest,
    over_seeds,
    rank_correlation,
    smallest,
)
from lib.stats.rank import visible
from lib.stats.rules import DECIDE

WORLDS = 100
BLOCKS = 30


def by_document(rng, truth, documents=12):
    """A table [document, block] of means over 20 tokens each; all blocks feel their document."""
    truth = np.atleast_1d(np.asarray(truth, float))
    shared = 0.05 * rng.standard_normal((documents, 1))
    own = 0.03 * rng.standard_normal((documents, len(truth)))
    tokens = 0.2 * rng.standard_normal((documents, len(truth), 20))
    return pd.DataFrame(truth + shared + own + tokens.mean(-1))


def one(truth, documents=12):
    """An interval over documents of one quantity."""
    return lambda rng: over_seeds(by_document(rng, truth, documents)[0])


def seeds(truth):
    """An interval over three seeds."""
    return lambda rng: over_seeds(truth + 0.02 * rng.standard_normal(3))


def units(truth):
    """Joint intervals of all blocks over documents."""
    return lambda rng: jointly(by_document(rng, truth))


def profile(rho, n=BLOCKS):
    """Two quantities of n blocks, each measured on documents, whose truths correlate by `rho`."""

    def measure(rng):
        a = rng.standard_normal(n)
        b = rho * a + np.sqrt(1 - rho**2) * rng.standard_normal(n)
        a, b = (by_document(rng, side).mean() for side in (a, b))
        return rank_correlation(a, b, 400, int(rng.integers(2**31)))

    return measure


def beyond(direct, n=BLOCKS):
    """Two quantities that both follow a third one, and `direct` to each other beyond that."""

    def measure(rng):
        third, a, b = rng.standard_normal((3, n))
        b = b + direct * a
        return rank_correlation(third + a, third + b, 400, int(rng.integers(2**31)), third)

    return measure


def pooled(rho, n=15):
    """The blocks of two models: what differs between the models is no correlation of blocks."""

    def measure(rng):
        a = rng.standard_normal((2, n))
        b = rho * a + np.sqrt(1 - rho**2) * rng.standard_normal((2, n))
        model = np.repeat([0, 1], n)
        a, b = a.ravel() + 3 * model, b.ravel() + 3 * model
        return rank_correlation(a, b, 400, int(rng.integers(2**31)), groups=model)

    return measure


def savings(of_dear, of_others):
    """The excess of the dearest blocks' share of all savings; `of_…`: mean part of the typical
    cost that is saved there."""

    def measure(rng):
        cost = rng.lognormal(0, 0.5, BLOCKS)
        part = np.where(np.argsort(np.argsort(-cost)) < BLOCKS // 6, of_dear, of_others)
        saved = part + 0.1 * rng.standard_normal(BLOCKS)
        return concentrated(cost, cost - saved, 400, int(rng.integers(2**31))).excess

    return measure


def lone(usual, other):
    """The truth of all blocks, one of which is `other`."""
    return np.r_[other, np.full(BLOCKS - 1, usual)]


# rule, its threshold, and the worlds: true, false, noise (nothing to be seen, or the threshold)
MIDDLE, ZERO = np.full(BLOCKS, 0.5), np.zeros(BLOCKS)
CASES = {
    "above, documents": ("above", [0.5], one(0.65), one(0.35), one(0.5)),
    "above, few documents": ("above", [0.5], one(0.85, 3), one(0.15, 3), one(0.5, 3)),
    "above, seeds": ("above", [0.5], seeds(0.7), seeds(0.3), seeds(0.5)),
    "above, savings": ("above", [0], savings(0.9, 0.1), savings(0, 0.5), savings(0.2, 0.2)),
    "below": ("below", [0.5], one(0.35), one(0.65), one(0.5)),
    "within": ("within", [-0.1, 0.1], one(0), one(0.25), one(0.1)),
    "within, no information": ("within", [-0.1, 0.1], one(0), one(0.25), one(0.08, 2)),
    "equal": ("equal", [0.7, 0.1], one(0.7), one(0.45), one(0.6)),
    "equal, units": ("equal", [0, 0.2], units(ZERO), units(lone(0, 0.5)), units(lone(0, 0.2))),
    "any_above": ("any_above", [0.5], units(lone(0.1, 0.7)), units(lone(0.3, 0.2)), units(MIDDLE)),
    "any_below": ("any_below", [0.5], units(lone(0.9, 0.3)), units(lone(0.7, 0.8)), units(MIDDLE)),
    "all_above": ("all_above", [0.5], units(lone(0.8, 0.7)), units(lone(0.8, 0.3)), units(MIDDLE)),
    "all_below": ("all_below", [0.5], units(lone(0.2, 0.3)), units(lone(0.2, 0.7)), units(MIDDLE)),
    "all_within": ("all_within", [-0.2, 0.2], units(ZERO), units(lone(0, 0.5)), units(ZERO + 0.2)),
    "rank_positive": ("rank_positive", [0], profile(0.8), profile(-0.8), profile(0)),
    "rank, few blocks": ("rank_positive", [0], profile(0.95, 8), profile(-0.95, 8), profile(0, 8)),
    "rank, partial": ("rank_positive", [0], beyond(1.5), beyond(-1.5), beyond(0)),
    "rank, two models": ("rank_positive", [0], pooled(0.7), pooled(-0.7), pooled(0)),
    "rank_negative": ("rank_negative", [0], profile(-0.8), profile(0.8), profile(0)),
    "rank_none": ("rank_none", [0.3], profile(0, 200), profile(0.9), profile(0, 12)),
}


def verdicts(rule, threshold, world, worlds=WORLDS) -> pd.Series:
    """Share of each verdict over simulated worlds."""
    rngs = (np.random.default_rng([7, i]) for i in range(worlds))
    found = pd.Series([DECIDE[rule](world(rng), *threshold) for rng in rngs])
    return found.value_counts(normalize=True).reindex(
        ["reproduced", "contradicted", "inconclusive"], fill_value=0
    )


@pytest.mark.parametrize("case", CASES)
def test_a_rule_finds_what_is_true_and_what_is_false_and_nothing_in_noise(case):
    rule, threshold, true, false, noise = CASES[case]
    assert verdicts(rule, threshold, true).reproduced >= 0.8
    found = verdicts(rule, threshold, false)
    assert found.contradicted >= 0.8 and found.reproduced <= 0.05
    assert 1 - verdicts(rule, threshold, noise).inconclusive <= 0.1


def test_every_rule_of_the_ledger_is_tried():
    from lib.stats.ledger import RULES, WORDS

    assert set(RULES) == set(DECIDE) == set(WORDS) == {rule for rule, *_ in CASES.values()}


def test_units_chosen_after_looking_need_joint_intervals():
    """Single intervals would find "some block" in noise far too often; joint ones do not."""
    assert joint_level(10) == pytest.approx(0.995) and joint_level(1) == 0.95

    def single(rng):
        table = by_document(rng, np.full(BLOCKS, 0.9))
        return {unit: over_seeds(column) for unit, column in table.items()}

    assert verdicts("any_above", [0.9], single).reproduced > 0.15
    joint = verdicts("any_above", [0.9], units(np.full(BLOCKS, 0.9)))
    assert joint.reproduced <= 0.05


@pytest.mark.parametrize(("extreme", "pick"), [(largest, np.max), (smallest, np.min)])
def test_the_interval_of_an_extreme_covers_it_after_the_choice(extreme, pick):
    covered = []
    for i in range(WORLDS):
        rng = np.random.default_rng(i)
        truth = 0.02 * rng.standard_normal(BLOCKS)
        found = extreme(jointly(by_document(rng, truth)))
        covered.append(found.low <= pick(truth) <= found.high)
    assert np.mean(covered) >= 0.95


MIRROR = {
    "reproduced": "contradicted",
    "contradicted": "reproduced",
    "inconclusive": "inconclusive",
}
ORDER = ["contradicted", "inconclusive", "reproduced"]
numbers = st.integers(-8, 8).map(lambda i: i / 4)


@st.composite
def intervals(draw):
    low, value, high = sorted(draw(st.tuples(numbers, numbers, numbers)))
    return Interval(value, low, high)


some_units = st.lists(intervals(), min_size=1, max_size=4).map(lambda u: dict(enumerate(u)))


@given(some_units, numbers, numbers)
def test_a_higher_threshold_is_harder_to_exceed(found, one, other):
    low, high = sorted((one, other))
    for rule, statistic in (("above", found[0]), ("any_above", found), ("all_above", found)):
        at_low, at_high = (ORDER.index(DECIDE[rule](statistic, t)) for t in (low, high))
        assert at_low >= at_high
        below = rule.replace("above", "below")
        at_low, at_high = (ORDER.index(DECIDE[below](statistic, t)) for t in (low, high))
        assert at_low <= at_high


@given(some_units, numbers, numbers)
def test_a_wider_margin_is_easier_to_keep(found, one, other):
    small, large = sorted((abs(one), abs(other)))
    for rule, statistic in (("within", found[0]), ("all_within", found)):
        inner, outer = (ORDER.index(DECIDE[rule](statistic, -m, m)) for m in (small, large))
        assert inner <= outer
    inner, outer = (ORDER.index(DECIDE["equal"](found[0], 0.5, t)) for t in (small, large))
    assert inner <= outer


@given(some_units, numbers)
def test_negated_data_swap_above_and_below(found, threshold):
    minus = {u: Interval(-i.value, -i.high, -i.low) for u, i in found.items()}
    for rule in ("any_above", "all_above"):
        swapped = rule.replace("above", "below")
        assert DECIDE[rule](found, threshold) == DECIDE[swapped](minus, -threshold)
    assert DECIDE["above"](found[0], threshold) == DECIDE["below"](minus[0], -threshold)
    assert DECIDE["above"](found[0], threshold) == MIRROR[DECIDE["below"](found[0], threshold)]
    for exact in (True, False):
        above = DECIDE["above"](found[0].value, threshold, exact=exact)
        assert above == DECIDE["below"](-found[0].value, -threshold, exact=exact)


@given(some_units, numbers, numbers, numbers)
def test_a_wider_interval_never_decides_what_was_open(found, less, more, threshold):
    wide = {u: Interval(i.value, i.low - abs(less), i.high + abs(more)) for u, i in found.items()}
    margin = (min(threshold, less), max(threshold, less) + 1)
    for rule in ("above", "below", "within", "equal"):
        limits = margin if rule in ("within", "equal") else (threshold,)
        before, after = DECIDE[rule](found[0], *limits), DECIDE[rule](wide[0], *limits)
        assert after in (before, "inconclusive")
    for rule in ("any_above", "any_below", "all_above", "all_below", "all_within"):
        limits = margin if rule == "all_within" else (threshold,)
        before, after = DECIDE[rule](found, *limits), DECIDE[rule](wide, *limits)
        assert after in (before, "inconclusive")


def test_what_has_no_interval_decides_nothing_unless_it_is_exact():
    nan = float("nan")
    for statistic in (0.9, Interval(0.9, nan, nan), over_seeds([0.9]), over_seeds([0.9, 0.9])):
        assert DECIDE["above"](statistic, 0.5) == "inconclusive"
        assert DECIDE["within"](statistic, 0.5, 1) == "inconclusive"
        assert DECIDE["any_above"]({0: statistic}, 0.5) == "inconclusive"
    assert DECIDE["above"](0.9, 0.5, exact=True) == "reproduced"
    assert DECIDE["above"](0.5, 0.5, exact=True) == "contradicted"
    assert DECIDE["equal"](628_224, 628_224, 0, exact=True) == "reproduced"
    assert DECIDE["equal"](628_225, 628_224, 0, exact=True) == "contradicted"
    # one unit that cannot be told keeps "all" open, but not "some"
    found = {0: Interval(0.9, 0.8, 1.0), 1: Interval(0.9, nan, nan)}
    assert DECIDE["any_above"](found, 0.5) == "reproduced"
    assert DECIDE["all_above"](found, 0.5) == "inconclusive"


def test_a_statistic_that_does_not_fit_its_rule():
    for rule, statistic, says in (
        ("above", {0: 1.0}, "a dict is no single statistic"),
        ("any_above", Interval(1, 0, 2), "an? Interval is no mapping of units"),
        ("any_above", {}, "there is no unit to judge"),
        ("rank_positive", 0.4, "a float is no rank correlation"),
    ):
        with pytest.raises(InputError, match=says):
            DECIDE[rule](statistic, 0)


def test_a_table_of_units_is_read():
    table = pd.DataFrame({"mean": [0.9, 0.2], "low": [0.8, 0.1], "high": [1.0, 0.3]}, [4, 7])
    assert DECIDE["any_above"](table, 0.5) == "reproduced"
    assert DECIDE["all_above"](table, 0.5) == "contradicted"
    with pytest.raises(InputError, match="no column 'low'"):
        DECIDE["any_above"](table.drop(columns="low"), 0.5)


def test_a_guard_applies_to_both_directions():
    for verdict in ("reproduced", "contradicted"):
        assert guarded(verdict, False, "not settled") == "inconclusive"
        assert guarded(verdict, True, "") == verdict
    assert guarded("not run", False, "not settled") == "not run"
    with pytest.raises(InputError, match="must say why"):
        guarded("reproduced", False, "")


def test_rank_correlation_is_scipys_and_the_partial_one_that_of_residuals():
    from scipy import stats

    rng = np.random.default_rng(0)
    a, b, c = rng.integers(0, 9, (3, 25)).astype(float)  # with ties
    found = rank_correlation(a, b, 4000)
    expected = stats.spearmanr(a, b)
    assert found.rho == pytest.approx(expected.statistic) and found.n == 25
    assert found.p == pytest.approx(expected.pvalue, abs=0.05)
    assert found.low < found.rho < found.high
    r = stats.spearmanr(np.array([a, b, c]), axis=1).statistic
    by_formula = (r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt((1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2))
    assert rank_correlation(a, b, 200, control=c).rho == pytest.approx(by_formula)
    models = np.repeat([0, 1], [12, 13])
    ranks = [np.concatenate([stats.rankdata(x[models == m]) for m in (0, 1)]) for x in (a, b)]
    within = [r - np.where(models == 0, 6.5, 7) for r in ranks]
    expected = np.dot(*within) / np.sqrt(
        np.dot(within[0], within[0]) * np.dot(within[1], within[1])
    )
    assert rank_correlation(a, b, 200, groups=models).rho == pytest.approx(expected)
    minus = rank_correlation(-a, b, 4000)
    assert found.low < found.low_90 < found.high_90 < found.high
    assert (minus.p_positive, minus.p_negative) == (found.p_negative, found.p_positive)


def test_what_few_blocks_can_show():
    assert visible(30) == pytest.approx(0.50, abs=0.01) and visible(6) > 0.8 and visible(3) == 1
    rho = visible(20)
    seen = verdicts("rank_positive", [0], profile(2 * np.sin(np.pi * rho / 6), 20), 300).reproduced
    assert seen == pytest.approx(0.8, abs=0.1)


def test_rank_correlation_of_nothing():
    for a, b in (([1, 2, 3], [1, 2, 3]), ([1.0] * 9, range(9)), ([np.nan, 1, 2, 3], range(4))):
        found = rank_correlation(a, b)
        assert np.isnan(found.rho)
        assert {DECIDE["rank_positive"](found), DECIDE["rank_none"](found, 0.9)} == {"inconclusive"}
    with pytest.raises(InputError, match="cannot be paired"):
        rank_correlation([1, 2, 3, 4], [1, 2, 3])


def test_savings_that_do_not_add_up_are_no_concentration():
    cost = np.arange(1.0, 13)
    for left in (cost, cost + 1, cost * 1.1):
        found = concentrated(cost, left)
        assert DECIDE["above"](found.excess, 0) == "inconclusive"
    found = concentrated(cost, np.where(cost >= 11, 0, cost))
    assert found.share == 1 and found.chance == pytest.approx(2 / 12) and found.p < 0.05
    with pytest.raises(InputError, match="cannot be compared"):
        concentrated(cost, cost[:3])
