"""Gated FFNs that save work, what they save, and all gates at once."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lib.base import InputError
from lib.gates import (
    Gated,
    Inputs,
    Routed,
    all_costs,
    break_even,
    decoder_work,
    fit_gate,
    gated,
    inflation,
    less_each,
    less_random,
    one_by_one,
    paired_seconds,
    paper_saved,
    pooled,
    protocol,
    routed_losses,
    same_shares,
    saved_interval,
    share_interval,
    speed_ratios,
    with_share,
    work,
)
from lib.models import load_subject
from lib.models.hooks import swap
from lib.swaps import token_losses
from lib.texts import cut_windows, load_corpus


@pytest.fixture(scope="module", params=["tiny-gpt2", "tiny-neox", "tiny-llama"])
def setting(request):
    subject, text = load_subject(request.param), load_corpus("wikipedia-sample")
    whole = cut_windows(text.fit, subject.tokenizer, 32)
    unseen = cut_windows(text.eval, subject.tokenizer, 32).take(256, evenly=True)
    parts = protocol(subject, whole.take(4096), whole, unseen, 1024, 256)
    inputs = Inputs(subject, parts.report, [1])
    x = inputs(1)
    gate = fit_gate("linear", x.reshape(-1, subject.d_model), x[..., 0].ravel() > 0)
    return subject, parts, gate, torch.from_numpy(x)


@pytest.mark.parametrize("share", [0, 0.02, 0.3, 1])
def test_routed_and_masked_agree(setting, share):
    subject, parts, gate, x = setting
    gate = with_share(gate, x, share)
    block, affine = subject.blocks[1], parts.maps[1]
    found = routed_losses(subject, parts.report, {"g": {1: (affine, gate)}})
    assert found.share("g") == pytest.approx(share, abs=0.01)
    with swap(block, Gated(block.ffn, affine, gate)):
        got = token_losses(subject, parts.report).numpy()
    np.testing.assert_allclose(got, found.losses["g"], atol=1e-5)


def test_a_share_that_is_none_is_refused(setting):
    with pytest.raises(InputError, match="share"):
        with_share(setting[2], setting[3], -0.1)


def test_counted_work_is_what_torch_counts(setting):
    subject = setting[0]
    tokens = torch.randint(4000, (1, 32))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        subject.model(tokens, use_cache=False)
    counts = counter.get_flop_counts()["Global"]
    products = sum(n for op, n in counts.items() if str(op) in ("aten.mm", "aten.addmm"))
    ours = work(subject, 32)
    assert products == 2 * 32 * (ours.total - ours.scores)
    assert ours.scores == 2 * 128 * 16.5 * 6
    assert next(iter(ours.ffn.values())) == sum(
        p.numel() for p in subject.blocks[0].ffn.parameters() if p.dim() == 2
    )


def test_the_paper_s_arithmetic():
    assert paper_saved(0.399)[0] == pytest.approx(0.349, abs=1e-3)
    assert paper_saved(0.399)[1] == pytest.approx(0.209, abs=1e-3)
    shares = [decoder_work(1024, 24, 50_257, n).ffn_share for n in (1024, 2)]
    assert shares == pytest.approx([0.53, 0.57], abs=0.005)


def test_what_is_saved_in_a_known_world(setting):
    subject = setting[0]
    counted = work(subject, 32)
    linear = {b: np.ones((4, 31), dtype=bool) for b in range(6)}
    document = np.arange(4)
    everything = saved_interval(counted, linear, {}, document)
    ffn = sum(counted.ffn.values())
    assert everything.value == pytest.approx((ffn - 6 * 128**2) / counted.total)
    gates = dict.fromkeys(range(6), setting[2])
    less = saved_interval(counted, linear, gates, document).value
    assert everything.value - less == pytest.approx(6 * 129 / counted.total)


def test_all_gates_at_once_and_one_at_a_time(setting):
    subject, parts, gate, _ = setting
    gates = {1: gate, 4: gate}
    one = lambda b: gated(parts.maps, {b: gates[b]})
    routes = {"both": gated(parts.maps, gates), 1: one(1), 4: one(4)}
    found = routed_losses(subject, parts.report, routes)
    document = parts.report.document
    table = one_by_one(found, {1: 1, 4: 4}, document)
    assert table.cost[0] == pytest.approx(np.expm1((found.losses[1] - found.base).mean()))
    masks = found.linear["both"]
    assert share_interval(masks, document).value == pytest.approx(found.share("both"))
    costs = all_costs(pooled(found, found), {1: 1, 4: 4}, ["both"], {"random": [1, 4]}, document)
    single = [(found.losses[b] - found.base).mean() for b in (1, 4)]
    assert costs["single costs compounded"].value == pytest.approx(np.expm1(sum(single)))
    assert costs["random"].value == pytest.approx(np.expm1(single).mean())
    both = {1: 1, 4: 4}, "both", ["both"], {"random": [1, 4]}
    apart = less_each(found, *both, document)
    assert set(apart) == {"single costs compounded", "random"}
    for name, less in apart.items():
        assert less.value == pytest.approx(costs["both"].value - costs[name].value)
    random = same_shares(parts.maps, masks, parts.report, 0)
    assert random[1][1].mean() == pytest.approx(masks[1].mean(), abs=0.1)


def test_costs_that_add_and_costs_that_do_not():
    rng = np.random.default_rng(0)
    base, one = rng.normal(3, 0.1, (40, 8)), rng.normal(0.1, 0.02, (40, 8))
    losses = {"a": base + one, "b": base + one, "ab": base + 2 * one, "more": base + 4 * one}
    found = Routed(base, losses, {})
    document, alone = np.arange(40) // 2, {0: "a", 1: "b"}
    assert inflation(found, alone, "ab", document).value == pytest.approx(1)
    assert inflation(found, alone, "more", document).low > 1.9
    assert less_random(found, "ab", ["more"], document).high < 0
    nothing = Routed(base, {k: base - abs(v - base) for k, v in losses.items()}, {})
    assert np.isnan(inflation(nothing, alone, "ab", document).value)


def test_ratios_and_where_routing_begins_to_pay():
    rng = np.random.default_rng(0)
    noise = lambda: 1 + 0.01 * rng.normal(size=30)
    shares = (0.0, 0.25, 0.5, 1.0)
    seconds = pd.DataFrame({"ffn": noise(), **{s: (1.2 - s) * noise() for s in shares}})
    assert speed_ratios(seconds, "ffn")[0.5].value == pytest.approx(0.7, abs=0.02)
    found = break_even(seconds, "ffn", shares)
    assert found.low <= 0.2 <= found.high and found.value == pytest.approx(0.2, abs=0.02)
    slow = seconds.assign(**{"ffn": 0.1})
    assert np.isnan(break_even(slow, "ffn", shares).value)
    assert break_even(seconds.assign(ffn=9.0), "ffn", shares).value == 0


def test_every_module_is_timed_as_often(setting):
    subject, _, gate, x = setting
    seconds = paired_seconds({"ffn": subject.blocks[1].ffn, "gate": gate}, x, 3)
    assert seconds.shape == (3, 2) and (seconds > 0).all().all()
