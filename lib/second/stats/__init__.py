"""Intervals, correlations, shares of variance, and the verdicts that follow from them."""

from lib.second.stats.controls import control_passes, settled
from lib.second.stats.folds import (
    jackknifed,
    last_less_mean,
    spread_ratio,
    std_intervals,
)
from lib.second.stats.intervals import (
    Interval,
    bootstrap,
    clustered,
    fold_mean,
    pearson,
    spearman,
)
from lib.second.stats.joint import (
    Concentrated,
    concentrated,
    joint_level,
    jointly,
    largest,
    over_seeds,
    pooled_over_seeds,
    pooled_spread,
    smallest,
)
from lib.second.stats.ledger import claim_row, same_setting
from lib.second.stats.pairs import concordant_pairs, kendall_within, share_over, top_overlap
from lib.second.stats.published import half_unit, published
from lib.second.stats.rank import RankResult, rank_correlation
from lib.second.stats.ratios import absolute, influence, jackknife
from lib.second.stats.resampled import Quantiles, over_documents, over_halves, weighted_mean
from lib.second.stats.rows import auc_rows, pearson_rows
from lib.second.stats.rules import guarded
from lib.second.stats.twoway import (
    crossed,
    pooled_half_width,
    seeds_and_documents,
    seeds_by_documents,
    seeds_by_documents_jointly,
)
from lib.second.stats.variance import pairwise, variance_shares
from lib.second.stats.verdicts import Judged, judge

__all__ = [
    "Concentrated",
    "Interval",
    "Judged",
    "Quantiles",
    "RankResult",
    "absolute",
    "auc_rows",
    "bootstrap",
    "claim_row",
    "clustered",
    "concentrated",
    "concordant_pairs",
    "control_passes",
    "crossed",
    "fold_mean",
    "guarded",
    "half_unit",
    "influence",
    "jackknife",
    "jackknifed",
    "joint_level",
    "jointly",
    "judge",
    "kendall_within",
    "largest",
    "last_less_mean",
    "over_documents",
    "over_halves",
    "over_seeds",
    "pairwise",
    "pearson",
    "pearson_rows",
    "pooled_half_width",
    "pooled_over_seeds",
    "pooled_spread",
    "published",
    "rank_correlation",
    "same_setting",
    "seeds_and_documents",
    "seeds_by_documents",
    "seeds_by_documents_jointly",
    "settled",
    "share_over",
    "smallest",
    "spearman",
    "spread_ratio",
    "std_intervals",
    "top_overlap",
    "variance_shares",
    "weighted_mean",
]
