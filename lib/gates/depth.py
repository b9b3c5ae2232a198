"""The linear gate of every block on the protocol's samples: how well it ranks, and what its score
has to do with function words (Balogh §4.3, §5.1)."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from sklearn.linear_model import LinearRegression

from lib.base.cache import cached, digest
from lib.base.errors import InputError
from lib.base.steps import Item, each
from lib.gates.delta import Deltas
from lib.gates.features import Described
from lib.gates.gate import fit_gate, labels
from lib.gates.inputs import Inputs
from lib.gates.regression import r2_rows
from lib.stats.intervals import Interval, cluster_variance, clustered
from lib.stats.rows import auc_rows, pearson_rows
from lib.stats.twoway import pooled_half_width

ABOUT = ("log frequency", "position", "next-token entropy")
"""what §5.1 says lies behind the gate's correlation with function words"""


def linear_scores(
    learn: Inputs, delta: Deltas, tests: Mapping[str, Inputs], blocks: Sequence[int]
) -> dict[int, dict[str, np.ndarray]]:
    """{block: {sample: logits of "linear OK" [positions]}} of the linear gate that learned on
    `learn`, for each sample of `tests`."""
    items = []
    for block in blocks:
        key = {
            "learn": learn.key(block),
            "delta": digest(delta.by_block[block]),
            "tests": [(name, inputs.key(block)) for name, inputs in tests.items()],
        }
        items.append(Item(key, (learn, delta.by_block[block].ravel(), tests, block)))
    total = len(items)
    found = each(_linear_scores, items, total=total, desc="linear gates by depth", unit="block")
    return dict(zip(blocks, found, strict=True))


@cached
def _linear_scores(work: tuple, tick: Callable[[int], None]) -> dict[str, np.ndarray]:
    learn, delta, tests, block = work
    flat = lambda inputs: inputs(block).reshape(-1, inputs.subject.d_model)
    gate = fit_gate("linear", flat(learn), labels(delta).of(delta))
    weight, bias = gate.v.numpy(), float(gate.c)
    tick(1)
    return {
        name: (flat(inputs) @ weight + bias).astype(np.float32) for name, inputs in tests.items()
    }


def areas(
    scores: Mapping[int, Mapping[str, np.ndarray]], sample: str, learn: Deltas, test: Deltas
) -> dict[int, np.ndarray]:
    """{block: rows [positions]} whose means are the linear gate's area under the ROC curve on
    `sample`, for the labels of its δ by the threshold of the δ learned from."""
    return {
        block: auc_rows(
            labels(learn.by_block[block].ravel()).of(test.by_block[block].ravel()), of[sample]
        )
        for block, of in scores.items()
    }


def with_function_words(
    scores: Mapping[int, Mapping[str, np.ndarray]], sample: str, function: np.ndarray
) -> dict[int, np.ndarray]:
    """{block: rows [positions]} whose means are the correlations of gate score and function-word
    indicator."""
    return {b: pearson_rows(of[sample], function.ravel()) for b, of in scores.items()}


def median_rows(rows: Mapping[int, np.ndarray], size: bool = False) -> np.ndarray:
    """Rows whose mean is the median over blocks of the rows' means (of their absolute values with
    `size`): those of the block in the middle, or of the two."""
    signed = [r * np.sign(r.mean()) if size else r for r in rows.values()]
    order = sorted(signed, key=np.mean)
    middle = order[(len(order) - 1) // 2 : len(order) // 2 + 1]
    return np.mean(middle, axis=0)


def kept_elsewhere(
    home: Mapping[int, np.ndarray], away: Mapping[int, np.ndarray], documents: Sequence
) -> Interval:
    """Summed over blocks, a correlation on another domain with the sign that it has at home, over
    its size at home; 95% over documents of both.

    home, away: {block: rows}; documents: those of the rows of both.
    """
    signs = {b: np.sign(rows.mean()) for b, rows in home.items()}
    here, there = (sum(s * rows[b] for b, s in signs.items()) for rows in (home, away))
    return ratio_of_means((there, documents[1]), (here, documents[0]))


def ratio_of_means(part: tuple, whole: tuple, level: float = 0.95) -> Interval:
    """Mean of one sample over that of another, each (rows, clusters), of different documents; nan
    where the second is not above 0."""
    if len(part) != 2 or len(whole) != 2:
        raise InputError("a ratio of means needs (rows, clusters) twice: give both.")
    top, bottom = (float(np.mean(rows)) for rows, _ in (part, whole))
    if not bottom > 0:
        return Interval(np.nan, np.nan, np.nan)
    ratio = top / bottom
    errors = [cluster_variance(*part), cluster_variance(*whole)]
    if not all(degrees for _, degrees in errors):
        return Interval(ratio, np.nan, np.nan)
    scaled = [(errors[0][0] / bottom**2, errors[0][1])]
    scaled.append((errors[1][0] * ratio**2 / bottom**2, errors[1][1]))
    half = float(pooled_half_width(scaled, level))
    return Interval(ratio, ratio - half, ratio + half)


def beyond_context(
    scores: Mapping[int, Mapping[str, np.ndarray]], described: Mapping[str, Described], document
) -> Interval:
    """Held-out R² of the gate's score on ABOUT and the function-word indicator less that without
    it, mean over blocks; learned on the sample "learn", scored on "test"; `document` is that of
    the latter's rows."""
    gained = []
    for of in scores.values():
        r2 = []
        for columns in ([*ABOUT, "function word"], [*ABOUT]):
            seen, unseen = (described[s].table[columns] for s in ("learn", "test"))
            predicted = LinearRegression().fit(seen, of["learn"]).predict(unseen)
            r2.append(r2_rows(of["test"].astype(float), predicted))
        gained.append(r2[0] - r2[1])
    return clustered(np.mean(gained, axis=0), document)
