"""How much of the token's embedding can be read off what is called its context (Balogh §4.3.2: a
gate on x - e is said to see no token)."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from lib.second.base.cache import cached
from lib.second.base.steps import Item, each
from lib.second.gates.context import Sample
from lib.second.gates.types import type_means
from lib.second.stats.intervals import clustered
from lib.second.stats.ratios import influence

READ_FROM = ("full", "context", "split context", "less type mean")
"""inputs of gates, as in lib.second.gates.context"""
RIDGE = 10.0
"""penalty on standardized inputs, small beside the number of positions"""


def read_out(learn: Sample, test: Sample, blocks: Sequence[int]) -> pd.DataFrame:
    """Held-out R² of e, summed over its features, by ridge regression on each of READ_FROM: columns
    block, input, mean, low, high (95% over documents)."""
    items = [
        Item(
            {"learn": learn.streams.key(b), "test": test.streams.key(b)},
            (learn, test, b),
            len(READ_FROM),
        )
        for b in blocks
    ]
    total, rows = sum(item.size for item in items), []
    found = each(_errors, items, total=total, desc="embeddings read off", unit="fit")
    for block, (errors, size) in zip(blocks, found, strict=True):
        for name, error in zip(READ_FROM, errors, strict=True):
            i = clustered(1 - influence(error, size), test.document)
            rows.append((block, name, i.value, i.low, i.high))
    return pd.DataFrame(rows, columns=["block", "input", "mean", "low", "high"])


@cached
def _errors(work: tuple, tick: Callable[[int], None]) -> list[np.ndarray]:
    """[squared errors of each input [inputs, positions], squared deviations [positions]]."""
    learn, test, block = work
    splits = learn.streams(block), test.streams(block)
    x, e, context = (
        [split.rows(part) for split in splits] for part in ("x", "embedding", "context")
    )
    means = type_means(x[0], learn.tokens, learn.document, test.tokens)
    inputs = {
        "full": x,
        "context": [whole - part for whole, part in zip(x, e, strict=True)],
        "split context": context,
        "less type mean": [whole - part for whole, part in zip(x, means, strict=True)],
    }
    errors = []
    for name in READ_FROM:
        seen, unseen = inputs[name]
        scaler = StandardScaler().fit(seen)
        found = Ridge(RIDGE).fit(scaler.transform(seen), e[0])
        left = e[1] - found.predict(scaler.transform(unseen))
        errors.append(np.square(left, dtype=np.float64).sum(1))
        tick(1)
    deviations = np.square(e[1] - e[1].mean(0), dtype=np.float64).sum(1)
    return [np.stack(errors), deviations]
