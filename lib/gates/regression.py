"""How much of δ is explained: by features of the token, by its identity, by the whole activation
(Balogh §4.3.1)."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from lib.base.cache import cached, digest
from lib.base.steps import Item, each
from lib.gates.context import Sample
from lib.gates.features import Described
from lib.stats.intervals import clustered
from lib.stats.ratios import influence

REGRESSORS = (
    "features, ridge",
    "features, trees",
    "features of the next token, ridge",
    "token identity",
    "features and identity",
    "activation, ridge",
    "activation, trees",
)
"""what δ is regressed on, and how"""
TARGETS = ("raw", "clipped")
"""δ as it is, and cut off at the 1st and 99th percentile of the documents that are learned from"""
COMPONENTS = 50
"""principal components of the activation that trees see"""
PENALTIES = tuple(10.0**k for k in range(0, 7))
N_FOLDS = 3


def explained(
    learn: Sample, test: Sample, described: Sequence[Described], blocks, seed: int = 42
) -> dict[int, dict[tuple[str, str], np.ndarray]]:
    """{block: {(regressor, target): rows [positions]}} whose means are R² on `test` of regressions
    learned on `learn`; penalties and the number of trees are chosen by document folds of `learn`.

    described: what is said of the positions of the two samples.
    """
    items = []
    for block in blocks:
        key = {
            "learn": learn.streams.key(block),
            "test": test.streams.key(block),
            "delta": digest([s.delta.by_block[block] for s in (learn, test)]),
            "features": digest([d.table.to_numpy() for d in described]),
            "seed": seed,
        }
        size = len(REGRESSORS) * len(TARGETS)
        items.append(Item(key, (learn, test, described, block, seed), size))
    total = sum(item.size for item in items)
    found = each(_predictions, items, total=total, desc="regressions of δ", unit="fit")
    return {
        b: {
            (name, target): r2_rows(_targets(learn, test, b)[target][1], predictions[k])
            for target, predictions in by_target.items()
            for k, name in enumerate(REGRESSORS)
        }
        for b, by_target in zip(blocks, found, strict=True)
    }


def r2_rows(y: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Rows [n] whose mean is R² of `predicted` for `y`."""
    return 1 - influence(np.square(y - predicted), np.square(y - y.mean()))


def _targets(learn: Sample, test: Sample, block: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    y, z = (s.delta.by_block[block].ravel() for s in (learn, test))
    ends = np.percentile(y, [1, 99])
    return {"raw": (y, z), "clipped": (y.clip(*ends), z.clip(*ends))}


@cached
def _predictions(work: tuple, tick: Callable[[int], None]) -> dict[str, np.ndarray]:
    """{target: predictions on `test` [regressors, positions]}."""
    learn, test, described, block, seed = work
    found: dict[str, list] = {target: [] for target in TARGETS}
    targets = _targets(learn, test, block)
    for model, seen, unseen in _models(learn, test, described, block, seed):
        for target, (y, _) in targets.items():
            model.fit(seen, y, groups=learn.document)
            found[target].append(model.predict(unseen).astype(np.float32))
            tick(1)
    return {target: np.stack(rows) for target, rows in found.items()}


def _models(learn, test, described, block: int, seed: int) -> Iterator[tuple]:
    """(search, features of `learn`, of `test`), in the order of REGRESSORS."""
    folds = GroupKFold(min(N_FOLDS, len(np.unique(learn.document))))
    tables = [d.table for d in described]
    coded = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["part of speech"]),
        remainder=StandardScaler(),
    )
    ridge = {"ridge__alpha": PENALTIES}
    # Ridge regression on one-hot tokens is the mean of each type, shrunk to that of all.
    identity = OneHotEncoder(handle_unknown="ignore")
    both = make_column_transformer((identity, ["token"]), remainder=coded)
    trees = HistGradientBoostingRegressor(
        learning_rate=0.05, min_samples_leaf=50, early_stopping=False, random_state=seed
    )
    grown = {"histgradientboostingregressor__max_iter": (1, 20, 80)}
    search = lambda *steps, grid: GridSearchCV(make_pipeline(*steps), grid, cv=folds)
    yield search(coded, Ridge(), grid=ridge), *tables
    yield search(coded, trees, grid=grown), *tables
    samples = (learn, test)
    after = [_of_next(t, s.streams.windows.seq_len) for t, s in zip(tables, samples, strict=True)]
    yield search(coded, Ridge(), grid=ridge), *after
    tokens = [s.tokens.reshape(-1, 1) for s in samples]
    yield search(identity, Ridge(), grid=ridge), *tokens
    joined = [t.assign(token=s.tokens) for t, s in zip(tables, samples, strict=True)]
    yield search(both, Ridge(), grid=ridge), *joined
    x = [s.streams(block).rows("x") for s in samples]
    yield search(StandardScaler(), Ridge(), grid=ridge), *x
    pca = PCA(min(COMPONENTS, *x[0].shape), random_state=seed).fit(x[0])
    yield search(StandardScaler(), trees, grid=grown), *map(pca.transform, x)


def _of_next(table: pd.DataFrame, seq_len: int) -> pd.DataFrame:
    """The features of the token after each position, the one that δ is about, without its loss,
    which is in δ; the last position keeps its own."""
    index = np.arange(len(table)).reshape(-1, seq_len - 1)
    index = np.concatenate([index[:, 1:], index[:, -1:]], axis=1)
    after = table.iloc[index.ravel()].reset_index(drop=True)
    return after.drop(columns="surprisal")


def r2_table(rows: Mapping[int, Mapping[tuple[str, str], np.ndarray]], document) -> pd.DataFrame:
    """A row a block, regressor and target: columns block, regressor, target, mean, low, high (95%
    over documents)."""
    found = []
    for block, regressors in rows.items():
        for (name, target), values in regressors.items():
            i = clustered(values, document)
            found.append((block, name, target, i.value, i.low, i.high))
    return pd.DataFrame(found, columns=["block", "regressor", "target", "mean", "low", "high"])
