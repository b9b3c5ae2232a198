"""What a poorer map in an FFN's place costs beside a better one (Whipp §6)."""

from collections.abc import Mapping

import numpy as np

from lib.second.stats.intervals import Interval, clustered
from lib.second.stats.joint import joint_level
from lib.second.stats.ratios import transformed


def cost_ratios(
    base: np.ndarray,
    better: Mapping[int, np.ndarray],
    poorer: Mapping[int, np.ndarray],
    document,
    least: float = 0.01,
    level: float = 0.95,
) -> dict[int, Interval]:
    """Ratio of the perplexity increases of two swaps of one block, for all blocks at once.

    base and the losses by block are [n, seq_len-1] on the same windows, `document` [n]. Only blocks
    where the better map surely costs more than the share `least` of perplexity have a ratio. The
    interval is that of the log ratio, linearised, paired over tokens and clustered by document; nan
    where the poorer map costs nothing.
    """
    found, each = {}, joint_level(max(len(better), 1), level)
    for block, losses in better.items():
        small, large = ((swap - base).mean(1) for swap in (losses, poorer[block]))  # [n], nats
        if not np.expm1(clustered(small, document, each).low) > least:
            continue
        if not large.mean() > 0:
            found[block] = Interval(np.nan, np.nan, np.nan)
            continue
        log_ratio = clustered(_log_cost(large) - _log_cost(small), document, each)
        found[block] = transformed(log_ratio, np.exp)
    return found


def _log_cost(rise: np.ndarray) -> np.ndarray:
    """log of exp(mean rise) - 1, as the mean of values a window, to first order."""
    mean = rise.mean()
    return np.log(np.expm1(mean)) - (rise - mean) / np.expm1(-mean)
