"""What kind of linearity (Whipp §5.4): effective rank by reduced-rank regression, and R² feature by
feature, both by test window, so that documents can be resampled."""

import numpy as np
import torch

from lib.affine import AffineMap
from lib.cache import step
from lib.hooks import forward
from lib.linear import Fits, bulk_moments, gather
from lib.model import Subject
from lib.moments import Moments
from lib.text import Windows


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


@step(version=1)
def cut_maps(subject: Subject, windows: Windows, first: int, stop: int) -> dict[int, AffineMap]:
    """{block: map}: each FFN's least-squares map through its output directions `first` to `stop`
    - 1 alone, all others at their mean; (0, k) is the rank-k regression."""
    samples = gather(subject, windows)
    return {
        b: through(sample.moments, directions(sample.moments)[:, first:stop])
        for b, sample in enumerate(samples)
    }


@step(version=2)
def rank_gains(
    subject: Subject, fit: Windows, test: Windows, fits: Fits, bulk: bool = False
) -> dict[str, np.ndarray]:
    """The pieces of every rank-k map's held-out error, in one pass over `test`.

    Returns, by block and test window, gain [blocks, n, d]: the squared error that output direction
    k of the rank regression takes away; start [blocks, n]: Σ‖y-ȳ_fit‖², the error of rank 0; error
    [blocks, n, d]: the full map's, feature by feature; total [blocks, n, d]: Σ(y-ȳ)², ȳ the
    held-out mean. `bulk`: fitted and scored without massive tokens.
    """
    maps = []
    for b, sample in enumerate(gather(subject, fit)):
        moments = bulk_moments(sample, fits.limit[b]) if bulk else sample.moments
        v, affine = directions(moments), moments.fit()
        maps.append([t.float() for t in (v, affine.weight @ v, affine.weight)])
        maps[-1] += [moments.mean_x.float(), moments.mean_y.float()]
    names = ("gain", "error", "y", "yy", "n")
    parts: dict[str, list] = {name: [[] for _ in subject.blocks] for name in names}

    def add(b: int, x: torch.Tensor, y: torch.Tensor) -> None:
        v, a, weight, mean_x, mean_y = (t.to(x.device) for t in maps[b])
        x, y = x - mean_x, y - mean_y  # the maps pass through the means
        kept = (y + mean_y).norm(dim=-1, keepdim=True) <= float(fits.limit[b] if bulk else np.inf)
        p, q = x @ a, y @ v  # [batch, position, k]
        gain = torch.zeros_like(y)
        gain[..., : p.shape[-1]] = 2 * p * q - p.square()
        values = {"gain": gain, "error": (y - x @ weight).square(), "y": y, "yy": y.square()}
        values["n"] = torch.ones_like(y[..., :1])
        for name, value in values.items():
            parts[name][b].append((value * kept).double().sum(1).cpu().numpy())

    forward(subject, test, on_ffn=add, desc="ranks")
    found = {name: np.stack([np.concatenate(p) for p in by]) for name, by in parts.items()}
    y, yy, n = (found.pop(name) for name in ("y", "yy", "n"))  # n: the kept tokens of a window
    mean = y.sum(1, keepdims=True) / np.maximum(n.sum(1, keepdims=True), 1)
    return found | {"start": yy.sum(-1), "total": yy - 2 * y * mean + n * mean**2}


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
