"""Which tokens need the nonlinear path, and what it saves to route them (Balogh)."""

from lib.gates.auc import auc_table, clustered_auc, score_table
from lib.gates.compound import (
    gated,
    inflation,
    less_random,
    one_by_one,
    over_draws,
    same_shares,
    saved_interval,
    share_interval,
)
from lib.gates.delta import Deltas, deltas, single_deltas, tails
from lib.gates.evaluations import Evaluations, evaluations, single_effects
from lib.gates.fitted import (
    Chosen,
    Fitted,
    best_gates,
    choose_gates,
    fitted_gates,
    gate_scores,
)
from lib.gates.flops import Work, decoder_work, paper_saved, work
from lib.gates.frontier import (
    at_random,
    by_layer,
    compared,
    cut_elsewhere,
    frontier,
    linear_share,
    lowest,
    masked,
    needed,
)
from lib.gates.gate import GATES, MLP, Labels, compositions, fit_gate, gate_parameters, labels
from lib.gates.inputs import Inputs
from lib.gates.learned import below, calibrated, regression, regressions, values
from lib.gates.protocol import Protocol, at_depths, protocol, ridge_maps, spread
from lib.gates.refit import refit
from lib.gates.reliability import split_half, validity
from lib.gates.routing import (
    Routed,
    everywhere,
    padded,
    random_mask,
    routed,
    routed_losses,
)
from lib.gates.speed import Gated, break_even, paired_seconds, speed_ratios, with_share

__all__ = [
    "GATES",
    "MLP",
    "Chosen",
    "Deltas",
    "Evaluations",
    "Fitted",
    "Gated",
    "Inputs",
    "Labels",
    "Protocol",
    "Routed",
    "Work",
    "at_depths",
    "at_random",
    "auc_table",
    "below",
    "best_gates",
    "break_even",
    "by_layer",
    "calibrated",
    "choose_gates",
    "clustered_auc",
    "compared",
    "compositions",
    "cut_elsewhere",
    "decoder_work",
    "deltas",
    "evaluations",
    "everywhere",
    "fit_gate",
    "fitted_gates",
    "frontier",
    "gate_parameters",
    "gate_scores",
    "gated",
    "inflation",
    "labels",
    "less_random",
    "linear_share",
    "lowest",
    "masked",
    "needed",
    "one_by_one",
    "over_draws",
    "padded",
    "paired_seconds",
    "paper_saved",
    "protocol",
    "random_mask",
    "refit",
    "regression",
    "regressions",
    "ridge_maps",
    "routed",
    "routed_losses",
    "same_shares",
    "saved_interval",
    "score_table",
    "share_interval",
    "single_deltas",
    "single_effects",
    "speed_ratios",
    "split_half",
    "spread",
    "tails",
    "validity",
    "values",
    "with_share",
    "work",
]
