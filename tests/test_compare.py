"""Comparisons of fitted replacements: intervals over seeds and documents, equal budgets, counts."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch

from lib.base import InputError
from lib.probes import (
    BlockRows,
    Comparison,
    Effect,
    Split,
    accounting,
    build_probe,
    by_document,
    doubts,
    equal_budget,
    fit_candidates,
    macs_per_token,
    n_params,
    together,
)
from lib.probes import budget as budgets
from lib.stats import (
    Interval,
    influence,
    judge,
    pooled_over_seeds,
    pooled_spread,
    settled,
)
from lib.texts import Windows

MATCHED = "whipp-5.5-product-adds-nothing"  # within ±0.004
DEEPER = "whipp-5.5-depth-not-product"  # above 0.005


def test_influence_is_the_jackknife_of_a_ratio():
    rng = np.random.default_rng(0)
    part, whole = rng.normal(2, 1, 400), rng.uniform(1, 3, 400)
    found, ratio = influence(part, whole), part.sum() / whole.sum()
    left_out = [np.delete(part, i).sum() / np.delete(whole, i).sum() for i in range(400)]
    assert found.mean() == pytest.approx(ratio)
    assert np.allclose((found - ratio) / 400, ratio - np.array(left_out), rtol=0.02, atol=1e-6)
    assert np.isnan(influence([1.0], [0.0])).all()
    with pytest.raises(InputError, match="make no ratio"):
        influence([1.0, 2.0], [1.0])


def test_pooled_intervals_hold_together():
    rng, hits, spreads = np.random.default_rng(2), 0, 0
    for _ in range(400):
        table = pd.DataFrame(rng.normal(0.3, 0.1, (3, 4)), columns=list("abcd"))
        hits += all(i.low <= 0.3 <= i.high for i in pooled_over_seeds(table).values())
        found = pooled_spread(table[c] for c in table)
        spreads += found.low <= 0.1 <= found.high
    assert hits / 400 >= 0.92 and 0.92 <= spreads / 400 <= 0.98
    assert np.isnan(pooled_over_seeds(table[:1])["a"].low) and np.isnan(pooled_spread([[1.0]]).low)


def test_a_verdict_on_moving_fits_stands_only_beyond_their_moves():
    sure, near = Interval(0.0, -0.001, 0.001), Interval(0.02, 0.015, 0.025)
    assert settled(MATCHED, sure, 0.001) and not settled(MATCHED, sure, 0.005)
    assert settled(MATCHED, near, 0.01) and not settled(MATCHED, near, 0.015)  # a refusal as well
    assert settled(MATCHED, Interval(0.0, -1, 1), 9.0)  # decides nothing anyway
    units = {0: Interval(0.3, 0.28, 0.32), 1: Interval(0.1, 0.0, 0.2)}
    share = "whipp-5.5-dense-recovers-fraction"
    assert judge(share, units).verdict == "contradicted"
    assert settled(share, units, {0: 0.01, 1: 0.5}) and not settled(share, units, {0: 0.1, 1: 0})


def world(gains: dict[str, float], noise: float, seed: int = 0, blocks=(1, 4)) -> Comparison:
    """Fits whose R² exceeds a linear 0.6 by `gains`, on 16 documents and three seeds."""
    rng = np.random.default_rng(seed)
    fits, documents = [], []
    for block in blocks:
        deviation = rng.uniform(1, 3, 16)
        for name, gain in {"linear": 0.0, **gains}.items():
            for s in (42, 43, 44)[: 1 if name == "linear" else 3]:
                ids = {"block": block, "candidate": name, "seed": s}
                error = deviation * (0.4 - gain + noise * rng.normal(size=16) * (name != "linear"))
                r2 = 1 - error.sum() / deviation.sum()
                late = 0.001 * (name != "linear")
                same = {"r2_unseen": r2, "r2": r2 + late, "r2_halfway": r2}
                fits.append(ids | same)
                sums = {"document": np.arange(16), "error": error, "deviation": deviation}
                documents.append(pd.DataFrame(sums).assign(**ids))
    return Comparison(pd.DataFrame(fits), pd.concat(documents))


def verdict(found: Comparison) -> str:
    effect = Effect.mean([found.gain(b, "dense2x", over="poly") for b in (1, 4)])
    return judge(DEEPER, effect.interval()).verdict


def test_a_gain_is_found_refused_and_rarely_made_of_noise():
    assert verdict(world({"poly": 0.02, "dense2x": 0.06}, 0.01)) == "reproduced"
    assert verdict(world({"poly": 0.06, "dense2x": 0.02}, 0.01)) == "contradicted"
    noise = [verdict(world({"poly": 0.05, "dense2x": 0.055}, 0.05, s)) for s in range(20)]
    assert sum(v != "inconclusive" for v in noise) <= 2


def test_scores_are_those_of_the_tables():
    found = world({"poly": 0.02, "dense2x": 0.06, "poly2x": 0.06}, 0.005)
    scores = found.scores().set_index(["block", "candidate"])
    assert scores.r2[1, "linear"] == pytest.approx(0.6) and scores.gain[1, "linear"] == 0
    assert scores.gain_low[4, "dense2x"] < 0.06 < scores.gain_high[4, "dense2x"]
    share = found.share(1, "dense2x").interval()
    assert share.low < 0.15 < share.high  # 0.06 of 0.4
    gains = {n: found.gain(1, n) for n in ("poly", "dense2x")}
    assert doubts(gains)["poly"] == pytest.approx(0.001)  # r2 - r2_halfway
    one, joint = gains["poly"].interval(), together(gains)["poly"]
    assert joint.low < one.low and joint.value == one.value


def test_the_plain_recipe_casts_doubt():
    found = world({"poly": 0.02}, 0.005)
    plain = found.fits[(found.fits.candidate == "poly") & (found.fits.seed == 42)]
    plain = plain.assign(r2_unseen=plain.r2_unseen - 0.05)
    doubted = Comparison(found.fits, found.documents, plain)
    assert doubted.gain(1, "poly").moves[1] == pytest.approx(-0.05)
    assert doubted.gain(1, "poly").doubt == pytest.approx(0.05)


def test_document_sums_give_the_fits_r2(tiny_gpt2, tiny_windows):
    rows = BlockRows(tiny_gpt2, tiny_windows, [1])
    fitted = fit_candidates(rows, ["linear", "poly", "dense2x"], [42], 5)
    sums = by_document(rows, fitted.modules).groupby(["candidate"])[["error", "deviation"]].sum()
    expected = fitted.table.set_index("candidate").r2
    assert np.allclose((1 - sums.error / sums.deviation)[expected.index], expected, atol=1e-5)


@dataclass
class World:
    """Rows of a made-up FFN."""

    target: str
    blocks: tuple = (0,)

    def __call__(self, block: int) -> Split:
        draw = torch.Generator().manual_seed(3)
        x = torch.randn(4000, 12, generator=draw)
        u, v, p = (torch.randn(12, 12, generator=draw) / 12**0.5 for _ in range(3))
        gelu = (5 * (x @ u[:, :3] - 1)).relu() @ v[:3]
        extra = {"product": ((x @ u) * (x @ v)) @ p, "gelu": gelu}
        y = x @ p + extra.get(self.target, 0) + 0.05 * torch.randn(4000, 12, generator=draw)
        x_test, y_test = (side[3200:].unflatten(0, (8, 100)) for side in (x, y))
        return Split(x[:3200], y[:3200], x_test, y_test, np.arange(8))


@pytest.mark.parametrize("target", ["product", "gelu", "linear"])
def test_equal_budgets_tell_products_from_hidden_layers(target):
    r2 = {}
    for name in budgets.BRANCHES:
        found = budgets._fit.__wrapped__((World(target), 0, name, 42, 250), lambda n=1: None)
        r2[name] = budgets._scores(found, 250)["r2_unseen"]
        start = 1 - found["errors"][0].sum() / found["deviation"].sum()
        assert r2[name] > start - 0.005  # a branch starts from the frozen map
    gap = r2["product"] - r2["gelu"]
    assert {"product": gap > 0.05, "gelu": gap < -0.005, "linear": abs(gap) < 0.005}[target]


def test_branches_have_equal_budgets():
    product, gelu = (n_params(budgets.build_branch(n, 768, 768)) for n in budgets.BRANCHES)
    assert product == 628_224 - 590_592 and abs(gelu / product - 1) < 0.001


def test_equal_budget_has_a_row_a_fit(tiny_gpt2, tiny_windows):
    windows = Windows.of(tiny_windows.tokens[:10])  # a document each
    rows = BlockRows(tiny_gpt2, windows, [1, 2])
    found = equal_budget(rows, [42, 43], 4)
    assert found.table.groupby("candidate").size().to_dict() == {
        "linear": 2,
        "product": 4,
        "gelu": 4,
    }
    linear = found.table[found.table.candidate == "linear"].set_index("block").r2
    assert rows(1).closed_form()[1].r2 == pytest.approx(linear[1], abs=1e-5)
    sums = found.documents.groupby(["block", "candidate", "seed"])[["error", "deviation"]].sum()
    r2 = found.table.set_index(["block", "candidate", "seed"]).r2_unseen
    assert np.allclose(1 - sums.error / sums.deviation, r2.loc[sums.index])


def test_counts_of_section_3_2_and_3_4():
    counts = accounting(768)
    assert counts.params.to_dict() == {
        "gpt2_ffn": 4_722_432,
        "llama_ffn": 7_077_888,
        "linear": 590_592,
        "poly": 628_224,
        "dense2x": 1_181_184,
        "poly2x": 1_256_448,
    }
    assert counts.macs_over_d2.tolist() == [8, 12, 1, 1.0625, 2, 2.125]
    assert macs_per_token(build_probe("poly", 20, 20), 20) == 20**2 + 3 * 20 * 16
