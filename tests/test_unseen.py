"""Gains on unseen documents: what they are, and what their intervals decide."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lib.probes import (
    BlockRows,
    PolyLinear,
    Unseen,
    each_over_documents,
    gate_reach,
    gate_table,
    geometric_mean,
    over_documents,
    pearson_over_blocks,
    residual_probes,
    share_gap_by_kind,
    stopping_bias,
    unseen,
)
from lib.stats import Interval
from lib.stats.rules import above, all_below, any_above, below
from lib.texts import cut_windows, load_corpus

N = 14  # held-out documents of the study profile


def world(gain, residual=0.5, noise=0.05, seed=0, n=N, seeds=1, seed_noise=0.0) -> Unseen:
    """Blocks of given gains; documents of unequal size, whose gains differ by `noise`."""
    rng, gain = np.random.default_rng(seed), np.asarray(gain, float)
    deviation = np.tile(rng.uniform(0.5, 2, n), (len(gain), 1))
    left = deviation * residual
    by_document = gain[:, None] + noise * rng.normal(size=(len(gain), n))
    by_seed = seed_noise * rng.normal(size=(seeds, len(gain), 1))
    saved = deviation * (by_document + by_seed)
    return Unseen(list(range(len(gain))), np.arange(n), deviation, left, saved)


def test_unseen_gains_are_those_of_the_table(tiny_gpt2):
    text = load_corpus("wikipedia-sample").fit
    windows = cut_windows(text, tiny_gpt2.tokenizer, 64, seed=42).take(2560)
    found = residual_probes(BlockRows(tiny_gpt2, windows, [0, 2]), [42, 43], steps=50)
    assert len(found.documents) > 1
    at = unseen(found)
    by_block = found.table.groupby("block")[["gain_unseen", "r2_lin"]].mean()
    assert at.blocks == [0, 2]
    assert at.gain == pytest.approx(by_block.gain_unseen.to_numpy(), rel=1e-9)
    assert 1 - at.residual == pytest.approx(by_block.r2_lin.to_numpy(), abs=1e-5)
    assert at.share == pytest.approx(at.gain / at.residual)
    for (block, seed), errors in found.errors.items():
        row = found.table[(found.table.block == block) & (found.table.seed == seed)].iloc[0]
        best = (errors[0].sum() - errors.sum(1).min()) / found.deviation[block].sum()
        assert best == pytest.approx(row.gain)
    assert at.only([2]).gain == pytest.approx(at.gain[1:])


def test_gains_far_from_a_threshold_are_decided_and_noise_is_not():
    middle = lambda at: np.median(at.gain, -1)
    assert below(over_documents(middle, world([0.0, 0.01, 0.3], noise=0.02)), 0.1) == "reproduced"
    assert below(over_documents(middle, world([0.2, 0.3, 0.0], noise=0.02)), 0.1) == "contradicted"
    found = [over_documents(lambda at: at.gain[..., 0], world([0.1], seed=s)) for s in range(100)]
    decided = np.mean([below(i, 0.1) != "inconclusive" for i in found])
    assert 0.01 <= decided <= 0.1  # a 95% interval, neither too narrow nor without power


def test_intervals_of_blocks_hold_jointly():
    flat, one = np.zeros(30), np.zeros(30)
    one[7] = 0.5
    any_of = lambda gains, s: any_above(
        each_over_documents(lambda at: at.gain, world(gains, seed=s)), 0
    )
    assert np.mean([any_of(flat, s) == "reproduced" for s in range(60)]) <= 0.1
    assert any_of(one, 0) == "reproduced"
    units = each_over_documents(lambda at: at.gain, world(one))
    assert all_below(units, 0.3) == "contradicted"
    assert all_below(units, 0.9) == "reproduced"


def test_documents_are_paired_across_samples():
    """Two branches on the same documents differ by less than either varies."""
    a = world([0.2], noise=0.2)
    b = Unseen(a.blocks, a.documents, a.deviation, a.left, a.saved - 0.01 * a.deviation)
    apart = over_documents(lambda a, b: (a.gain - b.gain)[..., 0], a, b)
    assert apart.value == pytest.approx(0.01)
    assert apart.high - apart.low < 1e-6


def test_seeds_widen_an_interval_by_what_they_vary():
    still, moved = (world([0.2], seeds=3, seed_noise=s, noise=0.01) for s in (0.0, 0.2))
    width = lambda at, **k: np.ptp(
        [(i := over_documents(lambda at: at.gain[..., 0], at, **k)).low, i.high]
    )
    assert width(still, seeds=True) == pytest.approx(width(still), rel=1e-6)
    assert width(moved, seeds=True) > 5 * width(moved)


def test_one_document_decides_nothing():
    alone = over_documents(lambda at: at.gain[..., 0], world([0.2], n=1))
    assert below(alone, 1) == "inconclusive"


def test_families_weigh_the_same():
    gap = share_gap_by_kind(["GELU", "GELU", "SwiGLU"], "SwiGLU")
    low, lower, high = world([0.1] * 2, noise=0), world([0.0] * 9, noise=0), world([0.3], noise=0)
    assert over_documents(gap, low, lower, high).value == pytest.approx(0.6 - 0.1)
    noisy = [world([0.1] * 6, noise=0.02, seed=s) for s in range(3)]
    assert below(over_documents(gap, *noisy), 0.07) == "reproduced"
    assert below(over_documents(gap, low, lower, world([0.3], noise=0.02)), 0.07) == "contradicted"


def test_pearson_is_that_of_numpy():
    at = world([0.1, 0.3, 0.2, 0.4], residual=np.array([[0.2], [0.4], [0.6], [0.7]]))
    expected = np.corrcoef(at.residual, at.gain)[0, 1]
    assert pearson_over_blocks(at) == pytest.approx(expected)
    three = pearson_over_blocks(at, without=[1])
    assert three == pytest.approx(np.corrcoef(at.residual[[0, 2, 3]], at.gain[[0, 2, 3]])[0, 1])
    assert np.isnan(pearson_over_blocks(world([0.1, 0.2], noise=0)))


def fits(noise: float, seed: int = 0, blocks: int = 4) -> SimpleNamespace:
    """Paths of twenty checkpoints that save the same, but for noise that chooses among them."""
    rng = np.random.default_rng(seed)
    errors = {}
    for b in range(blocks):
        path = 1 - 0.1 * (np.arange(20) > 0)[:, None] + noise * rng.normal(size=(20, N))
        errors[b, 42] = path
    deviation = {b: np.full(N, 2.0) for b in range(blocks)}
    return SimpleNamespace(documents=np.arange(N), errors=errors, deviation=deviation)


def test_stopping_on_noise_is_biased_and_stopping_without_is_not():
    assert above(stopping_bias(fits(0.3)), 0) == "reproduced"
    assert above(stopping_bias(fits(0.0)), 0) == "inconclusive"
    nothing = fits(0.3)
    nothing.documents = nothing.documents[:3]
    assert above(stopping_bias(nothing), 0) == "inconclusive"


def test_gates():
    closed, fresh = (PolyLinear(8, 8, ((2, 4),)).requires_grad_(False) for _ in range(2))
    closed.quad_scale[:4] -= math.log(4)
    table = gate_table({(3, "poly", s): closed for s in (42, 43)} | {(5, 42): fresh})
    assert table.change.tolist() == pytest.approx([0.5, 0.5, 1])
    assert table.gate.tolist() == pytest.approx([0.0677, 0.0677, 0.1353], abs=1e-4)
    assert geometric_mean(table[table.block == 7], "change") is None
    values = pd.DataFrame({"seed": [1, 2, 3], "change": [0.4, 0.41, 0.42]})
    found = geometric_mean(values, "change")
    assert isinstance(found, Interval)
    assert below(found, 0.7) == "reproduced"
    assert below(geometric_mean(values.assign(change=[0.9, 1, 1.1]), "change"), 0.7) == (
        "contradicted"
    )
    assert gate_reach(40) > 0.9
    assert gate_reach(1500) < 0.41
