"""Gates that see a part of the FFN's input (Balogh §4.3.2, Table 4), and the controls that the
paper lacks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.second.base.cache import cached, digest
from lib.second.base.errors import InputError
from lib.second.base.steps import Item, each
from lib.second.gates.delta import Deltas
from lib.second.gates.gate import fit_gate, labels
from lib.second.gates.streams import Streams
from lib.second.gates.types import type_means
from lib.second.gates.words import TYPES
from lib.second.stats.intervals import Interval, clustered
from lib.second.stats.joint import joint_level
from lib.second.stats.ratios import influence
from lib.second.stats.rows import auc_rows

TABLE4 = ("full", "token", "context", "type", "random")
"""the paper's five: x, e, x - e, the token's type, a random direction of x"""
CONTROLS = {
    "split token": "the token's part of x, the stream split before the norm",
    "split context": "the context's part of x",
    "context and token": "x - e and e side by side",
    "another's token": "x - e', the embedding of another position: what subtraction alone does",
    "type mean": "mean x of the token's type on other documents",
    "less type mean": "x less that mean",
    "type delta": "mean δ of the token's type on other documents, shrunk; nothing is trained",
    "noise": "as many features as x has, all of them noise",
}
"""what stands beside them"""
DIRECTIONS = 20
"""random directions; their areas are averaged"""


@dataclass(frozen=True, eq=False)
class Sample:
    """Positions that gates learn from, or are scored on."""

    streams: Streams
    delta: Deltas
    type: np.ndarray
    """[n, seq_len-1], the type of each position's token, index into TYPES"""

    @property
    def tokens(self) -> np.ndarray:
        """The token of each position that has a loss, a row a position."""
        return self.streams.windows.tokens[:, :-1].numpy().ravel()

    @property
    def document(self) -> np.ndarray:
        """Its document."""
        windows = self.streams.windows
        return np.repeat(windows.document.numpy(), windows.seq_len - 1)


Rows = Mapping[int, Mapping[str, np.ndarray]]
"""{block: {gate: a row a position}}"""


def part_rows(
    learn: Sample,
    test: Sample,
    blocks: Sequence[int],
    seed: int = 42,
    where: np.ndarray | slice = slice(None),
) -> dict[int, dict[str, np.ndarray]]:
    """{block: {gate: rows [positions]}} whose means are the areas under the ROC curve of gates
    that learned on `learn`, for the labels of `test` by the threshold of `learn`; on the positions
    of `test` in a mask `where`, if one is given.

    Each gate is a logistic regression ("linear" of Table 1) on what it is named after. A random
    direction is one feature, its sign learned; the rows of DIRECTIONS of them are averaged.
    """
    rows = {}
    for block, scores in part_scores(learn, test, blocks, seed).items():
        rule = labels(learn.delta.by_block[block].ravel())
        linear = rule.of(test.delta.by_block[block].ravel())[where]
        rows[block] = {
            name: np.mean([auc_rows(linear, one[where]) for one in score], axis=0)
            for name, score in scores.items()
        }
    return rows


def part_scores(
    learn: Sample, test: Sample, blocks: Sequence[int], seed: int = 42
) -> dict[int, dict[str, np.ndarray]]:
    """{block: {gate: logits of "linear OK" on `test`, [draws, positions]}}."""
    items = []
    for block in blocks:
        key = {
            "learn": learn.streams.key(block),
            "test": test.streams.key(block),
            "delta": digest([s.delta.by_block[block] for s in (learn, test)]),
            "type": digest([learn.type, test.type]),
            "seed": seed,
        }
        items.append(Item(key, (learn, test, block, seed), len(TABLE4) + len(CONTROLS)))
    total = sum(item.size for item in items)
    found = each(_scores, items, total=total, desc="gates of token and context", unit="gate")
    return dict(zip(blocks, found, strict=True))


@cached
def _scores(work: tuple, tick: Callable[[int], None]) -> dict[str, np.ndarray]:
    learn, test, block, seed = work
    delta = learn.delta.by_block[block].ravel()
    linear, found = labels(delta).of(delta), {}
    means = type_means(delta[:, None], learn.tokens, learn.document, test.tokens)[1]
    found["type delta"] = -means.T
    tick(1)
    for name, draws in _inputs(learn, test, block, seed):
        scores = []
        for seen, unseen in draws:
            gate = fit_gate("linear", seen, linear)
            scores.append(unseen @ gate.v.numpy() + float(gate.c))
        found[name] = np.stack(scores).astype(np.float32)
        tick(1)
    return {name: found[name] for name in (*TABLE4, *CONTROLS)}


def _inputs(learn: Sample, test: Sample, block: int, seed: int) -> Iterator[tuple[str, list]]:
    """Each gate's features, (name, [(on `learn`, on `test`)]), one pair a draw."""
    splits = learn.streams(block), test.streams(block)
    x, e = ([split.rows(part) for split in splits] for part in ("x", "embedding"))
    both, chance = (0, 1), np.random.default_rng(seed)
    one = lambda of: [tuple(map(of, both))]
    yield "full", [tuple(x)]
    yield "token", [tuple(e)]
    yield "context", one(lambda i: x[i] - e[i])
    codes = np.eye(len(TYPES), dtype=np.float32)
    yield "type", [(codes[learn.type.ravel()], codes[test.type.ravel()])]
    directions = chance.normal(size=(DIRECTIONS, x[0].shape[1])).astype(np.float32)
    yield "random", [tuple((rows @ w)[:, None] for rows in x) for w in directions]
    yield "split token", one(lambda i: splits[i].rows("token"))
    yield "split context", one(lambda i: splits[i].rows("context"))
    yield "context and token", one(lambda i: np.concatenate([x[i] - e[i], e[i]], axis=1))
    yield "another's token", one(lambda i: x[i] - chance.permutation(e[i]))
    means = type_means(x[0], learn.tokens, learn.document, test.tokens)
    yield "type mean", [means]
    yield "less type mean", one(lambda i: x[i] - means[i])
    yield "noise", one(lambda i: chance.normal(size=x[i].shape).astype(np.float32))


def part_table(rows: Rows, document) -> pd.DataFrame:
    """A row a block and gate: columns block, gate, mean, low, high (95% over documents)."""
    found = []
    for block, gates in rows.items():
        for gate, values in gates.items():
            i = clustered(values, document)
            found.append((block, gate, i.value, i.low, i.high))
    return pd.DataFrame(found, columns=["block", "gate", "mean", "low", "high"])


def gaps(rows: Rows, document, one: str, other: str | float) -> dict[int, Interval]:
    """The statistic of `one` less that of `other` (or less a number), {block: 95% over
    documents}, paired, for all blocks at once. Raises InputError for a gate that is not there."""
    level = joint_level(len(rows))
    return {b: clustered(_gap(gates, one, other), document, level) for b, gates in rows.items()}


def mean_gap(rows: Rows, document, one: str, other: str | float) -> Interval:
    """The same, mean over blocks."""
    return clustered(np.mean([_gap(g, one, other) for g in rows.values()], axis=0), document)


def _gap(gates: Mapping[str, np.ndarray], one: str, other: str | float) -> np.ndarray:
    missing = [g for g in (one, other) if isinstance(g, str) and g not in gates]
    if missing:
        raise InputError(f"there is no gate {missing[0]!r}: known are {', '.join(gates)}.")
    return gates[one] - (gates[other] if isinstance(other, str) else other)


def less_best(rows: Rows, document, one: str, others: Sequence[str]) -> Interval:
    """The statistic of `one` less the largest of those of `others` in each block, mean over
    blocks; 95% over documents, paired."""
    best = {b: max(others, key=lambda name: gates[name].mean()) for b, gates in rows.items()}
    left = [_gap(gates, one, best[b]) for b, gates in rows.items()]
    return clustered(np.mean(left, axis=0), document)


def share_of_excess(rows: Rows, document, part: str, whole: str, chance: float = 0.5) -> Interval:
    """What `part` has above chance over what `whole` has, each summed over blocks; 95% over
    documents, paired; nan where the whole is not above it."""
    sums = [sum(gates[name] - chance for gates in rows.values()) for name in (part, whole)]
    return clustered(influence(*sums), document)


def seen_often(learn: Sample, test: Sample, least: int = 10) -> np.ndarray:
    """Which positions of `test` have a token that stands at least `least` times in `learn`."""
    kinds, counts = np.unique(learn.tokens, return_counts=True)
    return np.isin(test.tokens, kinds[counts >= least])
