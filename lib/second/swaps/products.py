"""What a product branch saves of the cost of a linear swap, block by block (Whipp §5.6, §5.7)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.second.probes.residual import ResidualProbes, residual_probes
from lib.second.probes.rows import BlockRows
from lib.second.stats.intervals import clustered
from lib.second.swaps.costs import as_costs
from lib.second.swaps.sweep import delta_ppl, swap_sweep
from lib.second.texts.windows import Windows


@dataclass(frozen=True, eq=False)
class ProductCosts:
    """Every FFN replaced in turn, by its closed-form map and by that map with a product branch."""

    table: pd.DataFrame
    """one row a block: r2_lin, r2_bilinear (held-out, first seed), ΔPPL in percent of either swap
    (cost_linear, cost_bilinear) with intervals (_low, _high), and how much less the branch costs,
    paired (saved, saved_low, saved_high), all in percent of the base perplexity"""
    probes: ResidualProbes
    base: np.ndarray
    """losses without a swap, [n, seq_len-1], nats"""
    losses: dict[tuple[int, str], np.ndarray]
    """losses with each swap, by (block, "linear" or "bilinear")"""

    def of(self, candidate: str) -> dict[int, np.ndarray]:
        """Losses of one kind of swap, "linear" or "bilinear", by block."""
        return {block: found for (block, name), found in self.losses.items() if name == candidate}


def product_costs(
    rows: BlockRows, unseen: Windows, seeds: Sequence[int], steps: int
) -> ProductCosts:
    """Fit a bilinear branch on every block of `rows` and price both swaps on `unseen` windows.

    Intervals are paired over tokens and clustered by document.
    """
    probes = residual_probes(rows, seeds, steps=steps)
    swaps = {}
    for block, affine in probes.maps.items():
        swaps[block, "linear"] = affine
        swaps[block, "bilinear"] = probes.modules[block, seeds[0]]
    base, swapped = swap_sweep(rows.subject, unseen, swaps)
    costs = delta_ppl(base, swapped, unseen.document, names=["candidate"])
    first = probes.table[probes.table.seed == seeds[0]].set_index("block")
    table = pd.DataFrame({"r2_lin": first.r2_lin, "r2_bilinear": first.r2_lin + first.gain})
    for name, part in costs.groupby("candidate", sort=False):
        part = part.set_index("block")
        for end in ("", "_low", "_high"):
            table[f"cost_{name}{end}"] = part[f"delta_ppl_percent{end}"]
    for b in probes.maps:
        costs = (as_costs(base, swapped[b, name]) for name in ("linear", "bilinear"))
        left = clustered(100 * np.subtract(*costs), unseen.document)
        table.loc[b, ["saved", "saved_low", "saved_high"]] = left.value, left.low, left.high
    return ProductCosts(table.reset_index(), probes, base, swapped)
