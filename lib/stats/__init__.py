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
from lib.stats.variance import pairwise, variance_shares

__all__ = [
    "VERDICTS",
    "Claim",
    "Concentration",
    "Interval",
    "above",
    "all_of",
    "any_of",
    "at_budget",
    "below",
    "bootstrap",
    "collate",
    "concentration",
    "leave_one_out",
    "mean_difference",
    "pairwise",
    "pearson",
    "published",
    "share_gap",
    "spearman",
    "spread",
    "table",
    "variance_shares",
    "within",
]
