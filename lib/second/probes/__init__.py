"""What the affine map leaves over: product branches on frozen maps, trained replacements, and
their solvers (Whipp §5.3, §5.5)."""

from lib.second.probes.accounting import accounting, gpt2_ffn, llama_ffn, macs_per_token
from lib.second.probes.budget import BRANCHES, EqualBudget, equal_budget
from lib.second.probes.candidates import Candidates, fit_candidates
from lib.second.probes.compare import Comparison, Effect, doubts, together
from lib.second.probes.held_out import by_document
from lib.second.probes.products import (
    BILINEAR,
    PROBES,
    PolyLinear,
    build_probe,
    conjunction_index,
    n_params,
    random_half,
)
from lib.second.probes.recruitment import gate_reach, gate_table, geometric_mean
from lib.second.probes.residual import ResidualProbes, residual_probes
from lib.second.probes.rows import BlockRows, Split
from lib.second.probes.unseen import (
    Unseen,
    each_over_documents,
    over_documents,
    pearson_over_blocks,
    share_gap_by_kind,
    stopping_bias,
    units_table,
    unseen,
)

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
    "Unseen",
    "accounting",
    "build_probe",
    "by_document",
    "conjunction_index",
    "doubts",
    "each_over_documents",
    "equal_budget",
    "fit_candidates",
    "gate_reach",
    "gate_table",
    "geometric_mean",
    "gpt2_ffn",
    "llama_ffn",
    "macs_per_token",
    "n_params",
    "over_documents",
    "pearson_over_blocks",
    "random_half",
    "residual_probes",
    "share_gap_by_kind",
    "stopping_bias",
    "together",
    "units_table",
    "unseen",
]
