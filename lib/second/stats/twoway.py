"""Intervals of what varies in two ways at once: with seeds, and with documents or draws."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from scipy import stats

from lib.second.base.errors import InputError
from lib.second.stats.intervals import Interval, cluster_variance
from lib.second.stats.joint import joint_level

Parts = Sequence[tuple[np.ndarray | float, int]]
"""(variance, degrees of freedom) of each source of error, variances alike in shape"""


def pooled_half_width(parts: Parts, level: float = 0.95) -> np.ndarray:
    """Half-width of the t-interval of an estimate whose variance is the sum of those of `parts`.

    Degrees of freedom after Welch and Satterthwaite (Biometrics Bulletin 2, 1946); 0 where nothing
    varies.
    """
    total = np.asarray(sum(np.asarray(variance, float) for variance, _ in parts))
    spent = sum(np.square(variance) / df for variance, df in parts)
    smallest = min(df for _, df in parts)
    df = np.divide(np.square(total), spent, out=np.full_like(total, smallest), where=spent > 0)
    return stats.t.ppf((1 + level) / 2, df) * np.sqrt(total)


def seeds_by_documents(*samples: tuple[np.ndarray, np.ndarray], level: float = 0.95) -> Interval:
    """t-interval of the sum of the means of `samples`, each (values [n_seeds, n], clusters [n]):
    the seeds are the same in every sample, the clusters (documents) are not.

    The variance is that of the mean over seeds plus, for each sample, that over clusters of the
    seeds' average: clustering both ways (Cameron, Gelbach and Miller, Journal of Business and
    Economic Statistics 29, 2011) without the term that they subtract, so rather too wide. The
    bounds are nan, which decides nothing, with fewer than two seeds or clusters, and where all
    seeds agree to the last digit. Raises InputError for values that do not fit their clusters or
    each other.
    """
    tables = [np.atleast_2d(np.asarray(values, float)) for values, _ in samples]
    lengths = [(table.shape[1], len(c)) for table, (_, c) in zip(tables, samples, strict=True)]
    if len({len(table) for table in tables}) != 1 or any(n != m for n, m in lengths):
        raise InputError(
            f"values of shape {', '.join(str(t.shape) for t in tables)} do not fit: give every "
            "sample the same seeds, and each window its cluster."
        )
    by_seed = sum(table.mean(1) for table in tables)  # [n_seeds]
    if not np.ptp(by_seed) > 0:
        return Interval(float(by_seed.mean()), np.nan, np.nan)
    texts = [cluster_variance(t.mean(0), c) for t, (_, c) in zip(tables, samples, strict=True)]
    return _summed(by_seed.mean(), [*texts, _of_mean(by_seed)], level)


def seeds_by_documents_jointly(
    units: Mapping[Hashable, np.ndarray], clusters, level: float = 0.95
) -> dict[Hashable, Interval]:
    """Intervals of all `units`, values [n_seeds, n] each, that hold together."""
    each = joint_level(len(units), level)
    return {
        unit: seeds_by_documents((values, clusters), level=each) for unit, values in units.items()
    }


def crossed(values, level: float = 0.95) -> Interval:
    """t-interval of the mean of `values` [n_seeds, n_draws] where every seed meets every draw: as
    `seeds_by_documents`, each draw a cluster. Raises InputError for values that are no table."""
    values = np.asarray(values, float)
    if values.ndim != 2 or not values.size:
        raise InputError(
            f"values of shape {values.shape} are not crossed: give a row a seed, a column a draw."
        )
    return seeds_by_documents((values, np.arange(values.shape[1])), level=level)


def seeds_and_documents(by_seed, documents, level: float = 0.95) -> Interval:
    """t-interval of the mean of `by_seed` [n_seeds], which is measured on a sample of documents.

    documents [n_documents]: the influence of each on that mean (`lib.second.stats.influence`). by_seed is
    one number where no seed reaches the fit (a closed form). The bounds are nan, which decides
    nothing, with fewer than two documents or, of a fit with seeds, fewer than two of them, and
    where nothing varies.
    """
    seeds, documents = np.asarray(by_seed, float), np.asarray(documents, float)
    return _summed(
        seeds.mean(), [_of_mean(side) for side in (documents, seeds) if side.ndim], level
    )


def _of_mean(values: np.ndarray) -> tuple[float, int]:
    """Variance of the mean of independent `values` [n], and its degrees of freedom."""
    n = len(values)
    return (float(values.var(ddof=1) / n) if n > 1 else np.nan), n - 1


def _summed(value: float, parts: Parts, level: float) -> Interval:
    """The interval of an estimate with errors of several sources; no bounds where one of them
    cannot be estimated, or nothing varies."""
    known = sum(variance for variance, _ in parts) > 0  # False for nan
    half = float(pooled_half_width(parts, level)) if known else np.nan
    return Interval(float(value), float(value - half), float(value + half))
