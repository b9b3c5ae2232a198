"""Costs of swapped FFNs as intervals over documents: each as a fraction of the base perplexity, and
what one replacement saves of the cost of another (Whipp §5.6).

A cost is exp of a mean loss difference, less 1. `as_costs` gives every window the value whose mean
is exactly that cost and whose spread is, to first order, the cost's own (the delta method), so
differences and means of costs are differences and means of windows, paired.
"""

from collections.abc import Hashable, Mapping

import numpy as np

from lib.second.stats.intervals import Interval, clustered
from lib.second.stats.joint import joint_level

Losses = Mapping[Hashable, np.ndarray]
"""{what was swapped: losses [n, seq_len-1] in nats}"""


def as_costs(base: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """The cost of a swap, a fraction of the base perplexity, window by window: [..., n] from losses
    [..., n, seq_len-1] on the windows of `base` [n, seq_len-1]."""
    left = (np.asarray(losses) - base).mean(-1)
    mean = left.mean(-1, keepdims=True)
    return np.expm1(mean) + np.exp(mean) * (left - mean)


def as_perplexity(losses: np.ndarray) -> np.ndarray:
    """Perplexity, window by window: [..., n] from losses [..., n, seq_len-1]."""
    each = np.asarray(losses).mean(-1)
    mean = each.mean(-1, keepdims=True)
    return np.exp(mean) * (1 + each - mean)


def joint_costs(base: np.ndarray, losses: Losses, document) -> dict[Hashable, Interval]:
    """Cost of each swap as a fraction of the base perplexity, with 95% intervals over documents
    that hold for all of them at once; the interval of the mean loss difference, carried through
    exp."""
    level, found = joint_level(len(losses)), {}
    for key, swapped in losses.items():
        mean = clustered((swapped - base).mean(1), document, level)
        found[key] = Interval(*(float(np.expm1(v)) for v in (mean.value, mean.low, mean.high)))
    return found


def joint_savings(
    base: np.ndarray, dear: Losses, cheap: Losses, document
) -> dict[Hashable, Interval]:
    """Cost of the swaps `dear` less that of `cheap` in the same place, as fractions of the base
    perplexity: 95%, paired, for all places at once."""
    level = joint_level(len(dear))
    return {
        place: clustered(
            as_costs(base, dear[place]) - as_costs(base, cheap[place]), document, level
        )
        for place in dear
    }


def joint_shares(
    base: np.ndarray, dear: Losses, cheap: Losses, document
) -> dict[Hashable, Interval]:
    """1 - cost of `cheap` over cost of `dear` in the same place, the share of the cost that is
    saved: 95%, paired, for all places at once; nan where `dear` costs nothing."""
    level, found = joint_level(len(dear)), {}
    for place in dear:
        whole, left = as_costs(base, dear[place]), as_costs(base, cheap[place])
        cost, ratio = whole.mean(), left.mean() / whole.mean()
        if cost > 0:
            found[place] = clustered(1 - ratio - (left - ratio * whole) / cost, document, level)
        else:
            found[place] = Interval(np.nan, np.nan, np.nan)
    return found


def by_seed(base: np.ndarray, losses: Losses) -> dict[Hashable, np.ndarray]:
    """Costs window by window of what was swapped under several seeds: {(block, candidate, phase):
    [n_seeds, n]} from losses keyed (block, candidate, seed, phase)."""
    found: dict[Hashable, list] = {}
    for (block, candidate, _, phase), swapped in losses.items():
        found.setdefault((block, candidate, phase), []).append(as_costs(base, swapped))
    return {key: np.stack(costs) for key, costs in found.items()}
