"""What a product branch saves on the costliest blocks, these chosen on one half of the documents
and read on the other (Whipp §5.6)."""

from collections.abc import Callable, Mapping

import numpy as np

from lib.second.stats.intervals import Interval
from lib.second.stats.joint import concentrated

LEAST_DOCUMENTS = 4  # two a half, or resampling would change nothing


def savings_concentrated(
    base: np.ndarray, dear: Mapping, cheap: Mapping, document, seed: int = 42, resamples: int = 500
) -> Interval:
    """Share of the summed savings (cost of `dear` less that of `cheap`, {block: losses}) that falls
    on the costliest sixth of the blocks, less the 95th percentile of that share when savings are
    permuted over blocks (`lib.second.stats.concentrated`)."""

    def over(choice: np.ndarray, read: np.ndarray) -> float:
        return concentrated(*read, n_permutations=1000, chosen_by=choice[0]).over

    return across_halves(over, base, dear, cheap, document, seed, resamples)


def saved_on_dearest(
    base: np.ndarray, dear: Mapping, cheap: Mapping, document, seed: int = 42, resamples: int = 2000
) -> Interval:
    """1 - cost of `cheap` over cost of `dear` on the block where `dear` costs most."""

    def share(choice: np.ndarray, read: np.ndarray) -> float:
        whole, left = read[:, choice[0].argmax()]
        return 1 - left / whole if whole > 0 else np.nan

    return across_halves(share, base, dear, cheap, document, seed, resamples)


def across_halves(
    statistic: Callable[[np.ndarray, np.ndarray], float],
    base: np.ndarray,
    dear: Mapping,
    cheap: Mapping,
    document,
    seed: int = 42,
    resamples: int = 500,
) -> Interval:
    """`statistic(choice, read)` of the costs [2, n_blocks] of `dear` and `cheap` on either half of
    the documents, averaged over both ways round; 95% percentile bootstrap over the documents of
    each half.

    The bounds are nan, which decides nothing, with fewer than LEAST_DOCUMENTS documents, and where
    the statistic is undefined in over a tenth of the resamples.
    """
    _, index = np.unique(np.asarray(document), return_inverse=True)
    left = np.stack([[(m[block] - base).mean(1) for block in dear] for m in (dear, cheap)])
    n_documents, sizes = int(index.max()) + 1, np.bincount(index).astype(float)
    sums = left @ np.eye(n_documents)[index]  # [2, n_blocks, n_documents]
    rng = np.random.default_rng(seed)
    halves = np.array_split(rng.permutation(n_documents), 2)

    def both_ways(*chosen: np.ndarray) -> float:
        costs = [np.expm1(sums[..., c].sum(-1) / sizes[c].sum()) for c in chosen]
        return float(np.mean([statistic(*costs), statistic(*costs[::-1])]))

    if n_documents < LEAST_DOCUMENTS:
        return Interval(np.nan, np.nan, np.nan)
    draws = [both_ways(*(rng.choice(half, len(half)) for half in halves)) for _ in range(resamples)]
    draws, bounds = np.array(draws), (np.nan, np.nan)
    draws = draws[~np.isnan(draws)]
    if len(draws) >= 0.9 * resamples:
        bounds = np.quantile(draws, [0.025, 0.975])
    return Interval(both_ways(*halves), float(bounds[0]), float(bounds[1]))
