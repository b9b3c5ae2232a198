"""Healing: fine-tune only a swapped-in layer on the language-modelling loss, everything else
frozen (Whipp §3.3, §5.6)."""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral

import torch
from torch import nn

from lib.second.base.cache import as_numpy, cached, digest
from lib.second.base.checks import check_fits
from lib.second.base.errors import InputError
from lib.second.base.steps import Item, each
from lib.second.linear.affine import AffineMap
from lib.second.models.hooks import forward_body, get_block, record, resume, swap
from lib.second.models.subjects import Subject
from lib.second.swaps.sweep import code_of, is_known
from lib.second.texts.windows import Windows


def residual_streams(
    subject: Subject, windows: Windows, blocks: Sequence[int], batch: int = 16
) -> dict[int, torch.Tensor]:
    """The residual stream that enters each of `blocks` on `windows` [n, seq_len]: {block: [n,
    seq_len, d_model]}, on the CPU.

    One pass for all; healing any module of these blocks then starts there, for nothing before the
    block changes.
    """
    subject.check(windows, batch)
    streams: dict[int, list] = {get_block(subject, i).index: [] for i in blocks}
    with record(
        subject,
        on_residual=lambda i, h: streams[i].append(h.to("cpu", copy=True)),
        blocks=list(streams),
    ):
        for chunk in windows.tokens.split(batch):
            forward_body(subject, chunk)
    return {i: torch.cat(parts) for i, parts in streams.items()}


def heal(
    subject: Subject,
    windows: Windows,
    modules: Mapping[tuple, nn.Module],
    steps: int,
    lr: float = 1e-4,
    batch: int = 2,
) -> dict[tuple, nn.Module]:
    """Heal each module on its own: {(block, name, seed): module} -> the same keys with fine-tuned
    copies (Whipp §4: 200 steps, lr 1e-4).

    `windows` are training text. AdamW without weight decay on `batch` windows a step; the seed sets
    their order, so all modules of one seed see the same text. Optimizer and batch are ours. A
    module may be the block's own FFN: that is the heal-original control. Nothing of the subject
    changes. Each result is cached when it is done (swap_sweep says for which modules).
    """
    check_fits(steps, {seed for *_, seed in modules})
    if not (lr > 0 and isinstance(batch, Integral) and batch >= 1):
        raise InputError(
            f"a rate of {lr} and {batch!r} windows a step are not possible: use a rate above "
            "0 and a whole number of windows from 1 up."
        )
    for (block, *_), module in modules.items():
        with swap(get_block(subject, block), module):
            pass  # refused before anything is measured
    blocks, healed = sorted({block for block, *_ in modules}), {}
    # Called only if something is not in the cache.
    streams = functools.cache(lambda: residual_streams(subject, windows, blocks))
    layers, items = {where: trainable(module) for where, module in modules.items()}, []
    for (block, _, seed), layer in layers.items():
        key = {
            "subject": subject.key,
            "windows": windows.key,
            "block": block,
            "module": digest((repr(layer), dict(layer.state_dict()))),
            "code": code_of(layer),
            "steps": steps,
            "lr": lr,
            "batch": batch,
            "seed": seed,
            "device": subject.device.type,
        }
        work = (subject, windows, block, layer, streams, steps, lr, batch, seed)
        items.append(Item(key, work, steps, is_known(layer)))
    title = f"healing {len(layers)} layers"
    states = each(_heal, items, total=len(layers) * steps, desc=title, unit="step")
    for (where, layer), state in zip(layers.items(), states, strict=True):
        layer.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
        healed[where] = layer.requires_grad_(False).eval()
    return healed


def trainable(module: nn.Module) -> nn.Module:
    """A copy of `module` whose parameters can be trained; an AffineMap becomes an nn.Linear."""
    if isinstance(module, AffineMap):
        linear = nn.Linear(*module.weight.shape)
        linear.load_state_dict({"weight": module.weight.T.float(), "bias": module.bias.float()})
        return linear
    return copy.deepcopy(module).requires_grad_(True)


@cached
def _heal(work: tuple, tick: Callable[[], None]) -> dict:
    subject, windows, block, layer, streams, steps, lr, batch, seed = work
    layer = copy.deepcopy(layer).to(subject.device)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=lr, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    hidden = streams()[block]
    order = torch.cat(
        [
            torch.randperm(len(windows), generator=generator)
            for _ in range(-(-steps * batch // len(windows)))
        ]
    )
    for chosen in order[: steps * batch].split(batch):
        tokens = windows.tokens[chosen].to(subject.device)
        with (
            resume(subject, block, hidden[chosen].to(subject.device)),
            swap(subject.blocks[block], layer),
        ):
            logits = subject.model(tokens, use_cache=False).logits
        loss = nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tick()
    if not all(torch.isfinite(p).all() for p in layer.parameters()):
        raise InputError(f"healing block {block} diverged (lr {lr}): use a smaller learning rate.")
    return {k: as_numpy(v) for k, v in layer.state_dict().items()}
