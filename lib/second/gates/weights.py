"""The weights of linear gates: the same on a second training, and a direction that blocks may share
(Balogh §3.2, §4.4)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lib.second.base.cache import cached, digest
from lib.second.base.steps import Item, each
from lib.second.gates.delta import Deltas
from lib.second.gates.fitted import Fitted
from lib.second.gates.gate import GATES, fit_gate
from lib.second.gates.inputs import Inputs
from lib.second.stats.intervals import Interval
from lib.second.stats.ratios import jackknife

GROUPS = 4
"""parts of the training documents, each of which is left out in turn"""


@dataclass(frozen=True, eq=False)
class Refitted:
    """Linear gates trained once more."""

    whole: np.ndarray
    """[n_blocks, d_model + 1]: weights and bias from all documents"""
    without: np.ndarray
    """[GROUPS, n_blocks, d_model + 1]: without each part of the documents"""


def refitted(inputs: Inputs, deltas: Deltas, fitted: Fitted, seed: int = 42) -> Refitted:
    """The linear gate of every block again, and without each of GROUPS parts of the documents."""
    document = np.asarray(inputs.windows.document)
    names = np.random.default_rng(seed).permutation(np.unique(document))
    group = np.empty(len(document), dtype=int)
    for k, part in enumerate(np.array_split(names, GROUPS)):
        group[np.isin(document, part)] = k
    items = []
    for block in fitted.blocks:
        positive = fitted.labels[block].of(deltas.by_block[block])
        key = inputs.key(block) | {"labels": digest(positive), "group": group, "seed": seed}
        items.append(Item(key, (inputs, block, positive, group, seed)))
    found = each(_refit, items, total=len(items), desc="linear gates again", unit="block")
    whole, without = zip(*((f["whole"], f["without"]) for f in found), strict=True)
    return Refitted(np.stack(whole), np.stack(without, 1))


@cached
def _refit(work: tuple, tick: Callable[[int], None]) -> dict[str, np.ndarray]:
    inputs, block, positive, group, seed = work
    x = inputs(block)

    def weights(keep: np.ndarray) -> np.ndarray:
        gate = fit_gate(GATES[0], x[keep].reshape(-1, x.shape[-1]), positive[keep].ravel(), seed)
        return np.append(gate.v.numpy(), gate.c.numpy())

    kept = [np.ones(len(group), dtype=bool), *(group != k for k in range(GROUPS))]
    whole, *without = (weights(keep) for keep in kept)
    return {"whole": whole, "without": np.stack(without)}


def of_permuted_labels(inputs: Inputs, deltas: Deltas, fitted: Fitted, seed: int = 42) -> Refitted:
    """The linear gates again with the labels of each block permuted over positions: what weights
    share that have learned nothing but the scale of their inputs."""
    rng = np.random.default_rng(seed)
    dealt = {
        b: rng.permuted(delta.ravel()).reshape(delta.shape) for b, delta in deltas.by_block.items()
    }
    return refitted(inputs, Deltas(deltas.base, dealt), fitted, seed)


def trained_twice(fitted: Fitted, again: Refitted) -> float:
    """Largest absolute difference of the weights of two trainings, over blocks."""
    first = [fitted.gates[b, GATES[0]] for b in fitted.blocks]
    once = np.stack([np.append(gate.v.numpy(), gate.c.numpy()) for gate in first])
    return float(np.abs(once - again.whole).max())


def first_component(weights: np.ndarray) -> float:
    """Share of the first component in the uncentred second moment of the unit weight vectors, from
    weights [n_blocks, d_model + 1]."""
    v = weights[:, :-1]
    squares = np.linalg.svd(v / np.linalg.norm(v, axis=1, keepdims=True), compute_uv=False) ** 2
    return float(squares[0] / squares.sum())


def shared_direction(again: Refitted) -> Interval:
    """That share, with a jackknife over parts of the training documents."""
    return jackknife(first_component(again.whole), [first_component(w) for w in again.without])
