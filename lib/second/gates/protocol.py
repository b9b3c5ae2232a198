"""Which text teaches what (Balogh §3.5): maps, gates, the choice of a gate and the report each have
documents of their own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from lib.second.base.cache import as_numpy, cached
from lib.second.base.errors import InputError
from lib.second.linear.affine import AffineMap
from lib.second.linear.moments import total
from lib.second.linear.survey import fold_moments
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows

RIDGE = 0.01
"""λ of the maps (Balogh §3.1)"""
N_FOLDS = 5
"""folds of the documents that maps are fitted on; the last is held out for the gates"""


@dataclass(frozen=True, eq=False)
class Protocol:
    """Maps, and three samples without a document in common with them or with each other."""

    maps: dict[int, AffineMap]
    """the linear surrogate of each block, by ridge regression with λ = RIDGE (Balogh Eq. 3-4)"""
    train: Windows
    """where gates learn (Balogh: tokens 10-30 K)"""
    choose: Windows
    """where one of several gates is chosen; the paper has no such sample"""
    report: Windows
    """where costs are reported (Balogh: 12,000 tokens of 30-80 K)"""


def protocol(
    subject: Subject,
    fit: Windows,
    whole: Windows,
    unseen: Windows,
    train_tokens: int,
    choose_tokens: int,
    segments: int = 1,
) -> Protocol:
    """Maps from the documents of all folds of `fit` but the last, gates from those of the last.

    `fit` is a sample of the corpus part that `whole` holds all windows of; statistics that were
    measured on it in `segments` are used again. `unseen`, of another part, is for the report. A
    quarter of the last fold's documents are for the choice. Raises InputError where the last fold
    is too short for the tokens asked for.
    """
    train, choose = learners(whole)
    parts = train.take(train_tokens), choose.take(choose_tokens)
    return Protocol(ridge_maps(subject, fit, segments), *parts, unseen)


def learners(whole: Windows) -> tuple[Windows, Windows]:
    """All windows for gates and for their choice: the last fold's documents, a quarter for the
    choice. A budget of the first is its `take`; what `protocol` gives for training lies inside a
    larger one."""
    held = _of_documents(whole, whole.held_out(N_FOLDS))
    if held.n_documents < 2:
        raise InputError(
            f"{whole.name} leaves {held.n_documents} document(s) for gates: at least two are "
            "needed, one to learn from and one to choose on; give a corpus of more documents."
        )
    chosen = held.held_out(min(4, held.n_documents))
    return _of_documents(held, ~chosen), _of_documents(held, chosen)


def _of_documents(windows: Windows, mask: torch.Tensor) -> Windows:
    """The windows in `mask`, as all that their part has of their documents."""
    part = windows[mask]
    sizes = part.document.bincount(minlength=len(windows.sizes))
    return replace(part, sizes=sizes)


def ridge_maps(subject: Subject, fit: Windows, segments: int = 1) -> dict[int, AffineMap]:
    """The linear surrogate of every block, {block: map}, from all folds of `fit` but the last,
    float32 (Balogh Eq. 3-4 with λ = 0.01 on the sum of squares, by way of the moments)."""
    key = {
        "subject": subject.key,
        "windows": fit.key,
        "folds": fit.folds(N_FOLDS).numpy(),
        "segments": segments,
        "device": subject.device.type,
    }
    found = _ridge_maps(key, (subject, fit, segments))
    return {
        block.index: AffineMap(*map(torch.from_numpy, pair))
        for block, pair in zip(subject.blocks, found, strict=True)
    }


@cached
def _ridge_maps(work: tuple) -> list[tuple]:
    subject, fit, segments = work
    folds = fold_moments(subject, fit, N_FOLDS, segments)
    fitted = (total([f[b.index] for f in folds[:-1]]).fit(RIDGE) for b in subject.blocks)
    return [(as_numpy(m.weight.float()), as_numpy(m.bias.float())) for m in fitted]


def spread(n_blocks: int, n: int | None) -> list[int]:
    """`n` blocks evenly over the depth, the first and the last among them; all if `n` is None."""
    if n is None or n >= n_blocks:
        return list(range(n_blocks))
    return sorted({round(k * (n_blocks - 1) / max(1, n - 1)) for k in range(n)})


def at_depths(n_blocks: int, depths: Sequence[float] = (1 / 23, 12 / 23, 1)) -> list[int]:
    """Blocks at relative depths, the last block at 1; Balogh looks at L1, L12 and L23 of 24."""
    return sorted({round(depth * (n_blocks - 1)) for depth in depths})
