"""What the affine map leaves over: product branches on frozen maps, trained replacements, and
their solvers (Whipp §5.3, §5.5)."""

from lib.probes.candidates import Candidates, fit_candidates
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
    "PROBES",
    "BlockRows",
    "Candidates",
    "PolyLinear",
    "ResidualProbes",
    "Split",
    "build_probe",
    "conjunction_index",
    "fit_candidates",
    "n_params",
    "random_half",
    "residual_probes",
]
