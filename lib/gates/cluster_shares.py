"""Whether need is concentrated in clusters (Balogh §4.3.4: it is "diffuse")."""

from collections.abc import Mapping

import numpy as np

from lib.gates.cluster_need import need
from lib.gates.clusters import CLUSTERS, Clusters
from lib.stats.intervals import Interval, clustered
from lib.stats.joint import joint_level
from lib.stats.ratios import influence

THRESHOLD, FACTOR, LEAST = 0.05, 3, 0.01
"""a No-Fly region: a cluster of at least LEAST of the positions with a mean δ above THRESHOLD nats
and above FACTOR times the block's"""


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
) -> dict[int, Interval]:
    """Mean δ on the test sample of the cluster of largest mean δ on the sample learned from (at
    least LEAST of its positions) less the larger of THRESHOLD and FACTOR times the block's mean δ,
    {block: 95% over documents}, for all blocks at once."""
    level, regions = joint_level(len(found)), {}
    for block, clusters in found.items():
        share = np.bincount(clusters.learned.ravel(), minlength=CLUSTERS) / clusters.learned.size
        means = np.where(share >= LEAST, need(clusters.learned, learn[block]), -np.inf)
        delta, here = test[block].ravel(), clusters.found.ravel() == means.argmax()
        bar = FACTOR * delta if FACTOR * delta.mean() > THRESHOLD else THRESHOLD
        each = np.repeat(np.asarray(document), test[block].shape[1])
        regions[block] = clustered(influence(delta * here, here) - bar, each, level)
    return regions
