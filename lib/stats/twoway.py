"""Intervals of what varies in two ways at once, such as seeds and documents; and how far the tops
of two rankings overlap."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from lib.base.errors import InputError
from lib.stats.intervals import Interval


def pooled_half_width(
    parts: Sequence[tuple[np.ndarray | float, int]], level: float = 0.95
) -> np.ndarray:
    """Half-width of the t-interval of an estimate whose variance is a sum of estimated variances:
    `parts` are (variance, degrees of freedom), alike in shape.

    Degrees of freedom after Welch and Satterthwaite (Biometrics Bulletin 2, 1946); 0 where nothing
    varies.
    """
    total = np.asarray(sum(np.asarray(variance, float) for variance, _ in parts))
    spent = sum(np.square(variance) / df for variance, df in parts)
    smallest = min(df for _, df in parts)
    df = np.divide(np.square(total), spent, out=np.full_like(total, smallest), where=spent > 0)
    return stats.t.ppf((1 + level) / 2, df) * np.sqrt(total)


def crossed(values, level: float = 0.95) -> Interval:
    """t-interval of the mean of `values` [n_rows, n_columns] where rows (seeds) and columns (draws)
    both are samples, and every row meets every column.

    The variance is that of the row means over n_rows plus that of the column means over n_columns;
    what varies in a cell alone is in both, so the interval is not too narrow. The bounds are nan,
    which decides nothing, with fewer than two of either, and where nothing varies. Raises
    InputError for values that are no table.
    """
    values = np.asarray(values, float)
    if values.ndim != 2 or not values.size:
        raise InputError(
            f"values of shape {values.shape} are not crossed: give a row a seed, a column a draw."
        )
    mean = float(values.mean())
    if min(values.shape) < 2 or not np.ptp(values) > 0:
        return Interval(mean, np.nan, np.nan)
    sides = (values.mean(1), values.mean(0))
    half = float(pooled_half_width([(s.var(ddof=1) / len(s), len(s) - 1) for s in sides], level))
    return Interval(mean, mean - half, mean + half)


def top_overlap(a, b, part: float = 1 / 6, level: float = 0.95) -> Interval:
    """Of the units in the top `part` of `a` [n] (at least one), the share that is in the top part
    of `b` [n] too, with the exact binomial interval (Clopper and Pearson, Biometrika 26, 1934);
    nan where a value is not finite or a side does not vary. Raises InputError for lengths that
    differ."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(
            f"{a.shape} and {b.shape} values cannot be paired: give one value a unit on each side."
        )
    varies = len(a) > 1 and np.isfinite([a, b]).all() and np.ptp(a) > 0 and np.ptp(b) > 0
    if not varies:
        return Interval(np.nan, np.nan, np.nan)
    n = max(1, int(len(a) * part))
    tops = [set(np.argsort(-side, kind="stable")[:n].tolist()) for side in (a, b)]
    k = len(tops[0] & tops[1])
    bounds = stats.binomtest(k, n).proportion_ci(level)
    return Interval(k / n, float(bounds.low), float(bounds.high))
