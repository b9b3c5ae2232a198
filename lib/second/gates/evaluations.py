"""What each evaluation of an FFN would lose by its linear map, read without swapping it: the size
of the map's error, and what the gradient says it costs (beyond Balogh §3.2)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from lib.second.base.cache import as_numpy, cached, digest
from lib.second.base.steps import Item, each
from lib.second.gates.routing import Routed, routed_losses
from lib.second.linear.affine import AffineMap
from lib.second.models.hooks import get_block, record
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows


@dataclass(frozen=True, eq=False)
class Evaluations:
    """Of every block and position that has a loss, {block: [n, seq_len-1]}."""

    error: dict[int, np.ndarray]
    """‖f(x) - Wx - b‖ / ‖h‖, h the residual stream that enters the block"""
    gradient: dict[int, np.ndarray]
    """(Wx + b - f(x)) · ∂L/∂f(x), L the sum of all losses of the window: what the linear map at
    this evaluation alone costs the window, to first order, nats"""
    norm: dict[int, np.ndarray]
    """‖f(x)‖ over the block's median, which massive tokens exceed many times"""


def evaluations(
    subject: Subject, windows: Windows, maps: Mapping[int, AffineMap], batch: int = 4
) -> Evaluations:
    """All labels of all blocks in one forward and one backward pass.

    Each batch is cached when it is done. Raises InputError for a block that does not exist.
    """
    subject.check(windows, batch)
    blocks = [get_block(subject, i).index for i in sorted(maps)]
    common = {
        "subject": subject.key,
        "blocks": blocks,
        "maps": digest([dict(maps[i].state_dict()) for i in blocks]),
        "device": subject.device.type,
    }
    items = [
        Item(common | {"windows": digest(chunk)}, (subject, chunk, maps), len(chunk))
        for chunk in windows.tokens.split(batch)
    ]
    title = f"errors and gradients of {len(blocks)} FFNs"
    found = list(each(_evaluations_batch, items, total=len(windows), desc=title, unit="window"))
    joined = {
        f.name: {i: np.concatenate([b[f.name][k] for b in found]) for k, i in enumerate(blocks)}
        for f in fields(Evaluations)
    }
    joined["norm"] = {i: norm / np.median(norm) for i, norm in joined["norm"].items()}
    return Evaluations(**joined)


@cached
def _evaluations_batch(work: tuple, tick: Callable[[int], None]) -> dict[str, list]:
    subject, tokens, maps = work
    tokens, blocks = tokens.to(subject.device), sorted(maps)
    stream: dict[int, torch.Tensor] = {}
    leaves: dict[int, torch.Tensor] = {}
    errors: dict[int, torch.Tensor] = {}
    norms: dict[int, torch.Tensor] = {}

    def add_leaf(index: int) -> Callable:
        def hook(_, args: tuple, y: torch.Tensor) -> torch.Tensor:
            plain = y.detach()
            errors[index] = maps[index].to(y.device)(args[0].detach()) - plain
            norms[index] = plain.norm(dim=-1)
            # The weights are frozen, so the graph begins at these zeros.
            leaves[index] = torch.zeros_like(plain, requires_grad=True)
            return y + leaves[index]

        return hook

    handles = [subject.blocks[i].ffn.register_forward_hook(add_leaf(i)) for i in blocks]
    try:
        with torch.enable_grad(), record(subject, on_residual=stream.__setitem__, blocks=blocks):
            logits = subject.model(tokens, use_cache=False).logits[:, :-1].flatten(0, 1)
            loss = cross_entropy(logits.float(), tokens[:, 1:].flatten(), reduction="sum")
            slopes = torch.autograd.grad(loss, [leaves[i] for i in blocks])
    finally:
        for handle in handles:
            handle.remove()
    tick(len(tokens))
    relative = lambda i: errors[i].norm(dim=-1) / stream[i].norm(dim=-1)
    each_of = lambda values: [as_numpy(v[:, :-1]) for v in values]
    return {
        "error": each_of(relative(i) for i in blocks),
        "gradient": each_of((errors[i] * g).sum(-1) for i, g in zip(blocks, slopes, strict=True)),
        "norm": each_of(norms[i] for i in blocks),
    }


def single_effects(
    subject: Subject, windows: Windows, maps: Mapping[int, AffineMap], seed: int = 42
) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """What the map costs a window when one evaluation alone goes down the linear path, at one
    random position of each window, for each block: ({block: positions [n]}, {block: sum of the
    window's losses less that of the intact model [n], nats})."""
    chance, positions, routes = np.random.default_rng(seed), {}, {}
    for block, affine in sorted(maps.items()):
        at = chance.integers(windows.seq_len - 1, size=len(windows))
        mask = np.zeros(tuple(windows.tokens.shape), dtype=bool)
        mask[np.arange(len(windows)), at] = True
        positions[block], routes[block] = at, {block: (affine, mask)}
    found: Routed = routed_losses(subject, windows, routes)
    return positions, {b: (loss - found.base).sum(1) for b, loss in found.losses.items()}
