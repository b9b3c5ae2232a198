"""What the token budget makes of R²_lin: the step that the paper takes, and what is left to the
limit (Whipp §5.5)."""

from functools import partial

import numpy as np
import pandas as pd

from lib.second.linear.survey import doubling
from lib.second.stats.intervals import Interval, fold_mean
from lib.second.stats.joint import jointly


def sampled_tokens(curves: pd.DataFrame) -> pd.Series:
    """Tokens of each budget, held-out rows among them, as the paper counts: training rows times
    K/(K - 1). Indexed by budget; empty without a curve."""
    if curves.empty:
        return pd.Series(dtype=float)
    n_folds = curves.fold.nunique()
    return curves.groupby("budget").n_tokens.mean() * n_folds / (n_folds - 1)


def has_budget(curves: pd.DataFrame, tokens: float, within: float = 0.1) -> bool:
    """Whether some budget with a smaller one before it comes `within` a tenth of `tokens`."""
    return bool((abs(sampled_tokens(curves).iloc[1:] / tokens - 1) <= within).any())


def doubled_to(curves: pd.DataFrame, tokens: float = 30_000) -> Interval:
    """What the doubling that ends nearest to a sample of `tokens` adds to R², mean over blocks, on
    the same held-out documents (see `doubling`); nan without a curve."""
    sizes = sampled_tokens(curves)
    if len(sizes) < 2:
        return Interval(np.nan, np.nan, np.nan)
    nearest = int(np.abs(np.log(sizes.iloc[1:] / tokens)).to_numpy().argmin())
    row = doubling(curves).iloc[nearest]
    return Interval(float(row["mean"]), float(row.low), float(row.high))


def left_to_limit(curves: pd.DataFrame, tokens: float = 30_000) -> dict[int, Interval]:
    """R² at n → ∞ less R² at the budget nearest to `tokens`, by block, for all blocks at once.

    On each fold of documents a straight line in 1/n is fitted to the budgets from half of `tokens`
    up, and read at 1/n = 0. The line is refitted on each fold, so its error is in the interval.
    Empty without a curve.
    """
    sizes = sampled_tokens(curves)
    used = sizes.index[sizes >= 0.45 * tokens]
    used = used if len(used) > 1 else sizes.index[-2:]
    if len(used) < 2:
        return {}
    at = int(np.abs(np.log(sizes / tokens)).idxmin())
    part = curves[curves.budget.isin(used) | (curves.budget == at)]
    gaps = {
        key: _at_infinity(rows[rows.budget.isin(used)]) - float(rows.r2[rows.budget == at].iloc[0])
        for key, rows in part.groupby(["fold", "block"])
    }
    wide = pd.Series(gaps).unstack()
    return jointly(wide, partial(fold_mean, test_over_train=1 / (len(wide) - 1)))


def _at_infinity(rows: pd.DataFrame) -> float:
    return float(np.polyfit(1 / rows.n_tokens, rows.r2, 1)[1])
