"""Sufficient statistics of an FFN's (x, y): everything a linear fit and its score need, in O(d²)
memory.

Moments are centred, so that features with a large mean lose no digits, and they add and subtract
(Chan et al.'s update), so that a k-fold refit is "total minus fold" with no second pass over the
data.
"""

from dataclasses import dataclass, fields
from functools import cached_property

import torch

from lib.second.base.errors import InputError
from lib.second.linear.affine import AffineMap, Score, varying


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, means and centred sums of n rows, float64."""

    n: int
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

    @classmethod
    def of(cls, x: torch.Tensor, y: torch.Tensor) -> "Moments":
        """Moments of rows x [n, d_in], y [n, d_out]."""
        x, y = x.double(), y.double()
        mean_x, mean_y = x.mean(0), y.mean(0)
        both = torch.cat([x - mean_x, y - mean_y], 1)
        gram = both[:, : len(mean_x)].T @ both  # one product for Sxx and Sxy: [d_in, d_in + d_out]
        sxx, sxy = gram.split([len(mean_x), len(mean_y)], 1)
        return cls(
            len(x),
            mean_x,
            mean_y,
            sxx,
            sxy,
            varying(both[:, len(mean_x) :].square().sum(0), mean_y, len(x)),
        )

    def __add__(self, other: "Moments") -> "Moments":
        return self._merge(other, +1)

    def __sub__(self, other: "Moments") -> "Moments":
        """What is left when the rows of `other` are taken out. Raises InputError if nothing is
        left."""
        if other.n >= self.n:
            raise InputError(
                f"cannot take {other.n} rows out of {self.n}: use more tokens or fewer folds."
            )
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
            varying(self.syy + sign * other.syy + between * dy.square(), self.mean_y, n),
        )

    @cached_property
    def eigen(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Eigenvalues [r], ascending, and eigenvectors [d_in, r] of Sxx above the pseudo-inverse
        cut-off.

        The cut-off is that of a Hermitian pseudo-inverse, eps · d · e_max: below it an eigenvalue
        of Sxx is rounding. (LayerNorm makes one direction of its output exactly constant, so such
        directions are the rule in GPT-2 and Pythia.)
        """
        e, v = torch.linalg.eigh(self.sxx)
        keep = e > torch.finfo(e.dtype).eps * len(e) * e[-1]
        return e[keep], v[:, keep]

    @property
    def condition_number(self) -> float:
        """Largest over smallest kept eigenvalue of the input covariance (Whipp §5.1)."""
        e, _ = self.eigen
        return float(e[-1] / e[0]) if len(e) else float("nan")

    @property
    def rank(self) -> int:
        """Number of input directions that vary."""
        return len(self.eigen[0])

    def fit(self, ridge: float = 0.0) -> AffineMap:
        """The ridge map V (e+λ)⁻¹ Vᵀ Sxy (Balogh Eq. 3 by way of the moments); ridge 0 is exact
        least squares (Whipp §3.2).

        Raises InputError for a negative ridge.
        """
        if not ridge >= 0:
            raise InputError(
                f"ridge {ridge} is not possible: use 0 for least squares, or a positive number."
            )
        e, v = self.eigen
        weight = v @ ((v.T @ self.sxy) / (e + ridge)[:, None])
        return AffineMap(weight, self.mean_y - self.mean_x @ weight)

    def score(self, affine: AffineMap) -> Score:
        """Score of an affine map on the rows behind these moments, without the rows.

        Σ(y-ŷ)² = Syy - 2 diag(WᵀSxy) + diag(WᵀSxxW) + n (ȳ - x̄W - b)², feature by feature.
        """
        w = affine.weight.double()
        error = self.syy - 2 * (w * self.sxy).sum(0) + (w * (self.sxx @ w)).sum(0)
        error += self.n * (self.mean_y - self.mean_x @ w - affine.bias.double()).square()
        return Score.of(error.clamp_min(0), self.syy, self.n)

    def state(self) -> dict:
        """The fields as plain arrays, for the cache."""
        return {
            f.name: v.cpu().numpy() if isinstance(v := getattr(self, f.name), torch.Tensor) else v
            for f in fields(self)
        }

    @classmethod
    def from_state(cls, state: dict) -> "Moments":
        return cls(**{k: v if k == "n" else torch.from_numpy(v) for k, v in state.items()})

    def __repr__(self) -> str:
        return f"Moments(n={self.n:,}, {len(self.mean_x)} -> {len(self.mean_y)})"


def total(parts: list[Moments]) -> Moments:
    """Moments of all rows of the parts."""
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result


class Collector:
    """Gathers the Moments of every block while forward passes run; its `add` is the hook for
    hooks.record."""

    def __init__(self) -> None:
        self.moments: dict[int, Moments] = {}
        self._rows_seen: dict[int, int] = {}

    def add(self, block: int, x: torch.Tensor, y: torch.Tensor) -> None:
        """Add rows x, y [batch, position, d]. Raises InputError on a non-finite activation,
        naming block and token."""
        flat_x, flat_y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        batch = Moments.of(flat_x, flat_y)
        start = self._rows_seen.get(block, 0)
        if not torch.isfinite(batch.syy).all() or not torch.isfinite(batch.mean_x).all():
            bad = ~(torch.isfinite(flat_x).all(1) & torch.isfinite(flat_y).all(1))
            # Finite rows whose squares overflow cannot be: float32 squares fit in float64.
            token = start + int(bad.nonzero()[0])
            raise InputError(
                f"block {block}: the FFN's input or output is not finite at token {token} of "
                "this pass; "
                "load the model in float32 or check its weights."
            )
        self.moments[block] = self.moments[block] + batch if block in self.moments else batch
        self._rows_seen[block] = start + len(flat_x)
