"""Models of different size side by side (Whipp §5.1, §5.2): their pairs, their trend with depth,
and how many have a block like that.

A model is a table [fold, block] of held-out R²_lin, a row a fold of documents.
"""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats

from lib.second.stats.intervals import Interval, fold_mean, spearman
from lib.second.stats.joint import joint_level, jointly
from lib.second.training.apart import gap


def at_depths(table: pd.DataFrame, n: int) -> pd.DataFrame:
    """Profiles [fold, block] read at `n` equally spaced relative depths, first and last block
    included, on straight lines between blocks."""
    depth, wanted = np.linspace(0, 1, table.shape[1]), np.linspace(0, 1, n)
    rows = [np.interp(wanted, depth, row) for row in table.to_numpy(float)]
    return pd.DataFrame(rows, index=table.index)


def pairs_apart(models: Mapping[str, pd.DataFrame]) -> dict[str, Interval]:
    """Mean absolute difference at equal relative depth of every pair of models, less what chance
    alone would give, with intervals over documents that hold jointly. Read at as many depths as
    the deeper model has blocks."""
    pairs, found = list(combinations(models, 2)), {}
    for a, b in pairs:
        n = max(models[a].shape[1], models[b].shape[1])
        sides = [at_depths(models[m], n) for m in (a, b)]
        level = joint_level(len(pairs))
        found[f"{a} and {b}"] = gap(*sides, folds=True, level=level)
    return found


def depth_trends(models: Mapping[str, pd.DataFrame]) -> dict[str, Interval]:
    """Spearman correlation of R²_lin with the block's index in every model, mean over folds, with
    intervals over documents that hold jointly; nan in a model of one block."""
    rho = {
        name: [spearman(range(table.shape[1]), row) for row in table.to_numpy(float)]
        for name, table in models.items()
    }
    return jointly(pd.DataFrame(rho), fold_mean)


def blocks_of(models: Mapping[str, pd.DataFrame]) -> dict[str, Interval]:
    """R²_lin of every block of all `models`, with intervals over documents that hold jointly."""
    named = [t.rename(columns=lambda b, m=m: f"{m} block {b}") for m, t in models.items()]
    return jointly(pd.concat(named, axis=1), fold_mean)


def share_above(values, threshold: float, level: float = 0.95) -> Interval:
    """Share of `values`, one a model, that exceed `threshold`, with its exact binomial interval
    (Clopper and Pearson, Biometrika 26, 1934)."""
    values = np.asarray(values, float)
    found = stats.binomtest(int((values > threshold).sum()), len(values))
    bounds = found.proportion_ci(level, method="exact")
    return Interval(found.statistic, float(bounds.low), float(bounds.high))


def models_to_decide(share: float = 0.5, level: float = 0.95) -> int:
    """The fewest models that can show, if none of them has it, that less than `share` have it."""
    return int(np.ceil(np.log((1 - level) / 2) / np.log(1 - share)))
