"""Intervals, correlations, shares of variance, and the verdicts that follow from them."""

from lib.stats.claims import (
    VERDICTS,
    Claim,
    above,
    all_of,
    any_of,
    at_budget,
    below,
    collate,
    count_findings,
    published,
    table,
    within,
)
from lib.stats.intervals import (
    Concentration,
    Interval,
    bootstrap,
    concentration,
    leave_one_out,
    mean_difference,
    pearson,
    share_gap,
    spearman,
    spread,
)
from lib.stats.joint import (
    Concentrated,
    concentrated,
    joint_level,
    jointly,
    largest,
    over_seeds,
    smallest,
)
from lib.stats.ledger import claim_row, rows_of, same_setting
from lib.stats.rank import RankResult, rank_correlation
from lib.stats.rules import guarded
from lib.stats.variance import pairwise, variance_shares
from lib.stats.verdicts import Judged, judge

__all__ = [
    "VERDICTS",
    "Claim",
    "Concentrated",
    "Concentration",
    "Interval",
    "Judged",
    "RankResult",
    "above",
    "all_of",
    "any_of",
    "at_budget",
    "below",
    "bootstrap",
    "claim_row",
    "collate",
    "concentrated",
    "concentration",
    "count_findings",
    "guarded",
    "joint_level",
    "jointly",
    "judge",
    "largest",
    "leave_one_out",
    "mean_difference",
    "over_seeds",
    "pairwise",
    "pearson",
    "published",
    "rank_correlation",
    "rows_of",
    "same_setting",
    "share_gap",
    "smallest",
    "spearman",
    "spread",
    "table",
    "variance_shares",
    "within",
]
