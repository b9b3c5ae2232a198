"""The decoder with its own widths, and the trainer: identities, counts, two processes."""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from accelerate import debug_launcher
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from lib.errors import InputError
from lib.models.loading import load_subject
from lib.models.names import TINY
from lib.studies.decoder_study import (
    DecoderStudy,
    decoder_losses,
    losses_by_token,
    train_all,
)
from lib.studies.linearity import linearity
from lib.studies.study import of_half
from lib.tables import read as read_kept
from lib.text.corpora import load_corpus
from lib.text.windows import Windows, cut_windows
from lib.training import decoder
from lib.training.decoder import DecoderConfig, Shape, build_decoder
from lib.training.loop import TrainConfig, train, worth_compiling
from lib.training.widths import ffn_widths, taper

WIDTHS = [
    [24] * 4,
    [0, 48, 48, 0],
    ffn_widths(4, 24, 0.5, "ends"),
    taper(4, 24, 1.5, 0.5, "cosine", 2),
]


SHAPE = Shape(d=16, heads=2, vocab=11, n_ctx=16)


@pytest.fixture
def data():
    steps = np.random.default_rng(0).choice([1, 1, 1, 2], (120, 16)).cumsum(1) % 11
    return Windows(torch.from_numpy(steps), np.arange(120), "a walk")


def small(widths=(24, 24, 24, 24), **how):
    return build_decoder(list(widths), SHAPE, **how)


def shaken(model):
    """The model with every weight moved: zero projections would hide what they get."""
    torch.manual_seed(0)
    for p in model.parameters():
        p.data.add_(0.3 * torch.randn_like(p))
    return model.eval()


def test_uniform_widths_are_llama():
    ours = shaken(small())
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=11, hidden_size=16, intermediate_size=24, num_hidden_layers=4,
            num_attention_heads=2, max_position_embeddings=16,
        )
    ).eval()  # fmt: skip
    llama.load_state_dict(ours.state_dict())
    tokens = torch.randint(11, (3, 16))
    assert torch.allclose(ours(tokens).logits, llama(tokens).logits, atol=1e-5)
    assert ours(tokens).logits.std() > 0.1


def by_hand(config) -> int:
    """Parameters of a decoder, from its shape."""
    d, v, n = config.hidden_size, config.vocab_size, config.num_hidden_layers
    count = v * d * (1 if config.tie_word_embeddings else 2) + d
    count += n * (d * d * (5 if config.attention == "gated" else 4) + d)  # with the norm before it
    for width, kind in zip(config.intermediate_sizes, config.ffn_kinds):
        swiglu, affine = 3 * d * width, d * d + d
        inside = {"swiglu": swiglu, "gelu": 2 * d * width, "affine": affine}
        inside |= {"hybrid": affine + swiglu, "gated": affine + swiglu + d + 1}
        count += inside[kind] + d if inside[kind] else 0
    return count


@pytest.mark.parametrize("widths", WIDTHS)
def test_a_decoder_has_the_parameters_of_its_shape(widths):
    model = small(widths)
    assert model.num_parameters() == by_hand(model.config)


def test_a_removed_ffn_has_no_parameters():
    names = [name for name, _ in small([0, 48, 48, 0]).named_parameters()]
    of_first = {n for n in names if n.startswith("model.layers.0.") and "attn" not in n}
    assert of_first == {"model.layers.0.input_layernorm.weight"}


@pytest.mark.parametrize("widths", WIDTHS)
def test_it_is_a_transformers_model(widths, tmp_path):
    model = shaken(small(widths))
    tokens = torch.randint(11, (2, 12))
    changed = tokens.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 11
    a, b = model(tokens).logits, model(changed).logits
    assert torch.allclose(a[:, :7], b[:, :7], atol=1e-5) and not torch.allclose(a[:, 7:], b[:, 7:])
    how = dict(
        max_new_tokens=8,
        do_sample=False,
        attention_mask=torch.ones(2, 4),
        pad_token_id=0,
        eos_token_id=None,
    )
    texts = [model.generate(tokens[:, :4], use_cache=cached, **how) for cached in (True, False)]
    assert torch.equal(*texts) and texts[0].shape == (2, 12)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(tokens).logits, a) and again.config.intermediate_sizes == list(widths)


def test_models_of_one_seed_share_what_they_have_in_common():
    narrow, wide, other = small(seed=1), small((48, 24, 0, 24), seed=1), small(seed=2)
    a, b = (dict(m.named_parameters()) for m in (narrow, wide))
    assert torch.equal(a["model.embed_tokens.weight"], b["model.embed_tokens.weight"])
    up = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(a[up], b[up][:24]) and not torch.equal(a[up], other.get_parameter(up))
    llama = small(seed=1, start="llama").get_parameter("model.layers.3.mlp.down_proj.weight")
    assert llama.detach().std().item() == pytest.approx(0.02, rel=0.2)


def test_the_loop_is_the_one_written_by_hand(data):
    """AdamW, clipping, warm-up and the falling rate, FFNs that wait, and the order of the text."""
    how = TrainConfig(12, batch=4, lr=1e-2, warmup=3, decay=5, ffn_unfreeze_step=4, seed=3)
    model, losses = small((24, 0, 8), start="scaled"), []
    weights = dict(model.named_parameters())
    first, second = ({n: torch.zeros_like(p) for n, p in weights.items()} for _ in range(2))
    n_updates = dict.fromkeys(weights, 0)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(3))
    for step in range(12):
        tokens = data.tokens[order[4 * step : 4 * step + 4]]
        predicted = model(tokens, use_cache=False).logits[:, :-1].log_softmax(-1)
        loss = -predicted.gather(2, tokens[:, 1:, None]).mean()
        losses.append(float(loss.detach()))
        gradients = dict(zip(weights, torch.autograd.grad(loss, [*weights.values()])))
        if step < 4:
            gradients = {n: g for n, g in gradients.items() if ".mlp." not in n}
        norm = sum(g.square().sum() for g in gradients.values()).sqrt()
        rate = 1e-2 * min(step / 3, 1, (12 - step) / 5)
        for name, g in gradients.items():
            g, p = g * min(1, 1 / (norm + 1e-6)), weights[name].data
            n_updates[name] += 1
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.95 * second[name] + 0.05 * g.square()
            mean = first[name] / (1 - 0.9 ** n_updates[name])
            square = second[name] / (1 - 0.95 ** n_updates[name])
            p.mul_(1 - rate * 0.1 * (p.dim() >= 2)).sub_(rate * mean / (square.sqrt() + 1e-8))
    trained = small((24, 0, 8), start="scaled")
    assert train(trained, data, how) == pytest.approx(losses, abs=2e-5)
    for name, p in trained.named_parameters():
        torch.testing.assert_close(p.data, weights[name].data, atol=2e-4, rtol=1e-3)


def test_a_training_repeats_to_the_bit(data):
    how = TrainConfig(30, batch=4, lr=1e-2, warmup=3, ffn_unfreeze_step=7)
    one, other = small(), small()
    assert train(one, data, how) == train(other, data, how)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_ffns_that_learn_later_are_absent_until_then(data):
    how = TrainConfig(12, batch=4, lr=1e-2, warmup=3, ffn_unfreeze_step=8)
    models = [small((24, 24)), small((0, 48)), small((0, 0))]
    narrow, wide, none = (train(model, data, how) for model in models)
    # What a plain FFN gives is 0 at the start, and nothing learns but the rest.
    assert narrow[:9] == pytest.approx(none[:9], abs=1e-6)
    assert wide[:9] == pytest.approx(none[:9], abs=1e-6)
    assert abs(narrow[-1] - none[-1]) > 1e-4 and abs(wide[-1] - none[-1]) > 1e-4


def _train_and_save(data, path):
    model = small()
    train(model, data, TrainConfig(12, batch=8, lr=1e-2, warmup=3))
    if torch.distributed.get_rank() == 0:
        model.save_pretrained(path)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.skipif(not worth_compiling(500), reason="torch cannot compile here")
def test_a_compiled_training_is_the_same_but_for_rounding(data):
    how = TrainConfig(6, batch=4, lr=1e-2, warmup=2)
    eager, compiled = small((24, 48)), small((24, 48))
    expected = train(eager, data, how)
    assert train(compiled, data, how, compiled=True) == pytest.approx(expected, abs=1e-4)
    # What is left is an ordinary model.
    assert all("forward" not in vars(layer) for layer in compiled.model.layers)


def test_two_processes_are_one(data, tmp_path):
    model = small()
    train(model, data, TrainConfig(12, batch=8, lr=1e-2, warmup=3))
    debug_launcher(_train_and_save, (data, tmp_path), num_processes=2)
    other = AutoModelForCausalLM.from_pretrained(tmp_path)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_no_window_is_read_twice_before_all_are(data):
    seen = []

    class Watched(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = small()

        def forward(self, tokens, use_cache=False):
            seen.extend(map(tuple, tokens.tolist()))
            return self.inner(tokens)

    unlike = Windows(torch.arange(120)[:, None].expand(120, 4) % 11, np.arange(120), "rows")
    numbered = Windows(
        torch.stack([torch.arange(120) % 11, torch.arange(120) // 11], 1), unlike.document, "n"
    )
    train(Watched(), numbered, TrainConfig(30, batch=8, lr=1e-3, warmup=3))
    assert len({*seen[:120]}) == 120 and {*seen[120:240]} == {*seen[:120]}


def test_bad_widths_are_refused():
    with pytest.raises(InputError, match="2 layers were given 3 FFN widths: give one each"):
        DecoderConfig(num_hidden_layers=2, intermediate_sizes=[8, 8, 8])
    with pytest.raises(InputError, match="cannot be -8 wide"):
        build_decoder([8, -8], SHAPE)
    with pytest.raises(InputError, match="unknown start 'ones'"):
        small(start="ones")


@pytest.fixture
def lab(data, own_cache):
    """Twenty steps a pass on a walk, evaluated on another part of it."""
    tests = {"walk": replace(data[80:], name="walk")}
    return DecoderStudy(
        fit=data[:80],
        tests=tests,
        tokenizer=None,
        shape=SHAPE,
        d_ff=24,
        steps_per_epoch=20,
        n_layers=4,
        batch=4,
    )


def test_ablations_are_what_ffns_that_write_nothing_cost(lab):
    found = lab.ablations(lab.uniform, 1, 0.5)
    model = lab.model(lab.uniform, 1, 0.5)
    windows = lab.tests["walk"]
    odd = windows[windows.document % 2 == 1]
    whole = losses_by_token(model, odd).mean()
    for k, layer in enumerate(model.model.layers):
        weight = layer.mlp.down_proj.weight
        kept = weight.detach().clone()
        weight.data.zero_()
        assert found[k] == pytest.approx(
            float(losses_by_token(model, odd).mean() - whole), abs=1e-6
        )
        weight.data.copy_(kept)


def test_a_looking_back_head_attends_to_the_token_before(data):
    generator = torch.Generator().manual_seed(0)
    for shape in (SHAPE, Shape(32, 2, 11, 64), Shape(64, 4, 11, 64)):
        model = build_decoder([8, 8], shape, start="looking-back").eval()
        model.set_attn_implementation("eager")
        tokens = torch.randint(11, (64, shape.n_ctx), generator=generator)
        attended = model(tokens, output_attentions=True).attentions[0]  # [batch, head, to, from]
        one_back = attended.diagonal(-1, 2, 3).mean((0, 2))  # of each head
        assert one_back[0] > 0.3 and one_back[0] > 2 * one_back[1:].max()
        # Where all tokens are alike, only the distance counts, and one back is the largest share.
        same = model(torch.full((1, shape.n_ctx), 3), output_attentions=True).attentions[0]
        largest = same[0, 0, 1:].argmax(-1)
        assert largest.tolist() == list(range(shape.n_ctx - 1))


def test_starts_draw_what_they_say():
    wide = Shape(64, 4, 200, 16)
    plain = build_decoder([64] * 6, wide)
    assert plain.model.embed_tokens.weight.std().item() == pytest.approx(1, rel=0.05)
    assert plain.lm_head.weight.abs().max() == 0
    assert plain.model.layers[2].self_attn.o_proj.weight.abs().max() == 0
    scaled = build_decoder([64] * 6, wide, start="scaled")
    assert scaled.lm_head.weight.std().item() == pytest.approx(0.02, rel=0.05)
    written = scaled.model.layers[2].self_attn.o_proj.weight.std().item()
    assert written == pytest.approx(64**-0.5 / 12**0.5, rel=0.05)
    # All but what the start names is the same, to the last bit.
    back = build_decoder([64] * 6, wide, start="looking-back")
    changed = {n for n, p in back.named_parameters() if not torch.equal(p, plain.get_parameter(n))}
    of_head = {f"model.layers.0.self_attn.{m}_proj.weight" for m in "qk"}
    assert changed == {"model.embed_tokens.weight"} | of_head
    both = build_decoder([64] * 6, wide, start="scaled, looking-back")
    for name, p in both.named_parameters():
        source = back if name in changed else scaled
        assert torch.equal(p, source.get_parameter(name))


def test_a_gain_is_paired_by_seed_and_mean_over_texts(lab):
    lab = replace(lab, tests=lab.tests | {"again": replace(lab.fit[:12], name="again")})
    both = lab.by_text(lab.doubled, [1, 2])
    assert list(both) == ["walk", "again"] and list(both.index) == [1, 2]
    expected = lab.losses(lab.uniform, [1, 2]) - both.mean(axis=1)
    assert lab.gains(lab.doubled, [1, 2]) == pytest.approx(expected)
    even, odd = (lab.losses(lab.uniform, [1], half=half) for half in ("even", "odd"))
    assert even != odd
    by_seed = lab.gains(lambda seed: lab.uniform if seed == 1 else lab.doubled, [1, 2])
    assert by_seed[0] == 0 and by_seed[1] == pytest.approx(expected.iloc[1])


def test_rows_stand_in_for_a_training(lab, tmp_path, monkeypatch):
    from lib.studies import decoder_study as module

    monkeypatch.setenv("NONLINEARITY_TRAIN", "1")
    kept = replace(lab, curve=True, steps_per_epoch=100)
    train_all([(kept, kept.uniform, 1, (0.5, 1))])
    found = pd.concat(map(pd.DataFrame, read_kept("decoders").entries.values()))
    assert set(found.text) == {"walk", "training"} and set(found.step) == {"50", "100"}
    before = of_half(kept.train(kept.uniform, 1), "odd")

    def never(*_):
        raise AssertionError("trained again")

    monkeypatch.setattr(module, "train_decoder", never)
    monkeypatch.setenv("NONLINEARITY_CACHE", str(tmp_path / "another"))
    assert of_half(kept.train(kept.uniform, 1), "odd").equals(before)


@pytest.mark.parametrize("name", ["uniform", "cosine"])
def test_the_kept_decoders_read_what_they_were_not_trained_on(name):
    kept = load_subject(str(TINY / "decoders" / name), device="cpu")
    assert (len(set(kept.model.config.intermediate_sizes)) == 1) == (name == "uniform")
    assert sum(kept.model.config.intermediate_sizes) == 12 * 80
    windows = cut_windows(load_corpus("wikipedia").test, kept.tokenizer, 64)[:100]
    # Equal probabilities would be log 512 = 6.2; among the kept losses are 3.31.
    assert losses_by_token(kept.model, windows).mean() == pytest.approx(3.31, abs=0.15)


def test_a_lab_refuses_what_it_cannot_train(lab):
    with pytest.raises(InputError, match=r"3 passes over a walk.*at most 2"):
        lab.train(lab.uniform, 1, 3)
    with pytest.raises(InputError, match=r"4 layers were given 2 widths"):
        lab.train([8, 8], 1)
    with pytest.raises(InputError, match=r"unknown start 'warm'"):
        replace(lab, start="warm").train(lab.uniform, 1)
    with pytest.raises(InputError, match=r"penalty of 0.1 .* none has one: make layers gated"):
        replace(lab, gate_penalty=0.1).train(lab.uniform, 1)
    with pytest.raises(InputError, match="no seeds: give at least one"):
        linearity(lab, lab.uniform, [])


def built(kinds, widths, parallel=False, seed=42, **shape):
    shape = replace(SHAPE, kinds=kinds, parallel=parallel, **shape)
    return build_decoder(widths, shape, start="scaled", seed=seed)


MIXED = ("swiglu", "affine", "hybrid", "gated", "gelu"), [24, 0, 8, 12, 20]
MIXERS = [
    dict(attention="gated"),
    dict(parallel=True),
]


@pytest.mark.parametrize("shape", [{}, *MIXERS], ids=str)
def test_every_kind_and_mixer_has_the_parameters_of_its_shape(shape):
    model = built(*MIXED, **shape)
    assert model.num_parameters() == by_hand(model.config)


@pytest.mark.parametrize("shape", MIXERS, ids=str)
def test_a_mixer_sees_what_came_before(shape):
    model = shaken(built((), [24, 24], **shape))
    tokens = torch.randint(11, (2, 16))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    a, b = (model(t, use_cache=False).logits for t in (tokens, changed))
    apart = (a - b).abs().amax((0, 2))
    assert (apart[:5] < 1e-5).all() and apart[5] > 1e-3
    assert apart[15] > 1e-6


def test_gated_attention_is_its_formula_and_open_by_half_at_first():
    gated, plain = built((), [24, 24], attention="gated"), built((), [24, 24])
    shared = {n: p for n, p in gated.named_parameters() if "gate_proj" not in n or "mlp" in n}
    assert all(torch.equal(p, shared[n]) for n, p in plain.named_parameters())
    tokens = torch.randint(11, (2, 8))
    for layer in gated.model.layers:
        layer.self_attn.gate_proj.weight.data.zero_()  # sigmoid(0): every opening is a half
        layer.self_attn.o_proj.weight.data.mul_(2)
    torch.testing.assert_close(gated(tokens).logits, plain(tokens).logits)
    seen = {}
    attention = shaken(gated).model.layers[1].self_attn
    attention.register_forward_pre_hook(
        lambda _, args, kwargs: seen.update(x=kwargs["hidden_states"]), with_kwargs=True
    )
    attention.o_proj.register_forward_hook(lambda _, args, out: seen.update(heads=args[0], out=out))
    gated(tokens)
    opening = torch.sigmoid(seen["x"] @ attention.gate_proj.weight.T)
    torch.testing.assert_close(seen["out"], (opening * seen["heads"]) @ attention.o_proj.weight.T)


def test_a_gate_forced_open_or_shut_is_the_plain_layer():
    x = torch.randn(2, 5, 16)
    gated = shaken(built(("gated",), [12])).model.layers[0].mlp
    gated.gate.weight.data.zero_()
    for bias, plain in ((60.0, gated.ffn), (-60.0, gated.affine)):
        gated.gate.bias.data.fill_(bias)
        torch.testing.assert_close(gated(x), plain(x))


def test_where_ffns_are_zero_the_twins_agree():
    tokens = torch.randint(11, (2, 16))
    logits = []
    for parallel in (False, True):
        model = built((), [24, 24], parallel)
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.data.zero_()
        logits.append(model(tokens).logits)
    assert torch.equal(*logits)


def test_each_kind_of_ffn_is_its_formula():
    model = shaken(built(*MIXED))
    x = torch.randn(2, 5, 16)
    affine, hybrid, gated, gelu = (layer.mlp for layer in model.model.layers[1:])
    hidden = x @ gelu.up_proj.weight.T
    inside = hidden * torch.special.ndtr(hidden)  # times the normal distribution's share below it
    torch.testing.assert_close(gelu(x), inside @ gelu.down_proj.weight.T)
    torch.testing.assert_close(affine(x), x @ affine.weight.T + affine.bias)
    in_hybrid = x @ hybrid.affine.weight.T + hybrid.affine.bias
    torch.testing.assert_close(hybrid(x), in_hybrid + hybrid.ffn(x))
    g = torch.sigmoid(x @ gated.gate.weight.T + gated.gate.bias)
    linear = x @ gated.affine.weight.T + gated.affine.bias
    torch.testing.assert_close(gated(x), g * gated.ffn(x) + (1 - g) * linear)
    assert gated.opening.shape == (2, 5, 1)


def test_side_by_side_both_read_the_stream_that_enters():
    model = shaken(built((), [24, 24], parallel=True))
    seen = {}
    layer = model.model.layers[1]
    layer.register_forward_hook(lambda _, args, out: seen.update(x=args[0], out=out))
    layer.self_attn.register_forward_hook(lambda _, args, out: seen.update(attention=out[0]))
    model(torch.randint(11, (2, 8)))
    ffn = layer.mlp(layer.post_attention_layernorm(seen["x"]))
    torch.testing.assert_close(seen["out"], seen["x"] + seen["attention"] + ffn)
    one_after_the_other = built((), [24, 24])
    assert model.num_parameters() == one_after_the_other.num_parameters()


def test_what_is_usual_leaves_the_words_of_a_shape_as_they_were():
    assert [*SHAPE.provenance] == ["residual width", "heads", "vocabulary", "context"]
    assert len(replace(SHAPE, parallel=True).provenance) == 5
    with pytest.raises(InputError, match="unknown kind of FFN 'afine': did you mean 'affine'"):
        built(("afine", "swiglu"), [8, 8])
    with pytest.raises(InputError, match="2 layers were given 1 kinds"):
        built(("affine",), [8, 8])


def test_a_penalty_closes_the_gates(data):
    means = []
    for penalty in (0.0, 1.0):
        model = built(("gated",) * 2, [8, 8])
        train(model, data, TrainConfig(30, batch=4, lr=1e-2, warmup=2, gate_penalty=penalty))
        model(data.tokens[:8])
        means.append(
            np.mean([float(layer.mlp.opening.detach().mean()) for layer in model.model.layers])
        )
    assert means[1] < means[0] - 0.1


def test_a_penalty_leaves_the_gates_of_attention_alone(data):
    weights = []
    for penalty in (0.0, 1.0):
        model = built(("swiglu",) * 2, [8, 8], attention="gated")
        model(data.tokens[:8])  # the openings of attention are there before the training
        train(model, data, TrainConfig(5, batch=4, warmup=2, gate_penalty=penalty))
        weights.append(model.state_dict())
    assert all(torch.equal(weights[0][name], w) for name, w in weights[1].items())


class Squared(nn.Module):
    """An FFN of a reader's own: Down(ReLU(Up x)²)."""

    def __init__(self, d: int, width: int):
        super().__init__()
        self.up_proj = nn.Linear(d, width, bias=False)
        self.down_proj = nn.Linear(width, d, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.relu(self.up_proj(x)).square())


def test_a_readers_own_kind_of_ffn_is_trained_each_time(lab, monkeypatch):
    """What a notebook defines may change unseen, so nothing is kept under its name."""
    monkeypatch.setitem(decoder.KINDS, "squared", Squared)
    kinds = ("squared",) * lab.n_layers
    own = replace(lab, shape=replace(lab.shape, kinds=kinds))
    assert decoder_losses.key(own.training(own.uniform, 1)) is None
    train_all([(own, own.uniform, 1, [1])])  # left to this process, which knows the class
    first = own.losses(own.uniform, [1])
    monkeypatch.setattr(Squared, "forward", lambda self, x: torch.zeros_like(x))
    assert own.losses(own.uniform, [1]) != first
