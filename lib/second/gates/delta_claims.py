"""How δ is distributed, and how its two readings differ: statistics with intervals over documents
(Balogh §3.2, §4.4, §5.2)."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.second.stats.intervals import Interval, clustered, spearman
from lib.second.stats.resampled import Quantiles, over_documents

ByBlock = Mapping[int, np.ndarray]
"""{block: δ [n, t]} of n windows, nats"""


def quantile(by_block: ByBlock, share: float, document) -> Interval:
    """A quantile of δ over positions, median over blocks."""
    of = Quantiles(np.stack(list(by_block.values())))
    return over_documents(lambda w: np.median(of(w, share)), document)


def skew(by_block: ByBlock, document) -> Interval:
    """95th percentile less median over median less 5th percentile, median over blocks."""
    of = Quantiles(np.stack(list(by_block.values())))

    def ratio(weight: np.ndarray) -> float:
        low, middle, high = of(weight, 0.05, 0.5, 0.95)
        return float(np.median((high - middle) / (middle - low)))

    return over_documents(ratio, document)


def near_zero(by_block: ByBlock, document, within: float = 0.05) -> Interval:
    """Share of all (block, position) evaluations with |δ| below `within` nats."""
    values = np.mean([(np.abs(delta) < within).mean(1) for delta in by_block.values()], axis=0)
    return clustered(values, document)


def negative(by_block: ByBlock, document) -> Interval:
    """Share of positions with δ below 0, median over blocks."""
    shares = np.stack([(delta < 0).mean(1) for delta in by_block.values()])
    return over_documents(lambda w: np.median(shares @ w) / w.sum(), document)


def cancelled(by_block: ByBlock, document) -> Interval:
    """Sum of -δ where δ is below 0 over the sum of δ where it is above, median over blocks."""
    gains = np.stack([np.maximum(-delta, 0).sum(1) for delta in by_block.values()])
    losses = np.stack([np.maximum(delta, 0).sum(1) for delta in by_block.values()])
    return over_documents(lambda w: np.median((gains @ w) / (losses @ w)), document)


def readings(positions: np.ndarray, single: ByBlock, together: ByBlock) -> pd.DataFrame:
    """δ of some positions by both readings, a row a block: the means with the map at that position
    alone (mean_single) and at all (mean_all; mean_all_everywhere over all positions), their
    standard deviations, and their rank correlation.

    positions [n, k] and single {block: [n, k]} are those of `single_deltas`; together {block: [n,
    t]}.
    """
    rows = []
    for block, alone in single.items():
        here = np.take_along_axis(together[block], positions, 1)
        rows.append(
            {
                "block": block,
                "mean_single": alone.mean(),
                "mean_all": here.mean(),
                "mean_all_everywhere": together[block].mean(),
                "sd_single": alone.std(ddof=1),
                "sd_all": here.std(ddof=1),
                "rank_correlation": spearman(alone.ravel(), here.ravel()),
            }
        )
    return pd.DataFrame(rows)


def readings_agree(positions: np.ndarray, single: ByBlock, together: ByBlock, document) -> Interval:
    """Rank correlation of the two readings over positions, median over blocks."""
    pairs = [
        (alone, np.take_along_axis(together[block], positions, 1))
        for block, alone in single.items()
    ]

    def middle(weight: np.ndarray) -> float:
        rows = np.repeat(np.arange(len(weight)), weight.astype(int))
        return float(np.median([spearman(a[rows].ravel(), b[rows].ravel()) for a, b in pairs]))

    return over_documents(middle, document, resamples=500)
