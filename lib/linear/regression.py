"""Linear recoverability of every FFN (Whipp §3, §5.1), and its repair off massive activations.

A massive activation is one of the few positions, mostly first in their window, whose FFN output is
over 20 times as long as the block's median. Least squares bends to them, so a plain map may fit
nothing else; a repaired map is fitted on all other positions and keeps the FFN on them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from lib.errors import InputError
from lib.hooks import forward
from lib.lazy import LazyModule, lazily, made
from lib.linear.affine import AffineMap, MassiveKeptMap, constant
from lib.linear.moments import BlockSample, Moments, collect
from lib.models.blocks import Subject
from lib.stats import sums
from lib.store import cached, kept, load
from lib.text.windows import Windows

MASSIVE = 20.0
"""a position is massive where its output norm exceeds so many of the block's medians (fit text)"""


@dataclass(frozen=True, eq=False)
class AffineFit:
    """What can take each FFN's place, fitted on one sample of text when it is first used."""

    maps: dict[int, LazyModule]
    """{block: affine map}: the paper's, least squares over all positions"""
    massive_kept: dict[int, LazyModule]
    """{block: affine map} of blocks with massive activations, fitted without these, which stay with
    the FFN"""
    mean_output: dict[int, LazyModule]
    """{block: the FFN's mean output}"""
    facts: pd.DataFrame
    """see `fit_facts`"""
    windows: Windows
    provenance: str | None
    """which fit it is, for keys"""

    @property
    def massive_blocks(self) -> list[int]:
        """Blocks with massive activations in the fit text."""
        return [*self.massive_kept]

    @property
    def repaired(self) -> dict[int, LazyModule]:
        """{block: map}: the one that leaves massive activations to the FFN where there are any."""
        return {**self.maps, **self.massive_kept}


def fit(subject: Subject, windows: Windows) -> AffineFit:
    """Affine maps of every FFN, those that leave massive activations to the FFN, and mean outputs.

    What is known of them at once is kept (`facts`); weights are fitted when they are first used.
    Raises InputError below 8 windows.
    """
    key = fit_maps.key(subject, windows)
    said = key and f"{fit_maps.version}, of {subject.provenance} on {windows.provenance}"

    @cache
    def fits() -> dict:
        if windows.n_tokens > 20_000 and (key is None or load(key) is None):
            print(f"fitting the maps of {len(subject)} FFNs on {windows.n_tokens:,} tokens")
        return fit_maps(subject, windows)

    # Of a model in memory nothing is kept, so the one fit serves for all.
    facts = fits()["facts"] if key is None else fit_facts(subject, windows)

    def of(what: str, compute: Callable, blocks: Sequence[int]) -> dict[int, LazyModule]:
        words = {b: said and f"{what} of block {b}; {said}" for b in blocks}
        return lazily(words, compute, model=subject, text=windows)

    every, massive = [*facts.block], [*facts.block[facts.is_massive]]
    without = "affine map, FFN kept at massive activations"
    return AffineFit(
        of("affine map", lambda: fits()["all positions"], every),
        of(without, lambda: fits()["massive kept"], massive),
        of("mean output", partial(mean_ablation, subject, windows), every),
        facts,
        windows,
        said,
    )


@cached("affine maps", 1)
def fit_maps(subject: Subject, windows: Windows) -> dict:
    """Each FFN's affine map in closed form, from one pass over `windows`: "all positions" and
    "massive kept" {block: map}, and "facts" (see `fit_facts`)."""
    if len(windows) < 8:
        raise InputError(
            f"{windows.name}: {len(windows)} windows are too few to fit maps: give at least 8."
        )
    plain: dict[int, AffineMap] = {}
    massive_kept: dict[int, MassiveKeptMap] = {}
    facts = []
    samples = collect(subject, windows)
    for b, whole in enumerate(tqdm(samples, desc="fits", delay=2, leave=False)):
        plain[b] = single(whole.moments.fit())
        # Massive activations, and a map of all other positions where there are any.
        limit = MASSIVE * np.median(whole.norm)
        is_massive = whole.norm.flatten()[whole.heavy] > limit  # [h], of the kept rows
        if is_massive.any() and is_massive.sum() < whole.moments.n / 10:
            massive_kept[b] = repair(bulk_moments(whole, limit), whole.x[is_massive])
        # How uneven the output features and the input directions are.
        variance = whole.moments.syy
        eigenvalues, _ = whole.moments.eigen  # ascending
        if len(eigenvalues) < 2:
            raise InputError(
                f"block {b} of {subject.name}: the FFN's inputs vary in {len(eigenvalues)} "
                f"direction(s) of {subject.d_model}, too few for a map: choose a wider model."
            )
        row = {
            "block": b,
            "massive": float(is_massive.sum() / whole.moments.n),
            "is_massive": b in massive_kept,
            "limit": float(np.float32(limit)),
            "variance_ratio": float(variance.max() / variance.median()),
            "condition": float(eigenvalues[-1] / eigenvalues[0]),
            "condition_without_smallest": float(eigenvalues[-1] / eigenvalues[1]),
        }
        facts.append(row)
    return {"all positions": plain, "massive kept": massive_kept, "facts": pd.DataFrame(facts)}


@kept("facts of fits", 1)
def fit_facts(subject: Subject, windows: Windows) -> pd.DataFrame:
    """What is known of a fit of every FFN, a row a block: massive, the share of its positions that
    are; is_massive, whether they stay with an FFN; limit, the output norm beyond which they are;
    variance_ratio, largest over median variance of the output features; condition of the input
    covariance, and without its smallest eigenvalue."""
    return fit_maps(subject, windows)["facts"]


@kept("errors of affine maps", 1, windows="test text", fit="maps")
def errors(subject: Subject, windows: Windows, fit: AffineFit) -> pd.DataFrame:
    """Squared errors of a fit's maps on unseen windows, summed by block and document.

    error: Σ‖y-ŷ‖²; spread: Σ‖y-ȳ‖² about each feature's mean; spread_scalar: about one mean over
    all positions and features (Whipp's figures); error_off_massive and spread_off_massive: of the
    maps that leave massive activations to the FFN, off these; positions: how many there are.
    """
    shape, limit = (len(subject), len(windows)), fit.facts.limit.to_numpy()
    plain, repaired = ({b: made(m) for b, m in maps.items()} for maps in (fit.maps, fit.repaired))
    error, error_off_massive = np.empty(shape), np.empty(shape)
    everywhere, off_massive = (_FeatureSums(*shape, subject.d_model) for _ in range(2))
    n_done = [0] * len(subject)  # windows of each block so far

    def add(b: int, x: torch.Tensor, y: torch.Tensor) -> None:  # [batch, position, d_model]
        x, y = x.float(), y.float()
        batch = slice(n_done[b], n_done[b] + len(x))
        n_done[b] += len(x)
        ordinary = y.norm(dim=-1) <= float(limit[b])  # [batch, position]
        by_plain, by_kept = (
            (y - maps[b].to(x.device)(x)).double().square().sum(-1) for maps in (plain, repaired)
        )
        error[b, batch] = by_plain.sum(1).cpu().numpy()
        error_off_massive[b, batch] = (by_kept * ordinary).sum(1).cpu().numpy()
        everywhere.add(b, batch, y, torch.ones_like(ordinary))
        off_massive.add(b, batch, y, ordinary)

    forward(subject, windows, on_ffn=add, desc="errors of maps")
    by_window = {
        "error": error,
        "spread": everywhere.spread().sum(-1),
        "spread_scalar": everywhere.spread(one_mean=True).sum(-1),
        "error_off_massive": error_off_massive,
        "spread_off_massive": off_massive.spread().sum(-1),
        "positions": np.full(shape, windows.tokens.shape[1] - subject.n_start),
    }
    columns = {name: sums(v[..., None], windows.document).ravel() for name, v in by_window.items()}
    index = pd.MultiIndex.from_product(
        [range(len(subject)), np.unique(windows.document)], names=["block", "document"]
    )
    return pd.DataFrame(columns, index=index).reset_index()


def r2(subject: Subject, windows: Windows, fit: AffineFit) -> pd.DataFrame:
    """How well each block's map fits on unseen windows, a row a block: held-out R² about each
    feature's mean, about one scalar mean (Whipp's figures) and off massive activations, and the
    root mean square of the error's entries."""
    total = errors(subject, windows, fit).groupby("block").sum()
    return pd.DataFrame(
        {
            "r2": 1 - total.error / total.spread,
            "r2_scalar_mean": 1 - total.error / total.spread_scalar,
            "r2_off_massive": 1 - total.error_off_massive / total.spread_off_massive,
            "rms_error": np.sqrt(total.error / (total.positions * subject.d_model)),
        }
    ).reset_index()


def mean_ablation(subject: Subject, windows: Windows) -> dict[int, AffineMap]:
    """{block: map}: in each FFN's place its mean output on `windows`."""
    made_of = subject.provenance
    means = {}
    for b, sample in enumerate(collect(subject, windows)):
        words = made_of and f"mean output of block {b} of {made_of} on {windows.provenance}"
        means[b] = constant(sample.moments.mean_y.float(), words)
    return means


def recentred(subject: Subject, fit: AffineFit, windows: Windows) -> dict[int, LazyModule]:
    """{block: map}: a fit's map with the bias that least squares gives it on other `windows`, so
    that only its slope is carried over."""

    def compute() -> dict[int, AffineMap]:
        maps = {}
        for b, sample in enumerate(collect(subject, windows)):
            weight, of = made(fit.maps[b]).weight, sample.moments
            maps[b] = single(AffineMap(weight, of.mean_y - of.mean_x @ weight.double()))
        return maps

    said = fit.provenance and windows.provenance
    how = f"affine map, bias of {windows.provenance}, block {{}}; {fit.provenance}"
    words = {b: said and how.format(b) for b in fit.maps}
    return lazily(words, compute, model=subject, text=windows)


def zero_ablation(subject: Subject) -> dict[int, AffineMap]:
    """{block: map}: in each FFN's place nothing."""
    return {b: constant(torch.zeros(subject.d_model), "zero") for b in range(len(subject))}


def bulk_moments(sample: BlockSample, limit: float) -> Moments:
    """Moments without the massive positions, those of an output norm beyond `limit`."""
    massive = sample.norm.flatten()[sample.heavy] > limit
    if not massive.any():
        return sample.moments
    return sample.moments - Moments.of(sample.x[massive], sample.y[massive])


def single(affine: AffineMap) -> AffineMap:
    """The map in float32, in which models run."""
    return AffineMap(affine.weight.float(), affine.bias.float())


def repair(bulk: Moments, massive_x: torch.Tensor) -> MassiveKeptMap:
    """The map of the bulk, with the direction that finds the massive rows massive_x [h, d]."""
    affine = bulk.fit()
    direction, threshold = massive_direction(bulk, massive_x)
    return MassiveKeptMap(affine.weight.float(), affine.bias.float(), direction, threshold)


def massive_direction(bulk: Moments, x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """One direction [d] and a threshold that separate massive rows x [h, d] from the bulk: Fisher's
    discriminant, and half the way from the bulk's mean to the 5% quantile of the massive scores."""
    x, covariance = x.double(), bulk.sxx / bulk.n
    loading = 1e-3 * covariance.diagonal().mean() * torch.eye(len(covariance), dtype=x.dtype)
    direction = torch.linalg.solve(covariance + loading, x.mean(0) - bulk.mean_x)
    middle = (bulk.mean_x @ direction + (x @ direction).quantile(0.05)) / 2
    scale = direction.norm()
    return (direction / scale).float(), float(middle / scale)


class _FeatureSums:
    """Σy and Σy² of each feature and the positions they go over, by block and window."""

    def __init__(self, n_blocks: int, n_windows: int, d: int):
        self.total = np.empty((n_blocks, n_windows, d))
        self.square = np.empty((n_blocks, n_windows, d))
        self.count = np.empty((n_blocks, n_windows), int)

    def add(self, b: int, batch: slice, y: torch.Tensor, counted: torch.Tensor) -> None:
        """Enter a batch of windows: y [batch, position, d], counted [batch, position] bool."""
        chosen = y.double() * counted[..., None]
        self.total[b, batch] = chosen.sum(1).cpu().numpy()
        self.square[b, batch] = chosen.square().sum(1).cpu().numpy()
        self.count[b, batch] = counted.sum(1).cpu().numpy()

    def spread(self, one_mean: bool = False) -> np.ndarray:
        """Σ(y-ȳ)² by block, window and feature, [blocks, n, d]. ȳ is each feature's mean over all
        windows or, with `one_mean`, the mean of these over the features."""
        count = self.count[..., None]  # [blocks, n, 1]
        mean = self.total.sum(1, keepdims=True) / count.sum(1, keepdims=True)  # [blocks, 1, d]
        if one_mean:
            mean = mean.mean(-1, keepdims=True)
        return self.square - 2 * self.total * mean + count * mean**2


def cross_validate(subject: Subject, windows: Windows, k: int = 5) -> np.ndarray:
    """Held-out R² [blocks, k] of the map fitted on all folds of documents but one (Whipp §5.7)."""
    fold = windows.folds(k)
    samples = [collect(subject, windows[fold == f]) for f in range(k)]
    r2 = np.empty((len(subject), k))
    for b in range(len(subject)):
        moments = [sample[b].moments for sample in samples]
        total = reduce(Moments.__add__, moments)
        for f, held_out in enumerate(moments):
            r2[b, f] = held_out.r2((total - held_out).fit())
    return r2


@kept("R² over folds", 1, k="folds")
def folds(subject: Subject, windows: Windows, k: int = 5) -> pd.DataFrame:
    """`cross_validate` as a tidy table: block, fold, r2 about each feature's mean."""
    r2_of = cross_validate(subject, windows, k)
    index = pd.MultiIndex.from_product([range(len(subject)), range(k)], names=["block", "fold"])
    return pd.DataFrame({"r2": r2_of.ravel()}, index).reset_index()
