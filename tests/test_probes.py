"""Product probes: parameter counts, a planted residual, the conjunction index."""

import numpy as np
import pytest
import torch
from torch import nn

from lib.affine import AffineMap
from lib.moments import Moments
from lib.probes import (
    FROZEN,
    WHOLE,
    PolyLinear,
    build,
    conjunction_index,
    fit_probe,
    n_params,
    with_target,
)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("poly", 628_224),
        ("dense2x", 1_181_184),
        ("poly2x", 1_256_448),
        ("triple", pytest.approx(628_224, rel=0.001)),
        ("poly_wide", pytest.approx(1_181_184, rel=0.01)),
        ("dense_narrow", 2 * 768 * 192 + 192 + 768),
    ],
)
def test_parameter_counts_are_the_papers(kind, expected):
    assert n_params(build(kind, 768)) == expected


def test_poly_linear_is_its_formula(generator):
    poly, x = PolyLinear(6, 2, 3), torch.randn(4, 6, generator=generator)
    with torch.no_grad():
        poly.bias += 1
    a, b, c = poly.factors
    products = torch.stack([(x @ a)[:, k] * (x @ b)[:, k] * (x @ c)[:, k] for k in range(2)], 1)
    oracle = x @ poly.weight + poly.bias + torch.exp(poly.quad_scale) * (products @ poly.out)
    torch.testing.assert_close(poly(x), oracle)
    assert (poly.quad_scale == -2).all()


@pytest.mark.parametrize("kind", [*FROZEN, *WHOLE])
def test_candidates_are_seeded(kind):
    def state(seed):
        return torch.cat([p.flatten() for p in build(kind, 20, seed).parameters()])

    assert torch.equal(state(1), state(1)) and not torch.equal(state(1), state(2))
    assert build(kind, 20, 1)(torch.zeros(2, 3, 20)).shape == (2, 3, 20)


class Planted:
    """Rows whose residual about the affine map is a bilinear form of rank 2."""

    recipe = None
    document = np.repeat(np.arange(10), 3)

    def __init__(self):
        g = torch.Generator().manual_seed(3)

        def normal(*shape):
            return torch.randn(shape, generator=g)

        weight, a, b, out = normal(8, 8), normal(8, 2), normal(8, 2), normal(2, 8)

        def y(x):
            return x @ weight + ((x @ a) * (x @ b)) @ out + 0.1 * normal(*x.shape)

        x, u = normal(4000, 8), normal(30, 40, 8)
        self.rows, self.affine = (x, y(x), u, y(u)), Moments.of(x, y(x)).fit()
        self.affine = AffineMap(self.affine.weight.float(), self.affine.bias.float())

    def __getitem__(self, block):
        return self.rows


@pytest.fixture(scope="module")
def planted():
    return Planted()


def test_a_planted_bilinear_residual_is_found(planted):
    found = fit_probe(planted, 0, planted.affine, "product", 1200)
    gain, left = found.gain(planted.document), found.linear.sum() / found.total.sum()
    assert gain.low > 0 and gain.value > 0.9 * left  # of the variance that the map leaves
    u, v = planted.rows[2:]
    error = (found.module(u) - v).double().square().sum((1, 2)).numpy()
    np.testing.assert_allclose(error, found.chosen_error, rtol=1e-3)
    np.testing.assert_allclose(
        found.linear, (planted.affine(u) - v).square().sum((1, 2)), rtol=1e-4
    )
    np.testing.assert_allclose(found.error[0], found.linear, rtol=1e-4)  # it starts at the map
    cosine = torch.cosine_similarity(found.module(u), v, dim=-1).mean(1)
    np.testing.assert_allclose(found.cosine[0], cosine, rtol=1e-4)
    assert found.gate[0] == pytest.approx(np.exp(-2), rel=1e-4)
    torch.testing.assert_close(found.module.weight, planted.affine.weight)  # the map was frozen


def test_a_permuted_residual_gives_nothing(planted):
    gain = fit_probe(planted, 0, planted.affine, "product", 400, target="permuted").gain(
        planted.document
    )
    assert abs(gain.value) < 0.01


def test_planted_targets_are_seen_by_their_own_kind(planted):
    def gain(kind, target):
        return (
            fit_probe(planted, 0, planted.affine, kind, 300, target=target)
            .gain(planted.document)
            .value
        )

    assert gain("product", "planted_product") > 2 * max(gain("triple", "planted_product"), 0.01)


@pytest.mark.parametrize("kind", WHOLE)
def test_whole_candidates_work_in_raw_units(planted, kind):
    found, (_, _, u, v) = fit_probe(planted, 0, planted.affine, kind, 60), planted.rows
    error = (found.module(u) - v).double().square().sum()
    assert float(error) == pytest.approx(found.chosen_error.sum(), rel=1e-3)
    assert found.error.sum(1).min() < found.error[0].sum()
    assert np.isnan(found.gate[0]) == (kind not in ("poly", "poly_wide"))


def test_the_checkpoint_is_chosen_on_fit_rows_alone(planted):
    class OtherTest(Planted):
        """The same fit rows; a test text on which the probe is worse from the first step on."""

        def __getitem__(self, block):
            x, y, u, _ = self.rows
            return x, y, u, self.affine(u)

    usual = fit_probe(planted, 0, planted.affine, "product", 200)
    other = fit_probe(OtherTest(), 0, planted.affine, "product", 200)
    assert other.error.sum(1).argmin() == 0 < other.best == usual.best
    for name, value in usual.state.items():
        torch.testing.assert_close(value, other.state[name])


def test_a_planted_target_has_the_scale_of_the_fit_text(planted):
    x, _, u, _ = planted.rows
    few = (x, planted.rows[1], 3 * u, planted.rows[3])  # a test text of three times the spread
    made, louder = (with_target(rows, planted.affine, "planted_product", 42)
                    for rows in (planted.rows, few))  # fmt: skip
    torch.testing.assert_close(made[1], louder[1])
    quiet, loud = made[3] - planted.affine(u), louder[3] - planted.affine(3 * u)
    torch.testing.assert_close(loud, 9 * quiet, rtol=1e-3, atol=1e-3)  # a product grows as x²


class And(nn.Module):
    def forward(self, x):
        return x[..., :1] * x[..., 1:2]


def test_conjunction_index(generator):
    x = torch.randn(500, 6, generator=generator)
    affine = AffineMap(torch.randn(6, 4, generator=generator), torch.ones(4))
    assert conjunction_index(affine, x) == pytest.approx(0, abs=1e-9)
    pair = x[:, :2] - x[:, :2].mean(0)
    assert conjunction_index(And(), pair) == pytest.approx(1, abs=1e-6)
    both = nn.Sequential(nn.Linear(6, 6), nn.GELU())
    assert 0 < conjunction_index(both, x) < 1
    assert next(both.parameters()).dtype == torch.float32  # the caller's module is as it was
