"""How far the profiles of models lie apart (Whipp §5.2), over repeats: seeds or folds of documents.

A model is a table [repeat, block] of R²_lin, repeats paired by their order. Repeats are seeds of a
family trained here, or (`folds`) held-out folds of documents, whose fits share training rows.
Models trained here were each scored on one fold; what documents do to a difference between two of
them is read from `documents` [fold, block], the differences of two models of the same recipe.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats

from lib.second.stats.intervals import Interval, fold_mean, spearman
from lib.second.stats.joint import joint_level, over_seeds, smallest
from lib.second.stats.rank import centred_ranks, cosine

FOLDED = np.sqrt(2 / np.pi)
"""mean of |z| for a standard normal z: what noise alone adds to an absolute difference"""
NOTHING = Interval(np.nan, np.nan, np.nan)
Errors = Sequence[tuple[pd.DataFrame, float]]
"""tables [repeat, block] whose spread is an error, each with the factor that makes the variance of
its rows that of the error"""


def over_repeats(values, folds: bool = False, level: float = 0.95) -> Interval:
    """t-interval of the mean over seeds, or over folds of documents."""
    values = np.asarray(values, float)
    if folds and len(values) > 1:
        return fold_mean(values, 1 / (len(values) - 1), level)
    return over_seeds(values, level)


def one_fold(values, level: float = 0.95) -> float:
    """Half-width of the interval of a score on a single fold, from its `values` on several: the
    variance of one fold's score, by Nadeau and Bengio, is (1 + test/train) s². nan for one."""
    values = np.asarray(values, float)
    if len(values) < 2:
        return float("nan")
    half = stats.t.ppf((1 + level) / 2, len(values) - 1)
    return float(half * values.std(ddof=1) * np.sqrt(1 + 1 / (len(values) - 1)))


def widened(interval: Interval, half: float) -> Interval:
    """The interval with an independent error of half-width `half` added in squares."""
    low, high = interval.value - interval.low, interval.high - interval.value
    low, high = np.hypot(low, half), np.hypot(high, half)
    return Interval(interval.value, float(interval.value - low), float(interval.value + high))


def gap(
    a: pd.DataFrame,
    b: pd.DataFrame,
    documents: pd.DataFrame | None = None,
    folds: bool = False,
    level: float = 0.95,
) -> Interval:
    """Mean over blocks of the absolute difference of the two mean profiles, less what chance alone
    would give two equal profiles.

    The interval is that of the signed differences, the signs those of the means, which average to
    the absolute one. Chance adds most where there is no difference and next to nothing to a large
    one, so its part is taken off the value and the lower bound only.
    """
    apart = a.to_numpy(float) - b.to_numpy(float)  # [repeat, block]
    if len(apart) < 2:
        return NOTHING
    mean, n = apart.mean(0), len(apart)
    error = apart.var(0, ddof=1) * (1 / n + folds / (n - 1))  # variance of the mean, [block]
    sign, half = np.sign(mean), 0.0
    if documents is not None:
        k = len(documents)
        error = error + documents.to_numpy(float).var(0, ddof=1) * (1 + 1 / (k - 1))
        half = one_fold((sign * documents.to_numpy(float)).mean(1), level)
    chance = FOLDED * np.sqrt(error).mean()
    around = widened(over_repeats((sign * apart).mean(1), folds, level), half)
    return less_chance(around, float(chance))


def less_chance(interval: Interval, chance: float) -> Interval:
    """A mean absolute difference less what chance adds to it: all of `chance` where nothing
    differs, none where much does, so the upper bound stays."""
    return Interval(interval.value - chance, interval.low - chance, interval.high)


def leads(
    a: pd.DataFrame,
    b: pd.DataFrame,
    documents: pd.DataFrame | None = None,
    folds: bool = False,
    level: float = 0.95,
) -> Interval:
    """The smaller of the largest lead of `a` over `b` at one block and of `b` over `a`; each block
    is chosen on all other repeats and read on this one. 0 or less where one leads throughout."""
    apart = a.to_numpy(float) - b.to_numpy(float)
    if len(apart) < 2:
        return NOTHING
    rest = (apart.sum(0) - apart) / (len(apart) - 1)  # mean of the other repeats
    rows = np.arange(len(apart))
    read = {"first": apart[rows, rest.argmax(1)], "second": -apart[rows, rest.argmin(1)]}
    each, half = joint_level(2, level), 0.0
    if documents is not None:
        half = float(np.sqrt(np.mean([one_fold(d, each) ** 2 for _, d in documents.items()])))
    joint = {who: widened(over_repeats(v, folds, each), half) for who, v in read.items()}
    return smallest(joint)


def rank_between(
    a: pd.DataFrame,
    b: pd.DataFrame,
    documents: pd.DataFrame | None = None,
    folds: bool = False,
) -> Interval:
    """Spearman correlation over blocks of the two mean profiles, with the interval of `rank_draws`.
    nan with fewer than two repeats or four blocks."""
    first, second = ([(t, 1 / len(t) + folds / max(1, len(t) - 1))] for t in (a, b))
    if documents is not None:
        first.append((documents, 1 + 1 / max(1, len(documents) - 1)))
    return rank_interval([rank_draws(first, second)])


def rank_draws(
    first: Errors, second: Errors, draws: int = 2_000, seed: int = 42
) -> tuple[float, np.ndarray]:
    """Spearman correlation over blocks of two mean profiles, and of `draws` of them with errors.

    A rank correlation of few blocks takes few values, so its interval is that of profiles with
    errors from the multivariate t of their repeats: a linear statistic of such draws has exactly
    the t-interval over repeats. Each side is the mean of its first table; every table [repeat,
    block] of it adds an error with the covariance of its rows times its factor.
    """
    means = [side[0][0].mean().to_numpy(float) for side in (first, second)]
    value = spearman(*means) if len(means[0]) >= 4 else float("nan")
    if np.isnan(value) or min(len(t) for t, _ in (*first, *second)) < 2:
        return value, np.full(draws, np.nan)
    rng, ranks = np.random.default_rng(seed), []
    for mean, side in zip(means, (first, second), strict=True):
        found = np.tile(mean, (draws, 1))  # [draws, block]
        for table, factor in side:
            centred, n = (table - table.mean()).to_numpy(float), len(table)
            error = rng.standard_normal((draws, n)) @ centred / np.sqrt(n - 1)
            found += error * np.sqrt(factor * (n - 1) / rng.chisquare(n - 1, (draws, 1)))
        ranks.append(centred_ranks(found))
    return value, cosine(*ranks)


def rank_interval(found: Sequence[tuple[float, np.ndarray]]) -> Interval:
    """Mean of the correlations of several models, with the interval of the mean of their draws."""
    values, draws = zip(*found, strict=True)
    value = float(np.mean(values))
    low, high = np.quantile(np.mean(draws, axis=0), [0.025, 0.975])
    # Errors only ever disturb a perfect order, so the bounds of the draws can miss the value.
    return Interval(value, float(np.min([low, value])), float(np.max([high, value])))


def across_less_within(
    models: Mapping[str, pd.DataFrame],
    kind: Mapping[str, str],
    documents: Mapping[str, pd.DataFrame] | None = None,
    folds: bool = False,
) -> Interval:
    """Mean absolute profile difference of models of different `kind` less that of models of one
    kind; nan where there are not both sorts of pairs. `documents`: models of the same recipes by
    fold, for what documents do to the statistic."""

    def statistic(tables: Mapping[str, pd.DataFrame]) -> np.ndarray:
        """One value a repeat."""
        sorts: dict[bool, list] = {True: [], False: []}
        for a, b in combinations(models, 2):
            apart = np.abs(tables[a].to_numpy(float) - tables[b].to_numpy(float)).mean(1)
            sorts[kind[a] == kind[b]].append(apart)
        return _difference(sorts)

    return _with_documents(statistic, models, documents, folds)


def kind_less_others(
    models: Mapping[str, pd.DataFrame],
    kind: Mapping[str, str],
    of: str,
    documents: Mapping[str, pd.DataFrame] | None = None,
    folds: bool = False,
) -> Interval:
    """Mean R²_lin over the blocks of the models of kind `of` less that of the others, models
    weighing the same; nan where there are not both. `documents` as in `across_less_within`."""

    def statistic(tables: Mapping[str, pd.DataFrame]) -> np.ndarray:
        """One value a repeat."""
        sorts: dict[bool, list] = {True: [], False: []}
        for name in models:
            sorts[kind[name] != of].append(tables[name].to_numpy(float).mean(1))
        return _difference(sorts)

    return _with_documents(statistic, models, documents, folds)


def _difference(sorts: Mapping[bool, list]) -> np.ndarray:
    """Mean of the sort False less that of the sort True, a value a repeat; none if either is
    missing."""
    if not all(sorts.values()):
        return np.empty(0)
    return np.mean(sorts[False], axis=0) - np.mean(sorts[True], axis=0)


def _with_documents(statistic, models, documents, folds: bool) -> Interval:
    values = statistic(models)
    if not len(values):
        return NOTHING
    half = 0.0 if documents is None else one_fold(statistic(documents))
    return widened(over_repeats(values, folds), half)
