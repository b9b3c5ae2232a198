"""Every architecture family, random-init and tiny: found by structure, proved by behaviour."""

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from lib.base import InputError
from lib.linear import AffineMap
from lib.models import as_subject, capture, record, resume, swap
from lib.models.blocks import find_layers
from lib.texts import Windows

COMMON = dict(
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    vocab_size=97,
    intermediate_size=48,
    max_position_embeddings=64,
)
GROUPED = dict(num_key_value_heads=2)
FAMILIES = {
    "gpt2": dict(n_embd=32, n_layer=3, n_head=4, vocab_size=97, n_positions=64),
    "gpt_neo": dict(
        hidden_size=32,
        num_layers=4,
        num_heads=4,
        vocab_size=97,
        max_position_embeddings=64,
        attention_types=[[["global", "local"], 2]],
    ),
    "gptj": dict(n_embd=32, n_layer=3, n_head=4, vocab_size=97, n_positions=64, rotary_dim=4),
    "gpt_neox": dict(COMMON),
    "falcon": dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, vocab_size=97),
    "phi": dict(COMMON),
    "llama": dict(COMMON, **GROUPED),
    "mistral": dict(COMMON, **GROUPED),
    "qwen2": dict(COMMON, **GROUPED),
    "qwen3": dict(COMMON, **GROUPED, head_dim=8),
    "gemma": dict(COMMON, **GROUPED, head_dim=8),
    "gemma2": dict(COMMON, **GROUPED, head_dim=8),
    "gemma3_text": dict(COMMON, **GROUPED, head_dim=8),
    "olmo": dict(COMMON),
    "olmo2": dict(COMMON),
    "stablelm": dict(COMMON, **GROUPED),
    "mixtral": dict(COMMON, **GROUPED, num_local_experts=2),
}
PARALLEL = {"gptj", "gpt_neox", "falcon", "phi"}
TOKENS = torch.randint(3, 97, (2, 9), generator=torch.Generator().manual_seed(3))


def build(family, **changes):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**FAMILIES.get(family, {}), **changes})
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="module", params=list(FAMILIES))
def subject(request):
    return as_subject(build(request.param), name=request.param)


def logits(subject):
    with torch.no_grad():
        return subject.model(TOKENS, use_cache=False).logits


def test_parallel_or_sequential(subject):
    assert subject.parallel == (subject.name in PARALLEL)


def test_recorded_input_gives_recorded_output(subject):
    rows = capture(subject, Windows.of(TOKENS), range(len(subject)))
    assert sorted(rows) == list(range(len(find_layers(subject.model))))
    for i, (x, y) in rows.items():
        assert x.shape == (*TOKENS.shape, 32)
        assert torch.equal(subject.blocks[i].ffn(x), y), f"block {i}"


def test_swap_for_itself_is_bit_equal_and_another_map_is_not(subject):
    before = logits(subject)
    for block in subject.blocks:
        with swap(block, block.ffn):
            assert torch.equal(logits(subject), before)
        zero = AffineMap(torch.zeros(32, 32), torch.ones(32))
        with swap(block, zero):
            assert block.ffn is zero and not torch.allclose(logits(subject), before)
    assert torch.equal(logits(subject), before)


def test_swap_restores_after_an_exception(subject):
    before, ffn, state = logits(subject), subject.blocks[1].ffn, list(subject.model.state_dict())
    with pytest.raises(RuntimeError), swap(subject.blocks[1], nn.Identity()):
        raise RuntimeError
    assert (
        subject.blocks[1].ffn is ffn
        and torch.equal(logits(subject), before)
        and list(subject.model.state_dict()) == state
    )


def test_resume_equals_the_full_forward(subject):
    before, residual = logits(subject), {}
    with record(subject, on_residual=residual.__setitem__):
        logits(subject)
    for start in range(len(subject)):
        with resume(subject, start, residual[start]):
            assert torch.equal(logits(subject), before), f"resumed at block {start}"
    assert all(
        layer is block.layer
        for layer, block in zip(find_layers(subject.model), subject.blocks, strict=True)
    )


def test_resume_takes_the_stream_it_is_given_and_restores_after_an_exception(subject):
    before = logits(subject)
    for start in (0, 2):
        with pytest.raises(RuntimeError), resume(subject, start, torch.ones(2, 9, 32)):
            assert not torch.allclose(logits(subject), before)
            raise RuntimeError
        with (
            pytest.raises(InputError, match="cannot resume from a residual stream of shape"),
            resume(subject, start, torch.ones(1, 9, 32)),
        ):
            logits(subject)
    assert torch.equal(logits(subject), before)


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        (
            "opt",
            dict(
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                ffn_dim=48,
                vocab_size=97,
                word_embed_proj_dim=32,
            ),
        ),
        ("bloom", dict(hidden_size=32, n_layer=2, n_head=4, vocab_size=97)),
    ],
)
def test_an_ffn_that_is_no_plain_module_is_refused_by_name(family, sizes):
    with pytest.raises(
        InputError,
        match=rf"block 0: {family.upper() if family == 'opt' else 'Bloom'}\w*Layer|block 0: "
        r"BloomBlock",
    ):
        as_subject(build(family, **sizes))


def test_a_model_without_decoder_layers_is_refused():
    model = build("llama")
    model.model.layers = nn.Sequential(*model.model.layers)
    with pytest.raises(InputError, match="no list of 3 decoder layers in LlamaForCausalLM"):
        as_subject(model)
