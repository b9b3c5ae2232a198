"""Product probes: parameter counts, a planted residual, the conjunction index."""

import numpy as np
import pytest
import torch
from torch import nn

from lib.linear.affine import AffineMap, MassiveKeptMap
from lib.linear.moments import Moments
from lib.linear.products import (
    FROZEN,
    WHOLE,
    PolyLinear,
    _planted,
    build,
    conjunction_index,
    fit_probe,
    n_params,
)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("poly", 628_224),
        ("dense2x", 1_181_184),
        ("poly2x", 1_256_448),
        ("gelu", pytest.approx(628_224, rel=0.002)),
        ("poly_wide", pytest.approx(1_181_184, rel=0.01)),
        ("ffn", 2 * 4 * 768 * 768 + 5 * 768),
    ],
)
def test_parameter_counts_are_the_papers(kind, expected):
    assert n_params(build(kind, 768)) == expected


def test_poly_linear_is_its_formula(generator):
    poly, x = PolyLinear(6, 2), torch.randn(4, 6, generator=generator)
    with torch.no_grad():
        poly.bias += 1
    a, b = poly.factors
    products = torch.stack([(x @ a)[:, k] * (x @ b)[:, k] for k in range(2)], 1)
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

    provenance = None
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
    found = fit_probe(planted, 0, planted.affine, "product", 3000)
    gain, left = found.gain(planted.document), found.linear.sum() / found.total.sum()
    assert gain.low > 0 and gain.value > 0.9 * left  # of the variance that the map leaves
    u, v = planted.rows[2:]
    error = (found.module(u) - v).double().square().sum((1, 2)).numpy()
    np.testing.assert_allclose(error, found.chosen_error, rtol=1e-3)
    np.testing.assert_allclose(
        found.linear, (planted.affine(u) - v).square().sum((1, 2)), rtol=1e-4
    )
    cosine = torch.cosine_similarity(found.module_at_end(u), v, dim=-1).mean(1)
    np.testing.assert_allclose(found.cosine[0], cosine, rtol=1e-4)
    assert found.gate[0] == pytest.approx(np.exp(-2), rel=1e-4)
    torch.testing.assert_close(found.module.weight, planted.affine.weight)  # the map was frozen
    # A few hidden units of the same size are no product.
    other = fit_probe(planted, 0, planted.affine, "gelu", 3000).gain(planted.document)
    assert other.value < gain.value


def test_a_product_planted_in_place_of_the_residual_is_found(planted):
    found = fit_probe(planted, 0, planted.affine, "product", 6000, planted=1.0)
    assert found.gain(planted.document).value > 0.9 * found.linear.sum() / found.total.sum()


def test_a_planted_product_is_one_function_in_both_texts(planted):
    x, y, _, _ = planted.rows
    larger, affine = 3 * x, planted.affine
    _, as_test = _planted(1.0, affine, x, y, x, y)
    _, larger_as_test = _planted(1.0, affine, x, y, larger, y)
    # A product of three times the inputs is nine times the product.
    expected = 9 * (as_test - affine(x))
    torch.testing.assert_close(larger_as_test - affine(larger), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", WHOLE)
def test_whole_candidates_are_what_they_are_scored_as(planted, kind):
    found = fit_probe(planted, 0, planted.affine, kind, 60, start="random")
    _, _, u, v = planted.rows
    error = (found.module_at_end(u) - v).double().square().sum()
    assert float(error) == pytest.approx(found.error[-1].sum(), rel=1e-3)
    assert found.error.sum(1).min() < found.error[0].sum()
    assert np.isnan(found.gate[0]) == (kind not in ("poly", "poly_wide"))


def test_a_linear_candidate_starts_at_the_map(planted):
    found = fit_probe(planted, 0, planted.affine, "linear", 20)
    np.testing.assert_allclose(found.error[0], found.linear, rtol=1e-3)


def test_the_checkpoint_is_chosen_on_fit_rows_alone(planted):
    class OtherTest(Planted):
        """The same fit rows; a test text on which the probe is worse from the first step on."""

        def __getitem__(self, block):
            x, y, u, _ = self.rows
            return x, y, u, self.affine(u)

    usual = fit_probe(planted, 0, planted.affine, "product", 400)
    other = fit_probe(OtherTest(), 0, planted.affine, "product", 400)
    assert other.error.sum(1).argmin() < other.best == usual.best
    np.testing.assert_array_equal(other.printed_error, other.error[other.error.sum(1).argmin()])
    for name, value in usual.state.items():
        torch.testing.assert_close(value, other.state[name])


def test_a_probe_leaves_out_what_a_repaired_map_leaves_to_the_ffn(planted):
    x, y, u, v = planted.rows
    direction = torch.eye(8)[0]
    repaired = MassiveKeptMap(planted.affine.weight, planted.affine.bias, direction, 1.0)

    class Broken(Planted):
        """The same rows with absurd outputs where the first feature exceeds 1."""

        def __getitem__(self, block):
            return x, y + 1e3 * (x[:, :1] > 1), u, v + 1e3 * (u[..., :1] > 1)

    usual = fit_probe(planted, 0, repaired, "product", 100)
    broken = fit_probe(Broken(), 0, repaired, "product", 100)
    np.testing.assert_allclose(broken.error, usual.error, rtol=1e-6)
    off = u[..., 0] <= 1
    expected = ((planted.affine(u) - v).square().sum(-1) * off).sum(1)
    np.testing.assert_allclose(usual.linear, expected, rtol=1e-4)
    assert usual.total.sum() == pytest.approx(
        float((v[off] - v[off].mean(0)).square().sum()), rel=1e-4
    )


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
