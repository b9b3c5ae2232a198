"""Orders that agree: of pairs within a block, of a few candidates within each block, and of the
blocks at the top of two rankings."""

from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats

from lib.second.base.errors import InputError
from lib.second.stats.intervals import Interval, bootstrap
from lib.second.stats.rank import RankResult

FEWEST = 6
"""units that a bootstrap over them needs: even unanimous signs of five are chance in more than one
case in twenty (two-sided sign test)"""


def concordant_pairs(table: pd.DataFrame, a: str, b: str, unit: str = "block") -> pd.DataFrame:
    """Every pair of rows of one unit: columns `unit` and agree, whether `a` and `b` order the two
    alike. Pairs that are tied on either side, or not finite, are left out."""
    rows = []
    for name, part in table.groupby(unit, sort=False):
        for first, second in combinations(part.index, 2):
            steps = [np.sign(part.at[first, c] - part.at[second, c]) for c in (a, b)]
            if np.isfinite(steps).all() and all(steps):
                rows.append({unit: name, "agree": bool(steps[0] == steps[1])})
    return pd.DataFrame(rows, columns=[unit, "agree"]).astype({"agree": bool})


def share_over(table: pd.DataFrame, column: str, unit: str = "block", seed: int = 42) -> Interval:
    """Share of rows in which `column` holds, with a 95% bootstrap over units.

    The bounds are nan, which decides nothing, with fewer than FEWEST units: a few units that agree
    by chance would give an interval of no width.
    """
    held = table.groupby(unit)[column].agg(["sum", "count"]).astype(float)
    if len(held) < FEWEST:
        share = float(table[column].mean()) if len(table) else np.nan
        return Interval(share, np.nan, np.nan)
    share = lambda part, whole: part.sum() / whole.sum()
    return bootstrap(share, held["sum"], held["count"], paired=True, seed=seed)


def kendall_within(a, b, units, n_permutations: int = 10_000, seed: int = 42) -> RankResult:
    """Mean over units of Kendall's tau (pairs in order less pairs out of order, over all pairs) of
    `a` and `b` [n] within each unit, with permutations of `b` within units.

    There is no interval and no power: these are nan, and so is everything with no unit of two rows
    or with a value that is not finite.
    """
    a, b, units = np.asarray(a, float), np.asarray(b, float), np.asarray(units)
    nan, rng, found, dealt = float("nan"), np.random.default_rng(seed), [], []
    for unit in np.unique(units):
        one, other = a[units == unit], b[units == unit]
        if len(one) > 1:
            dealt.append(_tau(one, rng.permuted(np.tile(other, (n_permutations, 1)), axis=1)))
            found.append(_tau(one, other[None])[0])
    tau, tails = (float(np.mean(found)) if found else nan), [nan, nan]
    if np.isfinite(tau):
        null = np.mean(dealt, axis=0)
        more = [np.sum(sign * null >= sign * tau - 1e-12) for sign in (1, -1)]
        tails = [float((count + 1) / (n_permutations + 1)) for count in more]
    return RankResult(tau, nan, nan, nan, nan, *tails, n=len(a), visible=nan)


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


def _tau(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Kendall's tau of `a` [n] with every row of `b` [rows, n]."""
    first, second = np.triu_indices(len(a), 1)
    order = np.sign(a[first] - a[second]) * np.sign(b[:, first] - b[:, second])
    return order.mean(1)
