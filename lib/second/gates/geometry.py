"""How long the parts of the FFN's input are and how they stand to each other, beside what
subtraction alone gives (Balogh §4.3.2)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.second.base.cache import cached
from lib.second.base.steps import Item, each
from lib.second.gates.streams import Split, Streams
from lib.second.stats.intervals import Interval, clustered

SPACES = {
    "literal": ("x", "embedding"),
    "stream": ("stream", "embedding"),
    "split": ("input", "token"),
}
"""the whole and the token's part in three readings: the paper to the letter, x after the norm and
the raw e; h and e before the norm; both through the norm with its scale held (x less its offset)"""
MEASURES = ("whole", "token", "context", "cosine", "another", "unrelated", "token_square")
"""by window: |whole|, |token|, |context| (context: whole - token), cos(context, token), the same
with the token of another position, -|token|/√(|whole|² + |token|²), where subtraction alone puts it
if whole and token are orthogonal, and |token|²"""


def geometry(streams: Streams, blocks: Sequence[int], seed: int = 42) -> pd.DataFrame:
    """MEASURES by window: columns block, space, document and one a measure, each the mean over
    the window's positions."""
    windows = streams.windows
    items = [Item(streams.key(b) | {"seed": seed}, (streams, b, seed)) for b in blocks]
    total = len(items)
    found = each(_measures, items, total=total, desc="norms and cosines", unit="block")
    tables = [
        pd.DataFrame(dict(zip(MEASURES, values, strict=True))).assign(
            block=block, space=space, document=windows.document.numpy()
        )
        for block, by_space in zip(blocks, found, strict=True)
        for space, values in by_space.items()
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[["block", "space", "document", *MEASURES]]


@cached
def _measures(work: tuple, tick) -> dict[str, np.ndarray]:
    """{space: [measures, n windows]}."""
    streams, block, seed = work
    split: Split = streams(block)
    found = {}
    for space, (whole, token) in SPACES.items():
        whole = split.token + split.context if whole == "input" else getattr(split, whole)
        found[space] = _of(whole, getattr(split, token), seed)
    tick(1)
    return found


def _of(whole: np.ndarray, token: np.ndarray, seed: int) -> np.ndarray:
    flat = token.reshape(-1, token.shape[-1])
    order = np.random.default_rng(seed).permutation(len(flat))
    others = flat[order].reshape(token.shape)
    sizes = [np.linalg.norm(part, axis=-1) for part in (whole, token, whole - token)]
    unrelated = -sizes[1] / np.maximum(np.hypot(sizes[0], sizes[1]), 1e-30)
    measures = [*sizes, _cosine(whole - token, token), _cosine(whole - others, others), unrelated]
    measures.append(np.square(sizes[1], dtype=np.float64))
    return np.stack([m.mean(-1, dtype=np.float64) for m in measures])


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    size = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return (a * b).sum(-1) / np.maximum(size, 1e-30)


def geometry_table(table: pd.DataFrame) -> pd.DataFrame:
    """Means over documents' windows: columns block, space, one a measure, cosine_low, cosine_high
    (95% over documents)."""
    rows = []
    for (block, space), part in table.groupby(["block", "space"], sort=False):
        i = clustered(part.cosine, part.document)
        means = part[[*MEASURES]].mean().to_dict()
        ends = {"cosine_low": i.low, "cosine_high": i.high}
        rows.append({"block": block, "space": space, **means, **ends})
    return pd.DataFrame(rows)


def variation(part: pd.DataFrame) -> Interval:
    """Standard deviation over mean of |token| over positions, from the rows of one block and space
    of `geometry`; 95% over documents, by the delta method."""
    size, square = part.token.to_numpy(), part.token_square.to_numpy()
    mean, second = size.mean(), square.mean()
    ratio = np.sqrt(max(second / mean**2 - 1, 0.0))
    if not ratio > 0:
        return Interval(0.0, np.nan, np.nan)
    moved = (square - second) / mean**2 - 2 * second / mean**3 * (size - mean)
    return clustered(ratio + moved / (2 * ratio), part.document)
