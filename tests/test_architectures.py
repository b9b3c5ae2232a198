"""Any decoder whose FFN is one module is read; the others are refused in a sentence."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lib.errors import InputError
from lib.gating.gates import Routed
from lib.gating.increases import loss_increases
from lib.gating.routers import learn_errors, random_scores
from lib.gating.routing import refit, routed, shrunk_fit, sweep
from lib.hooks import capture, capture_residual, record, resume, swap
from lib.linear import regression
from lib.linear.affine import constant
from lib.linear.regression import fit, fit_maps
from lib.models.parts import as_subject
from lib.studies.replacements import first_maps, replacement_for
from lib.swap.expected import expected_added_loss
from lib.swap.healing import heal
from lib.swap.sweep import token_losses, token_sweep
from lib.text.windows import Windows, cut_windows

USUAL = dict(
    vocab_size=99,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
)
# Name of the FFN in each layer; arguments beside the usual ones (n_…: GPT-2's own names).
READ = {
    "gpt2": ("mlp", dict(n_embd=32, n_layer=3, n_head=4, n_positions=64)),
    "gptj": ("mlp", dict(n_embd=32, n_layer=3, n_head=4, n_positions=64, rotary_dim=4)),
    "gpt_neo": ("mlp", dict(num_layers=3, num_heads=4, attention_types=[[["global"], 3]])),
    "gpt_neox": ("mlp", {}),
    "llama": ("mlp", {}),
    "mistral": ("mlp", {}),
    "qwen2": ("mlp", {}),
    "qwen3": ("mlp", {}),
    "gemma": ("mlp", {}),
    "gemma2": ("mlp", {}),
    "gemma3_text": ("mlp", {}),
    "phi": ("mlp", dict(num_key_value_heads=4)),
    "phi3": ("mlp", dict(pad_token_id=0)),
    "falcon": ("mlp", dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4)),
    "stablelm": ("mlp", {}),
    "olmo2": ("mlp", {}),
    "starcoder2": ("mlp", {}),
    "cohere": ("mlp", {}),
    "granite": ("mlp", {}),
}
REFUSED = {  # their FFN is no module, or adds the residual stream itself
    "opt": dict(ffn_dim=64, word_embed_proj_dim=32),
    "bloom": dict(n_layer=3, n_head=4),
    "mpt": dict(d_model=32, n_layers=3, n_heads=4, max_seq_len=64),
}
OWN_NAMES = {"gpt2", "gptj", "mpt", "falcon"}


def build(kind: str, given: dict):
    """A small model of random weights, spread wide enough that each FFN matters."""
    usual = dict(vocab_size=99) if kind in OWN_NAMES else USUAL
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **usual | given))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2:
                p.normal_(std=0.1)
    return model.float()


@pytest.fixture(scope="module")
def windows():
    tokens = torch.randint(99, (16, 24), generator=torch.Generator().manual_seed(1))
    return Windows(tokens, np.repeat(np.arange(8), 2), "random tokens")


@pytest.mark.parametrize("kind", READ)
def test_an_architecture_is_read_swapped_and_resumed(kind, windows):
    name, given = READ[kind]
    subject = as_subject(build(kind, given), name=kind)
    assert len(subject) == 3 and {b.ffn_name for b in subject.blocks} == {name}
    plain = token_losses(subject, windows.tokens)
    own = torch.nn.functional.cross_entropy(
        subject.model(windows.tokens).logits[:, :-1].flatten(0, 1), windows.tokens[:, 1:].flatten()
    )
    assert float(plain.mean()) == pytest.approx(float(own), rel=1e-5)
    found = token_sweep(subject, windows, {b.index: copy.deepcopy(b.ffn) for b in subject.blocks})
    for block, h in capture_residual(subject, windows, range(3)).items():
        with resume(subject, block, h):
            assert torch.equal(token_losses(subject, windows.tokens), plain)
        np.testing.assert_array_equal(found[block], plain)
    fits = fit(subject, windows)
    assert regression.r2(subject, windows, regression.fit(subject, windows)).r2.notna().all()
    costs = token_sweep(subject, windows, fits.maps)
    assert all(np.abs(costs[b] - costs[None]).max() > 1e-6 for b in range(3))


@pytest.mark.parametrize("kind", REFUSED)
def test_an_ffn_that_is_no_module_of_its_own_is_refused(kind):
    with pytest.raises(InputError, match=r"block 0: .* 0 child modules .*: choose an architecture"):
        as_subject(build(kind, REFUSED[kind]), name=kind)


def same_maps(subject, windows) -> bool:
    """Whether maps fitted in one walk are those of the model with each put in before the next."""
    walked = first_maps(subject, windows, (0, 2), "map")
    first = replacement_for(subject, windows, 0, "map")
    with swap(subject.blocks[0], first):
        second = replacement_for(subject, windows, 2, "map")
    pairs = [(walked[0], first), (walked[2], second)]
    x = torch.randn(50, subject.d_model, generator=torch.Generator().manual_seed(0))
    return all(torch.allclose(a(x), b(x), atol=1e-3 * b(x).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("kind", READ)
def test_maps_by_depth_are_those_fitted_one_by_one(kind, windows):
    """Also where a layer does more with the FFN's output than add it (Gemma, OLMo, Granite)."""
    assert same_maps(as_subject(build(kind, READ[kind][1]), name=kind), windows)


class Everywhere(torch.nn.Module):
    """A router that sends every position to the map."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(x.shape[:-1], dtype=torch.bool)


@pytest.mark.parametrize("kind", READ)
def test_refits_walk_on_the_routed_model(kind, windows):
    """A later map is fitted on what the model with the earlier one computes, in any layer."""
    subject = as_subject(build(kind, READ[kind][1]), name=kind)
    old = fit_maps(subject, windows)["all positions"]
    modules = {b: Routed(subject.blocks[b].ffn, old[b], Everywhere()) for b in (0, 2)}
    found = {b: module.surrogate for b, module in refit(subject, windows, modules).items()}
    with swap(subject.blocks[0], found[0]):
        x, y = (rows.flatten(0, 1) for rows in capture(subject, windows, [2])[2])
    by_hand = shrunk_fit(x, y, old[2])(x)
    torch.testing.assert_close(found[2](x), by_hand, atol=float(1e-3 * by_hand.abs().max()), rtol=0)


class StartingTokenizer:
    """Letters as tokens, with token 1 in front of a text, as Gemma's and Llama's tokenizers do."""

    start = 1

    def __call__(self, text, add_special_tokens=True, verbose=True):
        ids = [2 + ord(c) % 90 for c in text]
        return {"input_ids": [self.start, *ids] if add_special_tokens else ids}


@pytest.fixture(scope="module", params=["gemma3_text", "llama"])
def starting(request):
    """A tiny Gemma 3 or Llama whose tokenizer adds a start token, and windows of it."""
    model = build(request.param, READ[request.param][1])
    tokenizer = StartingTokenizer()
    texts = ["the quick brown fox jumps over the lazy dog " * 9] * 2 + ["a b c d e f g h " * 24] * 6
    return as_subject(model, tokenizer, "starting"), cut_windows(texts, tokenizer, 24)


def test_maps_by_depth_leave_the_start_token_to_the_ffn(starting):
    assert same_maps(*starting)


def test_what_is_predicted_at_the_start_token_is_not_scored(starting):
    subject, windows = starting
    assert subject.start_tokens == (1,) and (windows.tokens[:, 0] == 1).all()
    tokens = windows.tokens[:4]
    own = subject.model(tokens).logits.double().log_softmax(-1)
    oracle = -own[:, 1:-1].gather(2, tokens[:, 2:, None])[..., 0]  # 22 of 24 positions
    torch.testing.assert_close(token_losses(subject, tokens), oracle, atol=1e-6, rtol=0)


def test_the_start_position_is_neither_fitted_nor_swapped(starting):
    subject, windows = starting
    x, _ = capture(subject, windows[:4], [1])[1]
    assert x.shape[:2] == (4, 23)  # the position of the start token is left out
    whole = {}
    with record(subject, lambda b, x, y: whole.setdefault(b, (x, y)), blocks=[1]):
        subject.model(windows.tokens[:4], use_cache=False)
    torch.testing.assert_close(whole[1][0][:, 1:], x)
    zero = constant(torch.zeros(subject.d_model))
    with swap(subject.blocks[1], zero):
        swapped = subject.blocks[1].ffn(whole[1][0])
    torch.testing.assert_close(swapped[:, 0], whole[1][1][:, 0])
    assert not swapped[:, 1:].any()
    # The sweep's resumed passes see the same.
    swept = token_sweep(subject, windows[:4], {(1, "zero"): zero})
    with swap(subject.blocks[1], zero):
        oracle = token_losses(subject, windows.tokens[:4])
    np.testing.assert_allclose(swept[1, "zero"], oracle, atol=1e-5)


def test_routers_leave_the_start_token_alone(starting):
    subject, windows = starting
    maps = fit_maps(subject, windows)["all positions"]
    increases = loss_increases(subject, windows, maps)
    assert increases.x[1].shape[:2] == increases.loss_increase[1].shape == (len(windows), 22)
    assert (increases.token == windows.tokens[:, 1:-1].numpy()).all()
    errors = learn_errors(subject, windows, maps)
    assert errors.error.shape[2] == 23
    x, y = capture(subject, windows, [1])[1]
    by_hand = (maps[1](x) - y).double().square().sum(-1)
    np.testing.assert_allclose(errors.error[1], by_hand, rtol=1e-4, atol=1e-9)
    every = routed(subject, maps, random_scores(windows, maps), 1.0)
    found = sweep(subject, windows, {"all": every, "maps": maps})
    np.testing.assert_allclose(found.changed["all"], found.changed["maps"], rtol=1e-6)
    assert found.shares.affine.tolist() == [1, 1]
    refitted = refit(subject, windows, {1: every[1]})[1]
    np.testing.assert_allclose(refitted.surrogate(x), maps[1](x), atol=0.05 * float(y.std()))


def test_windows_without_the_start_token_are_refused(starting):
    subject, windows = starting
    text_alone = replace(windows, tokens=windows.tokens[:, 1:])
    with pytest.raises(InputError, match="begins with token 1"):
        fit_maps(subject, text_alone)


def test_a_start_token_outside_the_vocabulary_is_refused():
    tokenizer = StartingTokenizer()
    tokenizer.start = 500
    with pytest.raises(InputError, match=r"start token 500.*99 tokens"):
        as_subject(build("llama", {}), tokenizer, "odd")


def test_layers_that_return_lists_are_refused():
    model = build("llama", {})
    first, second = model.model.layers[:2]
    one, two = first.forward, second.forward
    first.forward = lambda *args, **kwargs: [one(*args, **kwargs)]
    second.forward = lambda hidden, *args, **kwargs: two(hidden[0], *args, **kwargs)
    with pytest.raises(InputError, match="return a list"):
        as_subject(model, name="lists")


# Kinds of models that a hunt found measured wrongly -----------------------------------------------

EXPERTS = {
    "mixtral": dict(num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                      shared_expert_intermediate_size=32, mlp_only_layers=[]),
    "olmoe": dict(num_experts=4, num_experts_per_tok=2),
    "qwen3_moe": dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
}  # fmt: skip


@pytest.mark.parametrize("kind", EXPERTS)
def test_experts_are_called_as_the_model_calls_them(kind, windows):
    """Where some positions keep the FFN, the swapped block gives the FFN's values there."""
    subject = as_subject(build(kind, EXPERTS[kind]), name=kind)
    [(x, y)] = capture(subject, windows[:4], [1]).values()

    class First(torch.nn.Module):
        def forward(self, x):
            return torch.zeros_like(x)

        def massive(self, x):
            return (torch.arange(x.shape[1]) % 3 == 0).expand(x.shape[:2]).clone()

    block = subject.blocks[1]
    with swap(block, First()):
        placed = block.ffn(x)
    torch.testing.assert_close(placed[:, ::3], y[:, ::3], rtol=1e-4, atol=1e-5)
    assert not placed[:, 1::3].any()
    mask = torch.arange(24) % 3 == 0
    routed = Routed(block.original, constant(torch.zeros(32)), lambda x: mask.expand(x.shape[:2]))
    torch.testing.assert_close(routed(x)[:, ~mask], y[:, ~mask], rtol=1e-4, atol=1e-5)
    # In a whole pass: losses with the FFN kept everywhere are the model's own.
    everywhere = Routed(block.original, constant(torch.ones(32)), lambda x: x[..., 0] > np.inf)
    swept = token_sweep(subject, windows[:4], {1: everywhere})
    np.testing.assert_allclose(swept[1], swept[None], atol=1e-5)


def shares_keys(model):
    """Every second layer's attention hands on the output of the one before, as shared keys and
    values do."""
    left = {}
    for k, layer in enumerate(model.model.layers):

        def hook(_, args, out, k=k):
            if k % 2 == 0:
                left["out"] = out
                return None
            return (left["out"][0], *out[1:])

        layer.self_attn.register_forward_hook(hook)


def shares_with_the_first(model):
    left = {}
    for k, layer in enumerate(model.model.layers):

        def hook(_, args, out, k=k):
            if k == 0:
                left["out"] = out[0]
                return None
            return (out[0] + 0.5 * left["out"], *out[1:])

        layer.self_attn.register_forward_hook(hook)


def shares_one_ffn(model):
    model.model.layers[2].mlp = model.model.layers[0].mlp


def calls_its_ffn_in_pieces(model):
    layer = model.model.layers[1]
    whole = layer.mlp
    attention = layer.post_attention_layernorm.forward

    def norm(x):
        layer.pieces = attention(x)
        whole(layer.pieces[:, :1])  # once for a part, then by the layer for all
        return layer.pieces

    layer.post_attention_layernorm.forward = norm


def sees_what_comes(model):
    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(
            lambda _, args, out: (out[0] + out[0].mean(1, keepdim=True), *out[1:])
        )


def has_no_head(model):
    return model.model


def is_wrapped(model):
    return torch.nn.DataParallel(model)


def is_not_in_memory(model):
    return model.to("meta")


def is_of_inference_mode(model):
    with torch.inference_mode():
        return copy.deepcopy(model)


def is_partly_offloaded(model):
    model.model.layers[1].to("meta")


HOSTILE = {
    shares_keys: "reads more of earlier blocks", shares_with_the_first: "reads more of earlier",
    shares_one_ffn: "share one FFN", calls_its_ffn_in_pieces: "not the FFN alone",
    sees_what_comes: "sees later tokens", has_no_head: "no language-model head",
    is_wrapped: "its .module", is_not_in_memory: "not in memory",
    is_partly_offloaded: "not in memory", is_of_inference_mode: "inference_mode",
}  # fmt: skip


@pytest.mark.parametrize("change", HOSTILE, ids=lambda f: f.__name__)
def test_what_cannot_be_measured_is_refused_in_a_sentence(change):
    model = build("llama", dict(num_hidden_layers=4))
    model = change(model) or model
    with pytest.raises(InputError, match=HOSTILE[change]) as refused:
        as_subject(model, name="hostile")
    assert "\n" not in str(refused.value) and ": " in str(refused.value)


def test_a_bidirectional_setting_is_seen():
    given = READ["gemma3_text"][1]
    model = build("gemma3_text", given | dict(use_bidirectional_attention=True))
    with pytest.raises(InputError, match="sees later tokens"):
        as_subject(model, name="embedder")


def test_another_default_precision_is_refused(monkeypatch):
    model = build("llama", {})
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(InputError, match="set_default_dtype"):
            as_subject(model, name="double")
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 4])
def test_a_vocabulary_of_few_tokens_is_read(vocabulary):
    model = build("llama", dict(vocab_size=vocabulary))
    assert len(as_subject(model, name="few")) == 3


def test_several_start_tokens_are_all_left_alone(windows):
    class Two(StartingTokenizer):
        def __call__(self, text, add_special_tokens=True, verbose=True):
            ids = [2 + ord(c) % 90 for c in text]
            return {"input_ids": [7, 1, *ids] if add_special_tokens else ids}

    subject = as_subject(build("llama", {}), Two(), "two")
    cut = cut_windows(["the quick brown fox jumps over the lazy dog " * 9] * 2, Two(), 24)
    assert subject.start_tokens == (7, 1) and (cut.tokens[:, :2] == torch.tensor([7, 1])).all()
    found = token_losses(subject, cut.tokens[:4])
    own = subject.model(cut.tokens[:4]).logits.double().log_softmax(-1)
    oracle = -own[:, 2:-1].gather(2, cut.tokens[:4, 3:, None])[..., 0]
    torch.testing.assert_close(found, oracle, atol=1e-6, rtol=0)
    x, _ = capture(subject, cut[:4], [1])[1]
    assert x.shape[1] == 22
    with pytest.raises(InputError, match="begins with token 7 1"):
        capture(subject, windows, [1])


def test_windows_in_which_nothing_is_predicted_are_refused(starting):
    subject, windows = starting
    with pytest.raises(InputError, match="nothing is predicted"):
        token_sweep(subject, replace(windows, tokens=windows.tokens[:, :2]), {})
    plain = as_subject(build("llama", {}), name="plain")
    with pytest.raises(InputError, match="nothing is predicted"):
        token_sweep(plain, replace(windows, tokens=windows.tokens[:, :1]), {})


def test_gradients_switched_off_elsewhere_change_nothing(windows):
    subject = as_subject(build("llama", {}), name="llama")
    maps = {1: constant(torch.zeros(32))}
    layers = {(1, "zero"): torch.nn.Linear(32, 32)}

    def measured():
        torch.manual_seed(0)
        healed = heal(subject, windows, layers, 2)[1, "zero"]
        return healed(torch.ones(1, 1, 32)), expected_added_loss(subject, windows[:2], maps)

    one, two = measured()
    with torch.no_grad():
        three, four = measured()
    torch.testing.assert_close(one, three)
    np.testing.assert_array_equal(two, four)


def test_a_model_too_narrow_for_a_map_is_refused(windows):
    for width in (1, 2):  # LayerNorm leaves width - 1 directions
        given = dict(n_embd=width, n_layer=3, n_head=1, n_positions=64)
        subject = as_subject(build("gpt2", given), name="narrow")
        with pytest.raises(InputError, match="too few for a map"):
            fit_maps(subject, windows)
    wide = as_subject(build("gpt2", dict(n_embd=4, n_layer=3, n_head=1, n_positions=64)), name="4")
    assert len(fit_maps(wide, windows)["all positions"]) == 3
