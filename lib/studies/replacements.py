"""What takes the place of an FFN before a model is fine-tuned without it (Balogh §4.9, App. E)."""

import contextlib
import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from tqdm import tqdm
from transformers.pytorch_utils import Conv1D

from lib.gating.sparse import parts
from lib.hooks import advance, block_pass, capture, capture_residual, forward, slices, swap
from lib.lazy import LazyModule, lazily
from lib.linear.affine import AffineMap, constant, svd_ridge
from lib.linear.moments import Moments
from lib.linear.regression import MASSIVE, repair
from lib.models.blocks import Subject
from lib.models.parts import copy_of
from lib.store import cached
from lib.text.windows import Windows

REPLACEMENTS = ("none", "map", "repaired", "deleted", "narrow")
"""what takes an FFN's place: the FFN itself; its affine map, frozen; the map with the FFN kept on
massive activations; nothing; the FFN with as many parameters as the map, trained (in the first
stage its units are those of the intact model)"""
RIDGE = 0.01
"""of the maps, as Balogh Eq. 3"""


def replacements_of(
    subject: Subject, fit: Windows, blocks: tuple[int, ...], kind: str
) -> dict[int, nn.Module]:
    """{block: what takes its FFN's place}: maps fitted on the model with those before them in
    place; of narrow FFNs the units that are largest in the intact model."""
    if kind == "none" or not blocks:
        return {}
    if kind == "narrow":
        return narrow_ffns(subject, fit, blocks)
    if kind == "deleted":
        return {block: replacement_for(subject, fit, block, kind) for block in blocks}
    return first_maps(subject, fit, blocks, kind)


@cached("maps of a first stage", 2, fit="text")
def first_maps(subject: Subject, fit: Windows, blocks: tuple[int, ...], kind: str) -> dict:
    """{block: map} of an arm's first stage, which all orders of the text share: each fitted on the
    model in which the ones before stand."""
    if kind == "map" and [*blocks] == sorted(blocks):
        return _maps_by_depth(subject, fit, blocks)
    fitted: dict[int, nn.Module] = {}
    copied = copy_of(subject)
    with contextlib.ExitStack() as swaps:
        for block in blocks:
            fitted[block] = replacement_for(copied, fit, block, kind)
            swaps.enter_context(swap(copied.blocks[block], fitted[block]))
    return fitted


@torch.no_grad()
def _maps_by_depth(subject: Subject, fit: Windows, blocks: Sequence[int]) -> dict[int, nn.Module]:
    """{block: map}, the blocks in order of depth: one walk down with the residual streams of all
    windows in memory, in the place of a forward pass for each block."""
    maps: dict[int, nn.Module] = {}
    streams = capture_residual(subject, fit, blocks[:1])[blocks[0]].to(subject.device)
    for block in tqdm(range(blocks[0], blocks[-1] + 1), desc="maps", delay=2, leave=False):
        module = subject.blocks[block].ffn
        if block in blocks:
            x, y = _ffn_rows(subject, fit, block, streams)
            maps[block] = plain_map(x, y)
            module = maps[block]
        # The stream goes on as the model with its map has it.
        advance(subject, fit, block, module, streams)
    return maps


def _ffn_rows(
    subject: Subject, fit: Windows, block: int, streams: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y of a block's FFN at every position but a start token's, each [rows, d];
    `streams` [n, position, d] enters the block."""
    rows_x, rows_y = [], []
    for batch in slices(len(fit)):
        x, y, _ = block_pass(subject, block, fit.tokens[batch], streams[batch])
        rows_x.append(x[:, subject.n_start :].flatten(0, 1))
        rows_y.append(y[:, subject.n_start :].flatten(0, 1))
    return torch.cat(rows_x), torch.cat(rows_y)


def replacement_for(subject: Subject, fit: Windows, block: int, kind: str) -> nn.Module:
    """What takes the place of a block's FFN (REPLACEMENTS), fitted on the model as it stands."""
    if kind == "deleted":
        return constant(torch.zeros(subject.d_model))
    if kind == "narrow":
        return narrow_ffns(subject, fit, [block])[block]
    x, y = (rows.flatten(0, 1) for rows in capture(subject, fit, [block])[block])
    if kind == "repaired":
        norm = y.norm(dim=-1)
        massive = norm > MASSIVE * norm.median()
        if massive.any() and massive.sum() < len(y) / 10:
            return repair(Moments.of(x[~massive], y[~massive]), x[massive])
    return plain_map(x, y)


def plain_map(x: torch.Tensor, y: torch.Tensor) -> AffineMap:
    """The affine map of rows y [n, d] on x [n, d], as Balogh Eq. 3."""
    affine = svd_ridge(x, y, RIDGE)
    return AffineMap(affine.weight.float(), affine.bias.float())


def narrow_ffns(subject: Subject, fit: Windows, blocks: Sequence[int]) -> dict[int, nn.Module]:
    """{block: FFN} with as many hidden units as fill a map's parameters, the largest ones."""
    d_model = subject.d_model
    largest = largest_units(subject, fit, blocks)
    narrow = {}
    for block in blocks:
        ffn = subject.blocks[block].ffn
        of_unit = subject.blocks[block].n_params // len(unit_columns(ffn, d_model))
        n_units = (d_model * d_model + d_model) // of_unit
        narrow[block] = narrowed(ffn, d_model, largest[block][:n_units].sort().values)
    return narrow


def pruned(
    subject: Subject, fit: Windows, blocks: Sequence[int], share: float
) -> dict[int, LazyModule]:
    """{block: FFN} without this share of its hidden units, the smallest on `fit` (`largest_units`);
    made when first used."""

    def without(order: torch.Tensor, block: int) -> nn.Module:
        kept = order[: round(len(order) * (1 - share))].sort().values
        return narrowed(subject.blocks[block].original, subject.d_model, kept)

    made_of = subject.provenance
    how = f"without {share!r} of its hidden units, the smallest on {fit.provenance}"
    words = {b: made_of and f"FFN of block {b} of {made_of} {how}" for b in blocks}
    largest = partial(largest_units, subject, fit, blocks)
    return lazily(words, largest, without, model=subject, text=fit)


def largest_units(subject: Subject, fit: Windows, blocks: Sequence[int]) -> dict[int, torch.Tensor]:
    """{block: its hidden units}, the one of largest mean absolute activation times output column
    norm first. One pass, on the model as it stands."""
    d_model = subject.d_model
    total = dict.fromkeys(blocks, 0.0)
    handles = []

    def adder(block: int) -> Callable:
        def add(_, args: tuple, __) -> None:
            activations = args[0][:, subject.n_start :]  # [batch, position, unit]
            total[block] = total[block] + activations.abs().double().sum((0, 1))

        return add

    try:
        for block in blocks:
            writer = parts(subject.blocks[block].ffn, d_model).writer
            handles.append(writer.register_forward_hook(adder(block)))
        # Nothing is kept of the FFNs, but they must be finite.
        forward(subject, fit, on_ffn=lambda *_: None, blocks=blocks, desc="hidden units")
    finally:
        for handle in handles:
            handle.remove()
    norms = {b: unit_columns(subject.blocks[b].ffn, d_model).norm(dim=1) for b in blocks}
    return {b: (total[b] * norms[b]).argsort(descending=True) for b in blocks}


def unit_columns(ffn: nn.Module, d_model: int) -> torch.Tensor:
    """What each hidden unit writes, [d_ff, d_model]."""
    writer = parts(ffn, d_model).writer
    return writer.weight if isinstance(writer, Conv1D) else writer.weight.T


def narrowed(ffn: nn.Module, d_model: int, units: torch.Tensor) -> nn.Module:
    """A copy of an FFN with these hidden units alone."""
    narrow = copy.deepcopy(ffn)
    found = parts(narrow, d_model)
    for matrix in found.readers:
        across = -1 if isinstance(matrix, Conv1D) else 0
        matrix.weight = nn.Parameter(matrix.weight.detach().index_select(across, units).clone())
        if matrix.bias is not None:
            matrix.bias = nn.Parameter(matrix.bias.detach()[units].clone())
        if isinstance(matrix, Conv1D):
            matrix.nf = len(units)
    across = 0 if isinstance(found.writer, Conv1D) else 1
    weight = found.writer.weight.detach().index_select(across, units).clone()
    found.writer.weight = nn.Parameter(weight)
    return narrow
