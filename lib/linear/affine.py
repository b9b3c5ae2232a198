"""Affine maps in the place of an FFN: a plain one, and one repaired off massive activations.

A map is a frozen module: called on x it gives ŷ, and `massive(x)` says on which positions it wants
the FFN to stay. Swapped into a model (lib.hooks.swap), the FFN computes those positions.
"""

import torch
from torch import nn

from lib.errors import InputError
from lib.keys import seal, words_of


class AffineMap(nn.Module):
    """y = x W + b, frozen: `weight` [d_in, d_out], `bias` [d_out]. Called, scored, swapped in."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor):
        super().__init__()
        self.register_buffer("weight", weight.detach())
        self.register_buffer("bias", bias.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., d_in] -> [..., d_out]
        return (x.to(self.weight.dtype) @ self.weight + self.bias).to(x.dtype)

    def massive(self, x: torch.Tensor) -> torch.Tensor:  # [..., d_in] -> [...] bool
        """Positions on which the FFN stays: none."""
        return torch.zeros(x.shape[:-1], dtype=torch.bool, device=x.device)

    def with_affine(self, affine: "AffineMap") -> "AffineMap":
        """This map with the weight and bias of another; the FFN stays on the same positions."""
        return affine


class MassiveKeptMap(AffineMap):
    """An affine map for ordinary positions; the FFN stays where x is predicted to be massive, where
    its part along `direction` [d_in] exceeds `threshold`."""

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor,
        direction: torch.Tensor,
        threshold: float,
    ):
        super().__init__(weight, bias)
        self.register_buffer("direction", direction.detach())
        self.threshold = threshold

    def massive(self, x: torch.Tensor) -> torch.Tensor:  # [..., d_in] -> [...] bool
        """Positions predicted to be massive, on which the FFN stays."""
        return x.float() @ self.direction > self.threshold

    def with_affine(self, affine: AffineMap) -> "MassiveKeptMap":
        """This map with the weight and bias of another; the FFN stays on the same positions."""
        repaired = MassiveKeptMap(affine.weight, affine.bias, self.direction, self.threshold)
        words, of_positions = words_of(affine), words_of(self)
        both = words and of_positions and f"{words}, FFN kept as by {of_positions}"
        return seal(repaired, both)


ROUNDING = 4.0
"""how often the precision of the rows rounding makes a constant direction vary, seen in LayerNorm's
outputs: up to 2.6"""


def precision_of(rows: torch.Tensor) -> float:
    """The relative precision in which rows were given."""
    return torch.finfo(rows.dtype if rows.is_floating_point() else torch.float64).eps


def spread_of(variance: torch.Tensor, mean: torch.Tensor, precision: float) -> torch.Tensor:
    """The standard deviation of each feature [d], infinite for one that varies by rounding alone:
    over it such a feature is 0."""
    rounding = (ROUNDING * precision) ** 2 * (variance + mean.square())
    return torch.where(variance > rounding, variance.sqrt(), torch.inf)


def least_norm(weight: torch.Tensor, unseen: torch.Tensor) -> torch.Tensor:
    """The weight [d_in, d_out] without its parts along directions [d_in, k] in which no row varies,
    as a pseudo-inverse has it."""
    u, s, _ = torch.linalg.svd(unseen, full_matrices=False)
    u = u[:, s > 1e-10 * s.max()] if s.any() else u[:, :0]
    return weight - u @ (u.T @ weight)


def constant(value: torch.Tensor, words: str | None = None) -> AffineMap:
    """The map that always gives `value` [d], zero ablation or mean ablation, and what it is called
    in keys."""
    return seal(AffineMap(torch.zeros(len(value), len(value)).to(value), value), words)


def svd_ridge(x: torch.Tensor, y: torch.Tensor, ridge: float = 0.01) -> AffineMap:
    """Ridge regression of rows y [n, d_out] on x [n, d_in] by SVD, to the letter of Balogh Eq. 3-4.

    W = V diag(s/(s²+λ)) Uᵀ Y_c and b = ȳ - x̄W. With ridge 0 it is the pseudo-inverse of the
    features in units of their own spread. Raises InputError for a ridge that is negative or no
    number.
    """
    if not ridge >= 0:
        raise InputError(f"a ridge of {ridge} is not possible: give a number from 0 up.")
    precision = precision_of(x)
    x, y = x.double(), y.double()
    if x.dim() != 2 or len(x) != len(y) or not len(x) or not torch.isfinite(x.sum() + y.sum()):
        raise InputError(
            f"x {tuple(x.shape)} and y {tuple(y.shape)} are no rows of finite numbers, one of each "
            "a position: give [n, d_in] and [n, d_out]."
        )
    centred, scale = x - x.mean(0), torch.ones_like(x[0])
    if ridge == 0:
        scale = spread_of(centred.square().mean(0), x.mean(0), precision)
    u, s, vh = torch.linalg.svd(centred / scale, full_matrices=len(x) < x.shape[1])
    # Directions that vary by rounding alone, that of the rows or of the SVD, get no weight.
    rounding = max(ROUNDING * precision, torch.finfo(s.dtype).eps * max(x.shape))
    r = int((s > rounding * s[0]).sum())
    filtered = s[:r] / (s[:r] ** 2 + ridge)
    weight = vh[:r].T @ (filtered[:, None] * (u[:, :r].T @ (y - y.mean(0))))  # Balogh Eq. 3
    if ridge == 0:
        weight = least_norm(weight / scale[:, None], vh[r:].T / scale[:, None])
    return AffineMap(weight, y.mean(0) - x.mean(0) @ weight)  # Balogh Eq. 4
