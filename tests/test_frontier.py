"""Routers over the whole network, labels of evaluations and refitted maps: against oracles, finite
differences and worlds where the answer is known."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lib.base import InputError
from lib.gates import (
    HEAVIEST,
    Inputs,
    Routed,
    as_many,
    at_random,
    below,
    by_layer,
    calibrated,
    compared,
    cut_elsewhere,
    evaluations,
    everywhere,
    fit_gate,
    frontier,
    linear_share,
    lowest,
    masked,
    needed,
    needed_less,
    protocol,
    refit,
    regression,
    regressions,
    routed_losses,
    router_points,
    single_effects,
    sparing_heaviest,
    split_half,
    step_of,
    validity,
    values,
)
from lib.gates.allowance import crossing
from lib.gates.figures_budget import _read
from lib.gates.routing import routed
from lib.linear import svd_ridge
from lib.models import load_subject
from lib.models.hooks import capture, record, swap
from lib.stats.intervals import Interval
from lib.swaps import swap_sweep, token_losses
from lib.texts import cut_windows, load_corpus


@pytest.fixture(scope="module")
def setting():
    subject, text = load_subject("tiny-gpt2"), load_corpus("wikipedia-sample")
    whole = cut_windows(text.fit, subject.tokenizer, 32)
    unseen = cut_windows(text.eval, subject.tokenizer, 32).take(512, evenly=True)
    found = protocol(subject, whole.take(4096), whole, unseen, 1024, 256)
    return subject, whole.take(4096), found


class Never(nn.Module):
    def forward(self, x):
        return torch.zeros(x.shape[:-1], dtype=torch.bool)


class Always(nn.Module):
    def forward(self, x):
        return torch.ones(x.shape[:-1], dtype=torch.bool)


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 1), st.integers(0, 99))
def test_the_lowest_are_the_lowest(share, seed):
    score = at_random([0, 2, 5], np.zeros((4, 7)), seed)
    masks = lowest(score, share)
    chosen = np.concatenate([score[b][masks[b][:, :-1]] for b in score])
    rest = np.concatenate([score[b][~masks[b][:, :-1]] for b in score])
    assert len(chosen) == round(share * 84)
    assert not len(chosen) or not len(rest) or chosen.max() <= rest.min()
    assert not any(mask[:, -1].any() for mask in masks.values())


def test_layers_go_whole_and_the_last_in_part():
    score = by_layer({0: 3.0, 1: 1.0, 2: 2.0, 3: 9.0}, np.zeros((5, 4)))
    shares = lambda share: [mask[:, :-1].mean() for mask in lowest(score, share).values()]
    assert shares(0.25) == [0, 1, 0, 0] and shares(0.5) == [0, 1, 1, 0]
    assert shares(0.375) == [0, 1, 0.5, 0]


def test_the_heaviest_go_last_and_counts_by_block_are_met():
    norm = {b: np.random.default_rng(b).random((20, 50)) for b in (1, 4)}
    score = sparing_heaviest(norm, 3)
    linear = {1: np.arange(50)[None] < np.full((20, 1), 40), 4: np.zeros((20, 50), dtype=bool)}
    masks = as_many(score, linear)
    assert [int(masks[b].sum()) for b in (1, 4)] == [800, 0]
    assert not (masks[1][:, :-1] & (norm[1] > np.quantile(norm[1], 1 - HEAVIEST))).any()
    plain = as_many(at_random([1, 4], norm[1], 3), linear)
    assert (plain[1] == masks[1]).mean() > 0.95 and not masks[1][:, -1].any()


def test_a_cut_of_the_other_half_meets_the_share():
    score = at_random(range(4), np.zeros((40, 50)), 0)
    document = np.arange(40) // 2
    masks = cut_elsewhere(score, 0.3, document)
    assert np.mean([m[:, :-1].mean() for m in masks.values()]) == pytest.approx(0.3, abs=0.02)
    # A document's own scores do not move its cut.
    score[0][0] = -1e9
    assert cut_elsewhere(score, 0.3, document)[1][0].tolist() == masks[1][0].tolist()


@pytest.mark.parametrize(
    ("values_", "limit", "expected"),
    [([1, 2, 4], 1, 0.1), ([1, 2, 4], 3, 0.3), ([1, 2, 4], 9, 0.4), ([4, 4, 4], 1, 0.025)],
)
def test_where_a_curve_first_exceeds_a_limit(values_, limit, expected):
    shares = np.array([0.1, 0.2, 0.4])
    assert crossing(shares, np.array(values_, float), limit) == pytest.approx(expected)


def test_the_share_that_a_cost_allows_in_a_known_world():
    rng = np.random.default_rng(0)
    base, n = rng.normal(3, 0.2, (60, 10)), 4
    points = [("router", s) for s in (0.25, 0.5, 1.0)]
    masks = {s: np.arange(10)[None] < 10 * s for _, s in points}
    linear = {p: {b: np.tile(masks[p[1]], (60, 1)) for b in range(n)} for p in points}
    # Sending a share down the linear path costs share / 5 nats, the same in every document.
    losses = {p: base + linear_share(Routed(base, {}, linear), p, n) / 5 for p in points}
    found = Routed(base, losses, linear)
    left = needed(found, points, n, np.arange(60) // 3, float(np.expm1(0.1)))
    assert left.value == pytest.approx(0.5) and left.low == pytest.approx(left.high)
    # Read between 0.3 and 0.5; twice as dear a router may send half as much, in every document.
    assert step_of(found, points, n, 0.6) == pytest.approx(0.2)
    assert step_of(found, points, n, 0.9) == pytest.approx(0.3)
    dear = {("dear", s): base + 2 * (losses["router", s] - base) for _, s in points}
    more = Routed(base, losses | dear, linear | {("dear", p[1]): linear[p] for p in points})
    cost, document = float(np.expm1(0.1)), np.arange(60) // 3
    less = needed_less(more, points, list(dear), n, document, cost)
    assert less.value == pytest.approx(-0.25) and less.low == pytest.approx(less.high)
    table = frontier(found, points, n, np.arange(60) // 3)
    assert table.nonlinear.tolist() == pytest.approx([0.7, 0.5, 0.0])  # 3 of 10 positions
    np.testing.assert_allclose(table.cost, np.expm1((1 - table.nonlinear) / 5))
    # A figure's curve passes where the table reads it.
    everything = Interval(float(np.expm1(0.2)), np.nan, np.nan)
    left, read = _read(table.sort_values("nonlinear", ascending=False)[:2], everything)
    assert np.interp(-60, -left, read) == pytest.approx(100 * np.expm1(0.08), abs=0.01)
    (less,) = compared(found, {"x": (points[0], points[2])}, np.arange(60) // 3).values()
    assert less.high < 0


def test_all_linear_through_masks_is_all_swapped(setting):
    subject, _, parts = setting
    windows = parts.report
    score = at_random(parts.maps, np.zeros((len(windows), windows.seq_len - 1)), 1)
    routes = router_points({"all": score}, [0.5, 1.0], parts.maps)
    got = routed_losses(subject, windows, routes).losses["all", 1.0]
    whole = {i: (m, everywhere(windows)) for i, m in parts.maps.items()}
    expected = routed_losses(subject, windows, {"w": whole}).losses["w"]
    np.testing.assert_allclose(got, expected, atol=1e-5)


class Blend(nn.Module):
    """A step of the given size from the FFN towards the map."""

    def __init__(self, ffn, affine, size):
        super().__init__()
        self.forward = lambda x: ffn.forward(x) + size * (affine(x) - ffn.forward(x))


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-neox", "tiny-llama"])
def test_the_gradient_is_what_a_small_step_costs(name):
    subject, text = load_subject(name), load_corpus("wikipedia-sample")
    windows = cut_windows(text.eval, subject.tokenizer, 32).take(96)
    x, y = capture(subject, windows, [1])[1]
    affine = svd_ridge(x.flatten(0, 1), y.flatten(0, 1), 10.0)
    affine = type(affine)(affine.weight.float(), affine.bias.float())
    found = evaluations(subject, windows, {1: affine})
    block, at = subject.blocks[1], (1, 9)
    here = torch.zeros(tuple(windows.tokens.shape), dtype=torch.bool)
    here[at] = True
    plain, size = token_losses(subject, windows), 0.02
    with routed(block, Blend(block.ffn, affine, size), lambda x: here):
        moved = token_losses(subject, windows)
    expected = float((moved - plain)[1].sum()) / size
    assert found.gradient[1][at] == pytest.approx(expected, rel=0.1, abs=1e-3)
    # The map's error relative to the stream that enters the block, by hand.
    stream = {}
    with record(subject, on_residual=stream.__setitem__, blocks=[1]):
        token_losses(subject, windows)
    miss = (affine(x) - y).norm(dim=-1) / stream[1].norm(dim=-1)
    np.testing.assert_allclose(found.error[1], miss[:, :-1].numpy(), rtol=1e-3)
    assert np.median(found.norm[1]) == pytest.approx(1)


def test_labels_leave_the_model_as_it_was(setting):
    subject, _, parts = setting
    before = subject.key
    evaluations(subject, parts.report, parts.maps)
    assert subject.key == before and not any(b.ffn._forward_hooks for b in subject.blocks)
    assert all(p.grad is None for p in subject.model.parameters())


def test_effects_of_single_evaluations_and_what_orders_them(setting):
    subject, _, parts = setting
    windows = parts.report
    positions, effects = single_effects(subject, windows, parts.maps)
    mask = np.zeros(tuple(windows.tokens.shape), dtype=bool)
    mask[3, positions[2][3]] = True
    got = routed_losses(subject, windows, {"one": {2: (parts.maps[2], mask)}})
    expected = (got.losses["one"] - got.base)[3].sum()
    assert effects[2][3] == pytest.approx(expected, abs=1e-4)
    found = evaluations(subject, windows, parts.maps)
    assert validity(found.gradient, positions, effects).value > 0.8
    assert validity(found.gradient, positions, effects, within=True).value > 0.5
    between = {b: np.full_like(v, effects[b].mean()) for b, v in found.gradient.items()}
    assert np.isnan(validity(between, positions, effects, within=True).value)
    noise = at_random(parts.maps, found.gradient[0], 3)
    assert abs(validity(noise, positions, effects).value) < 0.4


def test_reliability_of_a_type_and_of_noise(setting):
    windows = setting[1]
    at = windows.tokens[:, :-1].numpy()
    of_type = {b: np.sin(at * (b + 1.0)) + b for b in range(4)}
    found = split_half(of_type, windows)
    assert found.by_block == 1 and found.by_type > 0.99 and found.types > 5
    noise = {b: np.random.default_rng(b).normal(size=at.shape) for b in range(4)}
    assert abs(split_half(noise, windows).by_type) < 0.3


def test_refitted_on_all_tokens_is_the_paper_s_ridge(setting):
    subject, fit, _ = setting
    n = 2048
    found = refit(subject, fit, {1: Never(), 3: Never()}, n)
    x, y = capture(subject, fit[~fit.held_out(5)].take(n), [3])[3]
    expected = svd_ridge(x.flatten(0, 1), y.flatten(0, 1), 0.01)
    torch.testing.assert_close(found[3].weight, expected.weight.float(), rtol=1e-3, atol=1e-4)
    in_order = refit(subject, fit, {1: Never(), 3: Never()}, n, in_order=True)
    torch.testing.assert_close(in_order[3].weight, found[3].weight, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-neox"])
def test_refitted_in_order_sees_the_earlier_maps_at_work(name):
    subject, text = load_subject(name), load_corpus("wikipedia-sample")
    fit = cut_windows(text.fit, subject.tokenizer, 32).take(4096)
    found = refit(subject, fit, {1: Always(), 3: Always()}, 2048, in_order=True)
    rows = fit[~fit.held_out(5)].take(2048)
    with swap(subject.blocks[1], found[1]):
        x, y = capture(subject, rows, [3])[3]
    expected = svd_ridge(x.flatten(0, 1), y.flatten(0, 1), 0.01)
    torch.testing.assert_close(found[3].weight, expected.weight.float(), rtol=1e-3, atol=1e-3)
    assert subject.key == load_subject(name).key


def test_maps_serve_the_tokens_they_are_refitted_for(setting):
    subject, fit, _ = setting
    x, y = capture(subject, fit[~fit.held_out(5)].take(2048), [2])[2]
    x, y = x.flatten(0, 1), y.flatten(0, 1)
    gate = fit_gate("linear", x.numpy(), (y.norm(dim=-1) < y.norm(dim=-1).median()).numpy())
    plain = refit(subject, fit, {2: gate}, 2048)[2]
    served = refit(subject, fit, {2: gate}, 2048, served=True)[2]
    error = lambda affine, rows: (affine(x[rows]) - y[rows]).square().sum()
    linear = gate(x)
    assert error(served, linear) < error(plain, linear)
    assert error(served, ~linear) > error(plain, ~linear)


def test_a_regression_finds_what_is_there_and_no_more():
    rng = np.random.default_rng(0)
    x = rng.normal(2, 3, (4000, 16)).astype(np.float32)
    label = x[:, 0] - 2 * x[:, 3] + rng.normal(size=4000)
    score = regression(x[:3000], label[:3000]).score(torch.from_numpy(x[3000:])).numpy()
    assert np.corrcoef(score, label[3000:])[0, 1] > 0.95
    assert regression(x, label).n_params == 17
    noise = rng.normal(size=4000)
    score = regression(x[:3000], noise[:3000]).score(torch.from_numpy(x[3000:])).numpy()
    assert abs(np.corrcoef(score, noise[3000:])[0, 1]) < 0.1
    with pytest.raises(InputError, match="do not fit"):
        regression(x, noise[:-1])


def test_learned_routers_share_one_cut(setting):
    subject, _, parts = setting
    inputs = Inputs(subject, parts.train, [0, 1])
    label = {b: inputs(b)[..., 0].astype(float) + 100 * b for b in (0, 1)}
    scores = regressions(inputs, label)
    seen = values(scores, Inputs(subject, parts.report, [0, 1]))
    gates = below(scores, seen, 0.5)
    x = [torch.from_numpy(Inputs(subject, parts.report, [0, 1])(b)) for b in (0, 1)]
    assert gates[0](x[0]).float().mean() > 0.99 and gates[1](x[1]).float().mean() < 0.01
    with pytest.raises(InputError, match="cuts nothing"):
        below(scores, seen, 1.0)


def test_a_calibrated_gate_predicts_delta(setting):
    subject, _, parts = setting
    inputs = Inputs(subject, parts.choose, [0, 1])
    rng = np.random.default_rng(0)
    rows = lambda b: inputs(b).reshape(-1, subject.d_model)
    gates = {b: fit_gate("linear", rows(b), rng.random(len(rows(b))) < 0.5) for b in (0, 1)}
    score = values(gates, inputs)
    delta = {0: 3 - 2 * score[0], 1: 10 + score[1]}
    got = values(calibrated(gates, inputs, delta), inputs)
    for block in (0, 1):
        np.testing.assert_allclose(got[block], delta[block], atol=1e-3)


def test_on_noise_no_router_beats_random(setting):
    subject, _, parts = setting
    windows, maps = parts.report, parts.maps
    like = np.zeros((len(windows), windows.seq_len - 1))
    routes = {k: masked(maps, lowest(at_random(maps, like, k), 0.3)) for k in range(4)}
    found = routed_losses(subject, windows, routes)
    pairs = {k: (0, k) for k in (1, 2, 3)}
    assert all(i.low < 0 < i.high for i in compared(found, pairs, windows.document).values())


def test_delta_s_own_order_in_a_single_block_beats_random(setting):
    """A world where the oracle must win: the map is the FFN itself on half of the positions."""
    subject, _, parts = setting
    windows = parts.report
    base, swapped = swap_sweep(subject, windows, {5: parts.maps[5]})
    delta = {5: swapped[5] - base}
    routes = {
        "oracle": masked(parts.maps, lowest(delta, 0.5)),
        "random": masked(parts.maps, lowest(at_random([5], delta[5], 0), 0.5)),
    }
    found = routed_losses(subject, windows, routes)
    (less,) = compared(found, {"x": ("oracle", "random")}, windows.document).values()
    assert less.high < 0


def test_bad_routers_are_one_sentence(setting):
    score = {0: np.zeros((2, 3))}
    with pytest.raises(InputError, match="is no share"):
        lowest(score, 1.5)
    with pytest.raises(InputError, match="block 0 is not finite"):
        lowest({0: np.full((2, 3), np.nan)}, 0.5)
    with pytest.raises(InputError, match="one document"):
        cut_elsewhere(score, 0.5, [1, 1])
    subject, fit, _ = setting
    with pytest.raises(InputError, match="does not exist"):
        refit(subject, fit, {99: Never()}, 1024)
    with pytest.raises(InputError, match="asked for"):
        refit(subject, fit, {0: Never()}, 10**9)
