"""What the affine map leaves over: product branches on frozen maps, trained replacements, and
their solvers (Whipp §5.3, §5.5)."""

from lib.probes.accounting import accounting, gpt2_ffn, llama_ffn, macs_per_token
from lib.probes.budget import BRANCHES, EqualBudget, equal_budget
from lib.probes.candidates import Candidates, fit_candidates
from lib.probes.compare import Comparison, Effect, doubts, together
from lib.probes.held_out import by_document
from lib.probes.products import (
    BILINEAR,
    PROBES,
    PolyLinear,
    build_probe,
    conjunction_index,
    n_params,
    random_half,
)
from lib.probes.residual import ResidualProbes, residual_probes
from lib.probes.rows import BlockRows, Split

__all__ = [
    "BILINEAR",
    "BRANCHES",
    "PROBES",
    "BlockRows",
    "Candidates",
    "Comparison",
    "Effect",
    "EqualBudget",
    "PolyLinear",
    "ResidualProbes",
    "Split",
    "accounting",
    "build_probe",
    "by_document",
    "conjunction_index",
    "doubts",
    "equal_budget",
    "fit_candidates",
    "gpt2_ffn",
    "llama_ffn",
    "macs_per_token",
    "n_params",
    "random_half",
    "residual_probes",
    "together",
]
