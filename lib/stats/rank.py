"""Rank correlation over blocks as units: a permutation test, an interval, and what so few blocks
could have shown."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from lib.base.errors import InputError


@dataclass(frozen=True)
class RankResult:
    """Spearman's rho of two quantities over n units; all nan where it is undefined."""

    rho: float
    low: float
    high: float
    """95% percentile bootstrap over units"""
    p_positive: float
    p_negative: float
    """one-sided permutation tests: how often chance gives a rho at least as large, or as small"""
    n: int
    visible: float
    """smallest |rho| that n units show with 80% power at two-sided 5%"""

    @property
    def p(self) -> float:
        """Two-sided p of the permutation test."""
        return min(1.0, 2 * min(self.p_positive, self.p_negative))


def rank_correlation(
    a, b, n_permutations: int = 10_000, seed: int = 42, control=None
) -> RankResult:
    """Spearman's rank correlation of `a` and `b` [n], one value a unit; with `control` [n] the
    partial one, the ranks of `control` regressed out of both ("regardless of fit").

    Permutations of the partial one are of residuals (Freedman and Lane, Journal of Business and
    Economic Statistics 1, 1983). `n_permutations` is also the number of bootstrap samples. The
    result is nan, which decides nothing, with fewer than four units, a value that is not finite, or
    a side that does not vary. Raises InputError for lengths that differ.
    """
    columns = [np.asarray(c, float) for c in ((a, b) if control is None else (a, b, control))]
    if any(c.ndim != 1 or len(c) != len(columns[0]) for c in columns):
        raise InputError(
            f"{' and '.join(str(c.shape) for c in columns)} values cannot be paired: give one "
            "value a unit on each side."
        )
    data, n = np.stack(columns), len(columns[0])
    nan = float("nan")
    if n < 4 or not np.isfinite(data).all():
        return RankResult(nan, nan, nan, nan, nan, n, nan)
    side_a, side_b = _ranks(data)
    rho = float(_cosine(side_a, side_b))
    if np.isnan(rho):
        return RankResult(nan, nan, nan, nan, nan, n, nan)
    rng = np.random.default_rng(seed)
    dealt = rng.permuted(np.tile(side_a, (n_permutations, 1)), axis=1)  # [permutations, n]
    if control is not None:
        dealt = _without(dealt, _centred(data[2]))
    null = _cosine(dealt, side_b)
    tail = [np.sum(sign * null >= sign * rho - 1e-12) + 1 for sign in (1, -1)]
    drawn = data[:, rng.integers(n, size=(n_permutations, n))]  # [2 or 3, resamples, n]
    found = _cosine(*_ranks(drawn))
    found = found[~np.isnan(found)]
    low, high = (
        np.quantile(found, [0.025, 0.975]) if len(found) >= 0.9 * n_permutations else (nan, nan)
    )
    p_positive, p_negative = (float(t / (n_permutations + 1)) for t in tail)
    free = n - (control is not None)
    return RankResult(rho, float(low), float(high), p_positive, p_negative, n, visible(free))


def visible(n: int) -> float:
    """Smallest |rho| that n units show with 80% power at two-sided 5%: Fisher's z with variance
    1.06 / (n - 3) (Fieller, Hartley and Pearson, Biometrika 44, 1957); 1 with fewer than four."""
    if n < 4:
        return 1.0
    return float(np.tanh((stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) * (1.06 / (n - 3)) ** 0.5))


def _ranks(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centred ranks of the first two of `data` [2 or 3, ..., n], without the third's."""
    ranks = _centred(data)
    if len(ranks) == 2:
        return ranks[0], ranks[1]
    return _without(ranks[0], ranks[2]), _without(ranks[1], ranks[2])


def _centred(data: np.ndarray) -> np.ndarray:
    ranks = stats.rankdata(data, axis=-1)
    return ranks - ranks.mean(-1, keepdims=True)


def _without(a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """`a` less its regression on `c`, over the last axis, both centred."""
    size = np.square(c).sum(-1, keepdims=True)
    slope = (a * c).sum(-1, keepdims=True) / np.where(size > 0, size, 1)
    return a - slope * c


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosine over the last axis; nan where one side is only rounding (ranks step by a half)."""
    sizes = np.square(a).sum(-1) * np.square(b).sum(-1)
    with np.errstate(invalid="ignore"):
        return np.where(sizes > 1e-12, (a * b).sum(-1) / np.sqrt(sizes), np.nan)
