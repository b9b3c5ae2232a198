"""Linear recoverability of every FFN of a model (Whipp §3, §5.1): one forward pass, all blocks,
all folds."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from scipy import stats

from lib.base.bars import progress
from lib.base.cache import as_numpy, cached, digest
from lib.base.errors import InputError
from lib.linear.affine import AffineMap
from lib.linear.moments import Collector, Moments, total
from lib.models.hooks import forward_body, record
from lib.models.subjects import Subject


@dataclass(frozen=True, eq=False)
class Recoverability:
    """The linear/residual decomposition of every FFN."""

    table: pd.DataFrame
    """one row a block: held-out scores of the closed-form map on the contiguous tail, and the
    input's conditioning"""
    folds: pd.DataFrame
    """one row a block and fold: held-out R² of the map fitted on the other folds (Whipp §5.7)"""
    maps: dict[int, AffineMap]
    """the closed-form map of each block, fitted on all but the held-out tail, float32"""


def fold_moments(
    subject: Subject, windows: torch.Tensor, n_folds: int = 5, batch: int = 16
) -> list[dict[int, Moments]]:
    """Moments of every block on each of `n_folds` contiguous folds of `windows` [n, seq_len], in
    one pass.

    Each fold is cached when it is done, so a killed run resumes at the fold it was in. The last
    fold is the held-out tail.
    Memory is O(n_folds · n_blocks · d²) however long the corpus. Raises InputError if there are
    fewer windows than folds.
    """
    subject.check(windows, batch)
    if not isinstance(n_folds, int) or not 2 <= n_folds <= len(windows):
        raise InputError(
            f"{len(windows)} windows cannot be cut into {n_folds} folds: use at least 2 "
            "folds and no more than windows."
        )
    folds, done = [], 0
    with progress(
        total=len(windows), desc=f"statistics of {len(subject)} FFNs", unit="window"
    ) as bar:
        for part in windows.tensor_split(n_folds):
            key = {
                "subject": subject.key,
                "windows": digest(part),
                "batch": batch,
                "device": subject.device.type,
            }
            states = _one_fold(key, (subject, part, batch, bar))
            folds.append({i: Moments.from_state(s) for i, s in enumerate(states)})
            done += len(part)
            bar.update(done - bar.n)  # a fold from the cache moved no bar
    return folds


@cached
def _one_fold(work: tuple) -> list[dict]:
    subject, windows, batch, bar = work
    collector = Collector()
    with record(subject, on_ffn=collector.add):
        for chunk in windows.split(batch):
            forward_body(subject, chunk)
            bar.update(len(chunk))
    return [collector.moments[b.index].state() for b in subject.blocks]


def recoverability(
    subject: Subject, windows: torch.Tensor, n_folds: int = 5, batch: int = 16, ridge: float = 0.0
) -> Recoverability:
    """Measure R²_lin of every block of `subject` on `windows` [n, seq_len].

    The headline number fits on all but the last fold and scores on it (Whipp §4: a fixed tail of
    20%); each fold in turn
    then gives the data-split interval (Whipp §5.7).
    """
    subject.check(windows, batch)
    key = {
        "subject": subject.key,
        "windows": digest(windows),
        "folds": n_folds,
        "batch": batch,
        "ridge": ridge,
        "device": subject.device.type,
    }
    found = _measure(key, (subject, windows, n_folds, batch, ridge))
    maps = {
        i: AffineMap(torch.from_numpy(w), torch.from_numpy(b))
        for i, (w, b) in enumerate(found["maps"])
    }
    return Recoverability(pd.DataFrame(found["table"]), pd.DataFrame(found["folds"]), maps)


@cached
def _measure(work: tuple) -> dict:
    subject, windows, n_folds, batch, ridge = work
    folds = fold_moments(subject, windows, n_folds, batch)
    rows, splits, maps = [], [], []
    for block in progress(subject.blocks, desc="closed-form fits", unit="block"):
        parts = [fold[block.index] for fold in folds]
        everything = total(parts)
        for k, part in enumerate(parts):
            train = everything - part
            affine = train.fit(ridge)
            splits.append({"block": block.index, "fold": k, "r2": part.score(affine).r2})
        # The loop ends on the last fold, the held-out tail: `train`, `affine` and `part` are the
        # headline split.
        score = part.score(affine)
        rows.append(
            {
                "block": block.index,
                "r2_lin": score.r2,
                "r2_feature_median": score.median_r2,
                "n_features_undefined": score.n_undefined,
                "rmse": score.rmse,
                "condition_number": train.condition_number,
                "input_rank": train.rank,
                "output_variance_max_over_median": float(part.syy.max() / part.syy.median()),
                "n_fit_tokens": train.n,
                "n_held_out_tokens": part.n,
            }
        )
        maps.append((as_numpy(affine.weight.float()), as_numpy(affine.bias.float())))
    return {"table": rows, "folds": splits, "maps": maps}


def fold_intervals(folds: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """Mean, t-interval and std of R² over folds, one row a block: columns block, mean, low,
    high, std."""
    wide = folds.pivot_table(index="fold", columns="block", values="r2")
    return paired_interval(wide, level).assign(std=wide.std()).rename_axis("block").reset_index()


def adjacent_steps(folds: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """Change of R² from each block to the next, paired by fold: columns block (the later one),
    step, low, high.

    The intervals hold jointly at `level` (Bonferroni over the steps), so any one outside zero is
    evidence of a rise or a fall.
    """
    steps = folds.pivot_table(index="fold", columns="block", values="r2").diff(axis=1).iloc[:, 1:]
    if steps.empty:
        raise InputError("a model of one block has no steps in depth: this needs at least two.")
    return (
        paired_interval(steps, 1 - (1 - level) / steps.shape[1])
        .rename_axis("block")
        .rename(columns={"mean": "step"})
        .reset_index()
    )


def paired_interval(values: pd.DataFrame | pd.Series, level: float = 0.95) -> pd.DataFrame:
    """t-interval of the mean of each column of `values` (rows are folds or seeds): columns mean,
    low, high."""
    values = pd.DataFrame(values)
    n = len(values)
    half = stats.t.ppf((1 + level) / 2, n - 1) * values.std() / np.sqrt(n) if n > 1 else np.inf
    return pd.DataFrame(
        {"mean": values.mean(), "low": values.mean() - half, "high": values.mean() + half}
    )
