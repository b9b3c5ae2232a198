"""Bad models, modules and windows: one clear line each, and the subject stays as it was."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from lib.base import DATA, InputError
from lib.linear import Moments, rank_profile, recoverability
from lib.models import as_subject, capture, load_subject, swap
from lib.swaps import swap_sweep, token_losses
from lib.texts import Windows


def test_unknown_block(tiny_gpt2, tiny_windows):
    for index in (6, -1, 1.5, "x", None):
        with pytest.raises(
            InputError, match=f"block {index!r} does not exist: tiny-gpt2 has blocks 0 to 5"
        ):
            capture(tiny_gpt2, tiny_windows[:1], [index])


def test_non_finite_weights_name_block_and_token(tiny_windows):
    subject = load_subject("tiny-gpt2")
    with torch.no_grad():
        subject.blocks[4].ffn.c_proj.bias[0] = float("inf")
    with pytest.raises(InputError, match=r"block 4: .* not finite at token 0 "):
        recoverability(subject, tiny_windows[:5])


def test_a_changed_model_does_not_hit_the_results_of_another(tiny_windows):
    subject, windows = load_subject("tiny-gpt2"), tiny_windows[:10]
    plain = recoverability(subject, windows).table.r2_lin
    with swap(subject.blocks[0], torch.nn.Linear(128, 128)):
        assert recoverability(subject, windows).table.r2_lin[0] > 0.999 > plain[0]
    assert recoverability(subject, windows).table.r2_lin.equals(plain)
    key = subject.key
    with torch.no_grad():
        subject.blocks[2].ffn.c_proj.weight.mul_(2)
    assert subject.key != key
    other = load_subject("tiny-gpt2").model
    other.config.activation_function = "relu"
    assert as_subject(other).key != as_subject(load_subject("tiny-gpt2").model).key


def test_modules_without_weights_are_told_apart(tiny_gpt2, tiny_windows):
    class Zero(torch.nn.Module):
        def forward(self, x):
            return 0 * x

    losses = [
        swap_sweep(tiny_gpt2, tiny_windows[:2], {3: m})[1][3].mean()
        for m in (torch.nn.Identity(), Zero())
    ]
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (torch.nn.Linear(128, 1), "it maps .* to"),
        (torch.nn.Linear(64, 128), "cannot stand in for an FFN of width 128"),
        (torch.nn.Linear(128, 128).double(), "cannot stand in"),
        (torch.tanh, "cannot be swapped in; give a torch.nn.Module"),
    ],
)
def test_a_module_that_does_not_fit_is_refused_and_the_ffn_stays(tiny_gpt2, module, says):
    ffn = tiny_gpt2.blocks[1].ffn
    with pytest.raises(InputError, match=f"block 1: .*{says}"), swap(tiny_gpt2.blocks[1], module):
        pytest.fail("swapped")
    assert tiny_gpt2.blocks[1].ffn is ffn


@pytest.mark.parametrize(
    ("windows_", "says"),
    [
        (
            Windows.of(torch.ones(2, 300, dtype=torch.long)),
            "windows of 300 tokens exceed the context of tiny-gpt2, 256",
        ),
        (Windows.of(torch.full((1, 8), 5000)), r"token 5000 is not in the 4,096 tokens"),
        (Windows.of(torch.ones(2, 8, dtype=torch.long))[:0], "at least one window"),
        (Windows.of(torch.ones(2, 8)), "type torch.float32 cannot be read"),
        (Windows.of(torch.ones(2, 1, dtype=torch.long)), "windows of one token"),
        (torch.ones(2, 8, dtype=torch.long), "a Tensor is no sample of windows: cut one with"),
        ([[1, 2], [3, 4]], "a list is no sample of windows: .* with Windows.of"),
    ],
)
def test_windows_that_the_model_cannot_read(tiny_gpt2, windows_, says):
    for call in (
        lambda: recoverability(tiny_gpt2, windows_),
        lambda: capture(tiny_gpt2, windows_, [0]),
        lambda: swap_sweep(tiny_gpt2, windows_, {}),
    ):
        with pytest.raises(InputError, match=says):
            call()


@pytest.mark.parametrize("batch", [0, -1, 1.5, "a"])
def test_a_batch_that_is_no_number_of_windows(tiny_gpt2, tiny_windows, batch):
    windows_ = tiny_windows[:2]
    for call in (
        lambda: recoverability(tiny_gpt2, windows_, 2, batch=batch),
        lambda: capture(tiny_gpt2, windows_, [0], batch),
        lambda: swap_sweep(tiny_gpt2, windows_, {}, batch),
        lambda: token_losses(tiny_gpt2, windows_, batch),
    ):
        with pytest.raises(InputError, match=f"{batch!r} windows in one pass are not possible"):
            call()


def damaged(folder, change):
    """A copy of tiny-gpt2 whose tensors were changed."""
    shutil.copytree(DATA / "models" / "tiny-gpt2", folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def test_damaged_model_folders(tmp_path):
    lacking = damaged(tmp_path / "lacking", lambda t: t.pop("transformer.h.3.mlp.c_fc.weight"))
    with pytest.raises(
        InputError, match=r"lacks 1 of its weights \(transformer.h.3.mlp.c_fc.weight"
    ):
        load_subject(lacking)
    broken = damaged(
        tmp_path / "broken", lambda t: t["transformer.h.3.mlp.c_fc.bias"].fill_(float("nan"))
    )
    with pytest.raises(
        InputError, match=r"weight transformer.h.3.mlp.c_fc.bias of broken is not finite"
    ):
        load_subject(broken)
    cut = tmp_path / "cut"
    shutil.copytree(DATA / "models" / "tiny-gpt2", cut)
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(InputError, match=r"model .*cut' could not be loaded .* save it again"):
        load_subject(str(cut))
    assert load_subject(damaged(tmp_path / "whole", lambda t: None)).name == "whole"


def test_a_constant_that_binary_cannot_hold_is_still_constant(tiny_gpt2):
    x = torch.randn(500, 6, generator=torch.Generator().manual_seed(0))
    y = x @ torch.ones(6, 4)
    y[:, 2] = 0.1
    train, tail = Moments.of(x[:400], y[:400]), Moments.of(x[400:], y[400:])
    assert (
        tail.score(train.fit()).n_undefined == 1
        and rank_profile(train, tail, standardized=True).r2[-1] > 0.999
    )
    merged = (
        Moments.of(x[:200], y[:200]) + Moments.of(x[200:], y[200:]) - Moments.of(x[200:], y[200:])
    )
    assert merged.syy[2] == 0 and merged.syy[0] > 0
    with pytest.raises(InputError, match="ridge -1 is not possible"):
        train.fit(-1)
