"""Affine maps that a few positions do not rule: fitted without massive activations, or weighted.

Least squares is fitted to the rows with the largest outputs: where 0.4% of the positions have far
longer ones than all others, the map fits these and little else (notebook 06).
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.hooks import forward
from lib.lazy import LazyModule, lazily, made
from lib.linear.affine import AffineMap
from lib.linear.moments import Moments, collect
from lib.linear.regression import MASSIVE, AffineFit, bulk_moments, single
from lib.models.blocks import Subject
from lib.store import cached, kept, kept_of
from lib.text.windows import Windows


def fitted_without(
    subject: Subject, fit: AffineFit, over: float = MASSIVE
) -> dict[int, LazyModule]:
    """{block: map} fitted on the positions of a fit's text whose output norm is at most `over`
    medians of the block's, in the FFN's place everywhere; of the blocks that have massive
    activations."""

    def compute() -> dict[int, AffineMap]:
        samples = collect(subject, fit.windows)
        maps = {}
        for b in fit.massive_blocks:
            limit = over * float(np.median(samples[b].norm))
            maps[b] = single(bulk_moments(samples[b], limit).fit())
        return maps

    how = f"without outputs over {over:g} medians"
    return _lazily(compute, subject, fit, fit.massive_blocks, how)


def weighted(subject: Subject, fit: AffineFit, power: float) -> dict[int, LazyModule]:
    """{block: map} by weighted least squares on a fit's text: a position weighs 1/max(‖y‖,
    median)^power, so that with power 2 none counts more than in proportion to its relative
    error."""
    median = fit.facts.limit.to_numpy() / MASSIVE
    how = f"weighted by norm to the power of -{power:g}"

    def compute() -> dict[int, AffineMap]:
        return weighted_maps(subject, fit.windows, median, power)

    return _lazily(compute, subject, fit, [*fit.maps], how)


def massive_stay(subject: Subject, fit: AffineFit) -> dict[int, LazyModule]:
    """{block: map} fitted on all positions, the FFN kept at massive activations; of the blocks that
    have them."""

    def compute() -> dict[int, AffineMap]:
        kept = {b: made(fit.massive_kept[b]) for b in fit.massive_blocks}
        return {b: module.with_affine(made(fit.maps[b])) for b, module in kept.items()}

    how = "on all positions, FFN kept at massive ones"
    return _lazily(compute, subject, fit, fit.massive_blocks, how)


def _lazily(
    compute: Callable, subject: Subject, fit: AffineFit, blocks: list[int], how: str
) -> dict[int, LazyModule]:
    """{block: map} of what `compute` gives when one of them is first used; refused where the model
    or the text changed in between."""
    said = fit.provenance
    words = {b: said and f"affine map {how}, block {b}; {said}" for b in blocks}
    return lazily(words, compute, model=subject, text=fit.windows)


@cached("weighted affine maps", 1)
def weighted_maps(
    subject: Subject, windows: Windows, median: np.ndarray, power: float
) -> dict[int, AffineMap]:
    """{block: map}: see `weighted`; `median` [blocks] of the output norms."""
    moments: dict[int, Moments] = {}

    def add(b: int, x: torch.Tensor, y: torch.Tensor) -> None:  # [batch, position, d]
        x, y = x.flatten(0, 1).float(), y.flatten(0, 1).float()
        weight = y.norm(dim=-1).clamp_min(float(median[b])) ** -power
        of_batch = Moments.of(x, y, weight)
        moments[b] = moments[b] + of_batch if b in moments else of_batch

    forward(subject, windows, on_ffn=add, desc=f"weighted statistics of {len(subject)} FFNs")
    return {b: single(moments[b].fit()) for b in moments}


def scores(
    subject: Subject, windows: Windows, fit: AffineFit, maps: Mapping[tuple[int, str], nn.Module]
) -> pd.DataFrame:
    """How well maps of any kind fit on unseen windows, wherever they may be used: a row a block and
    map with R² on all positions, on ordinary ones (those that are not massive), and relative, where
    a position counts as 1/max(‖y‖, median)². Each is kept, so that only what is new is scored."""

    def measure(missing: list) -> Iterator[dict]:
        moments = _moments(subject, windows, fit)
        yield {k: _r2(moments[k[0]], maps[k]) for k in missing}

    with subject.unchanging():
        keys = {k: map_r2.key(subject, windows, fit, k[0], m) for k, m in maps.items()}
        found = kept_of(map_r2, keys, measure)
    tables = [table.assign(block=b, map=name) for (b, name), table in found.items()]
    columns = ["all", "ordinary", "relative"]
    by_map = pd.concat(tables).pivot(index=["block", "map"], columns="positions", values="r2")
    return by_map[columns].reset_index().rename_axis(columns=None)


@kept("fits of maps", 1, fit="maps", module="in the FFN's place")
def map_r2(
    subject: Subject, windows: Windows, fit: AffineFit, block: int, module: nn.Module
) -> pd.DataFrame:
    """R² of one map on unseen windows over all, ordinary and relative positions (see `scores`):
    positions, r2."""
    return _r2(_moments(subject, windows, fit)[block], module)


def _r2(moments: dict[str, Moments], module: nn.Module) -> pd.DataFrame:
    affine = AffineMap(module.weight, module.bias)
    return pd.DataFrame([{"positions": n, "r2": m.r2(affine)} for n, m in moments.items()])


def _moments(subject: Subject, windows: Windows, fit: AffineFit) -> list[dict[str, Moments]]:
    """[block][positions]: moments of a text, every position counted in each of the three ways."""
    found: list[dict[str, Moments]] = [{} for _ in subject.blocks]
    limit = fit.facts.limit.to_numpy()

    def add(b: int, x: torch.Tensor, y: torch.Tensor) -> None:  # [batch, position, d]
        x, y = x.flatten(0, 1).float(), y.flatten(0, 1).float()
        norm, median = y.norm(dim=-1), float(limit[b]) / MASSIVE
        ordinary = norm <= float(limit[b])
        of_batch = {
            "all": Moments.of(x, y),
            "ordinary": Moments.of(x[ordinary], y[ordinary]),
            "relative": Moments.of(x, y, (norm.clamp_min(median) / median) ** -2),
        }
        for name, moments in of_batch.items():
            found[b][name] = found[b][name] + moments if name in found[b] else moments

    forward(subject, windows, on_ffn=add, desc="moments of the test text")
    return found
