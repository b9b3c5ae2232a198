"""Probes, their two solvers, candidates, healing and the analysis of variance, each against
something known."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lib.base import InputError
from lib.linear import AffineMap, recoverability
from lib.probes import (
    PROBES,
    BlockRows,
    PolyLinear,
    build_probe,
    conjunction_index,
    fit_candidates,
    n_params,
    random_half,
    residual_probes,
)
from lib.probes.candidates import _in_units
from lib.probes.products import products
from lib.probes.solvers import Residual, fit_adamw, fit_direct
from lib.stats import pairwise, variance_shares
from lib.swaps import delta_ppl, heal, residual_streams, swap_sweep, token_losses
from lib.swaps.healing import trainable
from lib.training import develop, untrained
from lib.training.development import checkpoints, profile


def test_parameter_counts_of_table_2():
    counts = {name: n_params(build_probe(name, 768, 768)) for name in PROBES}
    assert counts == {"poly": 628_224, "dense2x": 1_181_184, "poly2x": 1_256_448}
    assert n_params(AffineMap(torch.zeros(768, 768), torch.zeros(768))) == 590_592


@given(degree=st.integers(2, 4), rank=st.integers(1, 5), other=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_products_are_what_a_loop_gives(degree, rank, other):
    layout = ((degree, rank), (2, other))
    z = torch.randn(7, degree * rank + 2 * other, dtype=torch.float64)
    first = z[:, : degree * rank].view(7, degree, rank)
    second = z[:, degree * rank :].view(7, 2, other)
    assert torch.allclose(products(z, layout), torch.cat([first.prod(1), second.prod(1)], 1))


def test_polylinear_is_its_formula():
    poly, x = PolyLinear(6, 5, ((2, 3),), seed=1), torch.randn(11, 6)
    u, v = poly.factors[:, :3], poly.factors[:, 3:]
    expected = x @ poly.weight + poly.bias + np.exp(-2.0) * (((x @ u) * (x @ v)) @ poly.out)
    assert torch.allclose(poly(x), expected, atol=1e-6)
    with torch.no_grad():
        assert poly.gate == pytest.approx(np.exp(-2.0))


@pytest.mark.parametrize(
    "layout, why", [(((2, 7),), "rank 7"), (((2, 0),), "rank 0"), (((1, 3),), "degree 1")]
)
def test_impossible_layouts_are_refused(layout, why):
    with pytest.raises(InputError, match=why):
        PolyLinear(6, 6, layout)


def test_unknown_candidate_and_solver(tiny_gpt2, tiny_windows):
    rows = BlockRows(tiny_gpt2, tiny_windows, [1])
    with pytest.raises(InputError, match="did you mean 'dense2x'"):
        build_probe("dense2", 4, 4)
    with pytest.raises(InputError, match="unknown candidate"):
        fit_candidates(rows, ["linear", "spline"], [42], 5)
    with pytest.raises(InputError, match="unknown solver"):
        residual_probes(rows, [42], "newton")
    with pytest.raises(InputError, match="rank 200 is not possible"):
        residual_probes(rows, [42], layout=((2, 200),))


class Joint(nn.Module):
    """Product of the sums of two groups of features: a pure AND of the groups."""

    def forward(self, x):
        return (x[..., :2].sum(-1) * x[..., 2:].sum(-1))[..., None]


def test_conjunction_index_of_known_maps():
    x, half = torch.randn(500, 4), torch.tensor([True, True, False, False])
    affine = AffineMap(torch.randn(4, 3) * 100, torch.randn(3) * 100)
    assert conjunction_index(affine, x, half) < 1e-6
    assert conjunction_index(Joint(), x, half, baseline=torch.zeros(4)) == pytest.approx(1.0)
    # Each half alone: (ab)·(cd) with a baseline of one keeps both main effects, so the index lies
    # between.
    assert 0.1 < conjunction_index(Joint(), x, half, baseline=torch.ones(4)) < 0.9
    assert affine.weight.dtype == torch.float32  # computed in float64, handed back as it was


def test_conjunction_index_needs_two_halves():
    x = torch.randn(9, 4)
    for half in (torch.zeros(4, dtype=torch.bool), torch.ones(4, dtype=torch.bool)):
        with pytest.raises(InputError, match="halves is empty"):
            conjunction_index(nn.Identity(), x, half)
    with pytest.raises(InputError, match="4 true/false values"):
        conjunction_index(nn.Identity(), x, torch.ones(3))
    assert int(random_half(10, 3).sum()) == 5


def planted(layout=((2, 2),), n=4000, d=12, d_out=8, noise=0.1, seed=0):
    """Rows whose residual is a product branch plus noise."""
    truth = PolyLinear(d, d_out, layout, seed)
    x = torch.randn(n + 1024, d, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        left = products(x @ truth.factors, layout) @ truth.out
    left = left + noise * left.std() * torch.randn(
        left.shape, generator=torch.Generator().manual_seed(seed + 1)
    )
    return Residual(x[:n], left[:n], x[n:].view(8, 128, d), left[n:].view(8, 128, d_out))


@pytest.mark.parametrize(
    "layout, wider",
    [(((2, 2),), ((2, 8),)), (((3, 1),), ((3, 8),)), (((2, 2), (3, 1)), ((2, 8), (3, 8)))],
)
def test_direct_solver_finds_a_planted_product(layout, wider):
    rows = planted(
        layout
    )  # fitted with a wider branch: at the planted rank itself the problem has local optima
    for path in fit_direct(rows, wider, [42, 43], steps=600):
        left = min(e.sum() for e in path.errors) / path.errors[0].sum()
        assert left < 0.05  # the noise alone is 0.01


def test_adamw_finds_a_planted_product_too():
    path = fit_adamw(planted(), ((2, 8),), 42, steps=1500, lr=1e-2)
    assert min(e.sum() for e in path.errors) / path.errors[0].sum() < 0.1


def test_no_product_means_no_gain():
    rows = planted(noise=0.0)
    noise = torch.randn(len(rows.x), 8), torch.randn(8, 128, 8)
    rows = Residual(rows.x, noise[0], rows.x_test, noise[1])
    for path in fit_direct(rows, ((2, 2),), [42], steps=100):
        # Early stopping keeps the linear map unless something held out really falls.
        assert min(e.sum() for e in path.errors) <= path.errors[0].sum()
        assert 1 - min(e.sum() for e in path.errors) / path.errors[0].sum() < 0.01


def test_gains_are_those_of_the_modules(tiny_gpt2, tiny_windows):
    rows = BlockRows(tiny_gpt2, tiny_windows, [0, 2])
    found = residual_probes(rows, [42, 43], layout=((2, 4),), steps=60)
    measured = recoverability(tiny_gpt2, tiny_windows)
    assert (found.table.gain >= 0).all()
    for row in found.table.itertuples():
        split = rows(row.block)
        with torch.no_grad():
            error = (
                (found.modules[row.block, row.seed](split.x_test).double() - split.y_test.double())
                .square()
                .sum()
            )
        r2 = 1 - float(error) / float(split.deviation().sum())
        assert r2 == pytest.approx(row.r2_lin + row.gain, abs=1e-5)
        assert row.r2_lin == pytest.approx(
            measured.table.r2_lin[row.block], abs=1e-6
        )  # same split as the survey


def test_a_finished_block_is_not_fitted_again(tiny_gpt2, tiny_windows, monkeypatch):
    first = residual_probes(BlockRows(tiny_gpt2, tiny_windows, [1]), [42], steps=40)
    monkeypatch.setattr(BlockRows, "__call__", lambda *_: pytest.fail("rows were captured again"))
    again = residual_probes(BlockRows(tiny_gpt2, tiny_windows, [1]), [42], steps=40)
    pd.testing.assert_frame_equal(first.table, again.table)


def test_rows_come_in_groups_that_fit_and_are_right(tiny_gpt2, tiny_windows):
    whole, one = (
        BlockRows(tiny_gpt2, tiny_windows, range(6)),
        BlockRows(tiny_gpt2, tiny_windows, range(6), limit=1),
    )
    for block in (0, 3):
        assert torch.equal(whole(block).x, one(block).x) and torch.equal(
            whole(block).y_test, one(block).y_test
        )
    assert len(whole._held) == 6 and len(one._held) == 1
    with pytest.raises(InputError, match="block 9 does not exist"):
        BlockRows(tiny_gpt2, tiny_windows, [9])


@pytest.mark.parametrize("name", list(PROBES))
def test_scales_fold_back_exactly(name):
    model, x = build_probe(name, 20, 20, 7), torch.randn(50, 20) * 3
    expected = 5.0 * model(x / 3.0)
    assert torch.allclose(_in_units(model, 3.0, 5.0)(x), expected, atol=1e-3)


def test_candidates_start_from_the_ceiling_and_count(tiny_gpt2, tiny_windows):
    rows = BlockRows(tiny_gpt2, tiny_windows, [1])
    found = fit_candidates(rows, ["linear", "poly", "dense2x"], [42, 43], steps=20)
    table = found.table.set_index(["candidate", "seed"])
    linear = recoverability(tiny_gpt2, tiny_windows).table.r2_lin[1]
    assert table.r2["linear", 42] == pytest.approx(linear, abs=1e-5)
    naive = fit_candidates(rows, ["poly"], [42, 43], steps=20, scale_aware=False).table.set_index(
        ["candidate", "seed"]
    )
    assert (
        table.r2["poly"] > linear - 0.02
    ).all()  # seeded with the closed form, beside a small random branch
    assert (
        naive.r2["poly"] < linear - 0.05
    ).all()  # twenty steps from a random start are not enough
    assert table.compression["linear", 42] == pytest.approx(
        tiny_gpt2.blocks[1].n_params / (128 * 129)
    )


def test_healing_the_original_lowers_its_training_loss_and_leaves_the_model_alone(
    tiny, tiny_windows
):
    few = tiny_windows[:4]
    before = token_losses(tiny, few)
    block = len(tiny) - 1
    healed = heal(
        tiny, few, {(block, "original", 42): tiny.blocks[block].ffn}, steps=6, lr=1e-3, batch=2
    )
    assert torch.equal(before, token_losses(tiny, few))
    assert not any(p.requires_grad for p in tiny.model.parameters())
    base, losses = swap_sweep(tiny, few, healed)
    assert losses[block, "original", 42].mean() < base.mean()


def test_healing_resumed_from_the_stream_is_healing_from_the_start(tiny, tiny_windows):
    """One step by hand, through the whole model."""
    few, block = tiny_windows[:2], 2
    module = AffineMap(torch.randn(128, 128) * 0.01, torch.zeros(128))
    healed = heal(tiny, few, {(block, "linear", 0): module}, steps=1, lr=1e-3, batch=2)[
        block, "linear", 0
    ]
    layer = trainable(module)
    original = tiny.blocks[block].ffn
    setattr(tiny.blocks[block].layer, tiny.blocks[block].ffn_name, layer)
    try:
        logits = tiny.model(few, use_cache=False).logits
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), few[:, 1:].flatten())
        optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.0)
        loss.backward()
        optimizer.step()
    finally:
        setattr(tiny.blocks[block].layer, tiny.blocks[block].ffn_name, original)
    assert (
        healed.weight - layer.weight
    ).abs().mean() < 1e-5  # Adam's first step is ±lr where the gradient is clear


def test_streams_are_the_inputs_of_the_blocks(tiny, tiny_windows):
    streams = residual_streams(tiny, tiny_windows[:3], [0, 4])
    assert set(streams) == {0, 4} and streams[4].shape == (3, 128, 128)
    with pytest.raises(InputError, match="0 steps"):
        heal(tiny, tiny_windows, {}, steps=0)


def test_a_sweep_takes_several_modules_in_one_place(tiny_gpt2, tiny_windows):
    few, maps = tiny_windows[:3], recoverability(tiny_gpt2, tiny_windows).maps
    _, plain = swap_sweep(tiny_gpt2, few, maps)
    base, several = swap_sweep(
        tiny_gpt2,
        few,
        {
            (b, name): m
            for b in (1, 3)
            for name, m in (("a", maps[b]), ("own", tiny_gpt2.blocks[b].ffn))
        },
    )
    assert np.array_equal(several[1, "a"], plain[1]) and np.allclose(several[3, "own"], base)
    table = delta_ppl(base, several, names=["candidate"])
    assert list(table.candidate) == ["a", "own", "a", "own"] and list(table.block) == [1, 1, 3, 3]


def test_a_module_of_the_readers_own_is_not_cached(tiny_gpt2, tiny_windows):
    class Own(nn.Module):
        scale = 0.0

        def forward(self, x):
            return x * self.scale

    few, own = tiny_windows[:2], Own()
    _, first = swap_sweep(tiny_gpt2, few, {1: own})
    own.scale = 5.0  # neither weights nor repr change
    _, second = swap_sweep(tiny_gpt2, few, {1: own})
    assert not np.allclose(first[1], second[1])


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


def test_development_looks_without_touching(tiny_gpt2, tiny_windows):
    assert np.allclose(
        profile(tiny_gpt2, tiny_windows), recoverability(tiny_gpt2, tiny_windows).table.r2_lin
    )
    assert checkpoints(300)[0] == 0 and checkpoints(300)[-1] == 300 and len(checkpoints(300)) == 12
    fresh = untrained(tiny_gpt2, 1)
    assert fresh.key != untrained(tiny_gpt2, 2).key and fresh.key == untrained(tiny_gpt2, 1).key


def test_develop_is_training_and_measuring(tiny_gpt2, tiny_windows):
    """Against the same run by hand in this process; its worker keeps the run in this test's
    cache."""
    from lib.base import cache
    from lib.models import as_subject
    from lib.training import TrainingRun, build, train

    data, measured_on, vocab = (
        (tiny_windows[:8], tiny_windows[8:10]),
        tiny_windows[:10],
        len(tiny_gpt2.tokenizer),
    )
    profiles, losses = develop(
        [("tiny-llama", "text", 5)], {"text": data}, measured_on, vocab, steps=2, batch=4
    )
    model = build("tiny-llama", vocab, 5)
    curve = train(model, *data, TrainingRun(steps=2, batch=4, warmup=1, seed=5), quiet=True)
    assert np.allclose(
        profiles[profiles.step == 2].r2, profile(as_subject(model), measured_on), atol=1e-5
    )
    assert losses.held_out_loss.iloc[-1] == pytest.approx(curve.held_out_loss.iloc[-1], abs=1e-5)
    assert sorted(profiles.step.unique()) == [0, 1, 2] and list(cache.CACHE.rglob("output.pkl"))


def test_looking_does_not_change_training(tiny_windows, tiny_gpt2):
    from lib.models import as_subject
    from lib.training import TrainingRun, build, train

    def trained(look):
        model = build("tiny-neox", len(tiny_gpt2.tokenizer), 3)
        seen = lambda step: (as_subject(model), model.requires_grad_(True).train())  # noqa: E731
        train(
            model,
            tiny_windows[:8],
            tiny_windows[8:10],
            TrainingRun(steps=3, batch=2, warmup=1),
            look=seen if look else None,
            at=[0, 2],
        )
        return model.state_dict()

    for a, b in zip(trained(True).values(), trained(False).values(), strict=True):
        assert torch.equal(a, b)


def test_intervals_against_known_cases():
    from lib.stats import (
        at_budget,
        bootstrap,
        concentration,
        leave_one_out,
        pearson,
        share_gap,
        spearman,
        spread,
    )

    x = np.random.default_rng(0).normal(size=400)
    mean = bootstrap(np.mean, x)
    assert mean.value == pytest.approx(x.mean()) and mean.high - mean.low == pytest.approx(
        2 * 1.96 / 20, rel=0.15
    )
    assert bootstrap(pearson, x, 2 * x, paired=True).low == pytest.approx(1)
    assert bootstrap(spearman, x, np.exp(x), paired=True).low == pytest.approx(1)
    assert f"{mean:.1f}".startswith(f"{x.mean():.1f} [")
    table = pd.DataFrame({"seed": [1, 2, 3], "v": [0.0, 1.0, 5.0]})
    out = leave_one_out(table, "seed", lambda t: t.v.mean())
    assert (out.value, out.low, out.high) == (2.0, 0.5, 3.0)
    assert share_gap([8, 1, 1], [10, 5, 5], [True, False, False]) == pytest.approx(
        0.8 - 0.2
    ) and np.isnan(share_gap([1, 2], [3, 4], [True, True]))
    gap = bootstrap(
        share_gap, 0.9 * x**2, x**2, x > 0, paired=True
    )  # the same share on either side: no gap in any resample
    assert (gap.value, gap.low, gap.high) == pytest.approx((0, 0, 0), abs=1e-9)
    two = bootstrap(
        share_gap, np.r_[9.0, 9.0, np.zeros(28)], np.full(30, 10.0), np.arange(30) < 5, paired=True
    )
    assert (
        two.value == pytest.approx(0.36) and two.above(0.1) == "inconclusive"
    )  # carried by two rows of thirty
    cost = pd.Series(np.r_[100.0, 80.0, np.full(10, 10.0)], index=range(3, 15))
    found = concentration(cost, cost - np.r_[90.0, 72.0, np.full(10, 1.0)])
    assert (
        found.dearest.tolist() == [True, True] + [False] * 10
        and found.top == [3, 4]
        and found.share_top == pytest.approx(162 / 172)
    )
    assert (found.share_dearest, found.share_others) == pytest.approx((0.9, 0.1)) and (
        found.gap.value,
        found.gap.low,
    ) == pytest.approx((0.8, 0.8))
    assert (mean.above(-1), mean.below(-1), spread([1, 2, 6]).above(2)) == (
        "reproduced",
        "contradicted",
        "inconclusive",
    )
    assert np.isnan(leave_one_out(table[:2], "seed", lambda t: t.v.mean()).low)
    assert [at_budget(v, 1, 2) for v in ("reproduced", "contradicted")] == [
        "reproduced",
        "inconclusive",
    ] and at_budget("contradicted", 2, 2) == "contradicted"
