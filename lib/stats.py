"""The one interval (over documents), and what stands beside it for what it cannot do."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats

from lib.errors import InputError

FEWEST = 6
"""documents below which no interval is told"""


class Interval(NamedTuple):
    """A value and its interval, 95% unless said otherwise; (nan, nan) where none can be told."""

    value: float
    low: float
    high: float

    def map(self, f: Callable[[float], float]) -> "Interval":
        """The interval of an increasing function of the value."""
        return Interval(*map(f, self))

    def cut(self, low: float = -np.inf, high: float = np.inf) -> "Interval":
        """The interval without what lies beyond the possible values."""
        return Interval(self.value, max(self.low, low), min(self.high, high))

    def map_falling(self, f: Callable[[float], float]) -> "Interval":
        """The interval of a decreasing function of the value."""
        return Interval(f(self.value), f(self.high), f(self.low))


def interval(
    stat: "Statistic",
    document: np.ndarray,
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 42,
    possible: tuple[float, float] = (-np.inf, np.inf),
    least: float = 0.0,
) -> Interval:
    """Bootstrap over documents of a statistic of weighted rows, with a t half-width; an interval
    ends at what is `possible`, (0, 1) for a share, and is at least `least` wide to either side (0.5
    for a whole number).

    `stat` maps weights [k, n] of the n rows to k values; `document` [n] names each row's document
    (pass sums by document where sums suffice). For k units at once use level = 1 - 0.05 / k. Below
    FEWEST documents, and where nothing varies, low and high are nan.
    """
    _, i = np.unique(document, return_inverse=True)
    n = int(i.max()) + 1
    # A draw without any row of a small group has no ratio: nan, and so no interval.
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(stat(np.ones((1, len(i))))[0])
        if n < FEWEST:
            return Interval(value, np.nan, np.nan)
        w = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), draws)[:, i]
        deviation = float(stat(w).std(0))
    half = scipy.stats.t.ppf((1 + level) / 2, n - 1) * deviation * np.sqrt(n / (n - 1))
    half = max(half, least)
    if not half > 0:
        return Interval(value, np.nan, np.nan)
    return Interval(value, value - half, value + half).cut(*possible)


def ratio(
    top: np.ndarray, bottom: np.ndarray, document: np.ndarray | None = None, level: float = 0.95
) -> Interval:
    """Σ top / Σ bottom with its interval over documents, from rows [n] and the document of each;
    without `document` every row is one."""
    document = np.arange(len(top)) if document is None else document
    return interval(ratio_of_sums(top, bottom), document, level)


Statistic = Callable[[np.ndarray], np.ndarray]
"""weights [draws, n] of n rows -> [draws] values"""


def ratio_of_sums(top: np.ndarray, bottom: np.ndarray) -> Statistic:
    """Σ top / Σ bottom over rows or documents [n], such as a loss added a prediction."""
    return lambda w: (w @ top) / (w @ bottom)


class Contrast(NamedTuple):
    """A value, what it is set against, and the paired difference, each with its interval."""

    value: Interval
    against: Interval
    difference: Interval


def contrast(
    stat: Statistic, rival: Statistic, document: np.ndarray, level: float = 0.95
) -> Contrast:
    """A statistic here and of a rival on the same documents: every bootstrap draw weighs both
    alike."""
    return Contrast(
        interval(stat, document, level),
        interval(rival, document, level),
        interval(lambda w: stat(w) - rival(w), document, level),
    )


def contrasts_table(contrasts: Mapping[str, Contrast]) -> pd.DataFrame:
    """A row a contrast: value, against, difference, each with low and high."""
    rows = []
    for name, one in contrasts.items():
        row = {"": name}
        for what, part in one._asdict().items():
            row |= {what: part.value, f"{what} low": part.low, f"{what} high": part.high}
        rows.append(row)
    return pd.DataFrame(rows)


def contrast_of_seeds(here: Sequence[float], rival: Sequence[float]) -> Contrast:
    """Means over seeds here and of a rival, with t-intervals, and of their paired difference."""
    return Contrast(*(over_seeds(of) for of in (here, rival, np.subtract(here, rival))))


def median_ratio(top: np.ndarray, bottom: np.ndarray) -> Statistic:
    """Σ top / Σ bottom in the median of several units, from sums by document, each [units,
    documents] (or `bottom` [documents], the same for all): a statistic of weights [draws,
    documents]."""
    bottom = np.atleast_2d(bottom)
    return lambda w: np.median((w @ top.T) / (w @ bottom.T), axis=1)


def order_by(signal: Sequence[float], top: np.ndarray, bottom: np.ndarray) -> Statistic:
    """Spearman's correlation over units of a fixed signal [units] with Σ top / Σ bottom, from sums
    by document [units, documents] and [documents]: a statistic of weights [draws, documents]."""
    ranks = scipy.stats.zscore(scipy.stats.rankdata(signal))

    def statistic(w: np.ndarray) -> np.ndarray:
        costs = (w @ top.T) / (w @ bottom)[:, None]  # [draws, units]
        return scipy.stats.zscore(scipy.stats.rankdata(costs, axis=1), axis=1) @ ranks / len(ranks)

    return statistic


def split_halves(
    top: np.ndarray,
    bottom: np.ndarray,
    signal: Sequence[float] | None = None,
    splits: int = 200,
    seed: int = 42,
) -> float:
    """Spearman's correlation over units of Σ top / Σ bottom in a random half of the documents with
    the same in the other half, or with a fixed `signal` [units], mean over splits; sums by document
    as in `order_by`."""
    n, random, found = top.shape[1], np.random.default_rng(seed), []
    for _ in range(splits):
        mixed = random.permutation(n)
        here, there = (
            top[:, half].sum(1) / bottom[half].sum() for half in (mixed[: n // 2], mixed[n // 2 :])
        )
        other = there if signal is None else signal
        found.append(scipy.stats.spearmanr(here, other).statistic)
    return float(np.mean(found))


def explained(table: pd.DataFrame, error: str = "error", spread: str = "spread") -> Interval:
    """1 − Σ error / Σ spread in the median block, with its interval over documents, from a table
    with these columns, block and document."""
    parts = [table.pivot(index="block", columns="document", values=c) for c in (error, spread)]
    left = interval(median_ratio(*(part.to_numpy() for part in parts)), parts[0].columns.to_numpy())
    return left.map_falling(lambda ratio: 1 - ratio)


def intervals(
    top: np.ndarray, bottom: np.ndarray, of: Callable = lambda ratio: ratio, joint: bool = True
) -> list[Interval]:
    """of(Σ top / Σ bottom) for each unit, from sums by document, each [units, documents]; joint
    over the units (Bonferroni) unless said otherwise."""
    level = 1 - 0.05 / len(top) if joint else 0.95
    document = np.arange(top.shape[1])

    def of_unit(t: np.ndarray, b: np.ndarray) -> Statistic:
        return lambda w: of((w @ t) / (w @ b))

    return [interval(of_unit(t, b), document, level) for t, b in zip(top, bottom)]


def sums(values: np.ndarray, document: np.ndarray) -> np.ndarray:
    """Sums over windows (and positions) by document: [..., n, seq] -> [..., documents]."""
    values = values.reshape(*values.shape[:-1], -1).sum(-1)
    _, i = np.unique(document, return_inverse=True)
    return values @ np.eye(i.max() + 1)[i]


def spread(n: int, k: int | None) -> list[int]:
    """`k` of n blocks, evenly spaced, the first and the last among them; None: all."""
    if k is None or k >= n:
        return list(range(n))
    places = np.linspace(0, n - 1, k).round().astype(int)
    return sorted(set(places.tolist()))


def over_seeds(values: Sequence[float] | np.ndarray, level: float = 0.95) -> Interval:
    """Mean of one value a seed (paired differences, where two things are compared), t-interval."""
    of_seed = np.asarray(values, float)
    value, n = float(of_seed.mean()), len(of_seed)
    if n < 2 or not of_seed.std() > 0:
        return Interval(value, np.nan, np.nan)
    half = scipy.stats.t.ppf((1 + level) / 2, n - 1) * of_seed.std(ddof=1) / np.sqrt(n)
    return Interval(value, value - half, value + half)


def welch(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Difference of the means of values of independent seeds, whose scatter may differ (Welch)."""
    value = float(np.mean(a) - np.mean(b))
    if min(len(a), len(b)) < 2:
        return Interval(value, np.nan, np.nan)
    ends = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return Interval(value, float(ends.low), float(ends.high))


def rank_correlation(x: Sequence[float], y: Sequence[float], level: float = 0.95) -> Interval:
    """Spearman's correlation with Fisher's z interval: over blocks, all of which are there (at
    thirty blocks it must pass 0.36 to be told from 0). The interval is nan below four blocks."""
    return _fisher(float(scipy.stats.spearmanr(x, y).statistic), len(x), 1.06, level)


def correlation(x: Sequence[float], y: Sequence[float], level: float = 0.95) -> Interval:
    """Pearson's correlation with Fisher's z interval, over blocks; nan below four."""
    return _fisher(float(scipy.stats.pearsonr(x, y).statistic), len(x), 1.0, level)


def _fisher(r: float, n: int, variance: float, level: float) -> Interval:
    if n < 4:
        return Interval(r, np.nan, np.nan)
    half = scipy.stats.norm.ppf((1 + level) / 2) * np.sqrt(variance / (n - 3))
    z = np.arctanh(np.clip(r, -0.9999, 0.9999))
    return Interval(r, float(np.tanh(z - half)), float(np.tanh(z + half)))


def contrast_of_correlations(
    here: tuple[Sequence[float], Sequence[float]],
    rival: tuple[Sequence[float], Sequence[float]],
    ranks: bool = False,
) -> Contrast:
    """Two correlations over the same blocks, each an (x, y), with Fisher's intervals, and their
    difference, resampled over blocks; `ranks`: Spearman's, ranked once over all blocks."""
    one = rank_correlation if ranks else correlation
    values = [np.array(side, float) for side in (here, rival)]
    if ranks:
        values = [scipy.stats.rankdata(side, axis=1) for side in values]

    def weighted(side: np.ndarray) -> Statistic:
        return lambda w: np.array([_weighted_correlation(side[0], side[1], row) for row in w])

    difference = interval(
        lambda w: weighted(values[0])(w) - weighted(values[1])(w),
        np.arange(len(here[0])),
        possible=(-2, 2),
    )
    return Contrast(one(*here), one(*rival), difference)


def rank_correlations(signals: pd.DataFrame, outcome: str, against: str) -> pd.DataFrame:
    """How well each column of `signals` [units] orders `outcome`, and its lead over `against`: a
    row a signal, Spearman's ρ with Fisher's interval over n units, the difference resampled over
    the units. Raises InputError for a column that lacks a value of a unit."""
    lacking = [name for name in signals if signals[name].isna().any()]
    if lacking:
        raise InputError(
            f"column {lacking[0]!r} has no value for {signals.index.name or 'row'} "
            f"{signals.index[signals[lacking[0]].isna()][0]}: give it one for each, with the same "
            "index as the others (a whole column may need .loc[blocks])."
        )
    rows = []
    for name in signals.columns.drop(outcome):
        one, other = ((signals[column], signals[outcome]) for column in (name, against))
        here, there, difference = contrast_of_correlations(one, other, ranks=True)
        if name == against:
            difference = Interval(0.0, 0.0, 0.0)
        if abs(here.value) > 1 - 1e-9:  # a perfect order says nothing of its scatter
            here = Interval(here.value, np.nan, np.nan)
        rows.append(
            {
                "signal": name,
                "n": len(signals),
                "rho": here.value,
                "low": here.low,
                "high": here.high,
                "lead": difference.value,
                "lead low": difference.low,
                "lead high": difference.high,
                "against": there.value,
                "against low": there.low,
                "against high": there.high,
            }
        )
    return pd.DataFrame(rows).set_index("signal")


def _weighted_correlation(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    """Pearson's correlation of values with weights, each [n]."""
    x, y = x - np.average(x, weights=w), y - np.average(y, weights=w)
    return float((w @ (x * y)) / np.sqrt((w @ x**2) * (w @ y**2)))
