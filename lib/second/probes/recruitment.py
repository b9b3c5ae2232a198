"""The recruitment gate exp(quad_scale) of fitted product layers (Whipp §3.3, §5.3)."""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.second.probes.products import START, PolyLinear
from lib.second.stats import Interval, over_seeds

RATE = 3e-3  # of `fit_candidates`, whose cosine schedule halves it on average


def gate_table(modules: Mapping[tuple, PolyLinear]) -> pd.DataFrame:
    """The gates of layers keyed by (block, ..., seed): a row a layer with columns block, seed, gate
    (geometric mean over features of exp(quad_scale)) and change (that over its start)."""
    rows = []
    for (block, *_, seed), module in modules.items():
        moved = float(module.quad_scale.detach().double().mean()) - START
        rows.append((block, seed, math.exp(START + moved), math.exp(moved)))
    return pd.DataFrame(rows, columns=["block", "seed", "gate", "change"])


def geometric_mean(table: pd.DataFrame, column: str) -> Interval | None:
    """Geometric mean of a positive column over the rows of `table`, with a 95% t-interval over
    seeds; None for a table without rows."""
    if table.empty:
        return None
    by_seed = np.log(table[column]).groupby(table.seed).mean()
    found = over_seeds(by_seed)
    return Interval(*(math.exp(v) for v in (found.value, found.low, found.high)))


def gate_reach(steps: int) -> float:
    """The smallest factor by which `steps` of `fit_candidates` could change a gate: one step of
    Adam moves a parameter by about its rate."""
    return math.exp(-RATE / 2 * steps)
