"""What kind of linearity (Whipp §5.4): effective rank by reduced-rank regression, and R² feature by
feature, both by test window, so that documents can be resampled."""

from typing import NamedTuple

import numpy as np
import torch

from lib.hooks import forward
from lib.linear.affine import AffineMap
from lib.linear.moments import Moments
from lib.linear.regression import Fits, bulk_moments, gather
from lib.models.blocks import Subject
from lib.store import cached
from lib.text.windows import Windows


def directions(train: Moments) -> torch.Tensor:
    """Output directions of the least-squares map, by the variance that they carry, [d, k_max]: the
    rank-k regression is W* V_k V_kᵀ, V_k the leading eigenvectors of W*ᵀ Sxx W*."""
    weight = train.fit().weight
    _, v = torch.linalg.eigh(weight.T @ train.sxx @ weight)
    return v.flip(1)[:, : min(weight.shape[1], len(train.eigen[0]))]


def through(moments: Moments, v: torch.Tensor) -> AffineMap:
    """The least-squares map whose output varies only along the directions v [d, k], and has its
    mean along all others: with the first k columns of `directions` the rank-k regression."""
    weight = moments.fit().weight @ v @ v.T
    return AffineMap(weight.float(), (moments.mean_y - moments.mean_x @ weight).float())


@cached("maps by rank", 1, first="from", stop="to")
def rank_k_maps(subject: Subject, windows: Windows, first: int, stop: int) -> dict[int, AffineMap]:
    """{block: map}: each FFN's least-squares map through its output directions `first` to `stop`
    - 1 alone, all others at their mean; (0, k) is the rank-k regression."""
    samples = gather(subject, windows)
    return {
        b: through(sample.moments, directions(sample.moments)[:, first:stop])
        for b, sample in enumerate(samples)
    }


class _BlockMap(NamedTuple):
    """A block's least-squares map W and its output directions v_1 … v_k, float32."""

    v: torch.Tensor
    """[d, k]"""
    weight_v: torch.Tensor
    """[d, k]: W v_1 … W v_k"""
    weight: torch.Tensor
    """[d, d]: W"""
    mean_x: torch.Tensor
    """[d]"""
    mean_y: torch.Tensor
    """[d]"""

    @classmethod
    def fitted(cls, moments: Moments) -> "_BlockMap":
        v = directions(moments)
        weight = moments.fit().weight
        parts = (v, weight @ v, weight, moments.mean_x, moments.mean_y)
        return cls(*(part.float() for part in parts))

    def to(self, device: torch.device) -> "_BlockMap":
        return _BlockMap(*(part.to(device) for part in self))


@cached("gains by rank", 2, fit="fit text", test="test text", fits="maps")
def rank_gains(
    subject: Subject, fit: Windows, test: Windows, fits: Fits, bulk: bool = False
) -> dict[str, np.ndarray]:
    """The pieces of every rank-k map's held-out error, in one pass over `test`.

    Returns, by block and test window, gain [blocks, n, d]: the squared error that output direction
    k of the rank regression takes away; start [blocks, n]: Σ‖y-ȳ_fit‖², the error of rank 0; error
    [blocks, n, d]: the full map's, feature by feature; total [blocks, n, d]: Σ(y-ȳ)², ȳ the
    held-out mean. `bulk`: fitted and scored without massive tokens.
    """
    maps, limits = [], []
    for b, sample in enumerate(gather(subject, fit)):
        moments = bulk_moments(sample, fits.limit[b]) if bulk else sample.moments
        maps.append(_BlockMap.fitted(moments))
        limits.append(float(fits.limit[b]) if bulk else np.inf)
    by_feature = (len(subject), len(test), subject.d_model)
    gain, error = np.empty(by_feature), np.empty(by_feature)
    sum_y, sum_y_squared = np.empty(by_feature), np.empty(by_feature)
    n_kept = np.empty((len(subject), len(test), 1))  # positions of a window that are scored
    n_done = [0] * len(subject)  # windows of each block so far

    def add(b: int, x: torch.Tensor, y: torch.Tensor) -> None:  # [batch, position, d]
        batch = slice(n_done[b], n_done[b] + len(x))
        n_done[b] += len(x)
        here = maps[b].to(x.device)
        # The maps pass through the means.
        x, y = x - here.mean_x, y - here.mean_y
        kept = (y + here.mean_y).norm(dim=-1, keepdim=True) <= limits[b]
        # Direction k takes y_k² - (y_k - ŷ_k)² = 2 ŷ_k y_k - ŷ_k² away from the squared error.
        predicted, actual = x @ here.weight_v, y @ here.v  # [batch, position, k]
        taken_away = torch.zeros_like(y)
        taken_away[..., : predicted.shape[-1]] = 2 * predicted * actual - predicted.square()

        def by_window(values: torch.Tensor) -> np.ndarray:
            return (values * kept).double().sum(1).cpu().numpy()

        gain[b, batch] = by_window(taken_away)
        error[b, batch] = by_window((y - x @ here.weight).square())
        sum_y[b, batch] = by_window(y)
        sum_y_squared[b, batch] = by_window(y.square())
        n_kept[b, batch] = by_window(torch.ones_like(y[..., :1]))

    forward(subject, test, on_ffn=add, desc="ranks")
    mean = sum_y.sum(1, keepdims=True) / np.maximum(n_kept.sum(1, keepdims=True), 1)
    total = sum_y_squared - 2 * sum_y * mean + n_kept * mean**2
    return {"gain": gain, "error": error, "start": sum_y_squared.sum(-1), "total": total}


def rank_r2(found: dict, block: int, weights: np.ndarray) -> np.ndarray:
    """R² of the best rank-k map for every k, [draws, k], from weights [draws, n] of windows."""
    total = weights @ found["total"][block].sum(1)
    left = (weights @ found["start"][block])[:, None] - (weights @ found["gain"][block]).cumsum(1)
    return 1 - left / total[:, None]


def effective_rank(r2: np.ndarray, share: float = 0.9) -> np.ndarray:
    """The smallest rank whose R² reaches `share` of the full map's (Whipp §3.3), [draws], from r2
    [draws, k]; nan where the full map explains nothing."""
    reached = r2 >= share * r2[:, -1:]
    return np.where(r2[:, -1] > 0, 1.0 + reached.argmax(1), np.nan)


def median_feature_r2(found: dict, block: int, weights: np.ndarray) -> np.ndarray:
    """Median over output features of the full map's R², [draws] (Whipp §3.3)."""
    error, total = weights @ found["error"][block], weights @ found["total"][block]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nanmedian(np.where(total > 0, 1 - error / total, np.nan), axis=1)
