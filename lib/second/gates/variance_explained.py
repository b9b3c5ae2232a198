"""How much of δ is explained: by features of the token, by its identity, by the whole activation
(Balogh §4.3.1)."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from lib.second.base.cache import cached, digest
from lib.second.base.steps import Item, each
from lib.second.gates.context import Sample
from lib.second.gates.features import OF_TOKEN, Described
from lib.second.stats.intervals import clustered
from lib.second.stats.ratios import influence

REGRESSORS = (
    "features, ridge",
    "features, trees",
    "features of the next token, ridge",
    "token identity",
    "activation, ridge",
    "activation, trees",
)
"""what δ is regressed on, and how"""
TARGETS = ("raw", "clipped")
"""δ as it is, and cut off at the 1st and 99th percentile of the documents that are learned from"""
COMPONENTS = 50
"""principal components of the activation that trees see"""
PENALTIES = np.logspace(0, 7, 8)
TREES = 60


def explained(
    learn: Sample, test: Sample, described: Sequence[Described], blocks, seed: int = 42
) -> dict[int, dict[tuple[str, str], np.ndarray]]:
    """{block: {(regressor, target): rows [positions]}} whose means are R² on `test` of regressions
    learned on `learn`; the penalty, or the number of trees, is chosen on a third of the documents
    of `learn`.

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
        items.append(Item(key, (learn, test, described, block, seed), len(REGRESSORS)))
    total = sum(item.size for item in items)
    found = each(_predictions, items, total=total, desc="regressions of δ", unit="fit")
    rows = {}
    for block, predicted in zip(blocks, found, strict=True):
        y = _targets(learn, test, block)[1]
        rows[block] = {
            (name, target): r2_rows(y[:, t], predicted[k][:, t])
            for k, name in enumerate(REGRESSORS)
            for t, target in enumerate(TARGETS)
        }
    return rows


def explained_by_token(
    learn: Sample, test: Sample, described: Sequence[Described], blocks
) -> dict[int, dict[tuple[str, str], np.ndarray]]:
    """The same for ridge regression on OF_TOKEN, the features of the token and its word alone."""
    seen, unseen = _coded(*(d.table[[*OF_TOKEN]] for d in described))
    groups, rows = learn.document, {}
    folds = GroupKFold(min(3, len(np.unique(groups))))
    split = next(iter(folds.split(groups, groups=groups)))
    for block in blocks:
        taught, y = _targets(learn, test, block)
        predicted = _ridge(seen, taught, unseen, split)
        rows[block] = {
            ("features of the token alone, ridge", target): r2_rows(y[:, t], predicted[:, t])
            for t, target in enumerate(TARGETS)
        }
    return rows


def r2_rows(y: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Rows [n] whose mean is R² of `predicted` for `y`."""
    return 1 - influence(np.square(y - predicted), np.square(y - y.mean()))


def _targets(learn: Sample, test: Sample, block: int) -> list[np.ndarray]:
    """δ of the two samples, [positions, targets]."""
    pair = [s.delta.by_block[block].ravel() for s in (learn, test)]
    ends = np.percentile(pair[0], [1, 99])
    return [np.stack([y, y.clip(*ends)], axis=1) for y in pair]


@cached
def _predictions(work: tuple, tick: Callable[[int], None]) -> list[np.ndarray]:
    """Predictions of each regressor on `test`, [positions, targets]."""
    learn, test, described, block, seed = work
    y, groups = _targets(learn, test, block)[0], learn.document
    folds = GroupKFold(min(3, len(np.unique(groups))))
    split = next(iter(folds.split(y, groups=groups)))
    found = []
    for fit, seen, unseen in _regressors(learn, test, described, block, seed):
        found.append(fit(seen, y, unseen, split).astype(np.float32))
        tick(1)
    return found


def _regressors(learn, test, described, block: int, seed: int) -> Iterator[tuple]:
    """(how it is fitted, what it sees on `learn`, on `test`), in the order of REGRESSORS."""
    samples, tables = (learn, test), [d.table for d in described]
    trees = lambda *work: _trees(*work, seed=seed)
    coded = _coded(*tables)
    yield _ridge, *coded
    yield trees, *coded
    after = [_of_next(t, s.streams.windows.seq_len) for t, s in zip(tables, samples, strict=True)]
    yield _ridge, *_coded(*after)
    # Ridge regression on one-hot tokens is the mean of each type, shrunk to that of all.
    identity = OneHotEncoder(handle_unknown="ignore").fit(learn.tokens[:, None])
    yield _ridge, *(identity.transform(s.tokens[:, None]) for s in samples)
    x = [s.streams(block).rows("x") for s in samples]
    scaler = StandardScaler().fit(x[0])
    yield _ridge, *map(scaler.transform, x)
    pca = PCA(min(COMPONENTS, *x[0].shape), random_state=seed).fit(x[0])
    yield trees, *map(pca.transform, x)


def _coded(seen: pd.DataFrame, unseen: pd.DataFrame) -> list[np.ndarray]:
    """Features as numbers: parts of speech one-hot, the others standardized."""
    coder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["part of speech"]),
        remainder=StandardScaler(),
    )
    return [coder.fit_transform(seen), coder.transform(unseen)]


def _ridge(seen, y: np.ndarray, unseen, split: tuple) -> np.ndarray:
    """Ridge regression, the penalty of each target chosen on the second part of `split`."""
    taught, held = split
    alphas = np.repeat(PENALTIES, y.shape[1])
    many = Ridge(alphas).fit(seen[taught], np.tile(y[taught], len(PENALTIES)))
    left = many.predict(seen[held]) - np.tile(y[held], len(PENALTIES))
    errors = np.square(left).sum(0).reshape(len(PENALTIES), -1)
    best = PENALTIES[errors.argmin(0)]
    return Ridge(best).fit(seen, y).predict(unseen)


def _trees(seen, y: np.ndarray, unseen, split: tuple, seed: int) -> np.ndarray:
    """Boosted trees, their number for each target chosen on the second part of `split`."""
    taught, held = split
    model = HistGradientBoostingRegressor(
        learning_rate=0.1,
        max_iter=TREES,
        max_leaf_nodes=15,
        min_samples_leaf=50,
        early_stopping=False,
        random_state=seed,
    )
    found = []
    for target in y.T:
        model.set_params(max_iter=TREES).fit(seen[taught], target[taught])
        errors = [np.square(p - target[held]).sum() for p in model.staged_predict(seen[held])]
        flat = np.square(target[taught].mean() - target[held]).sum()
        if flat <= min(errors):  # no tree at all
            found.append(np.full(len(unseen), target.mean()))
            continue
        model.set_params(max_iter=int(np.argmin(errors)) + 1).fit(seen, target)
        found.append(model.predict(unseen))
    return np.stack(found, axis=1)


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
