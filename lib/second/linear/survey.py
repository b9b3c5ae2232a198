"""Linear recoverability of every FFN of a model (Whipp §3, §5.1): one pass, all blocks, all folds
and all budgets."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
import torch

from lib.second.base.bars import progress
from lib.second.base.cache import as_numpy, cached
from lib.second.base.errors import InputError
from lib.second.base.steps import Item, each
from lib.second.linear.affine import AffineMap
from lib.second.linear.curve import LearningCurve, learning_curve, tokens_for
from lib.second.linear.moments import Collector, Moments, total
from lib.second.models.hooks import forward_body, record
from lib.second.models.subjects import Subject
from lib.second.stats.intervals import mean_interval
from lib.second.texts.windows import Windows

Grid = list[list[dict[int, Moments]]]
"""[segment][fold]{block}: moments on one segment of the sample and one fold of its documents"""

MEMORY = 6e9  # bytes of moments that are held at once


@dataclass(frozen=True, eq=False)
class Recoverability:
    """The linear/residual decomposition of every FFN."""

    table: pd.DataFrame
    """one row a block: r2_lin, the mean over folds of the held-out R² of the closed-form map, with
    its interval (low, high); std over folds; r2_feature_median (mean over folds); and of the last
    fold r2_held_out, rmse, the input's condition_number and input_rank"""
    folds: pd.DataFrame
    """one row a block and fold: held-out R² of the map fitted on the other folds (Whipp §5.7)"""
    curves: pd.DataFrame
    """one row a block, fold and budget: see lib.second.linear.curve; empty with a single segment"""
    limits: pd.DataFrame
    """one row a block: R² at n → ∞ (r2_limit, limit_low, limit_high); at the whole budget, errors
    pooled over folds (r2_pooled, r2_ridge); and the training tokens that bring either fit within
    0.02 of the limit (tokens_plain, tokens_ridge; nan where that cannot be said)"""
    maps: dict[int, AffineMap]
    """the closed-form map of each block, fitted on all folds but the last, float32"""


def moment_grid(
    subject: Subject, windows: Windows, n_folds: int = 5, segments: int = 1, batch: int = 16
) -> Grid:
    """Moments of every block, by segment and fold of `windows`, in one pass.

    Segments end at budgets that double: the first holds 1/2^(segments-1) of the windows, all of
    them together the whole. Each part is cached when it is done, so a killed run resumes. Memory is
    O(segments · folds · blocks · d²) however long the corpus; segments are fewer where that would
    exceed MEMORY or leave a part without a window.
    """
    subject.check(windows, batch)
    folds = windows.folds(n_folds)
    size = len(subject) * n_folds * subject.d_model**2 * 2 * 8
    while segments > 1:
        parts = _parts(windows, folds, n_folds, segments)
        if segments * size <= MEMORY and all(len(part) for part in parts):
            break
        segments -= 1
    parts = _parts(windows, folds, n_folds, segments)
    common = {"subject": subject.key, "batch": batch, "device": subject.device.type}
    items = (
        Item(key=common | {"windows": part.key}, work=(subject, part, batch), size=len(part))
        for part in parts
    )
    states = each(
        _moments,
        items,
        total=len(windows),
        desc=f"statistics of {len(subject)} FFNs",
        unit="window",
    )
    found = [{i: Moments.from_state(s) for i, s in enumerate(blocks)} for blocks in states]
    return [found[n_folds * s : n_folds * (s + 1)] for s in range(segments)]


def _parts(windows: Windows, folds: torch.Tensor, n_folds: int, segments: int) -> list[Windows]:
    """The windows of each segment and fold, the first segment's folds first."""
    ends = [len(windows) >> (segments - 1 - s) for s in range(segments)]
    spans = [slice(*span) for span in zip([0, *ends], ends, strict=False)]
    return [windows[span][folds[span] == k] for span in spans for k in range(n_folds)]


@cached
def _moments(work: tuple, tick: Callable[[int], None]) -> list[dict]:
    subject, windows, batch = work
    collector = Collector()
    with record(subject, on_ffn=collector.add):
        for chunk in windows.tokens.split(batch):
            forward_body(subject, chunk)
            tick(len(chunk))
    return [collector.moments[b.index].state() for b in subject.blocks]


def fold_moments(
    subject: Subject, windows: Windows, n_folds: int = 5, segments: int = 1, batch: int = 16
) -> list[dict[int, Moments]]:
    """Moments of every block on each fold of `windows`: [fold]{block}, from the same pass."""
    windows = _in_turn(windows, n_folds, segments)
    grid = moment_grid(subject, windows, n_folds, segments, batch)
    return [{b: total([row[k][b] for row in grid]) for b in grid[0][k]} for k in range(n_folds)]


def _in_turn(windows: Windows, n_folds: int, segments: int) -> Windows:
    """Windows in order as they are cut into several segments: one of each contiguous fold in turn,
    for a prefix of the sample would miss whole folds. A fold stands as one document."""
    if not windows.in_order or segments == 1:
        return windows
    fold = windows.folds(n_folds)
    dealt = Windows(windows.tokens, fold, fold.bincount(), windows.name)
    return dealt.take(dealt.n_tokens, evenly=True)


def recoverability(
    subject: Subject,
    windows: Windows,
    n_folds: int = 5,
    segments: int = 1,
    batch: int = 16,
    ridge: float = 0.0,
) -> Recoverability:
    """Measure R²_lin of every block of `subject` on `windows`.

    Each fold of documents in turn is held out of the fit and scored (Whipp §5.7); the headline is
    the mean over folds. With more than one segment the same pass gives the learning curves; of
    windows in order a budget is then a prefix of every fold.
    """
    subject.check(windows, batch)
    windows = _in_turn(windows, n_folds, segments)
    key = {
        "subject": subject.key,
        "windows": windows.key,
        "folds": windows.folds(n_folds).numpy(),
        "segments": segments,
        "batch": batch,
        "ridge": ridge,
        "device": subject.device.type,
    }
    work = (subject, windows, n_folds, segments, batch, ridge)
    found = _measure(key, work)
    maps = {
        i: AffineMap(torch.from_numpy(w), torch.from_numpy(b))
        for i, (w, b) in enumerate(found["maps"])
    }
    folds = pd.DataFrame(found["folds"])
    table = fold_intervals(folds).rename(columns={"mean": "r2_lin"})
    table = table.merge(pd.DataFrame(found["table"]))
    return Recoverability(
        table, folds, pd.DataFrame(found["curves"]), pd.DataFrame(found["limits"]), maps
    )


@cached
def _measure(work: tuple) -> dict:
    subject, windows, n_folds, segments, batch, ridge = work
    grid = moment_grid(subject, windows, n_folds, segments, batch)
    found: dict[str, list] = {"table": [], "folds": [], "curves": [], "limits": [], "maps": []}
    for block in progress(subject.blocks, desc="closed-form fits", unit="block"):
        cells = [[part[block.index] for part in row] for row in grid]
        row, folds, affine = _fit_folds([total(list(parts)) for parts in zip(*cells)], ridge)
        found["table"].append({"block": block.index, **row})
        found["folds"] += [
            {"block": block.index, "fold": k, "r2": r2} for k, r2 in enumerate(folds)
        ]
        found["maps"].append((as_numpy(affine.weight.float()), as_numpy(affine.bias.float())))
        if len(grid) > 1:
            curve = learning_curve(cells)
            found["curves"] += curve.table.assign(block=block.index).to_dict("records")
            found["limits"].append({"block": block.index, **_limit(curve)})
    return found


def _limit(curve: LearningCurve) -> dict[str, float]:
    """The row of one block in Recoverability.limits."""
    last, none = curve.pooled.iloc[-1], float("nan")
    return {
        "r2_limit": curve.plain.value,
        "limit_low": curve.plain.low,
        "limit_high": curve.plain.high,
        "r2_pooled": float(last.r2),
        "r2_ridge": float(last.r2_ridge),
        "tokens_plain": tokens_for(curve) or none,
        "tokens_ridge": tokens_for(curve, ridge=True) or none,
    }


def doubling(curves: pd.DataFrame) -> pd.DataFrame:
    """What each doubling of the budget adds to R² on the same held-out documents, mean over blocks.

    One row a step of Recoverability.curves: n_tokens, n_tokens_doubled (training rows, mean over
    folds), mean, low, high (over folds), and the block that gains most, with its gain. Raises
    InputError where there is no curve.
    """
    if curves.empty:
        raise InputError("one segment of text has no learning curve: ask for two or more.")
    wide = curves.pivot_table(index=["fold", "block"], columns="budget", values="r2")
    tokens = curves.groupby("budget").n_tokens.mean()
    rises = wide.diff(axis=1).iloc[:, 1:]
    by_fold, by_block = rises.groupby("fold").mean(), rises.groupby("block").mean()
    found = mean_interval(by_fold, test_over_train=1 / (len(by_fold) - 1))
    found.insert(0, "n_tokens", tokens.shift().loc[found.index])
    found.insert(1, "n_tokens_doubled", tokens.loc[found.index])
    return found.assign(
        block_that_gains_most=by_block.idxmax(), its_gain=by_block.max()
    ).reset_index(drop=True)


def _fit_folds(parts: list[Moments], ridge: float) -> tuple[dict, list[float], AffineMap]:
    """Fit without each fold and score on it; row and map are those of the last."""
    everything, scores = total(parts), []
    for part in parts:
        train = everything - part
        affine = train.fit(ridge)
        score = part.score(affine)
        scores.append(score)
    row = {
        "r2_feature_median": sum(s.median_r2 for s in scores) / len(scores),
        "r2_held_out": score.r2,
        "n_features_undefined": score.n_undefined,
        "rmse": score.rmse,
        "condition_number": train.condition_number,
        "input_rank": train.rank,
        "output_variance_max_over_median": float(part.syy.max() / part.syy.median()),
        "n_fit_tokens": train.n,
        "n_held_out_tokens": part.n,
    }
    return row, [s.r2 for s in scores], affine


def fold_intervals(folds: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """Mean over folds with its interval, and std, one row a block: columns block, mean, low, high,
    std. The interval allows for folds that share training rows."""
    wide = folds.pivot_table(index="fold", columns="block", values="r2")
    found = mean_interval(wide, level, 1 / (len(wide) - 1)).assign(std=wide.std())
    return found.rename_axis("block").reset_index()
