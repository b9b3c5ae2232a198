"""Probes, their two solvers and candidates, each against something known."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lib.base import InputError
from lib.linear import AffineMap, recoverability
from lib.models import capture
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
from lib.probes.adamw import fit_adamw
from lib.probes.candidates import _in_units, _unseen
from lib.probes.direct import fit_direct
from lib.probes.paths import Path, Residual
from lib.probes.products import products
from lib.probes.residual import _gains


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


def test_unknown_candidate_and_solver(tiny_gpt2, drawn_windows):
    rows = BlockRows(tiny_gpt2, drawn_windows, [1])
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


def test_gains_are_those_of_the_modules(tiny_gpt2, drawn_windows):
    rows = BlockRows(tiny_gpt2, drawn_windows, [0, 2])
    found = residual_probes(rows, [42, 43], layout=((2, 4),), steps=60)
    measured = recoverability(tiny_gpt2, drawn_windows)
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
            measured.table.r2_held_out[row.block], abs=1e-6
        )  # same split as the survey


def paths_of(seed=0, n_checkpoints=6):
    """Errors of checkpoints on nine held-out windows of four documents, [n_checkpoints, 9]."""
    document = np.array([8, 2, 8, 5, 2, 9, 5, 8, 9])
    errors = np.random.default_rng(seed).uniform(1, 9, size=(n_checkpoints, 9))
    halves = [np.isin(document, half) for half in ([2, 8], [5, 9])]  # every other one, sorted
    return errors, document, halves


def test_unseen_gains_choose_on_other_documents_than_they_score():
    errors, document, (one, other) = paths_of()
    deviation = np.linspace(20, 30, 9)
    path = Path(7, list(range(0, 60, 10)), [0.0] * 6, [0.1] * 6, list(errors), {})
    found = _gains(path, deviation, document)
    saved = np.empty(9)
    for chosen_on, scored_on in ((one, other), (other, one)):
        best = min(range(6), key=lambda k: errors[k, chosen_on].sum())
        saved[scored_on] = errors[0, scored_on] - errors[best, scored_on]
    assert found["gain_unseen"] == pytest.approx(saved.sum() / deviation.sum())
    best = errors.sum(1).argmin()
    assert found["gain"] == pytest.approx((errors[0] - errors[best]).sum() / deviation.sum())
    assert found["best_step"] == 10 * best and found["gain"] > found["gain_unseen"]
    # The bootstrap draws documents: all samples of four of the four, each as likely as another.
    per = {d: (saved[document == d].sum(), deviation[document == d].sum()) for d in (2, 5, 8, 9)}
    ratios = [
        sum(per[d][0] for d in drawn) / sum(per[d][1] for d in drawn)
        for drawn in itertools.product(per, repeat=4)
    ]
    ends = [found["gain_unseen_low"], found["gain_unseen_high"]]
    assert ends == pytest.approx(np.quantile(ratios, [0.025, 0.975]), abs=0.02)
    assert found["gain_unseen_low"] < found["gain_unseen"] < found["gain_unseen_high"]


def test_an_unseen_score_chooses_on_other_documents_than_it_scores():
    errors, document, (one, other) = paths_of(1)
    left = sum(
        errors[min(range(6), key=lambda k: errors[k, a].sum()), b].sum()
        for a, b in ((one, other), (other, one))
    )
    path = dict(enumerate(errors))
    assert _unseen(path, document, 300.0) == pytest.approx(1 - left / 300)
    assert _unseen(path, document, 300.0) < 1 - errors.sum(1).min() / 300
    assert np.isnan(_unseen(path, np.full(9, 4), 300.0))


def test_held_out_rows_are_those_of_whole_documents(tiny_gpt2, drawn_windows):
    rows = BlockRows(tiny_gpt2, drawn_windows, [1], n_folds=4)
    fold = drawn_windows.folds(4).numpy()
    assert rows.held_out.tolist() == (fold == 3).tolist()
    document = drawn_windows.document.numpy()
    split = rows(1)
    assert split.document.tolist() == document[fold == 3].tolist()
    assert not set(split.document) & set(document[fold != 3])
    x, y = capture(tiny_gpt2, drawn_windows, [1])[1]
    assert torch.equal(split.x, x[fold != 3].flatten(0, 1)) and torch.equal(
        split.y_test, y[fold == 3]
    )


def test_a_finished_block_is_not_fitted_again(tiny_gpt2, drawn_windows, monkeypatch):
    first = residual_probes(BlockRows(tiny_gpt2, drawn_windows, [1]), [42], steps=40)
    monkeypatch.setattr(BlockRows, "__call__", lambda *_: pytest.fail("rows were captured again"))
    again = residual_probes(BlockRows(tiny_gpt2, drawn_windows, [1]), [42], steps=40)
    pd.testing.assert_frame_equal(first.table, again.table)


def test_rows_come_in_groups_that_fit_and_are_right(tiny_gpt2, drawn_windows):
    whole, one = (
        BlockRows(tiny_gpt2, drawn_windows, range(6)),
        BlockRows(tiny_gpt2, drawn_windows, range(6), limit=1),
    )
    for block in (0, 3):
        assert torch.equal(whole(block).x, one(block).x) and torch.equal(
            whole(block).y_test, one(block).y_test
        )
    assert len(whole._held) == 6 and len(one._held) == 1
    with pytest.raises(InputError, match="block 9 does not exist"):
        BlockRows(tiny_gpt2, drawn_windows, [9])


@pytest.mark.parametrize("name", list(PROBES))
def test_scales_fold_back_exactly(name):
    model, x = build_probe(name, 20, 20, 7), torch.randn(50, 20) * 3
    expected = 5.0 * model(x / 3.0)
    assert torch.allclose(_in_units(model, 3.0, 5.0)(x), expected, atol=1e-3)


def test_candidates_start_from_the_ceiling_and_count(tiny_gpt2, drawn_windows):
    rows = BlockRows(tiny_gpt2, drawn_windows, [1])
    found = fit_candidates(rows, ["linear", "poly", "dense2x"], [42, 43], steps=20)
    table = found.table.set_index(["candidate", "seed"])
    linear = recoverability(tiny_gpt2, drawn_windows).table.r2_held_out[1]
    assert table.r2["linear", 42] == pytest.approx(linear, abs=1e-5)
    assert table.r2_unseen["linear", 42] == table.r2["linear", 42]  # nothing was chosen
    assert (table.r2_unseen <= table.r2 + 1e-9).all() and table.r2_unseen["poly"].gt(0).all()
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
