"""Gates of many blocks: fitted on one sample, scored on another, the best of each block chosen on a
third (Balogh §3.2, §4.2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from lib.second.base.cache import as_numpy, cached, digest
from lib.second.base.errors import InputError, unknown
from lib.second.base.steps import Item, each
from lib.second.gates.delta import Deltas
from lib.second.gates.gate import GATES, MLP, Labels, Layered, fit_gate, labels
from lib.second.gates.inputs import Inputs
from lib.second.gates.protocol import Protocol
from lib.second.gates.routing import Routed, routed_losses
from lib.second.models.subjects import Subject

Unit = tuple[int, str]
"""(block, kind of gate)"""


@dataclass(frozen=True, eq=False)
class Fitted:
    """The gates of several blocks, and what they learned to send down the linear path."""

    gates: dict[Unit, Layered]
    labels: dict[int, Labels]
    """by block: the threshold of δ that makes the two classes"""

    @property
    def blocks(self) -> list[int]:
        return list(self.labels)

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(kind for _, kind in self.gates))


@dataclass(frozen=True, eq=False)
class Chosen:
    """The best gate of each block."""

    kind: dict[int, str]
    """by block: the kind with the lowest loss on the sample for choosing"""
    table: pd.DataFrame
    """a row a block and kind: cost (a fraction of the base perplexity) and linear_share there"""
    routed: Routed
    """the losses themselves, by (block, kind)"""


def fitted_gates(
    inputs: Inputs, deltas: Deltas, kinds: Sequence[str] = (*GATES, MLP), seed: int = 42
) -> Fitted:
    """Gates of every block of `deltas`, one of each kind, from x and δ of the same windows, with
    labels by the paper's rule (Balogh §3.2).

    Each gate is cached when it is done. Raises InputError for windows that do not fit, or δ of one
    class.
    """
    shape = (len(inputs.windows), inputs.windows.seq_len - 1)
    if deltas.base.shape != shape:
        raise InputError(
            f"inputs of {shape[0]} windows with {shape[1]} losses and δ of {deltas.base.shape} do "
            "not fit: take both from the same windows."
        )
    rules = {block: labels(delta) for block, delta in sorted(deltas.by_block.items())}
    units = [(block, kind) for block in rules for kind in kinds]
    items = []
    document = np.repeat(np.asarray(inputs.windows.document), shape[1])
    for block, kind in units:
        positive = rules[block].of(deltas.by_block[block])
        key = inputs.key(block) | {"labels": digest(positive), "kind": kind, "seed": seed}
        items.append(Item(key, (inputs, block, kind, positive.ravel(), seed, document)))
    title = f"gates of {len(rules)} blocks"
    states = list(each(_fit, items, total=len(items), desc=title, unit="gate"))
    gates = {unit: Layered(**state) for unit, state in zip(units, states, strict=True)}
    return Fitted(gates, rules)


@cached
def _fit(work: tuple, tick: Callable[[int], None]) -> dict:
    inputs, block, kind, positive, seed, document = work
    x = inputs(block)
    gate = fit_gate(kind, x.reshape(-1, x.shape[-1]), positive, seed, document)
    return {name: as_numpy(b) for name, b in gate.named_buffers()} | {"relu": gate.relu}


def gate_scores(fitted: Fitted, inputs: Inputs) -> dict[Unit, np.ndarray]:
    """Scores of every gate on other windows, {(block, kind): float32 [n, seq_len-1]}: linear where
    above 0."""
    items = []
    for block in fitted.blocks:
        gates = {kind: fitted.gates[block, kind] for kind in fitted.kinds}
        weights = digest([(repr(g), dict(g.state_dict())) for g in gates.values()])
        items.append(Item(inputs.key(block) | {"gates": weights}, (inputs, block, gates)))
    desc = f"scores of {len(fitted.gates)} gates"
    found = list(each(_score, items, total=len(items), desc=desc, unit="block"))
    return {
        (block, kind): score
        for block, scores in zip(fitted.blocks, found, strict=True)
        for kind, score in zip(fitted.kinds, scores, strict=True)
    }


@cached
@torch.no_grad()
def _score(work: tuple, tick: Callable[[int], None]) -> list[np.ndarray]:
    inputs, block, gates = work
    x = torch.from_numpy(inputs(block))
    return [as_numpy(gate.cpu().score(x)) for gate in gates.values()]


def choose_gates(
    subject: Subject, parts: Protocol, fitted: Fitted, kinds: Sequence[str] = GATES
) -> Chosen:
    """The gate of each block with the lowest loss on parts.choose when it alone is active, among
    `kinds` (default: the paper's four). Raises InputError for a kind that was not fitted."""
    missing = next((kind for kind in kinds if kind not in fitted.kinds), None)
    if missing is not None:
        raise unknown("gate", missing, fitted.kinds)
    routes = {
        (block, kind): {block: (parts.maps[block], fitted.gates[block, kind])}
        for block in fitted.blocks
        for kind in kinds
    }
    found = routed_losses(subject, parts.choose, routes)
    table = pd.DataFrame(
        {
            "block": block,
            "kind": kind,
            "cost": float(np.expm1((found.losses[block, kind] - found.base).mean())),
            "linear_share": found.share((block, kind)),
        }
        for block, kind in routes
    )
    best = table.loc[table.groupby("block").cost.idxmin()]
    return Chosen(dict(zip(best.block.tolist(), best.kind, strict=True)), table, found)


def best_gates(fitted: Fitted, chosen: Chosen) -> dict[int, Layered]:
    """The chosen gate of each block."""
    return {block: fitted.gates[block, kind] for block, kind in chosen.kind.items()}
