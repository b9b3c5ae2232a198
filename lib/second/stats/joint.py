"""Intervals over seeds, intervals that hold jointly over units, and where savings concentrate."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import stdtrit  # quantiles of Student's t

from lib.second.base.errors import InputError
from lib.second.stats.intervals import Interval


def joint_level(k: int, level: float = 0.95) -> float:
    """Level of each of `k` intervals that hold all together with probability `level`
    (Bonferroni). Raises InputError for fewer than one."""
    if k < 1:
        raise InputError(f"{k!r} units have no joint level: count those that were looked at.")
    return 1 - (1 - level) / k


def over_seeds(values, level: float = 0.95) -> Interval:
    """t-interval of the mean of independent repeats: seeds, or one mean a document.

    The bounds are nan, which decides nothing, with fewer than two values, and where all are equal:
    then the seed reached nothing that could vary.
    """
    values = np.asarray(values, float)
    n, mean = len(values), float(values.mean()) if len(values) else float("nan")
    if n < 2 or not np.ptp(values) > 0:
        return Interval(mean, np.nan, np.nan)
    half = stdtrit(n - 1, (1 + level) / 2) * values.std(ddof=1) / n**0.5
    return Interval(mean, float(mean - half), float(mean + half))


def jointly(
    table: pd.DataFrame, interval: Callable[..., Interval] = over_seeds, level: float = 0.95
) -> dict[Hashable, Interval]:
    """Intervals of all columns of `table` (units) that hold together: {unit: Interval}.

    `interval` is called with a column and the keyword `level`: over_seeds for a row a seed or a
    document, or another with its own arguments bound.
    """
    each = joint_level(table.shape[1], level)
    return {unit: interval(column, level=each) for unit, column in table.items()}


def pooled_over_seeds(table: pd.DataFrame, level: float = 0.95) -> dict[Hashable, Interval]:
    """Intervals over seeds of the mean of every column of `table` (units; a row a seed) that hold
    together, with one standard deviation pooled over the units; nan with fewer than two seeds."""
    n, k = table.shape
    mean = table.mean()
    half = np.nan
    if n > 1 and (variance := table.var().mean()) > 0:
        half = stdtrit(k * (n - 1), (1 + joint_level(k, level)) / 2) * (variance / n) ** 0.5
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


def largest(units: Mapping[Hashable, Interval]) -> Interval:
    """Interval of the largest of all units, from intervals that hold jointly: it allows for
    having chosen the unit after looking."""
    values, lows, highs = _columns(units)
    return Interval(float(values.max()), float(lows.max()), float(highs.max()))


def smallest(units: Mapping[Hashable, Interval]) -> Interval:
    """Interval of the smallest of all units, from intervals that hold jointly."""
    values, lows, highs = _columns(units)
    return Interval(float(values.min()), float(lows.min()), float(highs.min()))


def _columns(units: Mapping[Hashable, Interval]) -> np.ndarray:
    if not units:
        raise InputError("there is no unit, so none is the largest: give at least one.")
    return np.array([[i.value, i.low, i.high] for i in units.values()]).T  # a nan is passed on


@dataclass(frozen=True)
class Concentrated:
    """Whether the savings sit on the dearest blocks more than on blocks drawn by chance."""

    share: float
    """of all savings, what the dearest sixth of the blocks holds"""
    chance: float
    """mean of that share when savings are dealt to the blocks at random"""
    excess: Interval
    """share less its value at chance, with the bounds that leave 0 outside exactly where the
    two-sided permutation test rejects chance"""
    over: float
    """share less the 95th percentile of that share at chance"""
    p: float
    """one-sided: how often chance holds at least as much"""


def concentrated(
    cost, left, n_permutations: int = 10_000, seed: int = 42, chosen_by=None
) -> Concentrated:
    """Share of all savings that the dearest sixth of the blocks (at least one) holds, against
    permutations of the savings over the blocks.

    cost, left: [n_blocks], the cost of a swap without and with the remedy; `chosen_by` [n_blocks],
    the costs that say which blocks are dear, if they were read on other documents. A block cannot
    save more than it costs, so dear blocks hold more of the savings even if all get the same part
    of their cost back. Bounds and p are nan, which decides nothing, where the savings do not add up
    to more than 0 or do not vary.
    """
    cost, left = np.asarray(cost, float), np.asarray(left, float)
    chosen_by = cost if chosen_by is None else np.asarray(chosen_by, float)
    if not cost.shape == left.shape == chosen_by.shape or cost.ndim != 1 or len(cost) < 2:
        raise InputError(
            f"costs of shape {cost.shape} and {left.shape} cannot be compared: give one number "
            "a block, at least two blocks."
        )
    savings = cost - left
    dearest = np.argsort(-chosen_by, kind="stable")[: max(1, len(cost) // 6)]
    if not savings.sum() > 0 or not np.ptp(savings) > 0:
        nan = float("nan")
        return Concentrated(nan, len(dearest) / len(cost), Interval(nan, nan, nan), nan, nan)
    share = float(savings[dearest].sum() / savings.sum())
    rng = np.random.default_rng(seed)
    dealt = rng.permuted(np.tile(savings, (n_permutations, 1)), axis=1)  # [permutations, blocks]
    null = dealt[:, : len(dearest)].sum(axis=1) / savings.sum()
    low, most, high = np.quantile(null, [0.025, 0.95, 0.975])
    chance = len(dearest) / len(cost)
    excess = Interval(share - chance, share - float(high), share - float(low))
    p = float((np.sum(null >= share - 1e-12) + 1) / (n_permutations + 1))
    return Concentrated(share, chance, excess, share - float(most), p)
