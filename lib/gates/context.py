"""Gates that see a part of the FFN's input (Balogh §4.3.2, Table 4), and the controls that the
paper lacks."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn.preprocessing import OneHotEncoder

from lib.base.cache import cached, digest
from lib.base.errors import InputError
from lib.base.steps import Item, each
from lib.gates.delta import Deltas
from lib.gates.gate import fit_gate, labels
from lib.gates.streams import Split, Streams
from lib.gates.types import less_types, type_means
from lib.stats.intervals import Interval, clustered
from lib.stats.joint import joint_level
from lib.stats.rows import auc_rows

TABLE4 = ("full", "token", "context", "type", "random")
"""the paper's five gates: x, x_e, x_c, the token's category, a random direction of x"""
CONTROLS = (
    "type mean",  # x's mean over the token's other occurrences
    "less type mean",  # x less that mean
    "less another's token",  # x less the x_e of another position: what subtraction alone does
    "literal context",  # the paper to the letter: x less the raw embedding
    "literal token",  # the raw embedding
    "noise",  # as many features, all of them noise
)
"""what stands beside them"""
DIRECTIONS = 20
"""random directions; their areas are averaged"""


@dataclass(frozen=True, eq=False)
class Sample:
    """Positions that gates learn from, or are scored on."""

    streams: Streams
    delta: Deltas
    category: np.ndarray
    """[n, seq_len-1], int: the category of each position's token"""

    @property
    def tokens(self) -> np.ndarray:
        """The token of each position that has a loss, a row a position."""
        return self.streams.windows.tokens[:, :-1].numpy().ravel()

    @property
    def document(self) -> np.ndarray:
        """Its document."""
        windows = self.streams.windows
        return np.repeat(windows.document.numpy(), windows.seq_len - 1)


def gate_rows(learn: Sample, test: Sample, blocks, seed: int = 42) -> dict[int, dict]:
    """{block: {gate: rows [positions]}} whose means are the areas under the ROC curve of gates
    that learned on `learn`, for the labels of `test` by the threshold of `learn`.

    Each gate is a logistic regression ("linear" of Table 1) on what it is named after. A random
    direction is one feature, its sign learned; the rows of DIRECTIONS of them are averaged. Raises
    InputError if the two share a document of one corpus part, or labels are of one class.
    """
    items = []
    for block in blocks:
        key = {
            "learn": learn.streams.key(block),
            "test": test.streams.key(block),
            "delta": digest([s.delta.by_block[block] for s in (learn, test)]),
            "category": digest([learn.category, test.category]),
            "seed": seed,
        }
        items.append(Item(key, (learn, test, block, seed), len(TABLE4) + len(CONTROLS)))
    total = sum(item.size for item in items)
    found = each(_scores, items, total=total, desc="gates of token and context", unit="gate")
    return {b: _rows(learn, test, b, scores) for b, scores in zip(blocks, found, strict=True)}


def _rows(learn: Sample, test: Sample, block: int, scores: dict) -> dict[str, np.ndarray]:
    rule = labels(learn.delta.by_block[block].ravel())
    linear = rule.of(test.delta.by_block[block].ravel())
    return {
        name: np.mean([auc_rows(linear, one) for one in score], axis=0)
        for name, score in scores.items()
    }


@cached
def _scores(work: tuple, tick: Callable[[int], None]) -> dict[str, np.ndarray]:
    """{gate: logits of "linear OK" on `test`, [draws, positions] float32}."""
    learn, test, block, seed = work
    delta = learn.delta.by_block[block].ravel()
    linear, found = labels(delta).of(delta), {}
    for name, draws in _inputs(learn, test, block, seed):
        scores = []
        for seen, unseen in draws:
            gate = fit_gate("linear", seen, linear)
            scores.append(unseen @ gate.v.numpy() + float(gate.c))
        found[name] = np.stack(scores).astype(np.float32)
        tick(1)
    return found


def _inputs(learn: Sample, test: Sample, block: int, seed: int) -> Iterator[tuple[str, list]]:
    """Each gate's features, (name, [(on `learn`, on `test`)]), one pair a draw."""
    samples, splits = (learn, test), (learn.streams(block), test.streams(block))
    pair = lambda of: [tuple(map(of, splits))]
    x = [split.rows("x") for split in splits]
    d, chance = x[0].shape[1], np.random.default_rng(seed)
    for name, part in (("full", "x"), ("token", "token"), ("context", "context")):
        yield name, pair(lambda split, part=part: split.rows(part))
    coder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    coder.fit(learn.category.reshape(-1, 1))
    yield "type", [tuple(coder.transform(s.category.reshape(-1, 1)) for s in samples)]
    directions = chance.normal(size=(DIRECTIONS, d)).astype(np.float32)
    yield "random", [tuple((rows @ w)[:, None] for rows in x) for w in directions]
    means = type_means(x[0], learn.tokens, learn.document, test.tokens)
    yield "type mean", [means]
    yield "less type mean", [less_types(x, means)]
    yield "less another's token", pair(lambda split: _less_another(split, seed))
    yield "literal context", pair(lambda split: split.rows("x") - split.rows("embedding"))
    yield "literal token", pair(lambda split: split.rows("embedding"))
    yield "noise", [tuple(chance.normal(size=rows.shape).astype(np.float32) for rows in x)]


def _less_another(split: Split, seed: int) -> np.ndarray:
    token = split.rows("token")
    return split.rows("x") - token[np.random.default_rng(seed).permutation(len(token))]


def auc_table(rows: Mapping[int, Mapping[str, np.ndarray]], document) -> pd.DataFrame:
    """A row a block and gate: columns block, gate, mean, low, high (95% over documents)."""
    found = []
    for block, gates in rows.items():
        for gate, values in gates.items():
            i = clustered(values, document)
            found.append((block, gate, i.value, i.low, i.high))
    return pd.DataFrame(found, columns=["block", "gate", "mean", "low", "high"])


def auc_gaps(
    rows: Mapping[int, Mapping[str, np.ndarray]], document, one: str, other: str | float
) -> dict[int, Interval]:
    """Area of gate `one` less that of `other` (or less a number), {block: 95% over documents},
    paired, for all blocks at once. Raises InputError for a gate that is not there."""
    level, found = joint_level(len(rows)), {}
    for block, gates in rows.items():
        missing = [g for g in (one, other) if isinstance(g, str) and g not in gates]
        if missing:
            raise InputError(f"no gate {missing[0]!r}: known are {', '.join(gates)}.")
        second = gates[other] if isinstance(other, str) else other
        found[block] = clustered(gates[one] - second, document, level)
    return found
