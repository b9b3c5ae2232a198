"""Moments, SVD ridge and R² against scikit-learn and against each other."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import r2_score

from lib.base import InputError
from lib.linear import AffineMap, Collector, Moments, score_rows, svd_ridge, total


def design(n=600, d=24, condition=1e8, seed=0):
    """x [n, d] with covariance condition number `condition`, one feature of 100× variance, means
    far from 0; y nonlinear in x."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.normal(size=(d, d)))[0]
    white = rng.normal(size=(n, d))
    white = (white - white.mean(0)) @ np.linalg.inv(
        np.linalg.cholesky(np.cov(white.T, bias=True))
    ).T
    x = white @ (rotation * np.logspace(0, -np.log10(condition) / 2, d)).T
    y = np.tanh(3 * x) @ rng.normal(size=(d, d)) + 0.1 * rng.normal(size=(n, d))
    y[:, 3] *= 10  # 100 × variance
    return torch.from_numpy(x + 5 * rng.normal(size=d)), torch.from_numpy(y + 3)


def relative(a, b):
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("condition", [1e2, 1e8])
@pytest.mark.parametrize("ridge", [0.0, 0.01, 10.0])
def test_three_roads_to_the_same_map(condition, ridge):
    x, y = design(condition=condition)
    assert np.isclose(np.linalg.cond(np.cov(x.numpy().T)), condition, rtol=1e-3)
    by_svd, by_moments = svd_ridge(x, y, ridge)(x), Moments.of(x, y).fit(ridge)(x)
    reference = Ridge(ridge, solver="svd") if ridge else LinearRegression()
    by_sklearn = torch.from_numpy(reference.fit(x.numpy(), y.numpy()).predict(x.numpy()))
    assert relative(by_moments, by_svd) < 1e-8
    assert relative(by_moments, by_sklearn) < 1e-6 and relative(by_svd, by_sklearn) < 1e-6


@pytest.mark.parametrize("condition", [1e2, 1e8])
def test_score_from_moments_is_the_score_from_rows(condition):
    x, y = design(condition=condition)
    train, tail = Moments.of(x[:480], y[:480]), Moments.of(x[480:], y[480:])
    affine = train.fit()
    a, b = tail.score(affine), score_rows(affine, x[480:], y[480:])
    assert np.isclose(a.r2, b.r2, rtol=1e-9) and np.isclose(a.rmse, b.rmse, rtol=1e-9)
    assert torch.allclose(a.per_feature_r2, b.per_feature_r2, rtol=1e-7)
    assert np.isclose(b.r2, r2_score(y[480:], affine(x[480:]), multioutput="variance_weighted"))
    assert np.isclose(
        b.median_r2,
        np.median(r2_score(y[480:], affine(x[480:]), multioutput="raw_values")),
        atol=1e-6,
    )
    assert np.isclose(train.condition_number, np.linalg.cond(np.cov(x[:480].numpy().T)), rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(2, 40), min_size=2, max_size=5), st.integers(0, 2**31))
def test_moments_add_and_subtract_like_sets_of_rows(sizes, seed):
    x, y = design(n=sum(sizes) + 30, d=5, condition=10, seed=seed)
    x, y = x[: sum(sizes)], y[: sum(sizes)]
    parts = [Moments.of(a, b) for a, b in zip(x.split(sizes), y.split(sizes), strict=True)]
    for moments, rows in [
        (total(parts), slice(None)),
        (total(parts) - parts[-1], slice(None, sum(sizes[:-1]))),
    ]:
        direct = Moments.of(x[rows], y[rows])
        assert moments.n == direct.n
        for name in ("mean_x", "mean_y", "sxx", "sxy", "syy"):
            assert torch.allclose(
                getattr(moments, name), getattr(direct, name), rtol=1e-9, atol=1e-9
            ), name


def test_an_affine_block_is_fully_recoverable_and_constant_features_are_left_out():
    x, _ = design()
    y = x @ torch.randn(24, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1
    y[:, 2] = 7.0  # no variance: R² undefined there
    score = Moments.of(x[480:], y[480:]).score(Moments.of(x[:480], y[:480]).fit())
    assert score.r2 > 1 - 1e-10 and score.n_undefined == 1 and score.median_r2 > 1 - 1e-8


def test_unrelated_targets_are_not_recoverable():
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(4000, 8, generator=generator), torch.randn(4000, 8, generator=generator)
    assert abs(Moments.of(x[2000:], y[2000:]).score(Moments.of(x[:2000], y[:2000]).fit()).r2) < 0.02


def test_constant_directions_fall_under_the_cut_off():
    """LayerNorm outputs lie in a hyperplane; the fit must not blow up along its normal."""
    x, y = design(condition=10)
    x = x - x.mean(1, keepdim=True)
    moments = Moments.of(x, y)
    assert (
        moments.rank == 23
        and np.isfinite(moments.condition_number)
        and moments.condition_number < 1e6
    )
    assert relative(moments.fit()(x), svd_ridge(x, y, 0.0)(x)) < 1e-8


def test_bad_moments():
    x, y = design(n=60)
    with pytest.raises(InputError, match="cannot take 60 rows out of 60"):
        Moments.of(x, y) - Moments.of(x, y)
    with pytest.raises(InputError, match="no variance"):
        Moments.of(x, torch.ones_like(y)).score(AffineMap(torch.zeros(24, 24), torch.zeros(24)))


def test_non_finite_activations_name_block_and_token():
    collector = Collector()
    x, y = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    collector.add(5, x, y)
    y[1, 2, 0] = float("nan")
    with pytest.raises(InputError, match=r"block 5: .* not finite at token 14 "):
        collector.add(5, x, y)


def test_affine_map_saves_and_loads():
    x, y = design()
    affine = Moments.of(x, y).fit()
    other = AffineMap(torch.zeros_like(affine.weight), torch.zeros_like(affine.bias))
    other.load_state_dict(affine.state_dict())
    assert torch.equal(other(x), affine(x)) and "24 -> 24" in repr(affine)
