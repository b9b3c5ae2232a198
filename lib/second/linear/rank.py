"""What kind of linearity (Whipp §5.4): effective rank by reduced-rank regression, from the
moments alone."""

from dataclasses import dataclass

import torch

from lib.second.base.errors import InputError
from lib.second.linear.affine import AffineMap
from lib.second.linear.moments import Moments


@dataclass(frozen=True, eq=False)
class RankProfile:
    """Held-out R² of the best rank-k linear map, for every k."""

    r2: torch.Tensor
    """[k_max]: r2[k-1] is the R² of rank k; the last is that of the full map"""

    def effective_rank(self, share: float = 0.9) -> int | None:
        """Smallest k whose R² reaches `share` of the full map's (Whipp §3.3); None if the full
        map explains nothing."""
        full = float(self.r2[-1])
        return int((self.r2 >= share * full).nonzero()[0]) + 1 if full > 0 else None


def _weighing(train: Moments, standardized: bool, outputs: Moments | None) -> torch.Tensor:
    """Output coordinates in which errors are weighed alike, as columns [d_out, q]: plain, unit
    variance by feature, or whitened."""
    if outputs is not None:
        e, v = torch.linalg.eigh(outputs.sxx / outputs.n)
        keep = e > torch.finfo(e.dtype).eps * len(e) * e[-1]
        return v[:, keep] / e[keep].sqrt()
    scale = (
        torch.where(train.syy > 0, (train.syy / train.n).sqrt(), torch.inf)
        if standardized
        else torch.ones_like(train.syy)
    )
    return torch.diag(1 / scale)


def _directions(
    train: Moments, full: AffineMap, weighing: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The full map onto weighed outputs, [d_in, q], and its output directions by fitted
    variance, [q, k_max]."""
    weight = full.weight @ weighing
    fitted = weight.T @ train.sxx @ weight  # covariance of the fitted values, times n
    _, v = torch.linalg.eigh(fitted)
    return weight, v.flip(1)[:, : min(weight.shape[1], train.rank)]


def rank_profile(
    train: Moments,
    held_out: Moments,
    standardized: bool = False,
    ridge: float = 0.0,
    outputs: tuple[Moments, Moments] | None = None,
) -> RankProfile:
    """R² on `held_out` of the reduced-rank regressions fitted on `train`, all ranks at once.

    The rank-k map is W* V_k V_kᵀ, V_k the leading eigenvectors of W*ᵀ Sxx W* (reduced-rank
    regression with identity weight). In that output basis the squared error falls by a sum of k
    separate gains, which need Sxx and Sxy only: no second pass over the data.

    The weighted effective ranks that Whipp §8 asks for: `standardized` divides every output feature
    by its standard deviation first, so that no outlier feature outweighs the others (features
    without variance are left out); `outputs`, the Moments of (y, y) on the training and the
    held-out rows, whitens the outputs by their whole training covariance, so that every direction
    weighs the same (on the training rows R² is then the mean squared canonical correlation).
    """
    weighing = _weighing(train, standardized, outputs and outputs[0])
    weight, v = _directions(train, train.fit(ridge), weighing)
    dx, dy = held_out.mean_x - train.mean_x, (held_out.mean_y - train.mean_y) @ weighing
    # About the training means, for the maps pass through them.
    cxx = held_out.sxx + held_out.n * torch.outer(dx, dx)
    cxy = held_out.sxy @ weighing + held_out.n * torch.outer(dx, dy)
    a = weight @ v  # [d_in, k_max]
    gains = 2 * (a * (cxy @ v)).sum(0) - (a * (cxx @ a)).sum(0)
    covariance = outputs[1].sxx if outputs else torch.diag(held_out.syy)
    syy = (weighing * (covariance @ weighing)).sum()
    if not syy > 0:
        raise InputError(
            "the rank profile is undefined: no held-out output feature varies; use more tokens."
        )
    return RankProfile(1 - (syy + held_out.n * dy.square().sum() - gains.cumsum(0)) / syy)


def reduced_rank(train: Moments, rank: int, ridge: float = 0.0) -> AffineMap:
    """The rank-`rank` least-squares map. Raises InputError for a rank that the FFN does not
    allow."""
    full = train.fit(ridge)
    _, v = _directions(train, full, torch.eye(len(train.mean_y), dtype=torch.float64))
    if not 1 <= rank <= v.shape[1]:
        raise InputError(
            f"rank {rank} is not possible here: the inputs and outputs of this FFN allow 1 "
            f"to {v.shape[1]}."
        )
    weight = full.weight @ v[:, :rank] @ v[:, :rank].T
    return AffineMap(weight, train.mean_y - train.mean_x @ weight)
