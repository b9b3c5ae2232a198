"""Effective rank against brute force on rows and on maps of known rank."""

import numpy as np
import pytest
import torch

from lib.base import InputError
from lib.linear import Moments, rank_profile, reduced_rank, score_rows


def planted(rank, n=3000, d=20, noise=0.05, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = (
        torch.randn(n, d, generator=generator, dtype=torch.float64)
        @ torch.randn(d, d, generator=generator, dtype=torch.float64)
        + 1
    )
    left, right = (
        torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))[0][:, :rank]
        for _ in range(2)
    )
    y = (x - x.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(x.T.cov())).T @ left @ right.T
    return x, y + noise * torch.randn(n, d, generator=generator, dtype=torch.float64) + 2


@pytest.mark.parametrize("rank", [1, 3, 10])
def test_planted_rank_is_found(rank):
    x, y = planted(rank)
    train, tail = Moments.of(x[:2400], y[:2400]), Moments.of(x[2400:], y[2400:])
    profile = rank_profile(train, tail)
    # All planted directions carry the same variance, so a share of it needs that share of them.
    assert (
        profile.effective_rank(0.85) == int(np.ceil(0.85 * rank))
        and profile.effective_rank(0.99) == rank
    )


@pytest.mark.parametrize("standardized", [False, True])
def test_profile_is_what_brute_force_finds_on_rows(standardized):
    x, y = planted(6, noise=0.5)
    y[:, 4] *= 30
    x_, y_, xt, yt = x[:2400], y[:2400], x[2400:], y[2400:]
    profile = rank_profile(Moments.of(x_, y_), Moments.of(xt, yt), standardized)
    if standardized:
        std = y_.std(0, correction=0)
        y_, yt = y_ / std, yt / std
    mean_x, mean_y = x_.mean(0), y_.mean(0)
    full = torch.linalg.lstsq(x_ - mean_x, y_ - mean_y).solution
    _, _, vh = torch.linalg.svd(
        (x_ - mean_x) @ full, full_matrices=False
    )  # the textbook road: SVD of the fitted values
    for k in (1, 2, 5, 19, 20):
        predicted = (xt - mean_x) @ full @ vh[:k].T @ vh[:k] + mean_y
        expected = 1 - (yt - predicted).square().sum() / (yt - yt.mean(0)).square().sum()
        assert float(profile.r2[k - 1]) == pytest.approx(float(expected), abs=1e-9)


def test_reduced_rank_map_has_that_rank_and_score():
    x, y = planted(6)
    train, tail = Moments.of(x[:2400], y[:2400]), Moments.of(x[2400:], y[2400:])
    affine = reduced_rank(train, 4)
    assert torch.linalg.matrix_rank(affine.weight) == 4
    assert score_rows(affine, x[2400:], y[2400:]).r2 == pytest.approx(
        float(rank_profile(train, tail).r2[3]), abs=1e-9
    )
    assert torch.allclose(reduced_rank(train, 20).weight, train.fit().weight, atol=1e-9)
    for rank in (0, 21):
        with pytest.raises(InputError, match=f"rank {rank} is not possible here: .* allow 1 to 20"):
            reduced_rank(train, rank)


def test_nothing_linear_has_no_effective_rank():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 20, generator=generator), torch.randn(60, 20, generator=generator)
    assert (
        rank_profile(Moments.of(x[:40], y[:40]), Moments.of(x[40:], y[40:])).effective_rank()
        is None
    )


def test_whitened_profile_ends_at_the_mean_squared_canonical_correlation():
    from sklearn.cross_decomposition import CCA

    x, y = planted(4, n=4000, d=8, noise=0.5)
    y = y @ torch.randn(8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    train, both = Moments.of(x, y), Moments.of(y, y)
    profile = rank_profile(train, train, outputs=(both, both))
    a, b = CCA(n_components=8, max_iter=5000, tol=1e-12).fit_transform(x.numpy(), y.numpy())
    squared = np.array([np.corrcoef(a[:, k], b[:, k])[0, 1] ** 2 for k in range(8)])
    assert np.allclose(profile.r2.numpy(), np.cumsum(squared) / 8, atol=1e-5)
    # Unlike the plain rank, the whitened one does not see the scale of the outputs.
    stretched = y * torch.logspace(0, 4, 8, dtype=torch.float64)
    again = rank_profile(
        Moments.of(x, stretched),
        Moments.of(x, stretched),
        outputs=(Moments.of(stretched, stretched),) * 2,
    )
    assert torch.allclose(again.r2, profile.r2, atol=1e-8)


def test_reweighted_pass_equals_rows(tiny_gpt2, drawn_windows):
    from lib.linear import reweighted
    from lib.models import capture

    rows = capture(tiny_gpt2, drawn_windows, range(6))
    norms = [rows[b][1].double().norm(dim=-1).flatten() for b in range(6)]
    limits = [float(norm.quantile(0.9)) for norm in norms]
    train, tail = reweighted(tiny_gpt2, drawn_windows, limits)
    held_out = drawn_windows.held_out(5)
    for block in (0, 4):
        x, y = (part[held_out].flatten(0, 1) for part in rows[block])
        keep = y.double().norm(dim=1) <= limits[block]
        assert (
            tail[block].kept.n == int(keep.sum())
            and train[block].kept.n + tail[block].kept.n < drawn_windows.n_tokens
        )
        assert torch.allclose(tail[block].outputs.sxx, Moments.of(y, y).sxx, rtol=1e-9)
        assert torch.allclose(
            tail[block].kept.sxy, Moments.of(x[keep], y[keep]).sxy, rtol=1e-9, atol=1e-9
        )
    with pytest.raises(InputError, match="no token's output norm"):
        reweighted(tiny_gpt2, drawn_windows, [0.0] * 6)
    with pytest.raises(InputError, match="one limit for each of the 6 blocks"):
        reweighted(tiny_gpt2, drawn_windows, [1.0])
