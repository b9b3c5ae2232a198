"""Statistics of rows as means over them: each row gets the value whose mean is the statistic and
whose spread is, to first order, the statistic's own, so `clustered` gives their intervals, and
differences of statistics of the same rows are differences of rows, paired."""

import numpy as np
from scipy.stats import rankdata

from lib.second.base.errors import InputError


def auc_rows(positive, score) -> np.ndarray:
    """Rows [n] whose mean is the area under the ROC curve of `score` [n] for `positive` [n] bool,
    ties counted half.

    The components of DeLong, DeLong and Clarke-Pearson (Biometrics 44, 1988), whose sums over
    clusters give the variance of clustered data (Obuchowski, Biometrics 53, 1997). Raises
    InputError for lengths that differ, or one class alone.
    """
    positive, score = np.asarray(positive, bool), np.asarray(score, float)
    if positive.shape != score.shape or positive.ndim != 1:
        raise InputError(
            f"{positive.shape} labels and {score.shape} scores do not fit: give one of each a row."
        )
    n, ones = len(positive), int(positive.sum())
    if not 0 < ones < n:
        raise InputError(
            f"all {n:,} positions are of one class: an AUC needs both; use more tokens."
        )
    ranks, rows = rankdata(score), np.empty(n)
    for side, others in ((positive, n - ones), (~positive, ones)):
        rows[side] = (ranks[side] - rankdata(score[side])) / others  # share of the others below
    rows[~positive] = 1 - rows[~positive]
    auc = rows[positive].mean()
    weight = np.where(positive, n / ones, n / (n - ones))
    return auc + weight * (rows - auc)


def pearson_rows(a, b) -> np.ndarray:
    """Rows [n] whose mean is the Pearson correlation of `a` and `b` [n] (its influence function,
    Devlin, Gnanadesikan and Kettenring, Biometrika 62, 1975); nan where a side does not vary.
    Raises InputError for lengths that differ."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(
            f"{a.shape} and {b.shape} values cannot be paired: give one value a row on each side."
        )
    if not (np.ptp(a) > 0 and np.ptp(b) > 0):
        return np.full(len(a), np.nan)
    za, zb = (a - a.mean()) / a.std(), (b - b.mean()) / b.std()
    r = (za * zb).mean()
    return za * zb + r - r / 2 * (za**2 + zb**2)
