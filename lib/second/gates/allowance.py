"""What share of the evaluations must stay nonlinear for a cost, read off the points of a router on
the budget curve (beyond Balogh §4.5)."""

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from lib.second.gates.frontier import linear_share
from lib.second.gates.routing import Routed
from lib.second.stats.intervals import Interval, bootstrap


def needed(
    found: Routed,
    points: Sequence[Hashable],
    n_blocks: int,
    document,
    cost: float,
    resamples: int = 1000,
    seed: int = 42,
) -> Interval:
    """Share of the evaluations that must stay nonlinear for a cost of at most `cost`, a fraction of
    the base perplexity, by the points of one router, with a 95% bootstrap over documents.

    The mean loss difference is read linearly between the points, from none at share 1, and the
    share is where it first exceeds log(1 + cost). `points` may end with the route that is linear
    everywhere; where the cost is never exceeded, the share is that of the last point.
    """
    share, n = _reader(found, points, n_blocks, document, cost)
    return bootstrap(share, np.arange(n), seed=seed, resamples=resamples)


def needed_less(
    found: Routed,
    points: Sequence[Hashable],
    others: Sequence[Hashable],
    n_blocks: int,
    document,
    cost: float,
    resamples: int = 1000,
    seed: int = 42,
) -> Interval:
    """`needed` by the points of one router less that by those of another, with a 95% bootstrap over
    documents, paired."""
    own, n = _reader(found, points, n_blocks, document, cost)
    other, _ = _reader(found, others, n_blocks, document, cost)
    apart = lambda drawn: own(drawn) - other(drawn)
    return bootstrap(apart, np.arange(n), seed=seed, resamples=resamples)


def _reader(
    found: Routed, points: Sequence[Hashable], n_blocks: int, document, cost: float
) -> tuple[Callable[[np.ndarray], float], int]:
    """The share that must stay nonlinear, as a function of the documents drawn, and how many there
    are to draw from."""
    shares = np.array([linear_share(found, point, n_blocks) for point in points])
    order = np.argsort(shares)
    excess = np.stack([(found.losses[points[k]] - found.base).mean(1) for k in order])
    _, index = np.unique(np.asarray(document), return_inverse=True)
    sums = np.stack([np.bincount(index, row) for row in excess])  # [points, documents]
    sizes, shares = np.bincount(index), shares[order]

    def share(drawn: np.ndarray) -> float:
        mean = sums[:, drawn].sum(1) / sizes[drawn].sum()
        return 1 - crossing(shares, mean, np.log1p(cost))

    return share, len(sizes)


def crossing(shares: np.ndarray, values: np.ndarray, limit: float) -> float:
    """Where a curve through (0, 0) and the points, shares ascending, first exceeds `limit`; the
    last share if it never does."""
    xs, ys = np.r_[0.0, shares], np.r_[0.0, values]
    for left, right in zip(range(len(xs) - 1), range(1, len(xs)), strict=True):
        if ys[right] > limit:
            part = (limit - ys[left]) / (ys[right] - ys[left])
            return float(xs[left] + part * (xs[right] - xs[left]))
    return float(xs[-1])


def step_of(found: Routed, points: Sequence[Hashable], n_blocks: int, left: float) -> float:
    """Distance between the neighbouring measured shares that `left`, a share that stays nonlinear,
    was read between; the first of them is none linear."""
    shares = np.sort([0.0, *(linear_share(found, point, n_blocks) for point in points)])
    upper = np.clip(np.searchsorted(shares, 1 - left), 1, len(shares) - 1)
    return float(shares[upper] - shares[upper - 1])
