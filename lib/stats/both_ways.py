"""Intervals for what varies with several things at once: seeds and documents."""

from collections.abc import Hashable, Mapping

import numpy as np
from scipy.special import stdtrit  # quantiles of Student's t

from lib.base.errors import InputError
from lib.stats.intervals import Interval
from lib.stats.joint import joint_level


def crossed(*samples: tuple[np.ndarray, np.ndarray], level: float = 0.95) -> Interval:
    """t-interval of the sum of the means of `samples`, each (values [n_seeds, n], clusters [n]):
    the seeds are the same in every sample, the clusters (documents) are not.

    The variance is that of the mean over seeds plus, for each sample, that over clusters of the
    seeds' average: clustering both ways (Cameron, Gelbach and Miller, Journal of Business and
    Economic Statistics 29, 2011) without the term that they subtract, so rather too wide. Degrees
    of freedom: Satterthwaite (Biometrics Bulletin 2, 1946). The bounds are nan, which decides
    nothing, with fewer than two seeds or clusters, and where all seeds agree to the last digit.
    Raises InputError for values that do not fit their clusters or each other.
    """
    tables = [np.atleast_2d(np.asarray(values, float)) for values, _ in samples]
    seeds = {len(table) for table in tables}
    lengths = [(table.shape[1], len(c)) for table, (_, c) in zip(tables, samples, strict=True)]
    if len(seeds) != 1 or any(n != m for n, m in lengths):
        raise InputError(
            f"values of shape {', '.join(str(t.shape) for t in tables)} do not fit: give every "
            "sample the same seeds, and each window its cluster."
        )
    by_seed = sum(table.mean(1) for table in tables)  # [n_seeds]
    n, value = len(by_seed), float(by_seed.mean())
    parts = [_of_clusters(t.mean(0), c) for t, (_, c) in zip(tables, samples, strict=True)]
    if n < 2 or not np.ptp(by_seed) > 0 or any(degrees < 1 for _, degrees in parts):
        return Interval(value, np.nan, np.nan)
    parts.append((by_seed.var(ddof=1) / n, n - 1))
    variance = sum(v for v, _ in parts)
    degrees = variance**2 / sum(v**2 / d for v, d in parts)
    half = float(stdtrit(degrees, (1 + level) / 2) * variance**0.5)
    return Interval(value, value - half, value + half)


def crossed_jointly(
    units: Mapping[Hashable, np.ndarray], clusters, level: float = 0.95
) -> dict[Hashable, Interval]:
    """Intervals of all `units`, values [n_seeds, n] each, that hold together."""
    each = joint_level(len(units), level)
    return {unit: crossed((values, clusters), level=each) for unit, values in units.items()}


def _of_clusters(values: np.ndarray, clusters) -> tuple[float, int]:
    """Variance of the mean of `values` [n] whose errors are shared within clusters, and its degrees
    of freedom (as in `lib.stats.clustered`)."""
    _, index = np.unique(np.asarray(clusters), return_inverse=True)
    count, sums = int(index.max()) + 1, np.bincount(index, values - values.mean())
    if count < 2:
        return float("nan"), 0
    return float(count / (count - 1) * np.square(sums).sum() / len(values) ** 2), count - 1
