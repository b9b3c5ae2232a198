"""Sufficient statistics of an FFN's (x, y): all that a linear fit and its score need, in O(d²).

Moments are centred, so features with a large mean lose no digits, and they add and subtract (Chan
et al.), so a k-fold refit is "total minus fold", and prefixes of a sample give the learning curve,
at no second pass over the data.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from lib.errors import InputError
from lib.hooks import forward
from lib.linear.affine import ROUNDING, AffineMap, least_norm, precision_of, spread_of
from lib.models.blocks import Subject
from lib.store import cached
from lib.text.windows import Windows

HEAVY = 8.0  # rows whose output norm exceeds so many medians of their batch are kept as they are


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, means and centred sums of n rows, float64; of weighted ones n is their sum."""

    n: float
    mean_x: torch.Tensor
    """[d_in]"""
    mean_y: torch.Tensor
    """[d_out]"""
    sxx: torch.Tensor
    """[d_in, d_in]: Σ (x-x̄)(x-x̄)ᵀ"""
    sxy: torch.Tensor
    """[d_in, d_out]: Σ (x-x̄)(y-ȳ)ᵀ"""
    syy: torch.Tensor
    """[d_out]: Σ (y-ȳ)², the diagonal only"""
    precision: float = torch.finfo(torch.float32).eps
    """the relative precision of the rows' x"""

    @classmethod
    def of(cls, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None = None) -> "Moments":
        """Moments of rows x [n, d_in], y [n, d_out]; each counts as its `weight` [n] says, or 1."""
        if not len(x):
            raise InputError("no rows have no moments: give more text, or fewer conditions on it.")
        precision = precision_of(x)
        x, y = x.double(), y.double()
        if weight is not None:
            return cls._of_weighted(x, y, weight.double(), precision)
        mean_x, mean_y = x.mean(0), y.mean(0)
        both = torch.cat([x - mean_x, y - mean_y], 1)
        sxx, sxy = (both[:, : x.shape[1]].T @ both).split([x.shape[1], y.shape[1]], 1)
        syy = both[:, x.shape[1] :].square().sum(0)
        return cls(len(x), mean_x, mean_y, sxx, sxy, syy, precision)

    @classmethod
    def _of_weighted(
        cls, x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, precision: float
    ) -> "Moments":
        n = float(weight.sum())
        mean_x, mean_y = weight @ x / n, weight @ y / n
        x, y = (x - mean_x) * weight.sqrt()[:, None], (y - mean_y) * weight.sqrt()[:, None]
        return cls(n, mean_x, mean_y, x.T @ x, x.T @ y, y.square().sum(0), precision)

    def __add__(self, other: "Moments") -> "Moments":
        return self._merge(other, +1)

    def __sub__(self, other: "Moments") -> "Moments":
        """What is left without the rows of `other`. Raises InputError if nothing is left."""
        if other.n >= self.n:
            raise InputError(f"cannot take {other.n} rows out of {self.n}: use more tokens.")
        return self._merge(other, -1)

    def _merge(self, other: "Moments", sign: int) -> "Moments":
        n = self.n + sign * other.n
        dx, dy = other.mean_x - self.mean_x, other.mean_y - self.mean_y
        between = sign * self.n * other.n / n
        return Moments(
            n,
            self.mean_x + dx * (sign * other.n / n),
            self.mean_y + dy * (sign * other.n / n),
            (self.sxx + sign * other.sxx).addr_(dx, dx, alpha=between),
            (self.sxy + sign * other.sxy).addr_(dx, dy, alpha=between),
            (self.syy + sign * other.syy + between * dy.square()).clamp_min(0),
            max(self.precision, other.precision),
        )

    @cached_property
    def eigen(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Eigenvalues [r], ascending, and eigenvectors [d_in, r] of Sxx, of directions that vary by
        more than rounding: above the cut-off of a Hermitian pseudo-inverse, eps · d · e_max, and
        above what the precision of the rows makes of a constant direction. (LayerNorm makes one
        direction of its output constant, so such directions are the rule in GPT-2 and Pythia.)"""
        e, v, _ = self._directions(torch.ones_like(self.mean_x))
        return e, v

    def _directions(self, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`eigen` of the features over their `scale` [d_in], and the other eigenvectors."""
        if not torch.isfinite(self.sxx).all():
            raise InputError(
                f"the {self.n} rows hold values that are no numbers or too large: leave these out."
            )
        e, v = torch.linalg.eigh(self.sxx / scale / scale[:, None])
        of_rows = (ROUNDING * self.precision) ** 2  # of a variance
        keep = e > max(of_rows, torch.finfo(e.dtype).eps * len(e)) * e[-1]
        return e[keep], v[:, keep], v[:, ~keep]

    def fit(self, ridge: float = 0.0) -> AffineMap:
        """The map V (e+λ)⁻¹ Vᵀ Sxy, which is svd_ridge by way of the moments; ridge 0 is exact
        least squares, Whipp's ceiling (§3.2), with every feature in its own spread, for it does not
        depend on units and its cut-off should not either. Raises InputError for a ridge that is
        negative or no number."""
        if not ridge >= 0:
            raise InputError(f"a ridge of {ridge} is not possible: give a number from 0 up.")
        if ridge:
            e, v = self.eigen
            weight = v @ ((v.T @ self.sxy) / (e + ridge)[:, None])
        else:
            scale = spread_of(self.sxx.diagonal() / self.n, self.mean_x, self.precision)
            e, v, unseen = self._directions(scale)
            v, unseen = v / scale[:, None], unseen / scale[:, None]
            weight = least_norm(v @ ((v.T @ self.sxy) / e[:, None]), unseen)
        return AffineMap(weight, self.mean_y - self.mean_x @ weight)

    def error(self, affine: AffineMap) -> torch.Tensor:
        """Σ (y-ŷ)² of each feature over the rows behind these moments, [d_out], without the rows:
        Syy - 2 diag(WᵀSxy) + diag(WᵀSxxW) + n (ȳ - x̄W - b)²."""
        w = affine.weight.double()
        error = self.syy - 2 * (w * self.sxy).sum(0) + (w * (self.sxx @ w)).sum(0)
        error += self.n * (self.mean_y - self.mean_x @ w - affine.bias.double()).square()
        return error.clamp_min(0)

    def r2(self, affine: AffineMap) -> float:
        """1 - Σ‖y-ŷ‖² / Σ‖y-ȳ‖² on these rows, ȳ their own mean: variance-weighted (Whipp §3.3).
        Raises InputError where the rows do not vary."""
        if not self.syy.sum() > 0:
            raise InputError(f"R² is undefined: the {self.n} rows have no variance; use more text.")
        return float(1 - self.error(affine).sum() / self.syy.sum())


@dataclass(frozen=True, eq=False)
class BlockSample:
    """What one pass over a sample of text keeps of one FFN."""

    moments: Moments
    norm: np.ndarray
    """[n, seq_len], float32: ‖y‖ of every token"""
    heavy: np.ndarray
    """[h]: flat indices of the rows with a large norm, which are kept as they are"""
    x: torch.Tensor
    """[h, d]: their inputs"""
    y: torch.Tensor
    """[h, d]: their outputs"""


class _SampleBuilder:
    """Adds up the batches of one FFN."""

    def __init__(self):
        self.moments: Moments | None = None
        self.norms: list[np.ndarray] = []
        self.n_rows = 0
        self.heavy: list[torch.Tensor] = []
        self.heavy_x: list[torch.Tensor] = []
        self.heavy_y: list[torch.Tensor] = []

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """A batch of x and y, each [batch, position, d]."""
        x, y = x.float(), y.float()  # numpy has no bfloat16
        norm = y.norm(dim=-1)  # [batch, position]
        self.norms.append(norm.cpu().numpy())
        x, y, norm = x.flatten(0, 1), y.flatten(0, 1), norm.flatten()
        of_batch = Moments.of(x, y)
        self.moments = of_batch if self.moments is None else self.moments + of_batch
        # Rows of a large norm are kept as they are.
        large = (norm > HEAVY * norm.median()).nonzero().flatten()
        self.heavy.append((self.n_rows + large).cpu())
        self.heavy_x.append(x[large].cpu())
        self.heavy_y.append(y[large].cpu())
        self.n_rows += len(x)

    def sample(self) -> BlockSample:
        norm, heavy = np.concatenate(self.norms), torch.cat(self.heavy).numpy()
        x, y = torch.cat(self.heavy_x), torch.cat(self.heavy_y)
        if self.moments is None:
            raise InputError("a sample of no windows has no moments: give at least one.")
        return BlockSample(self.moments, norm, heavy, x, y)


@cached("moments of FFNs", 1)
def collect(subject: Subject, windows: Windows) -> list[BlockSample]:
    """A sample of every FFN on `windows`, in one pass."""
    builders = [_SampleBuilder() for _ in subject.blocks]

    def add(b: int, x: torch.Tensor, y: torch.Tensor) -> None:
        builders[b].add(x, y)

    forward(subject, windows, on_ffn=add, desc=f"statistics of {len(subject)} FFNs")
    return [builder.sample() for builder in builders]
