"""δ of clusters: what the paper's criteria say of them, and what standard errors and a
permutation say (Balogh §4.3.4)."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from lib.second.gates.by_type import between_rows
from lib.second.gates.clusters import CLUSTERS, Clusters
from lib.second.gates.gate import labels
from lib.second.stats.dealt import dealt_within
from lib.second.stats.intervals import Interval, clustered
from lib.second.stats.joint import joint_level
from lib.second.stats.ratios import influence
from lib.second.stats.rows import auc_rows

ENOUGH, FEWEST = 100, 5
"""positions that a cluster needs to be judged, and documents that they must come from"""
MARK = 0.05
"""nats: |δ| below it is near-linear (Balogh §5.2), δ above it is need (§4.3.3)"""
CLEAN = 0.9
"""share of its positions that are near-linear, or in need, from which on a cluster is clean"""
NAMES = ("block", "cluster", "n", "need", "value", "linear_value", "needed_value", "stands_out")
"""columns that a table without a row has"""
PASSED = ("judged", "clean", "pure", "sd_below", "stands_out")
"""what is counted of clusters"""
SHUFFLES, DEALS = 100, 20
"""permutations of δ that a share between clusters is compared with, and that criteria are put to"""


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
    """A row a block and cluster, on the test sample: columns block, cluster, n, documents, need
    (mean δ on the sample learned from), mean δ with low and high, sd, ratio (sd over |mean|) with
    low and high, linear and needed (shares with |δ| below MARK and with δ above it) with low and
    high, purity (share of the more frequent side of the labels' threshold), away (mean less that of
    the rest of its block, paired over documents) with low and high, and stands_out: whether that
    interval leaves out 0.

    Intervals over documents, jointly over all rows with at least ENOUGH positions of at least
    FEWEST documents, and for the two shares jointly over both. document [n].
    """
    each = {b: np.repeat(np.asarray(document), delta.shape[1]) for b, delta in test.items()}
    known = [
        (block, k)
        for block, clusters in found.items()
        for k in range(CLUSTERS)
        if (here := clusters.found.ravel() == k).sum() >= ENOUGH
        and len(np.unique(each[block][here])) >= FEWEST
    ]
    level, both = (joint_level(max(1, n * len(known))) for n in (1, 2))
    rows = []
    for block, k in known:
        delta, here = test[block].ravel(), found[block].found.ravel() == k
        inside, of = delta[here], each[block][here]
        row = {"block": block, "cluster": k, "n": int(here.sum()), "documents": len(np.unique(of))}
        row |= {"need": need(found[block].learned, learn[block])[k]}
        row |= _ends(clustered(inside, of, level)) | {"sd": inside.std()}
        row |= _ends(ratio_of_sd(inside, of, level), "ratio_")
        for name, side in (("linear", np.abs(inside) < MARK), ("needed", inside > MARK)):
            row |= _ends(_share(clustered(side, of, both)), f"{name}_")
        low = labels(learn[block].ravel()).of(inside).mean()
        row |= {"purity": max(low, 1 - low)}
        rest = influence(delta * ~here, ~here)
        away = clustered(influence(delta * here, here) - rest, each[block], level)
        row |= _ends(away, "away_") | {"stands_out": bool(away.low > 0 or away.high < 0)}
        rows.append(row)
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=[*NAMES])


def _ends(i: Interval, name: str = "") -> dict[str, float]:
    return {f"{name}{end}": getattr(i, end) for end in ("value", "low", "high")}


def _share(i: Interval) -> Interval:
    """A share's interval, which ends where shares do."""
    return Interval(i.value, *(float(np.clip(end, 0, 1)) for end in (i.low, i.high)))


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


def between_clusters(
    found: Mapping[int, Clusters],
    test: Mapping[int, np.ndarray],
    document,
    seed: int = 42,
    within: np.ndarray | None = None,
) -> tuple[dict[int, Interval], dict[int, float]]:
    """Share of the variance of δ between clusters on the test sample less its mean with δ permuted
    over positions within a document: ({block: 95% over documents, for all blocks at once}, {block:
    the mean with δ permuted}). With `within` [n, seq_len-1], δ is permuted over the positions that
    have the same value there instead."""
    level, excess, by_chance = joint_level(len(found)), {}, {}
    for block, clusters in found.items():
        where, delta = clusters.found.ravel().astype(int), test[block].ravel()
        each = np.repeat(np.asarray(document), test[block].shape[1])
        groups = each if within is None else within.ravel()
        chance = np.random.default_rng(seed)
        dealt = (dealt_within(delta, groups, chance) for _ in range(SHUFFLES))
        by_chance[block] = float(np.mean([between_rows(d, where).mean() for d in dealt]))
        excess[block] = clustered(between_rows(delta, where) - by_chance[block], each, level)
    return excess, by_chance


def chance_table(
    found: Mapping[int, Clusters],
    learn: Mapping[int, np.ndarray],
    test: Mapping[int, np.ndarray],
    document,
    score: Mapping[int, np.ndarray],
    seed: int = 42,
) -> pd.DataFrame:
    """How many clusters pass each criterion, a row a block and world: columns block, world, judged,
    clean (a share of CLEAN near-linear or in need), pure (as large a share of one label), sd_below
    (sd at most twice |mean|), stands_out.

    Worlds: observed; permuted, δ dealt anew within documents, mean of DEALS draws; gate, clusters
    that are CLUSTERS equal parts of a gate's `score` {block: [n, seq_len-1]}, what a trained router
    could reach; oracle, equal parts of δ itself, the best that clusters could give.
    """
    chance, each = np.random.default_rng(seed), np.asarray(document)

    def dealt(delta: np.ndarray) -> np.ndarray:
        groups = np.repeat(each, delta.shape[1])
        return dealt_within(delta.ravel(), groups, chance).reshape(delta.shape)

    def cut(values: np.ndarray) -> np.ndarray:
        order = np.argsort(np.argsort(values.ravel(), kind="stable"))
        return (order * CLUSTERS // values.size).reshape(values.shape)

    def passed(of: Mapping[int, Clusters], deltas: Mapping[int, np.ndarray]) -> pd.DataFrame:
        table = cluster_table(of, learn, deltas, document)
        if table.empty:
            return pd.DataFrame(0.0, list(found), list(PASSED))
        share = np.maximum(table.linear_value, table.needed_value)
        told = (1, share > CLEAN, table.purity > CLEAN, table.ratio_value < 2, table.stands_out)
        counts = pd.DataFrame(dict(zip(PASSED, told, strict=True)), dtype=float)
        return counts.groupby(table.block).sum().reindex(list(found), fill_value=0.0)

    parts = lambda values: {b: replace(of, found=cut(values[b])) for b, of in found.items()}
    permuted = [passed(found, {b: dealt(test[b]) for b in found}) for _ in range(DEALS)]
    worlds = {
        "observed": passed(found, test),
        "permuted": sum(permuted) / DEALS,
        "gate": passed(parts(score), test),
        "oracle": passed(parts(test), test),
    }
    told = pd.concat(worlds, names=["world", "block"]).reset_index()
    return told.sort_values("block", kind="stable")[["block", "world", *PASSED]]
