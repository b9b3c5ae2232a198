"""Intervals over cross-validation folds for statistics of several samples of text."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from scipy import stats

from lib.second.base.errors import InputError
from lib.second.stats.intervals import Interval, fold_mean
from lib.second.stats.ratios import absolute


def jackknifed(
    samples: Mapping[str, np.ndarray],
    statistic: Callable[[dict[str, np.ndarray]], float],
    level: float = 0.95,
) -> Interval:
    """A statistic of the means over folds of several texts, with an interval over their documents.

    samples: {text: scores [n_folds, ...]}; `statistic` takes {text: mean over folds [...]}. Leaving
    out a fold of one text at a time gives that text's pseudo-values (Tukey's jackknife; Miller,
    Biometrika 61, 1974), whose mean varies as `fold_mean` says; the half-widths of the texts, which
    are drawn independently, add in squares. Exact for statistics that are linear in the scores. The
    bounds are nan, which decides nothing, with one fold, and where no fold moves a statistic that
    jumps, such as a rank correlation.
    """
    means = {text: scores.mean(0) for text, scores in samples.items()}
    value, halves = float(statistic(means)), []
    for text, scores in samples.items():
        n = len(scores)
        if n < 2:
            return Interval(value, np.nan, np.nan)
        without = (n * means[text] - scores) / (n - 1)  # [n_folds, ...]
        left = np.array([statistic(means | {text: mean}) for mean in without], float)
        found = fold_mean(n * value - (n - 1) * left, 1 / (n - 1), level)
        halves.append((found.high - found.low) / 2)
    half = float(np.sqrt(np.square(halves).sum()))
    half = half if half > 1e-9 * max(1.0, abs(value)) else np.nan  # below that it is rounding
    return Interval(value, value - half, value + half)


def std_intervals(scores: pd.DataFrame, level: float = 0.95) -> dict[int, Interval]:
    """The std over folds of each column of `scores` (a row a fold), with chi-square intervals that
    hold jointly at `level`: {column: Interval}.

    For normal scores (n - 1) s² / σ² is chi-square with n - 1 degrees of freedom. The bounds are
    nan with one fold, or where a column does not vary.
    """
    n, alpha, std = len(scores), (1 - level) / scores.shape[1], scores.std()
    if n < 2:
        return {c: Interval(np.nan, np.nan, np.nan) for c in scores}
    low, high = ((n - 1) / stats.chi2.ppf([1 - alpha / 2, alpha / 2], n - 1)) ** 0.5
    nan = float("nan")
    return {
        column: Interval(s, s * low, s * high) if s > 0 else Interval(s, nan, nan)
        for column, s in std.items()
    }


def last_less_mean(scores: pd.DataFrame, level: float = 0.95) -> dict[int, Interval]:
    """How far the last fold's score lies from the mean over folds, as a magnitude, for each column
    of `scores` (a row a fold); intervals over the documents held out, jointly at `level`.

    The last of n folds less the mean of all varies by s √((n - 1) / n). Raises InputError for fewer
    than two folds.
    """
    n = len(scores)
    if n < 2:
        raise InputError(f"{n} fold has no mean to compare with: give two or more.")
    t = stats.t.ppf(1 - (1 - level) / scores.shape[1] / 2, n - 1)
    half = t * scores.std() * ((n - 1) / n) ** 0.5
    apart = scores.iloc[-1] - scores.mean()
    return absolute({c: Interval(apart[c], apart[c] - half[c], apart[c] + half[c]) for c in scores})


def spread_ratio(over_folds, over_seeds, seed: int = 42) -> Interval:
    """Mean over blocks of the std over folds, over the pooled std over seeds of the same blocks,
    both [n_blocks]; 95% bootstrap of the log ratio over blocks.

    Raises InputError for lengths that differ. The bounds are nan with fewer than two blocks, or
    where nothing varies over seeds.
    """
    folds, seeds = np.asarray(over_folds, float), np.asarray(over_seeds, float)
    if folds.shape != seeds.shape:
        raise InputError(
            f"{folds.shape} and {seeds.shape} stds cannot be compared: give one a block for each."
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(folds.mean() / np.square(seeds).mean() ** 0.5)
    if len(folds) < 2 or not np.isfinite(value):
        return Interval(value, np.nan, np.nan)
    drawn = np.random.default_rng(seed).integers(len(folds), size=(2000, len(folds)))
    pooled = np.square(seeds[drawn]).mean(1) ** 0.5
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.quantile(folds[drawn].mean(1) / pooled, [0.025, 0.975])
    return Interval(value, float(low), float(high))
