"""Product probes: parameter counts, a planted residual, the conjunction index."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lib.linear.affine import AffineMap, MassiveKeptMap
from lib.linear.candidates import FROZEN, WHOLE, PolyLinear, build, conjunction_index, n_params
from lib.linear.moments import Moments
from lib.linear.probes import ProbeTraining, _planted, cosines, signs, train_layer, train_probe
from lib.stats import sums


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("poly", 628_224),
        ("dense2x", 1_181_184),
        ("poly2x", 1_256_448),
        ("gelu", pytest.approx(628_224, rel=0.002)),
        ("poly_wide", pytest.approx(1_181_184, rel=0.01)),
        ("gelu_beside", pytest.approx(1_181_184, rel=0.01)),
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
    test = SimpleNamespace(document=np.repeat(np.arange(10), 3))

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


def gain(errors) -> float:
    """The share of what the map leaves that is recovered."""
    total = errors.sum()
    return 1 - total.error / total.error_closed_form


def test_a_planted_bilinear_residual_is_found(planted):
    probe = train_probe(planted, 0, planted.affine, "product", 3000, at="best")
    assert gain(probe.errors) > 0.9
    u, v = planted.rows[2:]
    error = (probe.module(u) - v).double().square().sum((1, 2)).numpy()
    np.testing.assert_allclose(
        sums(error[:, None], planted.test.document), probe.errors.error, rtol=1e-3
    )
    left = (planted.affine(u) - v).square().sum((1, 2)).numpy()
    np.testing.assert_allclose(
        sums(left[:, None], planted.test.document), probe.errors.error_closed_form, rtol=1e-4
    )
    torch.testing.assert_close(probe.module.weight, planted.affine.weight)  # the map was frozen
    # A few hidden units of the same size are no product.
    other = train_probe(planted, 0, planted.affine, "gelu", 3000, at="best")
    assert gain(other.errors) < gain(probe.errors)


def test_the_cosine_of_a_layer_is_that_of_its_outputs(planted):
    u, v = planted.rows[2:]
    table = cosines(planted, 0, planted.affine)
    oracle = nn.functional.cosine_similarity(planted.affine(u).flatten(0, 1), v.flatten(0, 1))
    assert table.cosine.sum() / table.positions.sum() == pytest.approx(
        float(oracle.mean()), rel=1e-5
    )
    assert table.positions.sum() == oracle.numel()


def test_an_affine_map_has_no_conjunctions_and_a_fresh_product_the_starting_gate(planted):
    assert signs(planted, 0, planted.affine).conjunction.item() == pytest.approx(0, abs=1e-9)
    found = signs(planted, 0, build("poly", 8)).iloc[0]
    assert found.conjunction > 0 and found.gate == pytest.approx(np.exp(-2), rel=1e-4)


def test_a_product_planted_in_place_of_the_residual_is_found(planted):
    probe = train_probe(planted, 0, planted.affine, "product", 6000, planted=1.0, at="best")
    assert gain(probe.errors) > 0.9


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
    found = train_layer(ProbeTraining(planted, 0, planted.affine, kind, 60, start="random"))
    _, _, u, v = planted.rows
    for at, checkpoint in (("last", -1), ("best", found.best_checkpoint)):
        error = (found.module(at)(u) - v).double().square().sum()
        assert float(error) == pytest.approx(found.error[checkpoint].sum(), rel=1e-3)
    assert found.error.sum(1).min() < found.error[0].sum()


def test_a_linear_candidate_starts_at_the_map(planted):
    found = train_layer(ProbeTraining(planted, 0, planted.affine, "linear", 20))
    np.testing.assert_allclose(found.error[0], found.closed_form, rtol=1e-3)


def test_the_checkpoint_is_chosen_on_fit_rows_alone(planted):
    class OtherTest(Planted):
        """The same fit rows; a test text on which the probe is worse from the first step on."""

        def __getitem__(self, block):
            x, y, u, _ = self.rows
            return x, y, u, self.affine(u)

    usual = train_layer(ProbeTraining(planted, 0, planted.affine, "product", 400))
    other = train_layer(ProbeTraining(OtherTest(), 0, planted.affine, "product", 400))
    assert other.error.sum(1).argmin() < other.best_checkpoint == usual.best_checkpoint
    for name, value in usual.best.items():
        torch.testing.assert_close(value, other.best[name])


def test_a_probe_leaves_out_what_a_repaired_map_leaves_to_the_ffn(planted):
    x, y, u, v = planted.rows
    direction = torch.eye(8)[0]
    repaired = MassiveKeptMap(planted.affine.weight, planted.affine.bias, direction, 1.0)

    class Broken(Planted):
        """The same rows with absurd outputs where the first feature exceeds 1."""

        def __getitem__(self, block):
            return x, y + 1e3 * (x[:, :1] > 1), u, v + 1e3 * (u[..., :1] > 1)

    usual = train_layer(ProbeTraining(planted, 0, repaired, "product", 100))
    broken = train_layer(ProbeTraining(Broken(), 0, repaired, "product", 100))
    np.testing.assert_allclose(broken.error, usual.error, rtol=1e-6)
    off = u[..., 0] <= 1
    expected = ((planted.affine(u) - v).square().sum(-1) * off).sum(1)
    np.testing.assert_allclose(usual.closed_form, expected, rtol=1e-4)
    assert usual.spread.sum() == pytest.approx(
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
