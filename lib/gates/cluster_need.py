"""δ of clusters: what the paper's criterion says of them, and what standard errors and a
permutation say (Balogh §4.3.4)."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from lib.gates.by_type import between_rows
from lib.gates.clusters import CLUSTERS, Clusters
from lib.gates.gate import labels
from lib.stats.intervals import Interval, clustered
from lib.stats.joint import joint_level
from lib.stats.rows import auc_rows

ENOUGH = 100
"""positions that a cluster needs to be judged"""
SHUFFLES = 100


def need(learned: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Mean δ of each cluster on the sample that gates learn from, [CLUSTERS]; the mean of all for
    an empty one."""
    counts = np.bincount(learned.ravel(), minlength=CLUSTERS)
    sums = np.bincount(learned.ravel(), delta.ravel(), minlength=CLUSTERS)
    return np.where(counts > 0, sums / np.maximum(counts, 1), delta.mean())


def cluster_auc(found: Clusters, learn: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Rows [positions] whose mean is the area under the ROC curve of the cluster's mean δ (on the
    sample learned from) for the labels of the other; learn, test: δ of the two."""
    linear = labels(learn.ravel()).of(test.ravel())
    return auc_rows(linear, -need(found.learned, learn)[found.found.ravel()])


def cluster_table(
    found: Mapping[int, Clusters],
    learn: Mapping[int, np.ndarray],
    test: Mapping[int, np.ndarray],
    document,
) -> pd.DataFrame:
    """A row a block and cluster, on the test sample: columns block, cluster, n, need (mean δ on
    the sample learned from), mean δ with low and high, sd, ratio (sd over |mean|) with low and
    high, linear (share at or below the labels' threshold), purity (of the more frequent label) with
    low and high, and stands_out: whether its interval leaves out the mean of the block.

    Intervals over documents, jointly over all rows with at least ENOUGH positions. document [n].
    """
    sizes = {b: np.bincount(f.found.ravel(), minlength=CLUSTERS) for b, f in found.items()}
    level = joint_level(max(1, sum(int((n >= ENOUGH).sum()) for n in sizes.values())))
    rows = []
    for block, clusters in found.items():
        delta, where = test[block].ravel(), clusters.found.ravel()
        linear = labels(learn[block].ravel()).of(delta)
        each = np.repeat(np.asarray(document), test[block].shape[1])
        means = need(clusters.learned, learn[block])
        for k in np.flatnonzero(sizes[block] >= ENOUGH):
            here = where == k
            mean = clustered(delta[here], each[here], level)
            share = clustered(linear[here], each[here], level)
            row = {"block": block, "cluster": int(k), "n": int(sizes[block][k]), "need": means[k]}
            row |= _ends(mean) | {"sd": delta[here].std()}
            row |= _ends(ratio_of_sd(delta[here], each[here], level), "ratio_")
            row |= {"linear": share.value} | _ends(_purity(share), "purity_")
            row |= {"stands_out": bool(mean.low > delta.mean() or mean.high < delta.mean())}
            rows.append(row)
    return pd.DataFrame(rows)


def _ends(i: Interval, name: str = "") -> dict[str, float]:
    return {f"{name}{end}": getattr(i, end) for end in ("value", "low", "high")}


def ratio_of_sd(values: np.ndarray, cluster, level: float = 0.95) -> Interval:
    """Standard deviation over absolute mean; by way of its inverse, whose interval may hold 0: the
    ratio then has no upper end."""
    mean, sd = values.mean(), values.std()
    if not sd > 0:
        return Interval(0.0, np.nan, np.nan)
    z = (values - mean) / sd
    inverse = clustered(mean / sd + z - mean / sd * (z**2 - 1) / 2, cluster, level)
    ends = sorted((abs(inverse.low), abs(inverse.high)))
    high = np.inf if inverse.low <= 0 <= inverse.high else 1 / ends[0]
    value = 1 / abs(inverse.value) if inverse.value else np.inf
    return Interval(float(value), float(1 / ends[1]), float(high))


def _purity(share: Interval) -> Interval:
    """Share of the more frequent label, from that of one."""
    if share.value >= 0.5:
        return share
    return Interval(1 - share.value, 1 - share.high, 1 - share.low)


def between_clusters(
    found: Mapping[int, Clusters], test: Mapping[int, np.ndarray], document, seed: int = 42
) -> tuple[dict[int, Interval], dict[int, tuple[float, float]]]:
    """Share of the variance of δ between clusters on the test sample less its mean with δ permuted
    over positions within a document: ({block: 95% over documents, for all blocks at once}, {block:
    (the mean with δ permuted, its 97.5th percentile)})."""
    level, excess, by_chance = joint_level(len(found)), {}, {}
    for block, clusters in found.items():
        where, delta = clusters.found.ravel().astype(int), test[block].ravel()
        each = np.repeat(np.asarray(document), test[block].shape[1])
        dealt = [between_rows(d, where).mean() for d in _permuted(delta, each, seed)]
        by_chance[block] = float(np.mean(dealt)), float(np.quantile(dealt, 0.975))
        excess[block] = clustered(between_rows(delta, where) - by_chance[block][0], each, level)
    return excess, by_chance


def _permuted(delta: np.ndarray, document: np.ndarray, seed: int):
    """δ with its values dealt anew within each document, SHUFFLES times."""
    chance = np.random.default_rng(seed)
    order = np.argsort(document, kind="stable")
    for _ in range(SHUFFLES):
        # Sorted by document, then at random.
        dealt = np.lexsort((chance.random(len(delta)), document))
        found = np.empty_like(delta)
        found[order] = delta[dealt]
        yield found


def chance_table(
    found: Mapping[int, Clusters],
    learn: Mapping[int, np.ndarray],
    test: Mapping[int, np.ndarray],
    document,
    seed: int = 42,
) -> pd.DataFrame:
    """How many clusters pass each criterion, a row a block and world: columns block, world
    (observed, permuted within documents, oracle), judged, pure (nine in ten of one label), sd_below
    (sd at most twice |mean|), stands_out.

    The oracle's clusters are CLUSTERS equal parts of δ itself: what the best clustering could give.
    """
    each, rows = np.asarray(document), []
    for block, clusters in found.items():
        delta = test[block]
        flat = np.repeat(each, delta.shape[1])
        dealt = next(_permuted(delta.ravel(), flat, seed)).reshape(delta.shape)
        parts = np.argsort(np.argsort(delta.ravel())) * CLUSTERS // delta.size
        oracle = replace(clusters, found=parts.reshape(delta.shape))
        worlds = {
            "observed": (clusters, delta),
            "permuted": (clusters, dealt),
            "oracle": (oracle, delta),
        }
        for world, (of, values) in worlds.items():
            table = cluster_table({block: of}, learn, {block: values}, document)
            passed = {
                "judged": len(table),
                "pure": int((table.purity_value > 0.9).sum()),
                "sd_below": int((table.ratio_value < 2).sum()),
                "stands_out": int(table.stands_out.sum()),
            }
            rows.append({"block": block, "world": world} | passed)
    return pd.DataFrame(rows)
