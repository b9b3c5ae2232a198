"""What is left of R²_lin when massive tokens are left out of fit and score, over held-out documents
(beyond Whipp §5.1)."""

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from lib.second.linear.massive import TokenEnergy
from lib.second.stats.intervals import Interval, bootstrap, clustered
from lib.second.stats.joint import joint_level
from lib.second.stats.ratios import influence


@dataclass(frozen=True, eq=False)
class WithAndWithout:
    """Sums over the tokens of each held-out window, each [n_blocks, n_windows]."""

    error: np.ndarray
    deviation: np.ndarray
    """of all tokens, under the map of all tokens"""
    error_kept: np.ndarray
    deviation_kept: np.ndarray
    """of the tokens that are not massive, under the map that was fitted on such tokens"""
    document: np.ndarray
    """[n_windows]"""

    @property
    def r2(self) -> np.ndarray:
        """R² over all tokens, [n_blocks]."""
        return 1 - self.error.sum(1) / self.deviation.sum(1)

    @property
    def r2_kept(self) -> np.ndarray:
        """R² fitted and scored without massive tokens, [n_blocks]."""
        return 1 - self.error_kept.sum(1) / self.deviation_kept.sum(1)

    def drops(self) -> dict[int, Interval]:
        """R² over all tokens less R² without the massive ones, by block, for all blocks at once,
        clustered by document. Blocks without massive tokens have a drop of about 0."""
        level = joint_level(len(self.error))
        found = {}
        for block in range(len(self.error)):
            kept = influence(self.error_kept[block], self.deviation_kept[block])
            moved = kept - influence(self.error[block], self.deviation[block])
            found[block] = clustered(moved, self.document, level)
        return found

    def order_kept(self, seed: int = 42) -> Interval:
        """Spearman correlation over blocks of R² with and without massive tokens, by bootstrap over
        documents; nan with fewer than four blocks."""
        if len(self.error) < 4:
            return Interval(np.nan, np.nan, np.nan)
        names = np.unique(self.document)
        member = (self.document[:, None] == names).astype(float)  # [n_windows, n_documents]
        sums = [s @ member for s in (self.error, self.deviation)]
        sums += [s @ member for s in (self.error_kept, self.deviation_kept)]

        def order(drawn: np.ndarray) -> float:
            error, deviation, error_kept, deviation_kept = (s[:, drawn].sum(1) for s in sums)
            ranks = rankdata([error / deviation, error_kept / deviation_kept], axis=1)
            return float(np.corrcoef(ranks)[0, 1])

        return bootstrap(order, np.arange(len(names)), seed=seed)


def with_and_without(energy: TokenEnergy, refit: TokenEnergy, document) -> WithAndWithout:
    """From the energies of the same held-out windows, `document` [n_windows]: under the maps and
    means of all tokens, and under those of the tokens that are not massive."""
    keep = ~energy.massive()
    return WithAndWithout(
        energy.error.sum(2),
        energy.deviation.sum(2),
        (refit.error * keep).sum(2),
        (refit.deviation * keep).sum(2),
        np.asarray(document),
    )
