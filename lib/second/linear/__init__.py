"""How linear an FFN is: sufficient statistics, the exact affine map, its held-out score, and what
kind of linearity it is.

One forward pass fills the moments of all blocks; maps, folds, ranks and learning curves come
from them alone (Whipp §3, §5.1, §5.4, §5.7)."""

from lib.second.linear.across import (
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
from lib.second.linear.affine import AffineMap, Score, score_rows, svd_ridge
from lib.second.linear.baselines import Baselines, trained_baselines
from lib.second.linear.budget import doubled_to, has_budget, left_to_limit, sampled_tokens
from lib.second.linear.conditioning import conditioning, decades_removed, median_condition, variance_ratios
from lib.second.linear.control import Controls, controls
from lib.second.linear.curve import RIDGES, LearningCurve, learning_curve, tokens_for
from lib.second.linear.descent import OPTIMIZERS, descend, exact_descent
from lib.second.linear.domains import domain_intervals, domain_profiles, transfer
from lib.second.linear.heavy import choose_definition, compare_definitions, massive_definitions, refits
from lib.second.linear.kinds import by_fold, fold_shapes, leading_shares, rank_mean, spectrum_rank, twins
from lib.second.linear.massive import (
    TIMES,
    TokenEnergy,
    largest_ordinary,
    output_norms,
    token_energy,
    token_shares,
)
from lib.second.linear.moments import Collector, Moments, total
from lib.second.linear.rank import RankProfile, rank_profile, reduced_rank
from lib.second.linear.reweighing import Reweighted, reweighted
from lib.second.linear.shape import (
    block_intervals,
    depth_trend,
    ends_less_middle,
    fair_range,
    folds_agree,
    largest_miss,
    rise_and_fall,
    step_intervals,
    straddling,
    turns,
)
from lib.second.linear.survey import (
    Recoverability,
    doubling,
    fold_intervals,
    fold_moments,
    moment_grid,
    recoverability,
)
from lib.second.linear.understated import closed_by_whitening, fitted_margin, shortfalls, steps_needed
from lib.second.linear.without import WithAndWithout, with_and_without

__all__ = [
    "OPTIMIZERS",
    "RIDGES",
    "TIMES",
    "AffineMap",
    "Baselines",
    "Collector",
    "Controls",
    "LearningCurve",
    "Moments",
    "RankProfile",
    "Recoverability",
    "Reweighted",
    "Score",
    "TokenEnergy",
    "WithAndWithout",
    "agreement",
    "block_intervals",
    "block_shifts",
    "by_fold",
    "choose_definition",
    "closed_by_whitening",
    "compare_definitions",
    "conditioning",
    "controls",
    "decades_removed",
    "depth_trend",
    "descend",
    "domain_intervals",
    "domain_profiles",
    "doubled_to",
    "doubling",
    "ends_less_middle",
    "exact_descent",
    "fair_range",
    "fitted_margin",
    "fold_intervals",
    "fold_moments",
    "fold_shapes",
    "folds_agree",
    "has_budget",
    "largest_miss",
    "largest_ordinary",
    "leading_shares",
    "leads",
    "learning_curve",
    "left_to_limit",
    "massive_definitions",
    "median_condition",
    "models_over_texts",
    "moment_grid",
    "output_norms",
    "rank_mean",
    "rank_profile",
    "recoverability",
    "reduced_rank",
    "refits",
    "reweighted",
    "rise_and_fall",
    "same_ends",
    "sampled_tokens",
    "score_rows",
    "scores_of",
    "shortfalls",
    "side_by_side",
    "spectrum_rank",
    "step_intervals",
    "steps_needed",
    "straddling",
    "svd_ridge",
    "token_energy",
    "token_shares",
    "tokens_for",
    "total",
    "trained_baselines",
    "transfer",
    "transfer_loss",
    "turns",
    "turns_of",
    "twins",
    "variance_ratios",
    "with_and_without",
]
