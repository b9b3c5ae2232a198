"""How ill-conditioned an FFN's inputs are, and how far one output feature stands out (Whipp §2,
§5.1)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from lib.second.linear.moments import Moments, total
from lib.second.stats.intervals import Interval
from lib.second.stats.joint import joint_level
from lib.second.stats.ratios import jackknife, transformed

WHOLE = -1  # the value of `left_out` where no fold is


def conditioning(folds: Sequence[dict[int, Moments]]) -> pd.DataFrame:
    """Condition numbers by block from folds[k]{block}, of all folds and without each in turn.

    Columns block, left_out (a fold; WHOLE), log10_condition (largest over smallest eigenvalue of
    the input covariance above the pseudo-inverse cut-off: LayerNorm leaves one direction exactly
    constant, and it is no matter of conditioning), log10_condition_but_one (without the smallest of
    those: how much hangs on a single direction), log10_condition_standardized (with every input
    feature at unit variance) and log10_variance_ratio (largest over median variance of the output
    features).
    """
    rows = []
    for block in folds[0]:
        parts = [fold[block] for fold in folds]
        whole = total(parts)
        samples = {WHOLE: whole} | {k: whole - part for k, part in enumerate(parts)}
        rows += [{"block": block, "left_out": k} | _of(m) for k, m in samples.items()]
    return pd.DataFrame(rows)


def _of(moments: Moments) -> dict[str, float]:
    variance = moments.sxx.diagonal()
    scale = torch.where(variance > 0, variance, torch.inf).rsqrt()
    ratio = moments.syy.max() / moments.syy.median()
    e = torch.linalg.eigvalsh(moments.sxx)
    standardized = torch.linalg.eigvalsh(scale[:, None] * moments.sxx * scale)
    return {
        "log10_condition": _decades(e),
        "log10_condition_but_one": _decades(e, skip=1),
        "log10_condition_standardized": _decades(standardized),
        "log10_variance_ratio": float(ratio.log10()) if ratio.isfinite() else np.nan,
    }


def _decades(e: torch.Tensor, skip: int = 0) -> float:
    """log10 of the largest over the smallest of these ascending eigenvalues that is not rounding,
    after `skip` of them; nan where there is none."""
    kept = e[e > torch.finfo(e.dtype).eps * len(e) * e[-1]]
    return float((kept[-1] / kept[skip]).log10()) if len(kept) > skip else float("nan")


def _from_decades(decades: float) -> float:
    return 10**decades


def median_condition(table: pd.DataFrame) -> Interval:
    """Median over blocks of the condition number, from the table of `conditioning`; the interval by
    jackknife over folds of documents, in logarithms."""
    by_sample = table.groupby("left_out").log10_condition.agg(_median)
    return transformed(jackknife(by_sample[WHOLE], by_sample.drop(WHOLE)), _from_decades)


def decades_removed(table: pd.DataFrame) -> Interval:
    """Share of the decades of the condition number that unit variance of every input feature
    removes, median over blocks, by jackknife over folds."""
    share = 1 - table.log10_condition_standardized / table.log10_condition
    by_sample = share.groupby(table.left_out).agg(_median)
    return jackknife(by_sample[WHOLE], by_sample.drop(WHOLE))


def _median(values: pd.Series) -> float:
    return float(np.median(values))  # nan where any is


def variance_ratios(table: pd.DataFrame) -> dict[int, Interval]:
    """Largest over median variance of the output features by block, for all blocks at once, by
    jackknife over folds, in logarithms."""
    wide = table.pivot(index="left_out", columns="block", values="log10_variance_ratio")
    level = joint_level(wide.shape[1])
    return {
        int(block): transformed(jackknife(values[WHOLE], values.drop(WHOLE), level), _from_decades)
        for block, values in wide.items()
    }
