"""Intervals for the verdicts: the bootstrap that every notebook uses, the range over seeds, and
leave-one-out."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from lib.base.errors import InputError
from lib.stats import claims


@dataclass(frozen=True)
class Interval:
    """A statistic with its interval; f"{interval:.2f}" reads "0.12 [0.10, 0.15]"."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def above(self, threshold: float) -> str:
        """Verdict of "the quantity exceeds `threshold`": the interval lies wholly on one side,
        or inconclusive."""
        return claims.above(self.low, self.high, threshold)

    def below(self, threshold: float) -> str:
        """Verdict of "the quantity is less than `threshold`"."""
        return claims.below(self.low, self.high, threshold)


def spread(values) -> Interval:
    """Mean and range, for a handful of seeds."""
    values = np.asarray(values, float)
    return Interval(values.mean(), values.min(), values.max())


def fold_mean(values, test_over_train: float = 0.25, level: float = 0.95) -> Interval:
    """Mean of a score over cross-validation folds, with a t-interval that allows for the training
    sets' overlap: its variance is (1/K + test_over_train) s², s² the variance over the K folds.

    `test_over_train` is the number of held-out over that of training rows, 1/(K - 1) in a K-fold
    split (default: K = 5). Nadeau & Bengio 2003, Inference for the generalization error, Machine
    Learning 52, §3. The bounds are nan, which decides nothing, for fewer than two folds. Raises
    InputError for a share or a level that is none.
    """
    if not test_over_train >= 0:
        raise InputError(
            f"test_over_train {test_over_train} is not possible: give the number of held-out over "
            "that of training rows, 0.25 with five folds."
        )
    if not 0 < level < 1:
        raise InputError(f"level {level} is not possible: use a share such as 0.95.")
    values = np.asarray(values, float)
    n, mean = len(values), float(values.mean())
    if n < 2:
        return Interval(mean, np.nan, np.nan)
    error = np.sqrt((1 / n + test_over_train) * values.var(ddof=1))
    half = float(stats.t.ppf((1 + level) / 2, n - 1) * error)
    return Interval(mean, mean - half, mean + half)


def bootstrap(
    statistic: Callable[..., float],
    *samples,
    paired: bool = False,
    seed: int = 42,
    resamples: int = 2000,
) -> Interval:
    """Percentile bootstrap of statistic(*samples), 95%; `paired` resamples the samples together,
    for correlations over blocks.

    Blocks of one model are no independent draws, so over blocks an interval is descriptive. The
    bounds are nan, which decides nothing, for fewer than two values, and where the statistic is
    undefined in over a tenth of the resamples.
    """
    value = float(statistic(*samples))
    if min(map(len, samples)) < 2:
        return Interval(value, np.nan, np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap(
            samples,
            statistic,
            paired=paired,
            vectorized=False,
            n_resamples=resamples,
            rng=seed,
            method="percentile",
        )
    draws = found.bootstrap_distribution[~np.isnan(found.bootstrap_distribution)]
    low, high = (
        np.quantile(draws, [0.025, 0.975]) if len(draws) >= 0.9 * resamples else (np.nan, np.nan)
    )
    return Interval(value, float(low), float(high))


def pearson(a, b) -> float:
    """Pearson correlation; nan where one side does not vary."""
    return float(stats.pearsonr(a, b).statistic) if _vary(a, b) else float("nan")


def spearman(a, b) -> float:
    """Spearman rank correlation; nan where one side does not vary."""
    return float(stats.spearmanr(a, b).statistic) if _vary(a, b) else float("nan")


def _vary(*samples) -> bool:
    return all(len(s) > 1 and np.ptp(s) > 0 for s in samples)


def mean_difference(a, b) -> float:
    """Mean of a less mean of b."""
    return float(np.mean(a) - np.mean(b))


def share_gap(part, whole, chosen) -> float:
    """Pooled share part / whole of the rows where `chosen` holds, less that of the others; nan
    where either has no rows."""
    part, whole, chosen = np.asarray(part), np.asarray(whole), np.asarray(chosen, dtype=bool)
    if chosen.all() or not chosen.any():
        return float("nan")
    return float(
        part[chosen].sum() / whole[chosen].sum() - part[~chosen].sum() / whole[~chosen].sum()
    )


def leave_one_out(
    table: pd.DataFrame, column: str, statistic: Callable[[pd.DataFrame], float]
) -> Interval:
    """The statistic of the whole table, and its range when any one level of `column` is left out
    (nan with fewer than three levels)."""
    levels = table[column].unique()
    values = (
        [statistic(table[table[column] != level]) for level in levels]
        if len(levels) > 2
        else [float("nan")]
    )
    # Unlike min and max these pass a nan on.
    return Interval(statistic(table), float(np.min(values)), float(np.max(values)))


@dataclass(frozen=True)
class Concentration:
    """Where a remedy helps: the share of their cost that the dearest blocks get back, beside
    that of the others."""

    dearest: np.ndarray
    """[n_blocks], whether a block is among the dearest sixth"""
    share_dearest: float
    share_others: float
    gap: Interval
    """the first less the second, with its range when any one block is left out"""
    top: list[int]
    """the two blocks that get back most"""
    share_top: float
    """of all that is got back, what these two hold"""


def concentration(cost: pd.Series, left: pd.Series) -> Concentration:
    """How far the cost of a swap, without (`cost`) and with a remedy (`left`), is got back on
    the dearest sixth of the blocks. Both are indexed by block."""
    recovered, dearest = cost - left, (cost.rank(ascending=False) <= len(cost) / 6).to_numpy()
    table = pd.DataFrame(
        {
            "block": cost.index,
            "recovered": recovered.to_numpy(),
            "cost": cost.to_numpy(),
            "dearest": dearest,
        }
    )
    gap = leave_one_out(table, "block", lambda t: share_gap(t.recovered, t.cost, t.dearest))
    shares = [recovered[rows].sum() / cost[rows].sum() for rows in (dearest, ~dearest)]
    top = recovered.nlargest(2)
    return Concentration(dearest, *shares, gap, top.index.tolist(), top.sum() / recovered.sum())


def mean_interval(
    values: pd.DataFrame | pd.Series, level: float = 0.95, test_over_train: float = 0.0
) -> pd.DataFrame:
    """t-interval of the mean of each column of `values` (a row a fold, or a seed).

    Fits on folds share training rows, so their scores are no independent draws; for them
    `test_over_train` (1 / (folds - 1)) widens the variance of the mean from s²/n to
    s² (1/n + test/train) (Nadeau and Bengio, Machine Learning 52, 2003). Columns mean, low, high.
    """
    values = pd.DataFrame(values)
    n = len(values)
    half = np.inf
    if n > 1:
        half = stats.t.ppf((1 + level) / 2, n - 1) * values.std() * (1 / n + test_over_train) ** 0.5
    mean = values.mean()
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half})


def clustered(values, clusters, level: float = 0.95) -> Interval:
    """t-interval of the mean of `values` [n] whose errors are shared within `clusters` [n].

    For windows the clusters are documents: neighbours in one article are no independent draws. The
    variance is that of sums over clusters of deviations from the mean (Liang and Zeger, Biometrika
    73, 1986), with one degree of freedom less than clusters. The bounds are nan, which decides
    nothing, with fewer than two clusters.
    """
    values = np.asarray(values, float)
    _, index = np.unique(np.asarray(clusters), return_inverse=True)
    mean, n_clusters = float(values.mean()), int(index.max()) + 1
    if n_clusters < 2:
        return Interval(mean, np.nan, np.nan)
    sums = np.bincount(index, values - mean)
    error = np.sqrt(n_clusters / (n_clusters - 1) * np.square(sums).sum()) / len(values)
    half = float(stats.t.ppf((1 + level) / 2, n_clusters - 1) * error)
    return Interval(mean, mean - half, mean + half)
