"""How linear an FFN is: sufficient statistics, the exact affine map, its held-out score, and what
kind of linearity it is.

One forward pass fills the moments of all blocks; maps, folds, ranks and learning curves come
from them alone (Whipp §3, §5.1, §5.4, §5.7)."""

from lib.linear.across import (
    agreement,
    block_shifts,
    leads,
    models_over_texts,
    same_ends,
    scores_of,
    side_by_side,
    transfer_loss,
    turns_of,
)
from lib.linear.affine import AffineMap, Score, score_rows, svd_ridge
from lib.linear.baselines import Baselines, trained_baselines
from lib.linear.curve import RIDGES, LearningCurve, learning_curve, tokens_for
from lib.linear.descent import OPTIMIZERS, descend, exact_descent
from lib.linear.domains import domain_intervals, domain_profiles, transfer
from lib.linear.massive import TokenEnergy, token_energy, token_shares
from lib.linear.moments import Collector, Moments, total
from lib.linear.rank import RankProfile, rank_profile, reduced_rank
from lib.linear.reweighing import Reweighted, reweighted
from lib.linear.survey import (
    Recoverability,
    adjacent_steps,
    doubling,
    fold_intervals,
    fold_moments,
    moment_grid,
    recoverability,
)

__all__ = [
    "OPTIMIZERS",
    "RIDGES",
    "AffineMap",
    "Baselines",
    "Collector",
    "LearningCurve",
    "Moments",
    "RankProfile",
    "Recoverability",
    "Reweighted",
    "Score",
    "TokenEnergy",
    "adjacent_steps",
    "agreement",
    "block_shifts",
    "descend",
    "domain_intervals",
    "domain_profiles",
    "doubling",
    "exact_descent",
    "fold_intervals",
    "fold_moments",
    "leads",
    "learning_curve",
    "models_over_texts",
    "moment_grid",
    "rank_profile",
    "recoverability",
    "reduced_rank",
    "reweighted",
    "same_ends",
    "score_rows",
    "scores_of",
    "side_by_side",
    "svd_ridge",
    "token_energy",
    "token_shares",
    "tokens_for",
    "total",
    "trained_baselines",
    "transfer",
    "transfer_loss",
    "turns_of",
]
