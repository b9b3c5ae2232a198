"""Which tokens need the nonlinear path, and what it saves to route them (Balogh)."""

from lib.gates.auc import auc_table, clustered_auc, score_table
from lib.gates.delta import Deltas, deltas, single_deltas, tails
from lib.gates.fitted import (
    Chosen,
    Fitted,
    best_gates,
    choose_gates,
    fitted_gates,
    gate_scores,
)
from lib.gates.gate import GATES, MLP, Labels, compositions, fit_gate, gate_parameters, labels
from lib.gates.inputs import Inputs
from lib.gates.protocol import Protocol, at_depths, learners, protocol, ridge_maps, spread
from lib.gates.routing import (
    Routed,
    everywhere,
    padded,
    random_mask,
    routed,
    routed_losses,
)

__all__ = [
    "GATES",
    "MLP",
    "Chosen",
    "Deltas",
    "Fitted",
    "Inputs",
    "Labels",
    "Protocol",
    "Routed",
    "at_depths",
    "auc_table",
    "best_gates",
    "choose_gates",
    "clustered_auc",
    "compositions",
    "deltas",
    "everywhere",
    "fit_gate",
    "fitted_gates",
    "gate_parameters",
    "gate_scores",
    "labels",
    "learners",
    "padded",
    "protocol",
    "random_mask",
    "ridge_maps",
    "routed",
    "routed_losses",
    "score_table",
    "single_deltas",
    "spread",
    "tails",
]
