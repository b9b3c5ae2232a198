"""What a linear map leaves over, and a fit to it followed over its checkpoints (Whipp §5.3)."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from lib.second.probes.products import START, PolyLinear


@dataclass(frozen=True, eq=False)
class Residual:
    """Inputs and what a linear map leaves of the outputs, on training rows and on held-out
    windows."""

    x: torch.Tensor
    """[n, d_in]"""
    left: torch.Tensor
    """[n, d_out]: y - xW - b"""
    x_test: torch.Tensor
    """[n_windows, seq_len, d_in]"""
    left_test: torch.Tensor
    """[n_windows, seq_len, d_out]"""


@dataclass
class Path:
    """One fit followed over its checkpoints; only the checkpoint with the least held-out error
    keeps its parameters."""

    seed: int
    step: list[int]
    seconds: list[float]
    gate: list[float]
    errors: list[np.ndarray]
    """squared error of each held-out window, [n_windows], at each checkpoint; the first is that
    of the linear map alone"""
    branch: dict[str, np.ndarray]
    """factors, out and quad_scale of the best checkpoint; `out` is zero where the linear map
    alone is best"""

    def note(
        self,
        step: int,
        seconds: float,
        gate: float,
        errors: np.ndarray,
        branch: dict[str, torch.Tensor],
    ) -> None:
        """Add a checkpoint. A diverged fit has an infinite error, so it never is the best."""
        errors = np.where(np.isfinite(errors), errors, np.inf)
        if errors.sum() < min(e.sum() for e in self.errors):
            self.branch = {
                name: value.detach().cpu().float().numpy().copy() for name, value in branch.items()
            }
        for values, value in (
            (self.step, step),
            (self.seconds, seconds),
            (self.gate, gate),
            (self.errors, errors),
        ):
            values.append(value)


def _start(rows: Residual, model: PolyLinear, seed: int) -> Path:
    nothing = {
        "factors": model.factors,
        "out": torch.zeros_like(model.out),
        "quad_scale": model.quad_scale,
    }
    base = _by_window(rows.left_test)
    return Path(
        seed,
        [0],
        [0.0],
        [math.exp(START)],
        [base],
        {k: v.detach().cpu().numpy().copy() for k, v in nothing.items()},
    )


def _by_window(error: torch.Tensor) -> np.ndarray:
    return error.double().square().sum((-1, -2)).cpu().numpy()
