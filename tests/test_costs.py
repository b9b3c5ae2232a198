"""Intervals of costs and savings, over documents, seeds and blocks: true worlds, false ones and
noise."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau

from lib.base import InputError
from lib.stats import (
    Interval,
    clustered,
    concordant_pairs,
    judge,
    kendall_within,
    share_over,
    top_overlap,
)
from lib.stats.rules import below
from lib.swaps import (
    as_costs,
    as_perplexity,
    behind_original,
    by_seed,
    delta_ppl,
    gap_table,
    healing_table,
    joint_costs,
    joint_savings,
    joint_shares,
    perplexity,
    printed_claims,
    printed_swaps,
    printed_table4,
    saved_on_dearest,
    savings_concentrated,
)

DOCUMENT = np.repeat(np.arange(12), 3)


def losses(shift, rng, noise=0.02):
    """A base [n, 8] and losses that lie `shift` above it, with errors shared within documents."""
    base = rng.normal(3, 0.5, (len(DOCUMENT), 8))
    found = {}
    for block, by in enumerate(shift):
        shared = rng.normal(0, noise, DOCUMENT.max() + 1)[DOCUMENT][:, None]
        found[block] = base + by + shared + rng.normal(0, noise, (len(DOCUMENT), 8))
    return base, found


def verdict(id, statistic):
    return judge(id, statistic).verdict


def test_a_cost_is_that_of_delta_ppl_window_by_window():
    base, swapped = losses([0.1, 2.0], np.random.default_rng(0))
    table = delta_ppl(base, swapped, DOCUMENT, level=0.975).set_index("block")
    for block, found in joint_costs(base, swapped, DOCUMENT).items():
        row = table.loc[block]
        wanted = [row.delta_ppl_percent, row.delta_ppl_percent_low, row.delta_ppl_percent_high]
        np.testing.assert_allclose([found.value, found.low, found.high], np.array(wanted) / 100)
        windows = as_costs(base, swapped[block])
        assert windows.mean() == pytest.approx(row.delta_ppl_percent / 100)
        # To first order the spread is the same as that carried through exp.
        first = clustered(windows, DOCUMENT, 0.975)
        assert first.high - first.low == pytest.approx(found.high - found.low, rel=0.01)
    assert as_perplexity(base).mean() == pytest.approx(perplexity(base))


def test_savings_and_shares_agree_with_a_resampling_of_documents():
    rng = np.random.default_rng(1)
    base, dear = losses([1.0], rng, noise=0.1)
    _, other = losses([0.0], rng, noise=0.1)
    cheap = {0: dear[0] - 0.6 + (other[0] - other[0].mean()) * 0.1}
    costs = [[], []]
    for _ in range(2000):
        drawn = np.concatenate([np.flatnonzero(d == DOCUMENT) for d in rng.integers(12, size=12)])
        for kind, m in zip(costs, (dear, cheap), strict=True):
            kind.append(np.expm1((m[0] - base)[drawn].mean()))
    whole, left = map(np.array, costs)
    for found, drawn in (
        (joint_savings(base, dear, cheap, DOCUMENT)[0], whole - left),
        (joint_shares(base, dear, cheap, DOCUMENT)[0], 1 - left / whole),
    ):
        assert found.value == pytest.approx(drawn.mean(), rel=0.03)
        # A t-interval with 11 degrees of freedom is 2.2 errors wide on either side.
        assert (found.high - found.low) / 4.4 == pytest.approx(drawn.std(), rel=0.15)


def test_a_share_of_no_cost_is_undefined():
    base, swapped = losses([-0.1], np.random.default_rng(2))
    assert np.isnan(joint_shares(base, swapped, swapped, DOCUMENT)[0].value)


def world(cost, saved, rng):
    """Verdicts of both claims on the costliest blocks, where blocks cost and save so much."""
    base, dear = losses(np.log1p(cost), rng)
    gone = np.log1p(cost) - np.log1p(np.asarray(cost) - saved)
    cheap = {b: dear[b] - g + rng.normal(0, 0.01, dear[b].shape) for b, g in enumerate(gone)}
    swapped = (base, dear, cheap, DOCUMENT)
    concentrated = savings_concentrated(*swapped, resamples=100)
    size = saved_on_dearest(*swapped, resamples=500)
    return (
        verdict("whipp-5.6-savings-concentrated", concentrated),
        verdict("whipp-5.6-savings-size", size),
    )


def test_savings_on_the_costliest_blocks_are_seen_and_others_refuted():
    rng = np.random.default_rng(3)
    cost = np.r_[3.0, 2.0, np.full(16, 0.2)]
    assert world(cost, cost * np.r_[0.5, 0.5, np.full(16, 0.05)], rng) == ("reproduced",) * 2
    assert world(cost, np.r_[0.02, 0.02, np.full(16, 0.1)], rng) == ("contradicted",) * 2


def test_costs_and_savings_that_are_noise_are_rarely_decided():
    rng, decided = np.random.default_rng(4), []
    for _ in range(20):
        base, dear = losses(np.zeros(18), rng)
        _, shift = losses(np.zeros(18), rng)
        cheap = {b: dear[b] + shift[b] - shift[b].mean() + rng.normal(0, 0.004) for b in dear}
        found = savings_concentrated(base, dear, cheap, DOCUMENT, resamples=40)
        decided.append(verdict("whipp-5.6-savings-concentrated", found) == "reproduced")
        found = saved_on_dearest(base, dear, cheap, DOCUMENT, resamples=40)
        decided.append(verdict("whipp-5.6-savings-size", found) != "inconclusive")
    assert np.mean(decided) <= 0.1


def test_too_few_documents_decide_nothing():
    base, swapped = losses([0.5, 0.1], np.random.default_rng(5))
    assert np.isnan(saved_on_dearest(base, swapped, swapped, np.arange(36) % 3).low)


def test_pairs_in_order_and_the_share_that_agrees():
    table = pd.DataFrame(
        {"block": [0, 0, 0, 1, 1, 1], "r2": [1, 2, 3, 1, 1, 2], "cost": [3, 2, 2.5, 1, 2, np.nan]}
    )
    pairs = concordant_pairs(table, "r2", "cost")
    assert pairs.agree.tolist() == [False, False, True]  # ties and nan are left out
    assert np.isnan(share_over(pairs, "agree").low)  # one block
    blocks = np.repeat(np.arange(12), 3)
    for agree, wanted in ((True, "reproduced"), (False, "contradicted")):
        pairs = pd.DataFrame({"block": blocks, "agree": agree})
        assert verdict("whipp-5.6-fidelity-ordering", share_over(pairs, "agree")) == wanted
    mixed = pd.DataFrame({"block": blocks, "agree": np.tile([True, True, True, False], 9)})
    found = verdict("whipp-5.6-fidelity-ordering", share_over(mixed, "agree"))
    assert found == "inconclusive"
    assert share_over(pairs[:0], "agree").value != 0  # no pair: nan


def test_tau_within_blocks_is_kendalls_and_two_blocks_decide_nothing():
    rng = np.random.default_rng(8)
    a, b, units = rng.normal(size=12), rng.normal(size=12), np.repeat([0, 1, 2], 4)
    wanted = [kendalltau(a[units == u], b[units == u]).statistic for u in range(3)]
    assert kendall_within(a, b, units).rho == pytest.approx(np.mean(wanted))
    params = np.tile([1.0, 2.0, 3.0], 4)
    blocks, falls = np.repeat(np.arange(4), 3), np.tile([3.0, 2.0, 1.0], 4)
    claim = "whipp-5.6-capacity-probe"
    assert verdict(claim, kendall_within(params, falls, blocks)) == "reproduced"
    assert verdict(claim, kendall_within(params, -falls, blocks)) == "contradicted"
    two = kendall_within(params[:6], falls[:6], blocks[:6])
    assert two.p_negative == pytest.approx(1 / 36, abs=0.01) and verdict(claim, two) != "reproduced"
    noise = [kendall_within(params, rng.normal(size=12), blocks, 1000) for _ in range(40)]
    assert np.mean([verdict(claim, found) != "inconclusive" for found in noise]) <= 0.1
    assert np.isnan(kendall_within([1.0], [1.0], [0]).p_negative)


def test_table_4_from_losses_by_seed():
    rng, base = np.random.default_rng(9), np.full((36, 8), 3.0)
    shift = {("poly", "zero-shot"): 0.2, ("poly", "healed"): 0.1, ("original", "healed"): -0.1}
    swapped = {
        (1, name, seed, phase): base + by + rng.normal(0, 0.01, base.shape)
        for (name, phase), by in shift.items()
        for seed in (42, 43, 44)
    } | {(1, "linear", 42, "zero-shot"): base + 0.3}
    costs = by_seed(base, swapped)
    table = healing_table(costs, perplexity(base), DOCUMENT).set_index(["candidate", "phase"])
    row = table.loc["poly", "zero-shot"]
    assert row["mean"] == pytest.approx(100 * np.expm1(0.2), rel=0.05)
    assert row.low < row["mean"] < row.high and row["std"] > 0
    assert row.delta_ppl == pytest.approx(row["mean"] / 100 * perplexity(base))
    linear = table.loc["linear", "zero-shot"]
    assert np.isnan(linear["std"]) and np.isfinite(linear.low)  # documents alone
    gap = behind_original(costs)[1, "poly"]
    assert gap.shape == (3, 36) and gap.mean() == pytest.approx(np.expm1(0.1) - np.expm1(-0.1), 0.1)
    gaps = gap_table(costs, {"poly": 10})
    assert gaps.candidate.tolist() == ["poly"] and gaps.gap[0] == pytest.approx(gap.mean())
    assert gaps.healed[0] < gaps.zero_shot[0]


def test_printed_numbers_are_the_papers_and_meet_the_run_on_its_models_only():
    llama = printed_swaps().set_index(["subject", "block"]).loc[("llama-160m", 0)]
    assert llama.r2 == 0.96 and llama.cost == pytest.approx(185, abs=0.5)
    table = printed_table4([1, 28])
    assert table.loc[(28, "linear", "healed"), "gpt2 (paper)"] == pytest.approx(100 * 2.02 / 64.25)
    base = np.full((36, 8), np.log(64.25))
    sweep = {(0, "linear"): base + np.log1p(2.6 / 64.25)}
    healing = {(1, "original", s, "healed"): base + np.log1p(-20.7 / 64.25) for s in (42, 43)}
    book = "06_swapping_and_healing"
    assert printed_claims(book, "tiny-gpt2", base, sweep, healing, DOCUMENT) == {}
    found = printed_claims(book, "gpt2", base, sweep, healing, DOCUMENT)
    assert len(found) == 3
    assert {verdict(id, interval) for id, interval in found.items()} == {"reproduced"}
    assert all(isinstance(interval, Interval) for interval in found.values())


def test_top_overlap_of_same_opposite_and_unrelated_rankings():
    a = np.arange(60.0)
    assert below(top_overlap(a, -a), 0.5) == "reproduced"
    assert below(top_overlap(a, a), 0.5) == "contradicted"
    assert top_overlap(a, a).value == 1
    rng = np.random.default_rng(0)
    chance = np.mean([top_overlap(a, rng.permutation(a)).value for _ in range(100)])
    assert chance == pytest.approx(1 / 6, abs=0.05)
    # Thirty blocks have a top of five, too few to tell none of five from half.
    assert below(top_overlap(a[:30], -a[:30]), 0.5) == "inconclusive"


def test_top_overlap_of_nothing_decides_nothing():
    assert below(top_overlap([1.0], [1.0]), 0.5) == "inconclusive"
    assert below(top_overlap([1.0, 1.0], [1.0, 2.0]), 0.5) == "inconclusive"
    with pytest.raises(InputError, match="paired"):
        top_overlap([1.0, 2.0], [1.0])
