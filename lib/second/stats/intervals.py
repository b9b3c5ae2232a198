"""An interval, and those of means and correlations: over folds, over documents, by bootstrap."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from lib.second.base.errors import InputError


@dataclass(frozen=True)
class Interval:
    """A statistic with its interval; f"{interval:.2f}" reads "0.12 [0.10, 0.15]"."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


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
    bounds are nan, which decides nothing, with fewer than two clusters.
    """
    mean = float(np.mean(np.asarray(values, float)))
    variance, degrees = cluster_variance(values, clusters)
    if not degrees:
        return Interval(mean, np.nan, np.nan)
    half = float(stats.t.ppf((1 + level) / 2, degrees) * np.sqrt(variance))
    return Interval(mean, mean - half, mean + half)


def cluster_variance(values, clusters) -> tuple[float, int]:
    """Variance of the mean of `values` [n] whose errors are shared within `clusters` [n], and its
    degrees of freedom, one less than clusters; nan with fewer than two.

    The variance is that of sums over clusters of deviations from the mean (Liang and Zeger,
    Biometrika 73, 1986).
    """
    values = np.asarray(values, float)
    _, index = np.unique(np.asarray(clusters), return_inverse=True)
    count, sums = int(index.max()) + 1, np.bincount(index, values - values.mean())
    if count < 2:
        return np.nan, 0
    return float(count / (count - 1) * np.square(sums).sum() / len(values) ** 2), count - 1
