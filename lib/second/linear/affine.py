"""The affine surrogate of an FFN, its closed-form fit from rows, and its score."""

from dataclasses import dataclass

import torch
from torch import nn

from lib.second.base.errors import InputError


class AffineMap(nn.Module):
    """y = x W + b, frozen: `weight` [d_in, d_out], `bias` [d_out]. Can be called, scored,
    swapped in, saved (state dict)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor):
        super().__init__()
        self.register_buffer("weight", weight.detach())
        self.register_buffer("bias", bias.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., d_in] -> [..., d_out]
        # A float64 fit can so be swapped into a float32 model as it is.
        return (x.to(self.weight.dtype) @ self.weight + self.bias).to(x.dtype)

    def __repr__(self) -> str:
        return (
            f"AffineMap({self.weight.shape[0]} -> {self.weight.shape[1]}, "
            f"{str(self.weight.dtype).removeprefix('torch.')})"
        )


def svd_ridge(x: torch.Tensor, y: torch.Tensor, ridge: float = 0.01) -> AffineMap:
    """Ridge regression by SVD, to the letter of Balogh Eq. 3-4: W = V diag(s/(s^2+λ)) Uᵀ Y_c, b = ȳ
    - x̄ W.

    x [n, d_in], y [n, d_out]; computed in float64. With ridge 0, singular values below the usual
    pseudo-inverse cut-off (eps · max(n, d_in) · s_max) are left out.
    """
    x, y = x.double(), y.double()
    mean_x, mean_y = x.mean(0), y.mean(0)
    u, s, vh = torch.linalg.svd(x - mean_x, full_matrices=False)  # u [n, r], s [r], vh [r, d_in]
    keep = s > torch.finfo(s.dtype).eps * max(x.shape) * s[0]
    filtered = torch.where(keep, s / (s**2 + ridge), 0.0)
    weight = vh.T @ (filtered[:, None] * (u.T @ (y - mean_y)))  # Balogh Eq. 3
    return AffineMap(weight, mean_y - mean_x @ weight)  # Balogh Eq. 4


def varying(squares: torch.Tensor, mean: torch.Tensor, n: int) -> torch.Tensor:
    """Sums of n squared deviations [d], with those that are only rounding about a constant set to
    0.

    A constant such as 0.1 has no exact mean; what is left is below 1e-12 of its size, far under
    float32's own resolution.
    """
    return torch.where(squares <= n * (1e-12 * mean).square(), 0.0, squares)  # nan stays nan


@dataclass(frozen=True)
class Score:
    """How well a map predicts held-out rows."""

    r2: float
    """1 - Σ‖y-ŷ‖² / Σ‖y-ȳ‖², ȳ the held-out mean, summed over features: variance-weighted (Whipp
    §3.3)"""
    per_feature_r2: torch.Tensor
    """[d_out]; nan for a feature without variance, where R² is undefined"""
    rmse: float
    """root of the mean squared error over rows and features, in the units of y"""

    @property
    def median_r2(self) -> float:
        """Median of the defined per-feature R² (Whipp §3.3)."""
        return float(self.per_feature_r2.nanquantile(0.5))

    @property
    def n_undefined(self) -> int:
        """Number of output features without variance, left out of the median."""
        return int(self.per_feature_r2.isnan().sum())

    @classmethod
    def of(cls, squared_error: torch.Tensor, total: torch.Tensor, n: int) -> "Score":
        """From per-feature sums over n rows: squared errors and squared deviations from the
        mean, each [d_out]."""
        if n < 2 or not total.sum() > 0:
            raise InputError(
                f"R² is undefined: the {n} held-out rows have no variance; use more tokens."
            )
        return cls(
            float(1 - squared_error.sum() / total.sum()),
            torch.where(total > 0, 1 - squared_error / total, torch.nan),
            float((squared_error.sum() / (n * len(total))).clamp_min(0).sqrt()),
        )


def score_rows(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Score:
    """Score any map on rows x [n, d_in], y [n, d_out], in float64 sums."""
    with torch.no_grad():
        error = (y.double() - model(x).double()).square().sum(0)
    mean = y.double().mean(0)
    return Score.of(error, varying((y.double() - mean).square().sum(0), mean, len(y)), len(y))
