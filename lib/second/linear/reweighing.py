"""What the variance-weighted fit hides (beyond Whipp §5.4, §8): outputs weighed alike in every
direction, and fits without massive tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lib.second.base.cache import cached, digest
from lib.second.base.errors import InputError
from lib.second.base.steps import Item, each
from lib.second.linear.moments import Collector, Moments
from lib.second.models.hooks import forward_body, record
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows


@dataclass(frozen=True, eq=False)
class Reweighted:
    """Moments of one FFN on one part of the text."""

    kept: Moments
    """of (x, y) without the massive tokens"""
    outputs: Moments
    """of (y, y): its sxx is the whole output covariance, [d_out, d_out], times n"""


def reweighted(
    subject: Subject,
    windows: Windows,
    largest_norm: Sequence[float],
    n_folds: int = 5,
    batch: int = 16,
) -> tuple[list[Reweighted], list[Reweighted]]:
    """One more pass over `windows`: for every block its moments without tokens whose output norm
    exceeds `largest_norm` [n_blocks], and the whole output covariance. Returns (all folds but the
    last, the last fold).

    Raises InputError if the limits leave a block without tokens.
    """
    subject.check(windows, batch)
    limits = torch.as_tensor(np.asarray(largest_norm), dtype=torch.float64)
    if limits.shape != (len(subject),):
        raise InputError(
            f"largest_norm needs one limit for each of the {len(subject)} blocks, not shape "
            f"{tuple(limits.shape)}."
        )
    held_out = windows.held_out(n_folds)
    items = []
    for part in (windows[~held_out], windows[held_out]):
        key = {
            "subject": subject.key,
            "windows": part.key,
            "limits": digest(limits),
            "batch": batch,
            "device": subject.device.type,
        }
        items.append(Item(key, (subject, part, limits, batch), len(part)))
    title = "covariances, and fits without massive tokens"
    train, tail = (
        [
            Reweighted(
                Moments.from_state(kept), Moments.from_state(outputs | {"sxy": outputs["sxx"]})
            )
            for kept, outputs in found
        ]
        for found in each(_part, items, total=len(windows), desc=title, unit="window")
    )
    return train, tail


@cached
def _part(work: tuple, tick: Callable[[int], None]) -> list[list[dict]]:
    subject, windows, limits, batch = work
    kept, outputs = Collector(), Collector()

    def add(block: int, x: torch.Tensor, y: torch.Tensor) -> None:
        keep = y.double().norm(dim=-1) <= limits[block].to(y.device)
        if keep.any():
            kept.add(block, x[keep], y[keep])
        outputs.add(block, y, y)

    with record(subject, on_ffn=add):
        for chunk in windows.tokens.split(batch):
            forward_body(subject, chunk)
            tick(len(chunk))
    empty = next((b.index for b in subject.blocks if b.index not in kept.moments), None)
    if empty is not None:
        raise InputError(
            f"block {empty}: no token's output norm is within {float(limits[empty]):g}: use "
            "a larger limit."
        )
    outputs_of = [outputs.moments[b.index].state() for b in subject.blocks]
    for state in outputs_of:
        del state["sxy"]  # of (y, y) it is sxx again
    return [[kept.moments[b.index].state(), outputs_of[b.index]] for b in subject.blocks]
