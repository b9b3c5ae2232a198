"""Heal a swapped layer: train it alone on the model's loss (Whipp §3.3, §4)."""

import copy
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import nn
from tqdm import tqdm

from lib.errors import InputError
from lib.hooks import capture_residual, get_block, resume, swap
from lib.keys import seal, words_of
from lib.lazy import lazily, made
from lib.linear.affine import AffineMap, MassiveKeptMap
from lib.models.blocks import Subject
from lib.store import cached
from lib.text.windows import Windows


def heal(
    subject: Subject,
    windows: Windows,
    modules: Mapping,
    steps: int,
    lr: float = 1e-4,
    batch: int = 8,
    seed: int = 42,
) -> dict:
    """Fine-tune each module alone on the next-token loss, all else frozen (Whipp §3.3, §4: 200
    steps at 1e-4): {(block, …): module} -> the same keys with copies, healed when first used.

    AdamW without weight decay, `batch` windows a step in an order that all modules share; optimizer
    and batch are ours. Every pass resumes at the module's block. A module may be the block's own
    FFN, the heal-original control.
    """
    if subject.model.dtype != torch.float32:
        raise InputError(
            f"healing needs a model in float32, and {subject.name} is in {subject.model.dtype}: "
            "load it with dtype=torch.float32."
        )
    if steps < 1 or not lr > 0:
        raise InputError(f"{steps} steps at rate {lr} heal nothing: give both above 0.")
    blocks = sorted({get_block(subject, key[0]).index for key in modules})
    streams: dict = {}  # filled only if something is not in the cache

    def healed(key: tuple, module: nn.Module, words: str | None) -> dict[tuple, nn.Module]:
        """{key: the module, healed}; `words` it had when it was asked for."""
        layer = seal(trainable(module), words)
        given = (subject, windows, key[0], layer, steps, lr, batch, seed)
        layer.load_state_dict(_heal(*given, streams=streams, blocks=blocks))
        return {key: layer.requires_grad_(False).eval()}

    how = f"{_heal.version}, {steps} steps at {lr!r}, {batch} windows a step in order {seed}, "
    how += f"on {windows.provenance}"
    found: dict = {}
    for key, module in modules.items():
        words = words_of(module)
        said = words and f"{words}; {how}"
        heal_it = partial(healed, key, module, words)
        found |= lazily({key: said}, heal_it, model=subject, text=windows, layer=module)
    return found


def trainable(module: nn.Module) -> nn.Module:
    """A copy whose parameters can be trained; an AffineMap becomes an nn.Linear. Raises InputError
    for a repaired map, whose FFN on massive positions would be lost."""
    module = made(module)
    if isinstance(module, MassiveKeptMap):
        raise InputError("a repaired map cannot be healed: give the plain map of its block.")
    if isinstance(module, AffineMap):
        linear = nn.Linear(*module.weight.shape)
        linear.load_state_dict({"weight": module.weight.T.float(), "bias": module.bias.float()})
        return linear
    return copy.deepcopy(module).requires_grad_(True)


@cached("healed layer", 2, lr="rate", batch="windows a step", helpers=("streams", "blocks"))
@torch.enable_grad()
def _heal(
    subject: Subject,
    windows: Windows,
    block: int,
    layer: nn.Module,
    steps: int,
    lr: float,
    batch: int,
    seed: int,
    streams: dict,
    blocks: Sequence[int],
) -> dict[str, torch.Tensor]:
    """The state dict of the healed layer."""
    if not streams:
        streams |= capture_residual(subject, windows, blocks)
    layer = copy.deepcopy(layer).to(subject.device)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=lr, weight_decay=0.0)
    # Every window once, then all again in another order, as long as there are steps.
    generator = torch.Generator().manual_seed(seed)
    n_rounds = -(-steps * batch // len(windows))
    order = torch.cat([torch.randperm(len(windows), generator=generator) for _ in range(n_rounds)])
    for chosen in tqdm(order[: steps * batch].split(batch), desc="healing", delay=2, leave=False):
        tokens = windows.tokens[chosen].to(subject.device)
        hidden = streams[block][chosen].to(subject.device)
        with resume(subject, block, hidden), swap(subject.blocks[block], layer):
            logits = subject.model(tokens, use_cache=False).logits[:, subject.n_start : -1]
        target = tokens[:, 1 + subject.n_start :]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if not all(torch.isfinite(p).all() for p in layer.parameters()):
        raise InputError(f"healing block {block} diverged (lr {lr}): use a smaller learning rate.")
    return dict(layer.state_dict())
