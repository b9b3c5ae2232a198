"""What kind of linearity (Whipp §5.4): effective rank by reduced-rank regression, and R² feature by
feature, both by test window, so that documents can be resampled."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.hooks import forward
from lib.lazy import LazyModule, lazily, made
from lib.linear.affine import AffineMap
from lib.linear.moments import Moments, collect
from lib.linear.regression import AffineFit, bulk_moments
from lib.models.blocks import Subject
from lib.stats import interval
from lib.store import cached, kept
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


def reduced(subject: Subject, fit: AffineFit, rank: Mapping[int, int]) -> dict[int, LazyModule]:
    """{block: map}: the rank-k regressions of a fit, {block: k}, made when one is first used."""

    def compute() -> dict[int, AffineMap]:
        samples = collect(subject, fit.windows)
        of = {b: samples[b].moments for b in rank}
        return {b: through(of[b], directions(of[b])[:, :k]) for b, k in rank.items()}

    made_of = fit.provenance
    words = {
        b: made_of and f"affine map of rank {k}, block {b}; {made_of}" for b, k in rank.items()
    }
    return lazily(words, compute, model=subject, text=fit.windows)


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


@cached("gains by rank", 2, fit="maps", test="test text")
def rank_gains(
    subject: Subject, fit: AffineFit, test: Windows, ordinary: bool = False
) -> dict[str, np.ndarray]:
    """The pieces of every rank-k map's held-out error, in one pass over `test`.

    Returns, by block and test window, gain [blocks, n, d]: the squared error that output direction
    k of the rank regression takes away; start [blocks, n]: Σ‖y-ȳ_fit‖², the error of rank 0; error
    [blocks, n, d]: the full map's, feature by feature; total [blocks, n, d]: Σ(y-ȳ)², ȳ the
    held-out mean. `ordinary`: fitted and scored without massive positions.
    """
    maps, limits = [], fit.facts.limit.to_numpy() if ordinary else np.full(len(subject), np.inf)
    for b, sample in enumerate(collect(subject, fit.windows)):
        maps.append(_BlockMap.fitted(bulk_moments(sample, limits[b])))
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


@kept("kinds of affine maps", 1, windows="test text", fit="maps")
def kinds(subject: Subject, windows: Windows, fit: AffineFit) -> pd.DataFrame:
    """What kind of linear map each block's is, on unseen windows: block, positions (all; ordinary:
    fitted and scored without massive ones, of blocks that have such), r2 about each feature's mean,
    effective rank at 90%, R² of the median feature, each with its 95% interval over documents, and
    r2_rank_1, R² of the best map of rank one."""
    rows = []
    for positions in ("all", "ordinary") if fit.massive_blocks else ("all",):
        found = rank_gains(subject, fit, windows, ordinary=positions == "ordinary")
        for b in range(len(subject)) if positions == "all" else fit.massive_blocks:
            row = {"block": b, "positions": positions}
            rows.append(row | _kind(found, b, windows.document))
    return pd.DataFrame(rows)


def _kind(found: dict, block: int, document: np.ndarray) -> dict[str, float]:
    """The numbers of a row of `kinds`."""
    measures = {
        "r2": lambda w: rank_r2(found, block, w)[:, -1],
        "rank": lambda w: effective_rank(rank_r2(found, block, w)),
        "median_feature": lambda w: median_feature_r2(found, block, w),
    }
    row = {"r2_rank_1": float(rank_r2(found, block, np.ones((1, len(document))))[0, 0])}
    for name, statistic in measures.items():
        value, low, high = interval(statistic, document, least=0.5 if name == "rank" else 0.0)
        row |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return row


@kept("errors along few directions", 1, windows="test text", k="directions")
def along_directions(
    subject: Subject, windows: Windows, maps: Mapping[int, nn.Module], k: int
) -> pd.DataFrame:
    """How much of what each block's map leaves lies along k output directions, the best for this
    text: block, share of the squared error. No layer of k outputs beside the map recovers more.
    Positions that a map leaves to the FFN are left out."""
    left = {b: torch.zeros(subject.d_model, subject.d_model).double() for b in maps}
    ready = {b: made(affine) for b, affine in maps.items()}  # before a pass, not within it

    def add(b: int, x: torch.Tensor, y: torch.Tensor) -> None:  # [batch, position, d]
        affine, x, y = ready[b].to(x.device), x.float(), y.float()
        error = (y - affine(x))[~affine.massive(x)].double()  # [n, d]
        left[b] += (error.T @ error).cpu()

    forward(subject, windows, on_ffn=add, blocks=[*maps], desc="errors by direction")
    along = {b: torch.linalg.eigvalsh(second).flip(0) for b, second in left.items()}
    shares = {b: float(values[:k].sum() / values.sum()) for b, values in along.items()}
    return pd.Series(shares, name="share").rename_axis("block").reset_index()


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
