"""Routers that are learned from x alone: a label regressed on the FFN's input, and the paper's gate
calibrated, so that one cut orders the evaluations of all blocks."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler

from lib.second.base.cache import as_numpy, cached, digest
from lib.second.base.errors import InputError
from lib.second.base.steps import Item, each
from lib.second.gates.gate import Layered
from lib.second.gates.inputs import Inputs

ALPHAS = tuple(10.0**k for k in range(1, 7))
"""ridge penalties that leave-one-out chooses from"""


def regression(x: np.ndarray, label: np.ndarray) -> Layered:
    """A score of d + 1 parameters that predicts a label [n] from x [n, d_model]: ridge regression
    on standardized inputs, their mean and scale folded into the weights."""
    if len(x) != len(label):
        raise InputError(f"{len(x)} rows and {len(label)} labels do not fit: give one a row.")
    scaler = StandardScaler().fit(x)
    found = RidgeCV(ALPHAS).fit(scaler.transform(x), label)
    v = found.coef_ / scaler.scale_
    return Layered(v, found.intercept_ - scaler.mean_ @ v)


def log_size(label: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """The logarithm of |label|: a regression of a label whose size spans several powers of ten
    would see its largest values alone."""
    return {b: np.log(np.abs(v) + np.finfo(np.float32).tiny) for b, v in label.items()}


def regressions(inputs: Inputs, label: Mapping[int, np.ndarray]) -> dict[int, Layered]:
    """A score of every block that predicts its label {block: [n, seq_len-1]} on the windows of
    `inputs`. Each is cached when it is done."""
    blocks = sorted(label)
    items = [
        Item(inputs.key(b) | {"label": digest(label[b])}, (inputs, b, label[b])) for b in blocks
    ]
    title = f"routers of {len(blocks)} blocks"
    states = list(each(_regress, items, total=len(items), desc=title, unit="block"))
    return {b: Layered(**state) for b, state in zip(blocks, states, strict=True)}


@cached
def _regress(work: tuple, tick: Callable[[int], None]) -> dict:
    inputs, block, label = work
    x = inputs(block)
    found = regression(x.reshape(-1, x.shape[-1]), label.ravel())
    return {name: as_numpy(b) for name, b in found.named_buffers()}


def values(scores: Mapping[int, Layered], inputs: Inputs) -> dict[int, np.ndarray]:
    """What scores say on the windows of `inputs`, {block: [n, seq_len-1]}. Each block is cached."""
    items = []
    for block, score in scores.items():
        weights = digest((repr(score), dict(score.state_dict())))
        items.append(Item(inputs.key(block) | {"score": weights}, (inputs, block, score)))
    title = f"scores of {len(scores)} blocks"
    found = each(_values, items, total=len(items), desc=title, unit="block")
    return dict(zip(scores, found, strict=True))


@cached
@torch.no_grad()
def _values(work: tuple, tick: Callable[[int], None]) -> np.ndarray:
    inputs, block, score = work
    return as_numpy(score.cpu().score(torch.from_numpy(inputs(block))))


def calibrated(
    gates: Mapping[int, Layered], inputs: Inputs, delta: Mapping[int, np.ndarray]
) -> dict[int, Layered]:
    """Gates as predictions of δ: their score regressed on δ, block by block, on windows that they
    have not seen. A gate's own score says which half of its block's δ a position lies in, and
    nothing about how large δ is there."""
    found = {}
    for block, score in values(gates, inputs).items():
        slope, start = np.polyfit(score.ravel(), delta[block].ravel(), 1)
        found[block] = moved(gates[block], slope, start)
    return found


def moved(gate: Layered, slope: float, start: float) -> Layered:
    """The gate whose score is start + slope · score."""
    parts = {name: as_numpy(b) for name, b in gate.named_buffers()}
    parts |= {"v": slope * parts["v"], "c": start + slope * parts["c"]}
    return Layered(**parts, relu=gate.relu)


def below(
    scores: Mapping[int, Layered], seen: Mapping[int, np.ndarray], share: float
) -> dict[int, Layered]:
    """Gates that send an evaluation down the linear path where its score lies below one cut for all
    blocks: the value that `share` of the evaluations of a sample, scored `seen` {block: [n,
    seq_len-1]}, lie below."""
    if not 0 < share < 1:
        raise InputError(f"share {share} cuts nothing: use one between 0 and 1.")
    cut = float(np.quantile(np.stack(list(seen.values())), share))
    return {block: moved(score, -1.0, cut) for block, score in scores.items()}
