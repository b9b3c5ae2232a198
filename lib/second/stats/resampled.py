"""Intervals over documents of statistics that are no mean: medians over blocks, counts, quantiles,
and what one half of the documents chooses and the other reads."""

from collections.abc import Callable

import numpy as np
from scipy import stats

from lib.second.stats.intervals import Interval

LEAST_DOCUMENTS = 4
"""of fewer, resampling says nothing"""
Weighted = Callable[[np.ndarray], float]
"""a statistic of the weights [n] of all windows: how often the document of each is drawn"""


def over_documents(
    statistic: Weighted, document, seed: int = 42, resamples: int = 1000, level: float = 0.95
) -> Interval:
    """Bootstrap interval of statistic(weights) over the documents [n] of n windows.

    Percentiles, widened for few documents as Student's t widens the normal (the expanded percentile
    interval, Hesterberg, American Statistician 69, 2015, §3.4). The bounds are nan, which decides
    nothing, with fewer than LEAST_DOCUMENTS documents and where the statistic is nan in over a
    tenth of the resamples.
    """
    _, index = np.unique(np.asarray(document), return_inverse=True)
    n, value = int(index.max()) + 1, float(statistic(np.ones(len(index))))
    rng = np.random.default_rng(seed)
    draws = rng.multinomial(n, np.full(n, 1 / n), size=resamples)  # [resamples, documents]
    return _interval(value, lambda k: statistic(draws[k][index].astype(float)), n, resamples, level)


def over_halves(
    statistic: Callable[[np.ndarray, np.ndarray], float],
    document,
    seed: int = 42,
    resamples: int = 500,
    level: float = 0.95,
) -> Interval:
    """As `over_documents` for statistic(choice, read), weights [n] that are 0 outside one half of
    the documents each: what is chosen on one half is read on the other, averaged over both ways
    round; documents are drawn within their half."""
    _, index = np.unique(np.asarray(document), return_inverse=True)
    n = int(index.max()) + 1
    if n < LEAST_DOCUMENTS:
        return Interval(np.nan, np.nan, np.nan)
    rng = np.random.default_rng(seed)
    halves = np.array_split(rng.permutation(n), 2)
    draws = []
    for half in halves:
        drawn = np.zeros((resamples + 1, n))
        drawn[0, half] = 1  # the half as it is
        drawn[1:, half] = rng.multinomial(len(half), np.full(len(half), 1 / len(half)), resamples)
        draws.append(drawn)

    def both_ways(k: int) -> float:
        one, other = (drawn[k][index] for drawn in draws)
        return float(np.mean([statistic(one, other), statistic(other, one)]))

    return _interval(both_ways(0), lambda k: both_ways(k + 1), n, resamples, level)


def _interval(
    value: float, draw: Callable[[int], float], n: int, resamples: int, level: float
) -> Interval:
    if n < LEAST_DOCUMENTS or np.isnan(value):
        return Interval(value, np.nan, np.nan)
    found = np.array([draw(k) for k in range(resamples)])
    found = found[~np.isnan(found)]
    if len(found) < 0.9 * resamples:
        return Interval(value, np.nan, np.nan)
    tail = stats.norm.sf(np.sqrt(n / (n - 1)) * stats.t.ppf((1 + level) / 2, n - 1))
    low, high = np.quantile(found, [tail, 1 - tail])
    return Interval(value, float(low), float(high))


def weighted_mean(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Mean over the last axis of values [..., n] with weight [n]: [...]."""
    return values @ (weight / weight.sum())


class Quantiles:
    """Quantiles of rows of positions under weights of their windows, sorted once for many."""

    def __init__(self, values: np.ndarray):
        """values: [k, n, t], t positions in each of n windows."""
        k, n, t = values.shape
        flat = values.reshape(k, n * t)
        order = np.argsort(flat, axis=1, kind="stable")
        self.sorted = np.take_along_axis(flat, order, 1)  # [k, n·t]
        self.window = order // t

    def __call__(self, weight: np.ndarray, *shares: float) -> np.ndarray:
        """The smallest values below or at which each share of the weight [n] lies: [shares, k]."""
        held = weight[self.window].cumsum(1)
        rows = np.arange(len(held))
        found = []
        for share in shares:
            at = (held < share * held[:, -1:] - 1e-9).sum(1)
            found.append(self.sorted[rows, at])
        return np.array(found)
