"""What the variance-weighted fit hides (beyond Whipp §5.4, §8): outputs weighed alike in every
direction, and fits without massive tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lib.base.bars import progress
from lib.base.cache import cached, digest
from lib.base.errors import InputError
from lib.linear.moments import Collector, Moments
from lib.models.hooks import forward_body, record
from lib.models.subjects import Subject


@dataclass(frozen=True, eq=False)
class Reweighted:
    """Moments of one FFN on one part of the text."""

    kept: Moments
    """of (x, y) without the massive tokens"""
    outputs: Moments
    """of (y, y): its sxx is the whole output covariance, [d_out, d_out], times n"""


def reweighted(
    subject: Subject,
    windows: torch.Tensor,
    largest_norm: Sequence[float],
    n_folds: int = 5,
    batch: int = 16,
) -> tuple[list[Reweighted], list[Reweighted]]:
    """One more pass over `windows` [n, seq_len]: for every block its moments without tokens whose
    output norm exceeds `largest_norm`
    [n_blocks], and the whole output covariance. Returns (training part, held-out tail), split as in
    recoverability.

    Raises InputError if the limits leave a block without tokens.
    """
    subject.check(windows, batch)
    limits = torch.as_tensor(np.asarray(largest_norm), dtype=torch.float64)
    if limits.shape != (len(subject),):
        raise InputError(
            f"largest_norm needs one limit for each of the {len(subject)} blocks, not shape "
            f"{tuple(limits.shape)}."
        )
    if not isinstance(n_folds, int) or not 2 <= n_folds <= len(windows):
        raise InputError(
            f"{len(windows)} windows cannot be cut into {n_folds} folds: use at least 2 "
            "folds and no more than windows."
        )
    tail = len(windows.tensor_split(n_folds)[-1])
    parts = []
    with progress(
        total=len(windows), desc="covariances, and fits without massive tokens", unit="window"
    ) as bar:
        for part in (windows[:-tail], windows[-tail:]):
            key = {
                "subject": subject.key,
                "windows": digest(part),
                "limits": digest(limits),
                "batch": batch,
                "device": subject.device.type,
            }
            found = _part(key, (subject, part, limits, batch, bar))
            parts.append(
                [
                    Reweighted(
                        Moments.from_state(kept),
                        Moments.from_state(outputs | {"sxy": outputs["sxx"]}),
                    )
                    for kept, outputs in found
                ]
            )
            bar.update(
                sum(len(w) for w in (windows[:-tail], windows[-tail:])[: len(parts)]) - bar.n
            )  # a part from the cache moved no bar
    return parts[0], parts[1]


@cached
def _part(work: tuple) -> list[list[dict]]:
    subject, windows, limits, batch, bar = work
    kept, outputs = Collector(), Collector()

    def add(block: int, x: torch.Tensor, y: torch.Tensor) -> None:
        keep = y.double().norm(dim=-1) <= limits[block].to(y.device)
        if keep.any():
            kept.add(block, x[keep], y[keep])
        outputs.add(block, y, y)

    with record(subject, on_ffn=add):
        for chunk in windows.split(batch):
            forward_body(subject, chunk)
            bar.update(len(chunk))
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
