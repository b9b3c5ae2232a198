"""Which tokens need the nonlinear path, and what it saves to route them (Balogh)."""

from lib.gates.delta import Deltas, deltas, single_deltas, tails
from lib.gates.gate import GATES, MLP, Labels, compositions, fit_gate, gate_parameters, labels
from lib.gates.inputs import Inputs
from lib.gates.protocol import Protocol, at_depths, protocol, ridge_maps, spread
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
    "Deltas",
    "Inputs",
    "Labels",
    "Protocol",
    "Routed",
    "at_depths",
    "compositions",
    "deltas",
    "everywhere",
    "fit_gate",
    "gate_parameters",
    "labels",
    "padded",
    "protocol",
    "random_mask",
    "ridge_maps",
    "routed",
    "routed_losses",
    "single_deltas",
    "spread",
    "tails",
]
