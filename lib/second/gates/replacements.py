"""What stands in an FFN's place when its cost is asked for: nothing, its mean output, and maps of
other samples (the controls that Balogh §4.1 leaves out)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from lib.second.base.cache import as_numpy, cached
from lib.second.base.steps import Item, each
from lib.second.gates.protocol import N_FOLDS, RIDGE
from lib.second.linear.affine import AffineMap
from lib.second.linear.conditioning import WHOLE, conditioning
from lib.second.linear.moments import Collector, total
from lib.second.linear.survey import fold_moments
from lib.second.models.hooks import forward_body, record
from lib.second.models.subjects import Subject
from lib.second.stats.intervals import Interval
from lib.second.stats.ratios import jackknife
from lib.second.texts.windows import Windows


@dataclass(frozen=True, eq=False)
class FitFacts:
    """What the moments of the map documents say beside the maps."""

    means: torch.Tensor
    """[n_blocks, d_model]: mean output of each FFN, float64"""
    decades: Interval
    """log10 of the condition number of the centred inputs (largest over smallest singular value
    above the pseudo-inverse cut-off), median over blocks; jackknife over folds of documents"""


def fit_facts(subject: Subject, fit: Windows, segments: int = 1) -> FitFacts:
    """Mean outputs and conditioning of the documents that `ridge_maps` fits on; condition numbers
    over all folds of `fit`."""
    key = {
        "subject": subject.key,
        "windows": fit.key,
        "folds": fit.folds(N_FOLDS).numpy(),
        "segments": segments,
        "device": subject.device.type,
    }
    found = _fit_facts(key, (subject, fit, segments))
    decades = jackknife(found["decades"], found["without"])
    return FitFacts(torch.from_numpy(found["means"]), decades)


@cached
def _fit_facts(work: tuple) -> dict:
    subject, fit, segments = work
    folds = fold_moments(subject, fit, N_FOLDS, segments)
    means = [total([f[b.index] for f in folds[:-1]]).mean_y for b in subject.blocks]
    # Singular values of the inputs are roots of the eigenvalues of their covariance.
    decades = conditioning(folds).groupby("left_out").log10_condition.median() / 2
    return {
        "means": as_numpy(torch.stack(means)),
        "decades": float(decades[WHOLE]),
        "without": decades.drop(WHOLE).to_numpy(),
    }


def constant(output: torch.Tensor) -> AffineMap:
    """The map that gives `output` [d_model] whatever it is given, float32: the FFN's mean output,
    or zero for an FFN that is deleted."""
    width = len(output)
    return AffineMap(torch.zeros(width, width), output.float())


def deletions(subject: Subject) -> dict[int, AffineMap]:
    """A zero output for each FFN: {block: map}."""
    return {b.index: constant(torch.zeros(b.d_model)) for b in subject.blocks}


def mean_outputs(means: torch.Tensor) -> dict[int, AffineMap]:
    """The mean output of each FFN, means [n_blocks, d_model]: {block: map}."""
    return {index: constant(mean) for index, mean in enumerate(means)}


def map_documents(fit: Windows) -> Windows:
    """The windows of `fit` that maps are fitted on: all folds but the last."""
    return fit[~fit.held_out(N_FOLDS)]


def maps_of(subject: Subject, windows: Windows, ridge: float = RIDGE) -> dict[int, AffineMap]:
    """The ridge map of every block from all of `windows`, in one pass, float32."""
    key = {
        "subject": subject.key,
        "windows": windows.key,
        "ridge": ridge,
        "device": subject.device.type,
    }
    title = f"maps from {windows.n_tokens:,} tokens"
    items = [Item(key, (subject, windows, ridge), len(windows))]
    (found,) = each(_maps, items, total=len(windows), desc=title, unit="window")
    return {i: AffineMap(*map(torch.from_numpy, pair)) for i, pair in enumerate(found)}


@cached
def _maps(work: tuple, tick: Callable[[int], None]) -> list[tuple[np.ndarray, np.ndarray]]:
    subject, windows, ridge = work
    collector = Collector()
    with record(subject, on_ffn=collector.add):
        for chunk in windows.tokens.split(16):
            forward_body(subject, chunk)
            tick(len(chunk))
    fitted = (collector.moments[b.index].fit(ridge) for b in subject.blocks)
    return [(as_numpy(m.weight.float()), as_numpy(m.bias.float())) for m in fitted]
