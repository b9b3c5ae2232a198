"""The FFN input as a sum of token and context (Balogh §3.3), in a space where it is one.

The FFN reads x = norm(h), and the residual stream h = e + c is what the token brought, e, and what
the blocks have added, c. A norm is linear once its statistics are fixed, so at each position
x = s (P h) ∘ g + b = s (P e) ∘ g + s (P c) ∘ g + b, with the norm's own scale s (of h), gain g and
offset b, and P the subtraction of the mean in LayerNorm, nothing in RMSNorm.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lib.second.base.cache import as_numpy
from lib.second.base.errors import InputError
from lib.second.models.hooks import forward_body, get_block, record
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows


@dataclass(frozen=True, eq=False)
class Split:
    """One block's streams at the positions that have a loss, float32 [n, seq_len-1, d_model]."""

    x: np.ndarray
    """the FFN's input"""
    stream: np.ndarray
    """h, the residual stream before the norm"""
    embedding: np.ndarray
    """e, the residual stream that enters the first block: the token's embedding, with that of its
    position where the model adds one"""
    token: np.ndarray
    """x_e = s (P e) ∘ g, the token's part of x"""
    context: np.ndarray
    """x_c = s (P c) ∘ g; x = x_e + x_c + b"""

    def rows(self, part: str) -> np.ndarray:
        """One of the parts, a row a position, [n (seq_len-1), d_model]."""
        found = getattr(self, part)
        return found.reshape(-1, found.shape[-1])


class Streams:
    """The split of `blocks` on `windows`, captured when it is asked for: as many blocks in one
    pass, from that one, as `limit` bytes hold.

    Nothing runs for blocks that nobody asks for. Raises InputError for a block that does not exist,
    or one whose FFN does not read the output of a norm.
    """

    def __init__(
        self, subject: Subject, windows: Windows, blocks: Sequence[int], limit: float = 6e9
    ):
        subject.check(windows)
        self.subject, self.windows, self.blocks = subject, windows, list(blocks)
        self.norms = {i: norm_before(subject, i, windows.tokens[:1]) for i in blocks}
        self.limit = limit
        self._held: dict[int, list[np.ndarray]] = {}
        self._embedding: np.ndarray | None = None

    def key(self, block: int) -> dict:
        """What a cached result of these streams depends on."""
        device = self.subject.device.type
        key = {"subject": self.subject.key, "windows": self.windows.key}
        return key | {"block": block, "device": device}

    def __call__(self, block: int) -> Split:
        if block not in self._held:
            rest = self.blocks[self.blocks.index(block) :] if block in self.blocks else [block]
            size = self.windows.n_tokens * self.subject.d_model * 2 * 4
            self._capture(rest[: max(1, int(self.limit / size))])
        x, stream = self._held[block]
        parts = frozen_parts(self.norms[block], x, stream, self._embedding)
        return Split(x, stream, self._embedding, *parts)

    @torch.no_grad()
    def _capture(self, blocks: list[int]) -> None:
        rows: dict[int, tuple[list, list]] = {i: ([], []) for i in blocks}
        first: list[torch.Tensor] = []
        keep = lambda to, value: to.append(value[:, :-1].to("cpu", copy=True))
        handles = [
            self.norms[i].register_forward_pre_hook(
                lambda _, args, i=i: keep(rows[i][1], args[0].detach())
            )
            for i in blocks
        ]
        try:
            with (
                record(self.subject, on_ffn=lambda i, x, _: keep(rows[i][0], x), blocks=blocks),
                record(self.subject, on_residual=lambda _, h: keep(first, h), blocks=[0]),
            ):
                for chunk in self.windows.tokens.split(16):
                    forward_body(self.subject, chunk)
        finally:
            for handle in handles:
                handle.remove()
        joined = lambda parts: as_numpy(torch.cat(parts).float())
        self._embedding = joined(first)
        self._held = {i: [joined(side) for side in sides] for i, sides in rows.items()}


@torch.no_grad()
def norm_before(subject: Subject, index: int, tokens: torch.Tensor) -> nn.Module:
    """The norm whose output block `index`'s FFN reads, found by behaviour on `tokens`
    [1, seq_len]. Raises InputError if there is none."""
    block = get_block(subject, index)
    outputs: list[tuple[nn.Module, torch.Tensor]] = []
    read: list[torch.Tensor] = []
    inside = set(block.ffn.modules())
    note = lambda module, _, y: outputs.append((module, y))
    handles = [m.register_forward_hook(note) for m in block.layer.modules() if m not in inside]
    try:
        with record(subject, on_ffn=lambda i, x, y: read.append(x), blocks=[index]):
            forward_body(subject, tokens)
    finally:
        for handle in handles:
            handle.remove()
    found = [m for m, y in outputs if _same(y, read[0]) and not list(m.children())]
    if not found:
        raise InputError(
            f"block {index} of {subject.name}: its FFN does not read the output of a norm, so its "
            "input is no scaled sum of token and context; choose a model with norms before its "
            "FFNs."
        )
    return found[-1]


def _same(y, x: torch.Tensor) -> bool:
    return isinstance(y, torch.Tensor) and y.shape == x.shape and torch.equal(y, x)


@torch.no_grad()
def frozen_parts(
    norm: nn.Module, x: np.ndarray, stream: np.ndarray, embedding: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(x_e, x_c): what e and c = h - e become in the norm with its statistics at those of h.

    Gain and offset are read off what the norm makes of two known vectors, the scale of each
    position off x itself. Raises InputError where x is no such function of h.
    """
    like = next(norm.parameters(), torch.zeros(1))
    d = x.shape[-1]
    sign = torch.ones(1, 1, d, device=like.device, dtype=like.dtype)
    sign[..., 1::2] = -1  # mean 0, mean square 1
    seen = lambda v: as_numpy(norm(v).float())[0, 0].astype(np.float64)
    offset = seen(torch.zeros_like(sign))
    gain = (seen(sign) - offset) * as_numpy(sign.float())[0, 0]
    centred = np.abs(seen(sign + 1) - seen(sign)).max() < 1e-2 * np.abs(gain).max()

    def linear(part: np.ndarray) -> np.ndarray:
        return (part - part.mean(-1, keepdims=True) if centred else part) * gain.astype(np.float32)

    whole = linear(stream)
    left = x - offset.astype(np.float32)
    size = np.square(whole, dtype=np.float64).sum(-1, keepdims=True)
    scale = (left * whole).sum(-1, keepdims=True, dtype=np.float64) / np.maximum(size, 1e-30)
    scale = scale.astype(np.float32)
    error = np.square(left - scale * whole).sum(dtype=np.float64)
    if not error < 1e-6 * np.square(left).sum(dtype=np.float64):
        raise InputError(
            f"the {type(norm).__name__} before the FFN is no LayerNorm or RMSNorm: its input "
            "cannot be split; choose a model that has one of these."
        )
    token = scale * linear(embedding)
    return token, scale * linear(stream - embedding)
