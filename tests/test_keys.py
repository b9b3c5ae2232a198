"""The key of a subject: the same for an unedited model, another for every edit by whatever road,
and none where a model does more than its modules say."""

import time

import pytest
import torch
from test_families import FAMILIES, TOKENS, build

from lib.base import InputError
from lib.linear import recoverability
from lib.models import as_subject, load_subject, record, resume
from lib.models.witness import content


@pytest.fixture
def subject():
    return load_subject("tiny-gpt2", device="cpu")


def test_unedited_models_keep_the_keys_that_results_are_stored_under():
    known = {
        "tiny-gpt2": "bed896325709c08c-torch.float32-52142494",
        "tiny-neox": "8f1f240fbcc07457-torch.float32-02bddc3c",
        "tiny-llama": "2784be2ee2684593-torch.float32-722f6f79",
        "tiny-gpt2:random": "f0d4d5391291863e-torch.float32-52142494",
    }
    assert {name: load_subject(name, device="cpu").key for name in known} == known


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forward_pass_changes_no_key(family):
    subject = as_subject(build(family))
    with torch.no_grad():
        subject.model(TOKENS, use_cache=False)
        subject.model(TOKENS, output_hidden_states=True, output_attentions=True)
    assert subject.key == subject.loaded_key


def weight(subject):
    return subject.blocks[3].ffn.c_proj.weight


EDITS = {
    "in place": lambda s: weight(s).mul_(2),
    ".data of one element": lambda s: weight(s).data[7].__setitem__(5, 1e-3),
    ".data by a bit": lambda s: weight(s).data[0].copy_(weight(s).data[0].nextafter(torch.ones(1))),
    "a sign": lambda s: weight(s).data[-1, -1].neg_(),
    "numpy": lambda s: weight(s).detach().numpy().__setitem__((0, 0), 0),
    "swapped elements": lambda s: weight(s).data.copy_(weight(s).data.flip(0)),
    "another tensor": lambda s: setattr(
        s.blocks[3].ffn.c_proj,
        "weight",
        torch.nn.Parameter(weight(s).detach() * 2, requires_grad=False),
    ),
    "a buffer": lambda s: s.model.register_buffer("more", torch.ones(3)),
    "a plain attribute": lambda s: setattr(s.blocks[0].layer.ln_1, "eps", 0.1),
    "an attribute no repr shows": lambda s: setattr(s.blocks[0].layer.attn, "scaling", 0.5),
    "the configuration": lambda s: setattr(s.model.config, "scale_attn_weights", False),
    "another activation": lambda s: setattr(s.blocks[0].ffn, "act", torch.nn.ReLU().eval()),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_every_edit_is_seen(subject, edit):
    with torch.no_grad():
        edit(subject)
    assert subject.key != subject.loaded_key and subject.key == subject.key


def test_edits_of_one_kind_are_told_apart_and_undone(subject):
    keys = [subject.key]
    for value in (0.25, 0.125, float(weight(subject)[0, 0])):
        old = weight(subject).data[0, 0].clone()
        weight(subject).data[0, 0] = value
        keys.append(subject.key)
        weight(subject).data[0, 0] = old
    assert keys[0] == keys[3] and len(set(keys)) == 3
    rates = []
    for scale in (0.5, 0.25):  # no weight, and in no state dict
        subject.blocks[0].layer.attn.scaling = scale
        rates.append(subject.key)
    assert len(set(rates)) == 2


def test_pruning_through_data_is_measured_anew(subject, tiny_windows):
    before = recoverability(subject, tiny_windows[:10]).table.r2_lin
    subject.blocks[2].ffn.c_proj.weight.data[:, ::2] = 0
    assert not recoverability(subject, tiny_windows[:10]).table.r2_lin.equals(before)


@pytest.mark.parametrize("kind", ["", "_pre"])
@pytest.mark.parametrize("place", ["", "lm_head", "transformer.h.3.mlp.act"])
def test_hooks_that_are_not_ours_are_refused(subject, place, kind, tiny_windows):
    module = subject.model.get_submodule(place)
    handle = getattr(module, f"register_forward{kind}_hook")(lambda *_: None)
    says = rf"{place or 'the model'} of tiny-gpt2 has a forward hook \(.*lambda.*\).*: remove it"
    with pytest.raises(InputError, match=says):
        recoverability(subject, tiny_windows[:5])
    handle.remove()
    assert subject.key == subject.loaded_key


def test_training_mode_and_replaced_methods_are_refused(subject):
    subject.blocks[1].ffn.train()
    with pytest.raises(InputError, match=r"h.1.mlp of tiny-gpt2 is in training mode.* eval\(\)"):
        _ = subject.key
    subject.model.eval()
    subject.blocks[1].ffn.forward = lambda x: 0 * x
    with pytest.raises(InputError, match=r"h.1.mlp of tiny-gpt2 has another forward .* swap"):
        _ = subject.key
    del subject.blocks[1].ffn.forward
    assert subject.key == subject.loaded_key


def test_recording_changes_no_key_and_resuming_has_none(subject):
    with record(subject, on_ffn=print, on_residual=print):
        assert subject.key == subject.loaded_key
    for start in (0, 2):
        with (
            resume(subject, start, torch.ones(1, 3, 128)),
            pytest.raises(InputError, match=r"tiny-gpt2 (replays a given|has a forward hook)"),
        ):
            _ = subject.key
    assert subject.key == subject.loaded_key


def test_every_type_of_weight_is_summed():
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.bool):
        module = torch.nn.Module()
        module.register_buffer("odd", torch.ones(7, 3).to(dtype))
        before = content(module)
        module.odd.data[6, 2] = 0
        assert content(module) != before, dtype
    module.register_buffer("none", torch.ones(0))
    module.register_buffer("turned", torch.arange(6.0).view(2, 3).T)
    assert content(module) == content(module)


def test_a_key_costs_a_fraction_of_a_forward_pass(subject):
    tokens = torch.ones(16, 128, dtype=torch.long)

    def fastest(call):
        seconds = []
        for _ in range(3):
            begun = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - begun)
        return min(seconds)

    with torch.no_grad():
        forward = fastest(lambda: subject.model(tokens, use_cache=False))
    assert fastest(lambda: subject.key) < forward / 4
