"""FFNs kept on massive tokens: the swap itself, what it costs, and the claims about it on true
worlds, false ones and noise."""

import numpy as np
import pytest
import torch

from lib.linear import TIMES, largest_ordinary, output_norms, recoverability, reweighted
from lib.models import capture, swap
from lib.probes import BlockRows
from lib.stats import judge, rank_correlation
from lib.swaps import (
    KeptOnMassive,
    joint_costs,
    joint_shares,
    kept_costs,
    median_extra_cost,
    perplexity,
    product_costs,
    swap_sweep,
    token_losses,
)

DOCUMENT = np.repeat(np.arange(12), 3)


class Planted(torch.nn.Module):
    """An FFN whose output at position 5 is 500 times as long."""

    def __init__(self, ffn):
        super().__init__()
        self.ffn = ffn

    def forward(self, x):
        y = self.ffn(x)
        return torch.cat([y[:, :5], 500 * y[:, 5:6], y[:, 6:]], 1)


def test_output_norms_are_those_of_captured_rows(tiny, tiny_windows):
    few = tiny_windows[:5]
    norms = output_norms(tiny, few, batch=2)
    rows = capture(tiny, few, [0, len(tiny) - 1])
    assert norms.shape == (len(tiny), 5, 128) and norms.dtype == np.float64
    for block, (_, y) in rows.items():
        np.testing.assert_allclose(norms[block], y.double().norm(dim=-1).numpy(), rtol=1e-5)
    assert largest_ordinary(norms).tolist() == [TIMES * np.median(n) for n in norms]


def test_kept_nowhere_is_the_full_swap_and_kept_everywhere_the_original(tiny, tiny_windows):
    few, maps = tiny_windows[:3], recoverability(tiny, tiny_windows[6:26]).maps
    base, plain = swap_sweep(tiny, few, maps)
    for limit, expected in ((np.inf, plain), (-1.0, dict.fromkeys(maps, base))):
        kept = {b: KeptOnMassive(tiny.blocks[b].ffn, m, limit) for b, m in maps.items()}
        _, losses = swap_sweep(tiny, few, kept)
        for block in maps:
            np.testing.assert_allclose(losses[block], expected[block], rtol=0, atol=1e-5)
    assert all(np.abs(plain[b] - base).max() > 1e-3 for b in maps)


def test_a_token_goes_by_its_own_norm_and_a_resumed_pass_is_a_full_one(tiny, tiny_windows):
    few, maps = tiny_windows[:3], recoverability(tiny, tiny_windows[6:26]).maps
    limits = np.median(output_norms(tiny, few), (1, 2))  # half of the tokens are kept
    kept = {b: KeptOnMassive(tiny.blocks[b].ffn, m, limits[b]) for b, m in maps.items()}
    _, losses = swap_sweep(tiny, few, kept, batch=2)
    for block in tiny.blocks:
        x, y = capture(tiny, few, [block.index])[block.index]
        long = y.double().norm(dim=-1) > limits[block.index]
        assert 0.4 < long.double().mean() < 0.6
        out = kept[block.index](x)
        assert torch.allclose(out[long], y[long], atol=1e-5)
        assert torch.equal(out[~long], maps[block.index](x)[~long])
        with swap(block, kept[block.index]):
            full = token_losses(tiny, few)
        np.testing.assert_allclose(losses[block.index], full, rtol=0, atol=1e-5)


def test_costs_with_a_planted_massive_token(tiny_gpt2, drawn_windows, unseen_windows):
    """Block 3 alone has massive tokens; what is priced for it is priced by hand again."""
    block = tiny_gpt2.blocks[3]
    with swap(block, Planted(block.ffn)):
        rows = BlockRows(tiny_gpt2, drawn_windows, [1, 3])
        priced = product_costs(rows, unseen_windows, seeds=[5], steps=2)
        found = kept_costs(priced, rows, unseen_windows)
        limits = largest_ordinary(output_norms(tiny_gpt2, drawn_windows))
        train, _ = reweighted(tiny_gpt2, drawn_windows, limits)
        refit, by_hand = train[3].kept.fit().float(), {}
        for kind, module in (
            ("kept", KeptOnMassive(block.ffn, priced.probes.maps[3], limits[3])),
            ("refitted", KeptOnMassive(block.ffn, refit, limits[3])),
            ("refit_alone", refit),
        ):
            with swap(block, module):
                by_hand[kind] = token_losses(tiny_gpt2, unseen_windows)
    assert found.has_massive == [3]
    table = found.table.set_index("block")
    assert table.massive_tokens.tolist() == [0, len(unseen_windows)]
    for kind, losses in by_hand.items():
        assert np.array_equal(found.of(kind)[1], priced.of("linear")[1])
        np.testing.assert_allclose(found.of(kind)[3], losses, rtol=0, atol=1e-5)
        cost = 100 * (perplexity(losses) / perplexity(priced.base) - 1)
        assert table.loc[3, f"cost_{kind}"] == pytest.approx(cost, abs=0.01)
        assert table.loc[3, f"cost_{kind}_low"] < cost < table.loc[3, f"cost_{kind}_high"]
    # The refit serves ordinary tokens, which the other map neglects.
    assert table.r2_ordinary[3] > 0.2
    assert by_hand["refitted"].mean() < by_hand["kept"].mean()


def losses(shift, rng, noise=0.02):
    """A base [n, 8] and losses that lie `shift` above it, with errors shared within documents."""
    base = rng.normal(3, 0.5, (len(DOCUMENT), 8))
    found = {}
    for block, by in enumerate(shift):
        shared = rng.normal(0, noise, DOCUMENT.max() + 1)[DOCUMENT][:, None]
        found[block] = base + by + shared + rng.normal(0, noise, (len(DOCUMENT), 8))
    return base, found


def verdicts(plain, kept, rng, noise=0.02):
    """What is judged where blocks rise by `plain` nats when swapped and by `kept` with their
    massive tokens kept."""
    base, dear = losses(plain, rng, noise)
    left = {b: dear[b] - plain[b] + kept[b] for b in dear}
    return (
        judge("ours-kept-massive-cheap", joint_costs(base, left, DOCUMENT)).verdict,
        judge("ours-massive-tokens-carry-cost", joint_shares(base, dear, left, DOCUMENT)).verdict,
    )


def test_claims_on_the_cost_of_massive_tokens():
    rng = np.random.default_rng(0)
    assert verdicts([2.0, 1.5], [0.1, 0.2], rng) == ("reproduced",) * 2
    assert verdicts([2.0, 1.5], [0.1, 1.5], rng) == ("contradicted",) * 2  # one block is not freed
    half = np.log1p(0.5), np.log1p(np.expm1(2.0) / 2)
    noise = [verdicts([2.0, 2.0], [at, at], rng, 0.3) for at in half for _ in range(10)]
    decided = [v for k, (cheap, share) in enumerate(noise) for v in [(cheap, share)[k >= 10]]]
    assert sum(v != "inconclusive" for v in decided) <= 2


def test_signal_on_ordinary_tokens():
    rng = np.random.default_rng(1)
    misfit = rng.uniform(0, 1, 30)
    judged = lambda cost: judge("ours-signal-on-ordinary-tokens", rank_correlation(misfit, cost))
    assert judged(misfit + 0.1 * rng.normal(size=30)).verdict == "reproduced"
    assert judged(-misfit).verdict == "contradicted"
    noise = [judged(rng.normal(size=30)).verdict for _ in range(20)]
    assert sum(v != "inconclusive" for v in noise) <= 2


def test_what_a_map_of_another_text_costs_more_in_the_median_block():
    rng, id = np.random.default_rng(2), "ours-map-transfers-downstream"
    base, own = losses(np.full(9, 0.1), rng)

    def judged(more, noise=0.002):
        other = {}
        for b in own:
            shared = rng.normal(0, noise, DOCUMENT.max() + 1)[DOCUMENT][:, None]
            other[b] = own[b] + more[b] + shared
        return judge(id, median_extra_cost(base, own, other, DOCUMENT)).verdict

    assert judged(np.r_[np.zeros(6), np.ones(3)]) == "reproduced"  # the median, not the mean
    assert judged(np.full(9, 0.2)) == "contradicted"
    assert judged(np.full(9, 0.04), noise=0.5) == "inconclusive"
    found = median_extra_cost(base, own, {b: own[b] + 0.1 for b in own}, DOCUMENT)
    exact = [np.expm1((own[b] - base).mean() + 0.1) - np.expm1((own[b] - base).mean()) for b in own]
    assert found.value == pytest.approx(np.median(exact)) and found.low < found.value < found.high
