"""What a layer adds to the residual stream, how that lies to what is there already (Tapered §4),
and what taking a part of it out costs.

h: the stream that enters a block; update: what leaves it less h; added: what its FFN adds, behind a
norm where one stands after the FFN (Gemma): what leaves the block less what leaves it with nothing
in the FFN's place.
"""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from lib.hooks import block_pass, capture_residual, get_block, resume, slices, swap
from lib.linear.affine import constant
from lib.models.blocks import Subject
from lib.stats import sums
from lib.store import cached, kept, kept_of
from lib.swap.losses import Losses, of_tables
from lib.swap.sweep import batch_size, by_document, document_losses, token_losses
from lib.text.windows import Windows

PAIRS = (
    "update, h",
    "added, h",
    "added, another h",
    "added, what it is added to",
    "added, h, both centred",
)
"""cosines that `cosines` has: own stream; the stream of another token at the same block; z = what
leaves the block less what its FFN adds; each less its mean over all positions"""
PARTS = ("along h", "along the common direction", "across", "as much of across as along h")
"""of what an FFN adds: along the stream of its token; along the mean stream of some text; all but
these two; of the latter so much that as much squared norm goes as with the part along h"""


@torch.no_grad()
def _streams(
    subject: Subject, windows: Windows
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(block, h, update, added) of every block in order, each [n, position, d], from one walk down
    the blocks; start tokens are left out."""
    stream = capture_residual(subject, windows, [0])[0]
    nothing = constant(torch.zeros(subject.d_model), "zero")
    first = subject.n_start
    for b in tqdm(range(len(subject)), desc="updates", delay=2, leave=False):
        leaving, without = torch.empty_like(stream), torch.empty_like(stream)
        for rows in slices(len(windows)):
            hidden = stream[rows].to(subject.device)
            _, _, leaving[rows] = block_pass(subject, b, windows.tokens[rows], hidden)
            with swap(get_block(subject, b), nothing):
                _, _, without[rows] = block_pass(subject, b, windows.tokens[rows], hidden)
        h, out, out_without = (part[:, first:] for part in (stream, leaving, without))
        yield b, h, out - h, out - out_without
        stream = leaving


@kept("cosines of updates", 1, seed="order of the other tokens", skip="first positions left out")
def cosines(subject: Subject, windows: Windows, seed: int = 42, skip: int = 0) -> pd.DataFrame:
    """Cosines of what each block adds, summed by document: block, document, positions, and for each
    of PAIRS the sum and the sum of squares; norm_ratio, the sum of ‖added‖ / ‖h‖. `skip`: so many
    positions at the start of each window are left out, where massive activations are."""
    rows = []
    order = torch.Generator().manual_seed(seed)
    documents = np.unique(windows.document)
    for b, *streams in _streams(subject, windows):
        h, update, added = (stream[:, skip:] for stream in streams)
        flat = h.flatten(0, 1)
        other = flat[torch.randperm(len(flat), generator=order)].view_as(h)
        by_pair = {
            "update, h": _cosine(update, h),
            "added, h": _cosine(added, h),
            "added, another h": _cosine(added, other),
            "added, what it is added to": _cosine(added, h + update - added),
            "added, h, both centred": _cosine(added - added.mean((0, 1)), h - h.mean((0, 1))),
        }
        table = {"document": documents, "positions": _summed(torch.ones(h.shape[:2]), windows)}
        for name in PAIRS:
            table[name] = _summed(by_pair[name], windows)
            table[f"{name}, squared"] = _summed(by_pair[name].square(), windows)
        table["norm_ratio"] = _summed(added.norm(dim=-1) / h.norm(dim=-1), windows)
        rows.append(pd.DataFrame({"block": b, **table}))
    return pd.concat(rows)


def _cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cosine_similarity(a, b, dim=-1)


def _summed(values: torch.Tensor, windows: Windows) -> np.ndarray:
    """Sums by document of values [n, position]."""
    return sums(values.double().numpy(), windows.document)


@cached("mean streams", 1)
def mean_streams(subject: Subject, windows: Windows) -> torch.Tensor:
    """The mean direction of the stream that enters each block, of unit length, [blocks, d]."""
    means = [h.double().mean((0, 1)) for _, h, _, _ in _streams(subject, windows)]
    return torch.stack([mean / mean.norm() for mean in means]).float()


def split(added: torch.Tensor, h: torch.Tensor, common: torch.Tensor) -> dict[str, torch.Tensor]:
    """What an FFN adds, [.., d], in its PARTS; common [d] is of unit length."""
    along_h = _along(added, h)
    along_common = (added @ common)[..., None] * common
    # Across: orthogonal to h and to the common direction.
    rest = h - (h @ common)[..., None] * common
    across = added - along_common - _along(added - along_common, rest)
    share = (along_h.norm(dim=-1) / across.norm(dim=-1).clamp(min=1e-12)).clamp(max=1.0)
    parts = (along_h, along_common, across, share[..., None] * across)
    return dict(zip(PARTS, parts))


def _along(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The part of a along b, both [.., d]."""
    squared = b.square().sum(-1, keepdim=True).clamp(min=1e-12)
    return (a * b).sum(-1, keepdim=True) / squared * b


@contextlib.contextmanager
def without_part(subject: Subject, index: int, part: str, common: torch.Tensor) -> Iterator[None]:
    """While open, a part of what block `index`'s FFN adds is taken out of the stream; not at start
    tokens."""
    block = get_block(subject, index)
    nothing = constant(torch.zeros(subject.d_model), "zero").to(subject.device)
    common = common.to(subject.device)
    inside = [False]

    def hook(layer, args: tuple, kwargs: dict, out):
        if inside[0]:
            return None
        inside[0] = True
        try:
            with swap(block, nothing):
                without = layer(*args, **kwargs)
        finally:
            inside[0] = False
        leaving, plain = (o[0] if isinstance(o, tuple) else o for o in (out, without))
        h = args[0] if args else kwargs["hidden_states"]
        taken = split(leaving - plain, h, common)[part]
        taken[:, : subject.n_start] = 0.0
        changed = leaving - taken
        return (changed, *out[1:]) if isinstance(out, tuple) else changed

    handle = block.layer.register_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def sweep_parts(subject: Subject, windows: Windows, fit: Windows, blocks: Sequence[int]) -> Losses:
    """Losses by document without each of PARTS of what each block's FFN adds, one block at a time;
    the common direction is of `fit`. Each is kept (lib.store)."""

    def measure(missing: list[tuple[int, str]]) -> Iterator[dict]:
        # Block by block, so that each block's stream is recorded once.
        for b in tqdm(sorted({b for b, _ in missing}), desc="parts", delay=2, leave=False):
            parts = [part for of, part in missing if of == b]
            tables = _without(subject, windows, fit, b, parts)
            yield {(b, part): table for part, table in tables.items()}

    with subject.unchanging():
        unchanged = document_losses(subject, windows)
        of = [(b, part) for b in blocks for part in PARTS]
        keys = {(b, p): losses_without_part.key(subject, windows, fit, b, p) for b, p in of}
        return of_tables(unchanged, kept_of(losses_without_part, keys, measure))


def _without(
    subject: Subject, windows: Windows, fit: Windows, block: int, parts: Sequence[str]
) -> dict[str, pd.DataFrame]:
    """{part: document, sum, predictions}, from one recording of the stream that enters a block."""
    common = mean_streams(subject, fit)[block]
    losses: dict[str, list[np.ndarray]] = {part: [] for part in parts}
    for rows in slices(len(windows), batch_size(subject, windows)):
        chunk = windows[rows]
        entering = capture_residual(subject, chunk, [block])[block].to(subject.device)
        for part in parts:
            with resume(subject, block, entering), without_part(subject, block, part, common):
                losses[part].append(token_losses(subject, chunk.tokens).cpu().numpy())
    swept = {part: np.concatenate(batches) for part, batches in losses.items()}
    return {
        part: by_document(of_part, windows, f"the model without what is {part}")
        for part, of_part in swept.items()
    }


@kept("losses without a part", 1, fit="common direction of", part="without the part")
def losses_without_part(
    subject: Subject, windows: Windows, fit: Windows, block: int, part: str
) -> pd.DataFrame:
    """Losses with a part of what a block's FFN adds taken out: document, sum (nats),
    predictions."""
    return _without(subject, windows, fit, block, [part])[part]
