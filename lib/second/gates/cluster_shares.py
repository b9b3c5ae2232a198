"""Whether need is concentrated in clusters (Balogh §4.3.4: it is "diffuse"), and what the clusters
are that have it."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from lib.second.gates.cluster_need import MARK, SHUFFLES, cluster_auc, need
from lib.second.gates.clusters import CLUSTERS, Clusters
from lib.second.stats.intervals import clustered
from lib.second.stats.joint import joint_level
from lib.second.stats.ratios import influence
from lib.second.texts.windows import Windows

FACTOR, LEAST = 3, 0.01
"""a No-Fly region: a cluster of at least LEAST of the positions with a mean δ above MARK nats and
above FACTOR times the block's"""
EARLY = 4
"""positions that begin a window, where models keep what they attend to by default"""


def top_rows(found: Clusters, learn: np.ndarray, test: np.ndarray, part: float = 0.1) -> np.ndarray:
    """Rows [positions] whose mean is the share of the summed δ of the test sample that falls on
    the `part` of its positions in the clusters of largest mean δ on the sample learned from; the
    last cluster counts in part. nan where the sum is not above 0."""
    where, delta = found.found.ravel(), test.ravel()
    order = np.argsort(-need(found.learned, learn), kind="stable")
    sizes = np.bincount(where, minlength=CLUSTERS)[order]
    left = np.clip(part * len(where) - np.r_[0, sizes.cumsum()[:-1]], 0, None)
    taken = np.empty(CLUSTERS)
    taken[order] = np.minimum(1, left / np.maximum(sizes, 1))
    weight = taken[where]
    if not delta.sum() > 0:
        return np.full(len(delta), np.nan)
    edge = order[np.flatnonzero(left > 0)[-1]]
    margin = delta[where == edge].mean() if (where == edge).any() else 0.0
    # Where the cut falls is found on these positions as well: more of them above it take from the
    # last cluster.
    return influence(weight * delta, delta) - (weight - part) * margin / delta.mean()


def no_fly_regions(
    found: Mapping[int, Clusters],
    learn: Mapping[int, np.ndarray],
    test: Mapping[int, np.ndarray],
    document,
) -> pd.DataFrame:
    """The cluster of largest mean δ on the sample learned from (at least LEAST of its positions), a
    row a block: columns block, cluster, learned and judged (its mean δ on the two samples), of_all
    (the block's on the test sample), bar (the larger of MARK and FACTOR times that), and value, low
    and high of judged less bar, 95% over documents for all blocks at once."""
    level, rows = joint_level(len(found)), []
    for block, clusters in found.items():
        share = np.bincount(clusters.learned.ravel(), minlength=CLUSTERS) / clusters.learned.size
        means = np.where(share >= LEAST, need(clusters.learned, learn[block]), -np.inf)
        delta, here = test[block].ravel(), clusters.found.ravel() == means.argmax()
        bar = FACTOR * delta if FACTOR * delta.mean() > MARK else np.full(len(delta), MARK)
        inside = influence(delta * here, here)
        i = clustered(inside - bar, np.repeat(np.asarray(document), test[block].shape[1]), level)
        row = {"block": block, "cluster": int(means.argmax()), "learned": means.max()}
        row |= {"judged": inside.mean(), "of_all": delta.mean(), "bar": bar.mean()}
        rows.append(row | {"value": i.value, "low": i.low, "high": i.high})
    return pd.DataFrame(rows)


def at_random(found: Clusters, learn: np.ndarray, test: np.ndarray, seed: int = 42) -> dict:
    """What positions dealt to clusters of the same sizes at random would show, mean and middle 95%
    of SHUFFLES draws: {auc, auc_low, auc_high, top, top_low, top_high}, of `cluster_auc` and
    `top_rows`."""
    chance, draws = np.random.default_rng(seed), []
    for _ in range(SHUFFLES):
        dealt = [
            chance.permutation(w.ravel()).reshape(w.shape) for w in (found.learned, found.found)
        ]
        of = replace(found, learned=dealt[0], found=dealt[1])
        draws.append((cluster_auc(of, learn, test).mean(), top_rows(of, learn, test).mean()))
    told = {}
    for name, values in zip(("auc", "top"), np.transpose(draws), strict=True):
        low, high = np.quantile(values, [0.025, 0.975])
        told |= {name: values.mean(), f"{name}_low": low, f"{name}_high": high}
    return told


def what_they_are(
    table: pd.DataFrame,
    found: Mapping[int, Clusters],
    test: Mapping[int, np.ndarray],
    windows: Windows,
    tokenizer,
) -> pd.DataFrame:
    """What stands in the clusters of `cluster_table` that stand out, and in the one of largest mean
    δ where it was learned, of each block: columns block, cluster, stands_out, positions (share of
    all), need, value, of_sum (share of the block's summed δ; nan where that is not above 0),
    position (median in its window), early (share among the first EARLY), tokens (the five most
    frequent with their shares)."""
    tokens, rows = windows.tokens[:, :-1].numpy(), []
    at = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    largest = table.groupby("block").need.transform("max") == table.need
    for row in table[table.stands_out | largest].itertuples():
        here, delta = found[row.block].found == row.cluster, test[row.block]
        kinds, counts = np.unique(tokens[here], return_counts=True)
        top = np.argsort(-counts, kind="stable")[:5]
        names = [f"{tokenizer.decode([int(kinds[k])])!r} {counts[k] / row.n:.0%}" for k in top]
        told = {"block": row.block, "cluster": row.cluster, "stands_out": row.stands_out}
        told |= {"positions": here.mean(), "need": row.need, "value": row.value}
        total = delta.sum()
        told |= {"of_sum": delta[here].sum() / total if total > 0 else np.nan}
        told |= {"position": np.median(at[here]), "early": (at[here] < EARLY).mean()}
        rows.append(told | {"tokens": ", ".join(names)})
    return pd.DataFrame(rows)
