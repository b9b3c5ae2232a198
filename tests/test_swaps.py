"""Losses, the swap sweep, healing and what a product saves, each against the long way round."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from lib.base import InputError
from lib.linear import AffineMap, recoverability, score_rows
from lib.models import capture, swap
from lib.probes import BlockRows
from lib.stats.intervals import clustered
from lib.swaps import (
    delta_ppl,
    heal,
    next_token_losses,
    perplexity,
    product_costs,
    residual_streams,
    swap_sweep,
    token_losses,
)
from lib.swaps.healing import trainable


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


def test_a_capture_runs_no_further_than_its_last_block_and_leaves_the_model_alone(
    tiny, tiny_windows
):
    few, reached = tiny_windows[:3], []
    before = token_losses(tiny, few)
    handles = [
        block.ffn.register_forward_hook(lambda *_, i=block.index: reached.append(i))
        for block in tiny.blocks
    ]
    both = capture(tiny, few, [1, 0], batch=2)
    for handle in handles:
        handle.remove()
    assert reached == [0, 1, 0, 1]  # two batches
    everything = capture(tiny, few, range(len(tiny)), batch=2)
    for block in both:
        for side, same in zip(both[block], everything[block]):
            assert side.shape == (3, few.seq_len, tiny.d_model) and torch.equal(side, same)
    assert torch.equal(before, token_losses(tiny, few))


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
        logits = tiny.model(few.tokens, use_cache=False).logits
        loss = nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), few.tokens[:, 1:].flatten()
        )
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
    table = delta_ppl(base, several, few.document, names=["candidate"])
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


def test_losses_are_those_of_transformers(tiny, tiny_windows):
    windows = tiny_windows[:4]
    with torch.no_grad():
        expected = tiny.model(windows.tokens, labels=windows.tokens).loss
    losses = token_losses(tiny, windows, batch=3)
    assert losses.shape == (4, 127) and losses.dtype == torch.float64
    assert losses.mean() == pytest.approx(float(expected), rel=1e-6)
    uniform = next_token_losses(torch.zeros(1, 5, 97), torch.ones(1, 5, dtype=torch.long))
    assert perplexity(uniform) == pytest.approx(97)


def test_the_sweep_equals_swapping_one_block_at_a_time(tiny, tiny_windows):
    windows = tiny_windows[:6]
    maps = recoverability(tiny, tiny_windows[6:26]).maps
    base, swapped = swap_sweep(tiny, windows, maps, batch=4)
    assert np.allclose(base, token_losses(tiny, windows), rtol=0, atol=1e-5)
    for block in tiny.blocks:
        with swap(block, maps[block.index]):
            assert np.allclose(swapped[block.index], token_losses(tiny, windows), rtol=0, atol=1e-5)


def test_swapping_ffns_for_themselves_costs_nothing(tiny_gpt2, drawn_windows):
    few = drawn_windows[:6]
    base, swapped = swap_sweep(tiny_gpt2, few, {b.index: b.ffn for b in tiny_gpt2.blocks})
    cost = delta_ppl(base, swapped, few.document)
    assert (
        cost[
            ["delta_ppl", "delta_ppl_percent", "delta_ppl_percent_low", "delta_ppl_percent_high"]
        ].abs()
        < 1e-4
    ).all(None)


def test_delta_ppl_of_a_known_shift():
    base = np.full((10, 5), 2.0)
    cost = delta_ppl(base, {3: base + np.log(1.5)}, np.arange(10)).iloc[0]
    assert cost.delta_ppl_percent == pytest.approx(50) and cost.delta_ppl == pytest.approx(
        np.exp(2) / 2
    )
    assert cost.delta_ppl_percent_low == pytest.approx(
        50
    ) and cost.delta_ppl_percent_high == pytest.approx(50)


def test_delta_ppl_is_clustered_by_document():
    rng = np.random.default_rng(0)
    document = torch.tensor([3, 0, 3, 1, 0, 3, 7, 7])
    base = rng.normal(2, 0.1, size=(8, 5))
    swapped = base + 0.1 + 0.05 * document.numpy()[:, None] + rng.normal(0, 0.01, size=(8, 5))
    row = delta_ppl(base, {2: swapped}, document, level=0.9).iloc[0]
    rise = (swapped - base).mean(1)
    squares = [sum(rise[i] - rise.mean() for i in range(8) if document[i] == d) ** 2
               for d in (0, 1, 3, 7)]  # fmt: skip
    half = stats.t.ppf(0.95, 3) * (4 / 3 * sum(squares)) ** 0.5 / 8
    assert row.ppl == pytest.approx(np.exp(swapped.mean()))
    assert row.delta_ppl_percent == pytest.approx(100 * (row.ppl / np.exp(base.mean()) - 1))
    assert row.delta_ppl_percent_low == pytest.approx(100 * np.expm1(rise.mean() - half))
    assert row.delta_ppl_percent_high == pytest.approx(100 * np.expm1(rise.mean() + half))


def test_product_costs_are_those_of_swapping_by_hand(tiny_gpt2, drawn_windows, unseen_windows):
    rows = BlockRows(tiny_gpt2, drawn_windows, [1, 4])
    found = product_costs(rows, unseen_windows, seeds=[5, 6], steps=20)
    assert set(found.probes.modules) == {(1, 5), (1, 6), (4, 5), (4, 6)}
    plain = token_losses(tiny_gpt2, unseen_windows)
    assert np.allclose(found.base, plain, rtol=0, atol=1e-5)
    for row in found.table.itertuples():
        block, losses = tiny_gpt2.blocks[row.block], {}
        # The same rows as the survey's last fold: the map of one is the map of the other.
        maps = recoverability(tiny_gpt2, drawn_windows).maps
        for name, module in [
            ("linear", maps[row.block]),
            ("bilinear", found.probes.modules[row.block, 5]),
        ]:
            with swap(block, module):
                losses[name] = token_losses(tiny_gpt2, unseen_windows)
        ppl = {name: perplexity(part) for name, part in losses.items()}
        costs = [100 * (ppl[name] / perplexity(plain) - 1) for name in ("linear", "bilinear")]
        assert [row.cost_linear, row.cost_bilinear] == pytest.approx(costs, abs=0.01)
        assert row.saved == pytest.approx(costs[0] - costs[1], abs=0.01)
        # Where costs are small, the interval is that of the mean loss difference.
        fall = clustered((losses["linear"] - losses["bilinear"]).mean(1), unseen_windows.document)
        ends = [100 * end * ppl["linear"] / perplexity(plain) for end in (fall.low, fall.high)]
        assert [row.saved_low, row.saved_high] == pytest.approx(ends, abs=0.05)
        assert row.saved_low < row.saved < row.saved_high
        assert row.cost_linear_low < row.cost_linear < row.cost_linear_high
        x, y = capture(tiny_gpt2, drawn_windows[rows.held_out], [row.block])[row.block]
        flat = x.flatten(0, 1), y.flatten(0, 1)
        scored = [score_rows(m, *flat).r2 for m in
                  (maps[row.block], found.probes.modules[row.block, 5])]  # fmt: skip
        assert [row.r2_lin, row.r2_bilinear] == pytest.approx(scored, abs=1e-4)
