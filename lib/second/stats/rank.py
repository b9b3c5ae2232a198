"""Rank correlation over blocks as units: a permutation test, an interval, and what so few blocks
could have shown."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from lib.second.base.errors import InputError
from lib.second.stats.intervals import Interval


@dataclass(frozen=True)
class RankResult:
    """Spearman's rho of two quantities over n units; all nan where it is undefined."""

    rho: float
    low: float
    high: float
    """95% percentile bootstrap over units"""
    low_90: float
    high_90: float
    """the same at 90%: for equivalence, two one-sided tests at 5%"""
    p_positive: float
    p_negative: float
    """one-sided permutation tests: how often chance gives a rho at least as large, or as small"""
    n: int
    visible: float
    """smallest |rho| that n units show with 80% power at two-sided 5%"""

    @property
    def interval(self) -> Interval:
        """rho with its 95% interval"""
        return Interval(self.rho, self.low, self.high)

    @property
    def narrow(self) -> Interval:
        """rho with its 90% interval"""
        return Interval(self.rho, self.low_90, self.high_90)

    @property
    def p(self) -> float:
        """Two-sided p of the permutation test."""
        return float(np.minimum(1, 2 * min(self.p_positive, self.p_negative)))  # nan is passed on


def rank_correlation(
    a, b, n_permutations: int = 10_000, seed: int = 42, control=None, groups=None
) -> RankResult:
    """Spearman's rank correlation of `a` and `b` [n], one value a unit; with `control` [n] the
    partial one, the ranks of `control` regressed out of both ("regardless of fit"). With `groups`
    [n], such as the model of each block, ranks, permutations and resamples stay within a group.

    Permutations of the partial one are of residuals (Freedman and Lane, Journal of Business and
    Economic Statistics 1, 1983). `n_permutations` is also the number of bootstrap samples. The
    result is nan, which decides nothing, with fewer than four units, a value that is not finite, or
    a side that does not vary. Raises InputError for lengths that differ.
    """
    columns = [np.asarray(c, float) for c in ((a, b) if control is None else (a, b, control))]
    groups = np.zeros(len(columns[0])) if groups is None else np.asarray(groups)
    if any(c.shape != (len(groups),) for c in columns):
        raise InputError(
            f"{' and '.join(str(c.shape) for c in columns)} values cannot be paired: give one "
            "value a unit on each side."
        )
    data, n, nan = np.stack(columns), len(groups), float("nan")
    nothing = RankResult(nan, nan, nan, nan, nan, nan, nan, n, nan)
    if n < 4 or not np.isfinite(data).all():
        return nothing
    rng, draws = np.random.default_rng(seed), n_permutations
    sides, dealt, resampled = [], [], []  # one entry a group
    for group in np.unique(groups):
        part = data[:, groups == group]  # [2 or 3, n_group]
        sides.append(_ranks(part))
        deal = rng.permuted(np.tile(sides[-1][0], (draws, 1)), axis=1)  # [draws, n_group]
        dealt.append(deal if control is None else _without(deal, centred_ranks(part[2])))
        drawn = rng.integers(part.shape[1], size=(draws, part.shape[1]))
        resampled.append(_ranks(part[:, drawn]))  # each side [draws, n_group]
    side_a, side_b = (np.concatenate(side, axis=-1) for side in zip(*sides))
    rho = float(cosine(side_a, side_b))
    if np.isnan(rho):
        return nothing
    null = cosine(np.concatenate(dealt, axis=-1), side_b)
    tails = [np.sum(sign * null >= sign * rho - 1e-12) + 1 for sign in (1, -1)]
    found = cosine(*(np.concatenate(side, axis=-1) for side in zip(*resampled)))
    found = found[~np.isnan(found)]
    bounds = [nan] * 4
    if len(found) >= 0.9 * draws:
        bounds = np.quantile(found, [0.025, 0.975, 0.05, 0.95]).tolist()
    fixed = len(sides) * (1 + (control is not None))  # means, and slopes on the control
    return RankResult(rho, *bounds, *(float(t / (draws + 1)) for t in tails), n, visible(n, fixed))


def visible(n: int, fixed: int = 1) -> float:
    """Smallest |rho| that n units show with 80% power at two-sided 5%: Fisher's z with variance
    1.06 / (n - 2 - fixed) (Fieller, Hartley and Pearson, Biometrika 44, 1957), `fixed` the means
    and slopes taken out of each side; 1 with too few."""
    if n - 2 - fixed < 1:
        return 1.0
    z = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * (1.06 / (n - 2 - fixed)) ** 0.5
    return float(np.tanh(z))


def _ranks(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centred ranks of the first two of `data` [2 or 3, ..., n], without the third's if there is
    one."""
    ranks = centred_ranks(data)
    if len(ranks) == 2:
        return ranks[0], ranks[1]
    return _without(ranks[0], ranks[2]), _without(ranks[1], ranks[2])


def centred_ranks(data: np.ndarray) -> np.ndarray:
    """Ranks over the last axis, less their mean."""
    ranks = stats.rankdata(data, axis=-1)
    return ranks - ranks.mean(-1, keepdims=True)


def _without(a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """`a` less its regression on `c`, over the last axis, both centred."""
    size = np.square(c).sum(-1, keepdims=True)
    slope = (a * c).sum(-1, keepdims=True) / np.where(size > 0, size, 1)
    return a - slope * c


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine over the last axis; nan where one side is only rounding (ranks step by a half)."""
    sizes = np.square(a).sum(-1) * np.square(b).sum(-1)
    with np.errstate(invalid="ignore"):
        return np.where(sizes > 1e-12, (a * b).sum(-1) / np.sqrt(sizes), np.nan)
