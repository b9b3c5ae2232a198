"""How linear an FFN is: sufficient statistics, the exact affine map, its held-out score, and what
kind of linearity it is.

One forward pass fills the moments of all blocks; maps, folds, ranks and learning curves come
from them alone (Whipp §3, §5.1, §5.4, §5.7)."""

from lib.linear.affine import AffineMap, Score, score_rows, svd_ridge
from lib.linear.baselines import Baselines, trained_baselines
from lib.linear.curve import RIDGES, LearningCurve, learning_curve, tokens_for
from lib.linear.descent import OPTIMIZERS, descend, exact_descent
from lib.linear.domains import agreement, domain_intervals, domain_profiles, transfer
from lib.linear.heavy import choose_definition, compare_definitions, massive_definitions, refits
from lib.linear.massive import TokenEnergy, token_energy, token_shares
from lib.linear.moments import Collector, Moments, total
from lib.linear.rank import RankProfile, rank_profile, reduced_rank
from lib.linear.reweighing import Reweighted, reweighted
from lib.linear.kinds import by_fold, fold_shapes, leading_shares, rank_mean, spectrum_rank, twins
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
    "by_fold",
    "choose_definition",
    "compare_definitions",
    "descend",
    "domain_intervals",
    "domain_profiles",
    "doubling",
    "exact_descent",
    "fold_intervals",
    "fold_moments",
    "fold_shapes",
    "leading_shares",
    "learning_curve",
    "massive_definitions",
    "moment_grid",
    "rank_mean",
    "rank_profile",
    "recoverability",
    "reduced_rank",
    "refits",
    "reweighted",
    "score_rows",
    "spectrum_rank",
    "svd_ridge",
    "token_energy",
    "token_shares",
    "tokens_for",
    "total",
    "trained_baselines",
    "transfer",
    "twins",
]
