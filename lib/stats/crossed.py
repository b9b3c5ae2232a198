"""Intervals of what varies with seeds and with documents at once, the spread over seeds, and
whether a verdict stands when fits have not come to rest."""

from collections.abc import Hashable, Iterable, Mapping

import numpy as np
import pandas as pd
from scipy import stats

from lib.base.errors import InputError
from lib.stats.intervals import Interval
from lib.stats.joint import joint_level
from lib.stats.rules import as_interval
from lib.stats.verdicts import judge


def ratio_errors(part, whole) -> np.ndarray:
    """What each document adds to the error of Σ part / Σ whole, both [n_documents]: the linearised
    ratio (part - ratio · whole) / Σ whole, which sums to 0 (Cochran, Sampling Techniques, 1977,
    §6.3); nan where the whole is nothing.

    The influence of a mean or a difference is that of the influences, on the same documents.
    Raises InputError for sums of two shapes.
    """
    part, whole = np.asarray(part, float), np.asarray(whole, float)
    if part.shape != whole.shape or part.ndim != 1:
        raise InputError(
            f"sums of shape {part.shape} and {whole.shape} make no ratio: give one of each a "
            "document."
        )
    if not whole.sum() > 0:
        return np.full(len(part), np.nan)
    return (part - part.sum() / whole.sum() * whole) / whole.sum()


def seeds_and_documents(by_seed, documents, level: float = 0.95) -> Interval:
    """t-interval of the mean over seeds of what is measured on a sample of documents.

    by_seed [n_seeds], or one number where no seed reaches the fit (a closed form); documents
    [n_documents]: the influence of each. The two variances add up, with the degrees of freedom of
    Satterthwaite (Biometrics Bulletin 2, 1946). The bounds are nan, which decides nothing, with
    fewer than two documents or, of a fit with seeds, fewer than two of them.
    """
    seeds, documents = np.asarray(by_seed, float), np.asarray(documents, float)
    n, value = len(documents), float(seeds.mean())
    if n < 2 or (seeds.ndim and len(seeds) < 2):
        return Interval(value, np.nan, np.nan)
    variances, degrees = [n / (n - 1) * np.square(documents).sum()], [n - 1]
    if seeds.ndim:
        variances.append(seeds.var(ddof=1) / len(seeds))
        degrees.append(len(seeds) - 1)
    variances, total = np.array(variances), sum(variances)
    if not total > 0:  # nothing varied, or something is nan
        return Interval(value, np.nan, np.nan)
    freedom = total**2 / (variances**2 / degrees).sum()
    half = float(stats.t.ppf((1 + level) / 2, freedom) * total**0.5)
    return Interval(value, value - half, value + half)


def pooled_over_seeds(table: pd.DataFrame, level: float = 0.95) -> dict[Hashable, Interval]:
    """Intervals over seeds of the mean of every column of `table` (units; a row a seed) that hold
    together, with one standard deviation pooled over the units; nan with fewer than two seeds."""
    n, k = table.shape
    mean = table.mean()
    half = np.nan
    if n > 1 and (variance := table.var().mean()) > 0:
        half = stats.t.ppf((1 + joint_level(k, level)) / 2, k * (n - 1)) * (variance / n) ** 0.5
    return {u: Interval(float(m), float(m - half), float(m + half)) for u, m in mean.items()}


def pooled_spread(groups: Iterable, level: float = 0.95) -> Interval:
    """Standard deviation within `groups` (each the values of all seeds), pooled, with its
    chi-squared interval; nan where no group has two values."""
    groups = [np.asarray(g, float) for g in groups]
    degrees = sum(len(g) - 1 for g in groups)
    if degrees < 1:
        return Interval(np.nan, np.nan, np.nan)
    squares = sum(np.square(g - g.mean()).sum() for g in groups)
    tails = stats.chi2.ppf([(1 + level) / 2, (1 - level) / 2], degrees)
    low, high = (squares / tails) ** 0.5
    return Interval(float((squares / degrees) ** 0.5), float(low), float(high))


def settled(id: str, statistic, doubt) -> bool:
    """Whether the verdict of claim `id` stays when the statistic moves by `doubt` up or down: a
    number, or for a mapping of units one for each. What decides nothing cannot be unsettled."""
    verdict = judge(id, statistic).verdict
    if verdict == "inconclusive":
        return True
    moved = [judge(id, _moved(statistic, doubt, sign)).verdict for sign in (-1, 1)]
    return moved == [verdict] * 2


def _moved(statistic, doubt, sign: int):
    if isinstance(statistic, Mapping):
        return {u: _moved(i, doubt[u], sign) for u, i in statistic.items()}
    found = as_interval(statistic)
    by = sign * float(doubt)
    return Interval(found.value + by, found.low + by, found.high + by)
