"""How linear recoverability grows with the token budget, and what it comes to at n → ∞ (beyond
Whipp §5.1, whose R²_lin is that of one budget).

It takes moments alone: a budget is a sum of segments, a training set the sum of the other folds,
and every ridge of one training set is scored from one eigendecomposition.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pandas as pd
import torch

from lib.second.base.errors import InputError
from lib.second.linear.moments import Moments
from lib.second.stats.intervals import Interval, fold_mean

RIDGES = np.array([0.0, *np.logspace(-10, 2, 25)])
"""the ridges tried, in units of the mean eigenvalue of the training rows' Sxx"""
FLOOR = 1e-12
"""a share of variance below this is rounding"""


@dataclass(frozen=True, eq=False)
class LearningCurve:
    """Held-out R² of one FFN's affine map against the number of tokens it was fitted on."""

    table: pd.DataFrame
    """one row a fold and budget: fold, budget (0, 1, ...), n_tokens (training rows), r2 (least
    squares), r2_ridge, ridge (the chosen one, in units of the mean eigenvalue of Sxx)"""
    pooled: pd.DataFrame
    """one row a budget: n_tokens (mean over folds); r2, r2_ridge from errors summed over folds;
    r2_fitted, least squares on its own training rows"""
    plain: Interval
    """R² of the best affine map, to which both fits tend at n → ∞, with its 95% interval"""
    rank: int
    """number of input directions that vary; least squares needs more tokens than that"""

    def __repr__(self) -> str:
        n = self.pooled.n_tokens
        return f"LearningCurve({n.iloc[0]:,.0f} to {n.iloc[-1]:,.0f} tokens, ∞: {self.plain:.3f})"


def learning_curve(grid: Sequence[Sequence[Moments]]) -> LearningCurve:
    """Learning curve of one block from grid[s][k], the moments of segment s of the budget on fold
    k of the documents. Budget j is segments 0..j; each fold in turn is held out with all its rows,
    and the map fitted on budget j of the others. A segment may miss a fold (n = 0).

    r2 is least squares, 1 - Σ err / Σ dev of the held-out fold. r2_ridge uses the ridge of RIDGES
    that is best on the *other* folds, each scored by the fit that left it out, at the same budget:
    a fold's rows train the fits that choose its ridge but never score them, so they can favour
    their own score only through one number chosen by other documents.

    The limit: at the largest budget the fits miss the share E_in of the variance of their own
    training rows and E_out of the rows held out, both summed over folds and so over the same rows.
    Fitting lowers the one and raises the other by the same factor, up to O(1/n²) for independent
    rows, well-specified or not (Takeuchi's criterion is built on this), and in any proportion of
    tokens to inputs for Gaussian x: E_out = σ²/(1 - d/n), E_in = σ²(1 - d/n). So
    E_∞ = √(E_in E_out). Its interval lives on log E and has two parts, added in squares: the
    spread of log E_out over the folds, as jackknife pseudo-values with Nadeau & Bengio's variance
    and Student's t (stats.fold_mean); and the drift of log E_∞ between the last two budgets, taken
    to fall as 1/n from there. Assumed: documents are alike in law and many to a fold; a heavy tail
    is seen in every fold; more tokens than inputs. The bounds are nan while either of the last two
    budgets has no more tokens than inputs, and the value too while the last has not.

    Raises InputError for a grid that is ragged, or has fewer than two folds or two budgets; for a
    fold without rows; for a budget whose rows all lie in one fold; and for a fold whose outputs do
    not vary.
    """
    _check(grid)
    folds = [list(accumulate(column, _merged)) for column in zip(*grid)]  # [fold][budget]
    held_out = [fold[-1] for fold in folds]
    n_folds, n_budgets = len(folds), len(grid)
    n, fitted, deviation = (np.empty((n_folds, n_budgets)) for _ in range(3))
    error = np.empty((n_folds, n_budgets, len(RIDGES)))
    for j in range(n_budgets):
        *_, everything = accumulate((fold[j] for fold in folds), _merged)
        for k, part in enumerate(held_out):
            train = everything - folds[k][j] if folds[k][j].n else everything
            fitted[k, j], error[k, j] = _errors(train, part)
            n[k, j], deviation[k, j] = train.n, float(train.syy.sum())
    variance = float(everything.syy.sum())  # of the whole budget: deviations from one mean
    # Fold k's ridge is the best on the other folds.
    best = (error.sum(0) - error).argmin(-1)  # [fold, budget]
    ridged = np.take_along_axis(error, best[..., None], -1)[..., 0]
    own = np.array([float(part.syy.sum()) for part in held_out])[:, None]
    fold, budget = np.indices(n.shape)
    table = pd.DataFrame(
        {
            "fold": fold.ravel(),
            "budget": budget.ravel(),
            "n_tokens": n.ravel().astype(int),
            "r2": (1 - error[..., 0] / own).ravel(),
            "r2_ridge": (1 - ridged / own).ravel(),
            "ridge": RIDGES[best].ravel(),
        }
    )
    pooled = pd.DataFrame(
        {
            "n_tokens": n.mean(0),
            "r2": 1 - error[..., 0].sum(0) / variance,
            "r2_ridge": 1 - ridged.sum(0) / variance,
            "r2_fitted": 1 - fitted.sum(0) / deviation.sum(0),
        }
    )
    rank = train.rank
    held_share = float(np.mean([part.n for part in held_out]) / n[:, -1].mean())
    limit = _limit(pooled, error[:, -1, 0], deviation[:, -1], rank, held_share)
    return LearningCurve(table, pooled, limit, rank)


def _limit(
    pooled: pd.DataFrame, error: np.ndarray, others: np.ndarray, rank: int, held_share: float
) -> Interval:
    """error [n_folds]: held-out squared error; others [n_folds]: the other folds' deviations."""
    tokens = pooled.n_tokens.to_numpy()[-2:]
    if tokens[-1] <= rank + 1:
        return Interval(np.nan, np.nan, np.nan)
    log_out, log_in = (
        np.log(np.maximum(1 - pooled[name].to_numpy()[-2:], FLOOR)) for name in ("r2", "r2_fitted")
    )
    log_share = (log_out + log_in) / 2  # log √(E_in E_out)
    value = float(1 - np.exp(log_share[-1]))
    if tokens[0] <= rank + 1:
        return Interval(value, np.nan, np.nan)
    without = np.log(np.maximum((error.sum() - error) / others, FLOOR))
    pseudo = len(error) * log_out[-1] - (len(error) - 1) * without
    sampling = fold_mean(pseudo, held_share)
    drift = (log_share[1] - log_share[0]) / (tokens[1] / tokens[0] - 1)
    half = np.hypot((sampling.high - sampling.low) / 2, drift)
    return Interval(value, *(float(1 - np.exp(log_share[-1] + side)) for side in (half, -half)))


def _errors(train: Moments, held_out: Moments) -> tuple[float, np.ndarray]:
    """Squared errors, summed over features, of the map fitted on `train`: least squares on the
    training rows, and every ridge of RIDGES [n_ridges] on the held-out rows.

    In the eigenbasis of the training Sxx a ridge only rescales coordinates, so no ridge costs a
    product of d × d matrices.
    """
    e, v = train.eigen  # [r], [d_in, r]
    dx, dy = held_out.mean_x - train.mean_x, held_out.mean_y - train.mean_y
    # Second moments about the *training* means: the error then holds the shift of the means.
    sxx = held_out.sxx.addr(dx, dx, alpha=held_out.n)
    sxy = held_out.sxy.addr(dx, dy, alpha=held_out.n)
    syy = float((held_out.syy + held_out.n * dy.square()).sum())
    own, cross = v.T @ train.sxy, v.T @ sxy  # [r, d_out]
    linear = (own * cross).sum(1)  # [r]
    quadratic = (own @ own.T) * (v.T @ sxx @ v)  # [r, r]
    ridges = torch.from_numpy(RIDGES)[:, None] * e.sum() / len(train.mean_x)
    inverse = 1 / (e + ridges)  # [n_ridges, r]
    error = syy - 2 * inverse @ linear + ((inverse @ quadratic) * inverse).sum(1)
    fitted = float(train.syy.sum() - (own.square().sum(1) / e).sum())
    return max(fitted, 0.0), error.clamp_min(0).numpy()


def _merged(a: Moments, b: Moments) -> Moments:
    """a + b, either of which may be without rows."""
    return a + b if a.n and b.n else a if a.n else b


def _check(grid: Sequence[Sequence[Moments]]) -> None:
    widths = {len(row) for row in grid}
    if len(grid) < 2 or len(widths) != 1 or min(widths) < 2:
        raise InputError(
            f"a grid of {len(grid)} segments with {sorted(widths)} folds gives no learning curve: "
            "use at least two segments and, in each, the same two or more folds."
        )
    for k, fold in enumerate(zip(*grid)):
        if not sum(cell.n for cell in fold):
            raise InputError(f"fold {k} has no rows: use more tokens or fewer folds.")
        *_, whole = accumulate(fold, _merged)
        if not whole.syy.sum() > 0:
            raise InputError(f"R² is undefined: the {whole.n} rows of fold {k} have no variance.")
    if sum(cell.n > 0 for cell in grid[0]) < 2:
        raise InputError("the first segment has rows in one fold only: start with a larger budget.")


def tokens_for(curve: LearningCurve, within: float = 0.02, ridge: bool = False) -> int | None:
    """Training tokens at which R² (least squares, or with `ridge` the cross-validated ridge) comes
    `within` of its limit, to two significant digits, upwards; never fewer than the smallest budget.

    The gap to the limit is a straight line in log gap against log(n - rank) for least squares,
    where theory gives slope -1, and against log n for the ridge, which needs no more tokens than
    least squares. It is fitted to the budgets of more than twice `rank` tokens. None where that
    leaves fewer than two budgets, where the gap does not shrink, or where the answer lies beyond
    100 times the largest budget. With K folds a budget of n · K/(K - 1) trains on n tokens. Raises
    InputError unless 0 < within < 1.
    """
    if not 0 < within < 1:
        raise InputError(f"within {within} is no distance of R²: use a number such as 0.02.")
    plain = _crossing(curve, within, "r2", curve.rank)
    if not ridge:
        return plain
    found = [t for t in (plain, _crossing(curve, within, "r2_ridge", 0)) if t is not None]
    return min(found, default=None)


def _crossing(curve: LearningCurve, within: float, column: str, shift: int) -> int | None:
    used = curve.pooled[curve.pooled.n_tokens > 2 * curve.rank]
    gap = curve.plain.value - used[column]
    if len(gap) and (gap <= within).all():
        return _rounded(used.n_tokens.iloc[0])
    positive = gap > 0
    if positive.sum() < 2:
        return None
    x, y = np.log(used.n_tokens[positive] - shift), np.log(gap[positive])
    slope, intercept = np.polyfit(x, y, 1)
    if not slope < 0:
        return None
    with np.errstate(over="ignore"):
        tokens = shift + np.exp((np.log(within) - intercept) / slope)
    if tokens > 100 * used.n_tokens.iloc[-1]:
        return None
    return _rounded(max(tokens, used.n_tokens.iloc[0]))


def _rounded(tokens: float) -> int:
    unit = 10 ** max(int(np.floor(np.log10(tokens))) - 1, 0)
    return int(np.ceil(tokens / unit)) * unit
