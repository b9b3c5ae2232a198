"""Maps fitted without massive tokens, which keep the FFN (beyond Balogh §4.1)."""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from lib.second.base.cache import as_numpy, cached
from lib.second.base.steps import Item, each
from lib.second.gates.protocol import N_FOLDS, RIDGE
from lib.second.gates.replacements import map_documents
from lib.second.linear.affine import AffineMap
from lib.second.linear.massive import TokenEnergy
from lib.second.linear.moments import Moments, total
from lib.second.linear.survey import fold_moments
from lib.second.models.hooks import forward_body, get_block, record
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows

MASSIVE_TIMES = 10.0
"""a token is massive where its FFN output is longer than this many times the block's median"""


def norm_limits(energy: TokenEnergy, times: float = MASSIVE_TIMES) -> dict[int, float]:
    """The longest output that is not massive, of each block that has a massive token."""
    marked = energy.massive(times).any((1, 2))
    median = np.median(energy.norm, axis=(1, 2))
    return {int(b): float(times * median[b]) for b in np.flatnonzero(marked)}


def maps_without_massive(
    subject: Subject, fit: Windows, limits: Mapping[int, float], segments: int = 1
) -> dict[int, AffineMap]:
    """The ridge maps of the blocks in `limits` from the documents of `ridge_maps`, without tokens
    whose output norm exceeds the block's limit; float32.

    One pass finds those tokens; their moments are taken out of the whole, which is there already.
    Raises InputError for a block that does not exist, and where no token is left.
    """
    for block in limits:
        get_block(subject, block)
    if not limits:
        return {}
    windows = map_documents(fit)
    key = {
        "subject": subject.key,
        "windows": windows.key,
        "fit": fit.key,
        "limits": sorted(limits.items()),
        "segments": segments,
        "device": subject.device.type,
    }
    work = (subject, fit, windows, dict(limits), segments)
    items = [Item(key, work, len(windows))]
    title = f"massive tokens of {len(limits)} FFNs"
    (found,) = each(_without, items, total=len(windows), desc=title, unit="window")
    return {
        b: AffineMap(*map(torch.from_numpy, pair)) for b, pair in zip(limits, found, strict=True)
    }


@cached
def _without(work: tuple, tick: Callable[[int], None]) -> list[tuple[np.ndarray, np.ndarray]]:
    subject, fit, windows, limits, segments = work
    rows: dict[int, list[tuple]] = {b: [] for b in limits}

    def keep(block: int, x: torch.Tensor, y: torch.Tensor) -> None:
        long = y.double().norm(dim=-1) > limits[block]
        rows[block].append((x[long].clone(), y[long].clone()))

    with record(subject, on_ffn=keep, blocks=list(limits)):
        for chunk in windows.tokens.split(16):
            forward_body(subject, chunk)
            tick(len(chunk))
    folds, found = fold_moments(subject, fit, N_FOLDS, segments), []
    for block, parts in rows.items():
        rest = total([fold[block] for fold in folds[:-1]])
        x, y = (torch.cat(side) for side in zip(*parts, strict=True))
        if len(x):
            rest = rest - Moments.of(x, y)
        fitted = rest.fit(RIDGE)
        found.append((as_numpy(fitted.weight.float()), as_numpy(fitted.bias.float())))
    return found
