"""Ratios of sums over documents, what a jackknife says of any statistic, and two sources of error
in one interval."""

from collections.abc import Callable, Hashable, Mapping

import numpy as np
from scipy.special import stdtrit  # quantiles of Student's t

from lib.second.base.errors import InputError
from lib.second.stats.intervals import Interval


def influence(part, whole) -> np.ndarray:
    """What each row adds to the ratio Σ part / Σ whole, [n], with the ratio as its mean; nan where
    the whole is nothing.

    part, whole: [n], such as squared errors and deviations of n windows. The ratio's error is that
    of the mean of these values, to first order (the linearised ratio estimator, Cochran, Sampling
    Techniques, 1977, §6.3): hand them to `clustered`. They add and subtract as the ratios do.
    Raises InputError for sums of two shapes.
    """
    part, whole = np.asarray(part, float), np.asarray(whole, float)
    if part.shape != whole.shape or part.ndim != 1:
        raise InputError(
            f"sums of shape {part.shape} and {whole.shape} make no ratio: give one of each a row."
        )
    if not whole.sum() > 0:
        return np.full(len(part), np.nan)
    ratio = part.sum() / whole.sum()
    return ratio + (part - ratio * whole) / whole.mean()


def jackknife(whole: float, without, level: float = 0.95) -> Interval:
    """A statistic of the whole sample with the t-interval of its jackknife; `without` [K]: the
    statistic when each of K groups of documents in turn is left out (Efron and Stein, Annals of
    Statistics 9, 1981).

    The bounds are nan, which decides nothing, with fewer than two groups or a value that is not
    finite, and where no group changes anything.
    """
    without = np.asarray(without, float)
    n = len(without)
    if n < 2 or not np.isfinite([whole, *without]).all() or not np.ptp(without) > 0:
        return Interval(float(whole), np.nan, np.nan)
    error = np.sqrt((n - 1) * without.var())
    half = float(stdtrit(n - 1, (1 + level) / 2) * error)
    return Interval(float(whole), float(whole) - half, float(whole) + half)


def both(seeds: Interval, documents: Interval) -> Interval:
    """The value of `seeds`, its half-width and that of `documents` added in squares: the two vary
    independently in a repetition."""
    half = np.hypot(seeds.high - seeds.low, documents.high - documents.low) / 2
    return Interval(seeds.value, float(seeds.value - half), float(seeds.value + half))


def absolute(units: Mapping[Hashable, Interval]) -> dict[Hashable, Interval]:
    """Intervals of the absolute values; one that holds 0 begins there."""
    found = {}
    for unit, i in units.items():
        ends = sorted((abs(i.low), abs(i.high)))
        low = 0.0 if i.low <= 0 <= i.high else ends[0]
        found[unit] = Interval(abs(i.value), low, ends[1])
    return found


def transformed(interval: Interval, function: Callable[[float], float]) -> Interval:
    """The interval of a rising function of the quantity, such as exp of one in logarithms."""
    return Interval(*(float(function(v)) for v in (interval.value, interval.low, interval.high)))
