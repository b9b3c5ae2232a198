"""How far a trained linear map falls short of the exact one, with intervals over held-out documents
and optimiser seeds (Whipp §5.1, §6)."""

import numpy as np
import pandas as pd

from lib.second.stats.intervals import Interval, clustered
from lib.second.stats.joint import joint_level, over_seeds
from lib.second.stats.ratios import both, influence

NOTHING = Interval(np.nan, np.nan, np.nan)


def shortfalls(
    curves: pd.DataFrame, ceilings: pd.DataFrame, windows: pd.DataFrame, kind: str, step: int
) -> dict[int, Interval]:
    """R²_lin less held-out R² after `step` steps of optimizer `kind`, by block, for all blocks run.

    curves, ceilings: of Baselines; windows: of Controls. The mean is over seeds; its interval adds,
    in squares, the spread over seeds and that over held-out documents (of the first seed's map).
    """
    by_seed = seed_gaps(curves, ceilings, kind, step)
    level = joint_level(by_seed.shape[1])
    found = {}
    for block, values in by_seed.items():
        rows, document = _ratios(windows, block, kind)
        found[int(block)] = both(
            over_seeds(values, level), clustered(rows[kind] - rows.exact, document, level)
        )
    return found


def seed_gaps(curves: pd.DataFrame, ceilings: pd.DataFrame, kind: str, step: int) -> pd.DataFrame:
    """R²_lin less R² after `step` steps: a row a seed, a column a block."""
    at = curves[(curves.step == step) & (curves.optimizer == kind)]
    wide = at.pivot(index="seed", columns="block", values="r2")
    return ceilings.set_index("block").r2_lin.reindex(wide.columns) - wide


def closed_by_whitening(
    curves: pd.DataFrame, ceilings: pd.DataFrame, windows: pd.DataFrame, step: int
) -> Interval:
    """Share of the gap of SGD that vanishes when the same training runs on whitened inputs, gaps
    summed over the blocks run; over seeds and held-out documents as in `shortfalls`. nan where the
    summed gap is not above 0.1, half of the least that the paper's words ask for."""
    raw = seed_gaps(curves, ceilings, "sgd", step).sum(axis=1)
    scored = windows.groupby(["block", "kind", "seed"])[["error", "deviation"]].sum()
    r2 = (1 - scored.error / scored.deviation).unstack(["kind", "seed"])
    left = pd.Series({s: (r2["exact"].iloc[:, 0] - r2["whitened"][s]).sum() for s in raw.index})
    if not raw.mean() > 0.1:
        return NOTHING
    seeds = over_seeds(1 - left / raw)
    first, sums = raw.index[0], {"sgd": 0.0, "whitened": 0.0}
    for block in scored.index.levels[0]:
        rows, document = _ratios(windows[windows.seed.isin([0, first])], block, "sgd", "whitened")
        sums = {kind: sums[kind] + (rows[kind] - rows.exact).to_numpy() for kind in sums}
    slow, white = sums["sgd"], sums["whitened"]
    share = 1 - white.mean() / slow.mean()
    moved = share + ((1 - share) * (slow - slow.mean()) - (white - white.mean())) / slow.mean()
    return both(seeds, clustered(moved, document))


def _ratios(windows: pd.DataFrame, block: int, *kinds: str) -> tuple[pd.DataFrame, np.ndarray]:
    """The influence of each held-out window on 1 - R² of the exact map and of `kinds`, a column
    each, and the document of each window."""
    rows = {}
    part = windows[windows.block == block]
    for kind in ("exact", *kinds):
        one = part[part.kind == kind]
        one = one[one.seed == one.seed.iloc[0]]
        rows[kind] = influence(one.error, one.deviation)
    return pd.DataFrame(rows), one.document.to_numpy()


def steps_needed(curves: pd.DataFrame, ceilings: pd.DataFrame, within: float = 0.01):
    """Optimiser steps until held-out R² is `within` of R²_lin, at the checkpoints: columns block,
    optimizer, seed, steps (nan where the budget ends first)."""
    gap = curves.block.map(ceilings.set_index("block").r2_lin) - curves.r2
    keys = ["block", "optimizer", "seed"]
    every = curves[keys].drop_duplicates()
    first = curves[gap <= within].groupby(keys, sort=False).step.min().rename("steps").reset_index()
    return every.merge(first, how="left")


def fitted_margin(fitted: pd.DataFrame) -> dict[str, float]:
    """R² on the fit rows, closed form less trained, for each trained map: least squares leaves none
    below 0 (an identity)."""
    exact = fitted[fitted.kind == "exact"].set_index("block").r2_fitted
    rest = fitted[fitted.kind != "exact"]
    return {
        f"block {r.block}, {r.kind}, seed {r.seed}": exact[r.block] - r.r2_fitted
        for r in rest.itertuples()
    }
