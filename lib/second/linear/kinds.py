"""The kind of linearity of every block, fold by fold, from moments alone (Whipp §3.3, §5.4, §8)."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from scipy import stats

from lib.second.base.bars import progress
from lib.second.base.errors import InputError
from lib.second.linear.affine import AffineMap
from lib.second.linear.moments import Moments, total
from lib.second.linear.rank import _directions, rank_profile
from lib.second.stats.intervals import Interval, fold_mean
from lib.second.stats.joint import joint_level

CHOOSING = 2
"""folds that choose the pairs of `twins`; the others measure them"""


def fold_shapes(
    folds: Sequence[Mapping[int, Moments]], outputs: Mapping[int, Moments]
) -> pd.DataFrame:
    """Effective ranks and per-feature R² of every block, each fold in turn held out: one row a
    block and fold.

    folds: [fold]{block} moments of (x, y); outputs: {block} moments of (y, y) on all rows. Columns
    block, fold, r2_lin, r2_feature_median, r2_rank_1, and effective_rank, also _standardized (every
    output feature at unit variance) and _whitened (by `outputs`); nan where the map explains
    nothing. The whitened rank needs no output covariance of a fold's own: that enters R² at rank k
    and at full rank by the same factor.
    """
    rows = []
    for block in progress(sorted(folds[0]), desc="ranks on each fold", unit="block"):
        parts = [fold[block] for fold in folds]
        everything, covariance = total(parts), outputs[block]
        for k, part in enumerate(parts):
            train = everything - part
            score, plain = part.score(train.fit()), rank_profile(train, part)
            scaled = rank_profile(train, part, standardized=True)
            white = rank_profile(train, part, outputs=(covariance, covariance))
            rows.append(
                {
                    "block": block,
                    "fold": k,
                    "r2_lin": score.r2,
                    "r2_feature_median": score.median_r2,
                    "r2_rank_1": float(plain.r2[0]),
                    "effective_rank": plain.effective_rank() or np.nan,
                    "effective_rank_standardized": scaled.effective_rank() or np.nan,
                    "effective_rank_whitened": white.effective_rank() or np.nan,
                }
            )
    return pd.DataFrame(rows)


def by_fold(shapes: pd.DataFrame, column: str) -> pd.DataFrame:
    """One column of `fold_shapes` as a table of folds (rows) and blocks (columns)."""
    return shapes.pivot(index="fold", columns="block", values=column)


def rank_mean(values, level: float = 0.95, scale: float = 1.0) -> Interval:
    """`fold_mean` of ranks [n_folds], no narrower than the half direction to which a whole number
    is known: ranks that agree on every fold have no variance, and yet are not exact. The result is
    times `scale`, 1 / d for a share of the width."""
    found = fold_mean(values, level=level, test_over_train=1 / max(1, len(values) - 1))
    low, high = min(found.low, found.value - 0.5), max(found.high, found.value + 0.5)
    if np.isnan(found.low):  # which min and max would pass over
        low = high = np.nan
    return Interval(scale * found.value, scale * low, scale * high)


def spectrum_rank(affine: AffineMap, share: float = 0.9) -> int:
    """Number of singular values of W* that hold `share` of its squared norm: the raw weight
    spectrum, which sees no activations (Whipp §3.3). Raises InputError for a map that is zero."""
    energy = torch.linalg.svdvals(affine.weight.double()).square().cumsum(0)
    if not energy[-1] > 0:
        raise InputError("a map of zeros has no spectrum: fit it on rows that vary.")
    return int((energy >= share * energy[-1]).nonzero()[0]) + 1


def leading_shares(
    folds: Sequence[Mapping[int, Moments]], blocks: Sequence[int], top: int = 3
) -> pd.DataFrame:
    """Share of the squared length of the leading reduced-rank output direction that lies on its
    `top` largest coordinates (Whipp §6): a table of folds (rows) and `blocks` (columns).

    The direction is fitted on each fold alone, so that the rows are independent samples. `top`
    coordinates of d alike would hold top/d, those of a random direction somewhat more.
    """
    found = {}
    for block in blocks:
        parts = [fold[block] for fold in folds]
        plain = torch.eye(len(parts[0].mean_y), dtype=torch.float64)
        leading = [_directions(part, part.fit(), plain)[1][:, 0] for part in parts]
        found[block] = [float(v.square().topk(min(top, len(v))).values.sum()) for v in leading]
    return pd.DataFrame(found, index=pd.RangeIndex(len(folds), name="fold"))


def twins(shapes: pd.DataFrame, near: float = 0.03, level: float = 0.95) -> dict[str, Interval]:
    """Pairs of blocks of nearly the same R²_lin, with the absolute difference of their per-feature
    medians; {"blocks 3 and 7": Interval}, holding jointly.

    A pair is one whose mean R²_lin on the first two folds differs by at most `near`; the medians
    are those of the other folds' documents, so that no pair is chosen by what is read of it. The
    t-intervals take the variance of a fold from all folds, and allow for overlapping training sets
    as `fold_mean` does. Raises InputError with fewer than three folds.
    """
    r2, medians = by_fold(shapes, "r2_lin"), by_fold(shapes, "r2_feature_median")
    n, n_read = len(r2), len(r2) - CHOOSING
    if n_read < 1:
        raise InputError(f"{n} folds leave none to read the chosen pairs on: use three or more.")
    chosen_by = r2.iloc[:CHOOSING].mean()
    pairs = [p for p in itertools.combinations(r2, 2) if abs(np.diff(chosen_by[[*p]])[0]) <= near]
    if not pairs:
        return {}
    t = stats.t.ppf((1 + joint_level(len(pairs), level)) / 2, n - 1)
    found = {}
    for a, b in pairs:
        gap = (medians[a] - medians[b]).to_numpy()
        value = abs(gap[CHOOSING:].mean())
        half = t * gap.std(ddof=1) * (1 / n_read + 1 / (n - 1)) ** 0.5
        ends = Interval(value, max(0.0, value - half), value + half)
        found[f"blocks {a} and {b}"] = ends
    return found
