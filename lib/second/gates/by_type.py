"""δ by type of token and depth (Balogh Figure 2), with the spread that the figure leaves out."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.second.gates.words import TYPES
from lib.second.stats.intervals import Interval, clustered
from lib.second.stats.joint import joint_level
from lib.second.stats.rank import RankResult, rank_correlation
from lib.second.stats.ratios import influence

SHUFFLES = 100


def type_table(by_block: Mapping[int, np.ndarray], types: np.ndarray, document) -> pd.DataFrame:
    """A row a block and type: columns block, type, share of positions, mean δ with low and high
    (95% over documents), sd, p5, p25, p50, p75, p95, in nats.

    by_block: {block: δ [n, seq_len-1]}; types [n, seq_len-1], index into TYPES; document [n].
    """
    kind, rows = types.ravel(), []
    for block, delta in by_block.items():
        flat = delta.ravel()
        for k, name in enumerate(TYPES):
            here = kind == k
            if not here.any():
                continue
            i = clustered(flat[here], _documents(delta, document)[here])
            marks = {f"p{p}": np.percentile(flat[here], p) for p in (5, 25, 50, 75, 95)}
            ends = {"mean": i.value, "low": i.low, "high": i.high}
            row = {"block": block, "type": name, "share": here.mean(), **ends}
            rows.append(row | {"sd": flat[here].std(), **marks})
    return pd.DataFrame(rows)


def between_types(
    by_block: Mapping[int, np.ndarray], types: np.ndarray, document, seed: int = 42
) -> dict[int, Interval]:
    """Share of the variance of δ that lies between types, less its mean with types shuffled over
    positions, {block: 95% over documents}, for all blocks at once."""
    level, chance = joint_level(len(by_block)), np.random.default_rng(seed)
    kind, found = types.ravel(), {}
    order = [chance.permutation(kind) for _ in range(SHUFFLES)]
    for block, delta in by_block.items():
        flat = delta.ravel()
        by_chance = np.mean([between_rows(flat, shuffled).mean() for shuffled in order])
        rows = between_rows(flat, kind) - by_chance
        found[block] = clustered(rows, _documents(delta, document), level)
    return found


def between_rows(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Rows [n] whose mean is the share of the variance of `values` that lies between `groups`."""
    counts = np.bincount(groups)
    means = np.bincount(groups, values) / np.maximum(counts, 1)
    left = np.square(values - means[groups])
    return 1 - influence(left, np.square(values - values.mean()))


def one_type_less_another(
    by_block: Mapping[int, np.ndarray], types: np.ndarray, document, one: str, other: str
) -> dict[int, Interval]:
    """Mean δ of one type less that of another, {block: 95% over documents}, for all at once."""
    level, found = joint_level(len(by_block)), {}
    masks = [(types.ravel() == TYPES.index(name)).astype(float) for name in (one, other)]
    for block, delta in by_block.items():
        means = [influence(delta.ravel() * mask, mask) for mask in masks]
        found[block] = clustered(means[0] - means[1], _documents(delta, document), level)
    return found


def least_rising(table: pd.DataFrame) -> tuple[str, RankResult]:
    """The type whose mean δ rises least with depth, and its rank correlation with the block."""
    found = {
        name: rank_correlation(part.block, part["mean"])
        for name, part in table.groupby("type", sort=False)
    }
    name = min(found, key=lambda t: found[t].rho)
    return name, found[name]


def _documents(delta: np.ndarray, document) -> np.ndarray:
    return np.repeat(np.asarray(document), delta.shape[1])
