"""Whipp's Table 4 from costs window by window: what each candidate costs, and how far behind the
healed original it ends."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.second.stats.intervals import clustered
from lib.second.stats.twoway import seeds_by_documents


def healing_table(costs: Mapping[tuple, np.ndarray], perplexity: float, document) -> pd.DataFrame:
    """One row a block, candidate and phase, from `costs` {(block, candidate, phase): [n_seeds, n]}
    as fractions of the base `perplexity` (`lib.second.swaps.by_seed`).

    Columns delta_ppl (units of perplexity), std (of that over seeds), mean, low, high (percent,
    95% over seeds and documents; over documents alone for what one seed stands for, the closed form
    without healing).
    """
    rows = []
    for (block, candidate, phase), values in costs.items():
        each = values.mean(1)  # [n_seeds]
        alone = candidate == "linear" and phase == "zero-shot"
        interval = (
            clustered(values[0], document) if alone else seeds_by_documents((values, document))
        )
        rows.append(
            {
                "block": block,
                "candidate": candidate,
                "phase": phase,
                "delta_ppl": perplexity * each.mean(),
                "std": perplexity * each.std(ddof=1) if len(each) > 1 else np.nan,
                "mean": 100 * interval.value,
                "low": 100 * interval.low,
                "high": 100 * interval.high,
            }
        )
    return pd.DataFrame(rows)


def behind_original(costs: Mapping[tuple, np.ndarray]) -> dict[tuple, np.ndarray]:
    """Healed cost of each candidate less that of the healed original of its block, seed by seed:
    {(block, candidate): [n_seeds, n]}."""
    return {
        (block, candidate): values - costs[block, "original", "healed"]
        for (block, candidate, phase), values in costs.items()
        if phase == "healed" and candidate != "original"
    }


def gap_table(costs: Mapping[tuple, np.ndarray], params: Mapping[str, int]) -> pd.DataFrame:
    """One row a block and candidate: columns params, zero_shot, healed and gap (healed less the
    healed original), seeds averaged, as fractions of the base perplexity."""
    rows = []
    for (block, candidate), values in behind_original(costs).items():
        rows.append(
            {
                "block": block,
                "candidate": candidate,
                "params": params[candidate],
                "zero_shot": float(costs[block, candidate, "zero-shot"].mean()),
                "healed": float(costs[block, candidate, "healed"].mean()),
                "gap": float(values.mean()),
            }
        )
    return pd.DataFrame(rows)
