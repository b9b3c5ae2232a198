"""Clusters of FFN inputs, and whether any needs the FFN more than others (Balogh §4.3.4,
Table 6)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from lib.second.base.cache import cached
from lib.second.base.steps import Item, each
from lib.second.gates.streams import Streams
from lib.second.stats.ratios import influence

COMPONENTS, CLUSTERS = 50, 20
"""principal components, and clusters of k-means in them"""
SPACES = ("x", "stream")
"""what is clustered: the FFN's input, as in the ledger, and the residual stream before the norm"""
INITS = 4
"""starts of k-means; the best is kept"""


@dataclass(frozen=True, eq=False)
class Clusters:
    """The clusters of two samples in one space; centres are those of the first."""

    learned: np.ndarray
    """[n, seq_len-1], the cluster of each position that centres were learned from"""
    found: np.ndarray
    """[m, seq_len-1], that of each position of the other sample"""
    kept: float
    """share of the variance of the first sample that the components hold"""
    kept_rows: np.ndarray
    """[m], rows whose mean is that share of the other"""


def clusters(
    learn: Streams, test: Streams, blocks: Sequence[int], space: str = "x", seed: int = 42
) -> dict[int, Clusters]:
    """Clusters by block: components and centres from `learn`, and where `test` falls among
    them."""
    items = [
        Item(
            {"learn": learn.key(b), "test": test.key(b), "space": space, "seed": seed},
            (learn, test, b, space, seed),
        )
        for b in blocks
    ]
    total, desc = len(items), f"clusters of {'x' if space == 'x' else 'the stream'}"
    found = each(_clustered, items, total=total, desc=desc, unit="block")
    return {b: Clusters(*parts) for b, parts in zip(blocks, found, strict=True)}


@cached
def _clustered(work: tuple, tick: Callable[[int], None]) -> list:
    """The parts of Clusters."""
    learn, test, block, space, seed = work
    seen, unseen = (streams(block).rows(space) for streams in (learn, test))
    pca = PCA(min(COMPONENTS, *seen.shape), random_state=seed).fit(seen)
    low = [pca.transform(rows) for rows in (seen, unseen)]
    means = KMeans(CLUSTERS, n_init=INITS, random_state=seed).fit(low[0])
    tick(1)
    shape = lambda streams: (len(streams.windows), streams.windows.seq_len - 1)
    where = [means.predict(rows).astype(np.int16) for rows in low]
    left = np.square(unseen - pca.inverse_transform(low[1]), dtype=np.float64).sum(1)
    size = np.square(unseen - unseen.mean(0), dtype=np.float64).sum(1)
    left, size = (rows.reshape(shape(test)).sum(1) for rows in (left, size))
    return [
        where[0].reshape(shape(learn)),
        where[1].reshape(shape(test)),
        float(pca.explained_variance_ratio_.sum()),
        1 - influence(left, size),
    ]
