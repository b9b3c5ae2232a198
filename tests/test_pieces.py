"""A few affine pieces: an FFN that is made of some is found, one map is one piece."""

import contextlib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import Ridge

from lib.errors import InputError
from lib.gating import pieces
from lib.gating.gates import GateText, Routed
from lib.gating.pieces import PRIORS, ByPosition, Pieces, fit_in_cells, in_cells
from lib.gating.routing import TopShare, arithmetic_saved, cheapest, sweep
from lib.hooks import capture, swap
from lib.linear.affine import AffineMap
from lib.linear.moments import Moments
from lib.linear.regression import single
from lib.swap.losses import Losses
from lib.swap.sweep import token_losses

KINDS = {"4 pieces": ("k-means", 4), "2, by position": ("position", 2)}


@pytest.fixture(scope="module")
def planted():
    """Rows of an FFN that is 24 affine maps around as many centres: x, y [n, 8], cell [n]."""
    g = torch.Generator().manual_seed(0)
    centres, maps = 10 * torch.randn(24, 8, generator=g), torch.randn(24, 8, 8, generator=g)
    cell = torch.randint(24, (4_000,), generator=g)
    x = centres[cell] + torch.randn(4_000, 8, generator=g)
    y = in_cells(x, cell, maps, torch.randn(24, 8, generator=g))
    return x, y, cell


def r2(y, y_hat):
    return float(1 - (y - y_hat).square().sum() / (y - y.mean(0)).square().sum())


def test_planted_pieces_are_found_and_one_map_is_not_enough(planted):
    x, y, _ = planted
    train, test = slice(0, 3_000), slice(3_000, None)
    base = single(Moments.of(x[train], y[train]).fit())
    centres = pieces._centres("k-means", 24, x[train], 0)
    cell = Pieces(base, base.weight[None], base.bias[None], centres).cells(x[train])
    found = Pieces(base, *fit_in_cells(x[train], y[train], cell, 24, base)[0], centres)
    assert r2(y[test], found(x[test])) > 0.99
    assert r2(y[test], base(x[test])) < 0.95
    dealt = torch.arange(3_000) % 24
    at_random = fit_in_cells(x[train], y[train], dealt, 24, base)[0]
    assert r2(y[test], in_cells(x[test], torch.arange(1_000) % 24, *at_random)) < 0.95


def test_one_piece_is_the_one_map(planted):
    x, y, _ = planted
    base = single(Moments.of(x, y).fit())
    for maps in fit_in_cells(x, y, torch.zeros(len(x), dtype=torch.long), 1, base):
        torch.testing.assert_close(Pieces(base, *maps, x[:1])(x), base(x), atol=2e-3, rtol=1e-3)


def test_a_cells_map_is_ridge_regression_on_its_rows(planted):
    x, y, cell = planted
    base = AffineMap(torch.randn(8, 8), torch.randn(8))
    found = fit_in_cells(x, y, cell, 24, base)
    for prior, (weights, biases) in zip(PRIORS, found):
        for c in range(24):
            x_c, left = x[cell == c].double().numpy(), (y - base(x))[cell == c].double().numpy()
            ridge = Ridge(prior * float(x.double().var(0, correction=0).mean())).fit(x_c, left)
            np.testing.assert_allclose(weights[c] - base.weight, ridge.coef_.T, atol=1e-4)
            np.testing.assert_allclose(biases[c] - base.bias, ridge.intercept_, atol=3e-3)


def test_each_row_has_the_map_of_its_cell():
    x, centres = torch.randn(5, 8, 6), torch.randn(3, 6)
    base = AffineMap(torch.zeros(6, 6), torch.zeros(6))
    maps = torch.randn(3, 6, 6), torch.randn(3, 6)
    nearest, in_order = (kind(base, *maps, centres) for kind in (Pieces, ByPosition))
    for row, y in zip(x.flatten(0, 1), nearest(x).flatten(0, 1)):
        k = int((row - centres).square().sum(1).argmin())
        torch.testing.assert_close(y, row @ nearest.weights[k] + nearest.biases[k])
    assert in_order.cells(x)[0].tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_one_pass_gives_the_rows_of_every_ffn(subject, test):
    for b, x, y in pieces.rows_by_block(subject, test[:4]):
        rows = capture(subject, test[:4], [b])[b]
        torch.testing.assert_close(x, rows[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(y, rows[1], atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def gate_text(test):
    return GateText(test[:12], test[12:16])


@pytest.fixture(scope="module")
def of_way(subject, fit, gate_text, fits):
    return pieces.pieces_of(subject, fit[:32], gate_text.choose, fits.repaired, KINDS)


def test_errors_are_those_by_hand(subject, test, of_way):
    x, y = capture(subject, test[16:], [1])[1]
    for of in of_way.values():
        table, stays = pieces.errors(subject, test[16:], of), of[1].massive(x)
        by_block = table[table.block == 1][["error", "spread"]].sum()
        left = (y - of[1](x)).square().sum(-1)[~stays]
        spread = (y - y[~stays].mean(0)).square().sum(-1)[~stays]
        np.testing.assert_allclose(by_block, [float(left.sum()), float(spread.sum())], rtol=1e-3)


def test_pieces_are_routed_and_their_choice_is_counted(subject, gate_text, of_way):
    four = of_way["4 pieces"]
    found = sweep(subject, gate_text.train, {"half": cheapest(subject, gate_text, four, 0.5)})
    assert 0.4 < found.table().affine.item() < 0.52
    n, d = subject.blocks[1].n_params, subject.d_model
    module = Routed(subject.blocks[1].original, four[1], TopShare(_Score(), 1.0))
    module(torch.randn(1, 3, d))
    _, saved = arithmetic_saved(module, n, (1, 3))
    np.testing.assert_allclose(saved, 1 - (d * d + 4 * d) / n)


class _Score(torch.nn.Module):
    def score(self, x):
        return x[..., 0]


def test_where_pieces_are_the_ffn_routing_costs_nothing(subject, test, of_way):
    """Every FFN is its pieces: where a router sends half of the positions changes nothing."""
    tokens, four = test[16:].tokens, {b: of.module for b, of in of_way["4 pieces"].items()}
    with contextlib.ExitStack() as stack:
        for b, module in four.items():
            stack.enter_context(swap(subject.blocks[b], module))
        as_it_is = token_losses(subject, tokens)
        for b, module in four.items():
            routed = Routed(module, module, TopShare(_Score(), 0.5))
            stack.enter_context(swap(subject.blocks[b], routed))
        np.testing.assert_allclose(token_losses(subject, tokens), as_it_is, atol=1e-4)


def test_share_at_a_cost_is_read_between_the_routed_models():
    documents, ones = np.arange(8), np.ones(8)
    shares = pd.DataFrame({"affine": [0.2, 0.4], "saved": [0.1, 0.3]}, index=["a", "b"])
    added = {"a": 10 * ones + 0.0, "b": 10 * ones + 2 * np.log(1.05)}
    found = pieces.share_at(Losses(documents, ones, 10 * ones, added, shares), ["a", "b"])
    assert found.value == pytest.approx(0.3)


def test_what_pieces_cannot_is_one_sentence(subject, fit, gate_text, fits, of_way):
    with pytest.raises(InputError, match="cannot be refitted as one"):
        of_way["4 pieces"][1].module.with_affine(fits.maps[1])
    shorter = gate_text.choose
    shorter = replace(shorter, tokens=shorter.tokens[:, :32])
    with pytest.raises(InputError, match="windows of 64 tokens to fit, of 32"):
        pieces.fit_pieces(subject, fit[:8], shorter, fits.repaired, [("random", 2)])


@pytest.mark.parametrize("n_pieces", [1, 4])
def test_a_clock_has_a_ratio_for_each_share(subject, n_pieces):
    x, ffn = torch.randn(200, subject.d_model), subject.blocks[1].ffn
    times = pieces.timed(x, n_pieces, ffn, [0.0, 0.5, 1.0], rounds=2)
    assert times.share.tolist() == [0.0, 0.5, 1.0] and (times.ratio > 0).all()
