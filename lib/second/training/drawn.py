"""FFNs with random weights (beyond Whipp §5.2): in untrained models, and on a trained model's own
inputs, whether these alone make its profile."""

from collections.abc import Iterable

import pandas as pd
import torch

from lib.second.base.bars import progress
from lib.second.linear.moments import Collector, Moments, total
from lib.second.models.hooks import OnFFN, forward_body, record
from lib.second.models.subjects import Subject, as_subject
from lib.second.stats.intervals import Interval
from lib.second.texts.windows import Windows
from lib.second.training.apart import rank_draws, rank_interval
from lib.second.training.development import untrained
from lib.second.training.loop import build


def initial_scores(
    runs: Iterable[tuple[str, int]], vocab_size: int, windows: Windows, n_folds: int = 5
) -> pd.DataFrame:
    """Held-out R²_lin of every block of small models as `develop` begins to train them, one a
    (family, seed): columns family, seed, block, fold, r2. Not cached."""
    found = []
    for family, seed in progress(list(runs), desc="untrained models", unit="model"):
        subject = as_subject(build(family, vocab_size, seed), name=family)
        parts = []
        for part in _folds(windows, n_folds):
            collector = Collector()
            _read(subject, part, collector.add)
            parts.append(collector.moments)
        found.append(_scores(parts).assign(family=family, seed=seed))
    return pd.concat(found, ignore_index=True)


@torch.no_grad()
def same_inputs(
    subject: Subject, windows: Windows, seeds: Iterable[int], n_folds: int = 5
) -> pd.DataFrame:
    """Held-out R²_lin of every FFN and of FFNs with freshly drawn weights, fed with the same
    inputs: columns weights ("trained" or the seed), block, fold, r2. Not cached."""
    drawn = {seed: untrained(subject, seed).blocks for seed in seeds}
    parts: dict = {weights: [] for weights in ("trained", *drawn)}
    for part in _folds(windows, n_folds):
        found = {weights: Collector() for weights in parts}

        def add(block: int, x: torch.Tensor, y: torch.Tensor, found: dict = found) -> None:
            found["trained"].add(block, x, y)
            for seed, blocks in drawn.items():
                found[seed].add(block, x, blocks[block].ffn(x))

        _read(subject, part, add)
        for weights, collector in found.items():
            parts[weights].append(collector.moments)
    scores = [_scores(cells).assign(weights=weights) for weights, cells in parts.items()]
    return pd.concat(scores, ignore_index=True)


def _folds(windows: Windows, n_folds: int) -> list[Windows]:
    folds = windows.folds(n_folds)
    return [windows[folds == k] for k in range(n_folds)]


def _read(subject: Subject, windows: Windows, on_ffn: OnFFN, batch: int = 32) -> None:
    subject.check(windows, batch)
    with record(subject, on_ffn=on_ffn):
        for chunk in windows.tokens.split(batch):
            forward_body(subject, chunk)


def _scores(folds: list[dict[int, Moments]]) -> pd.DataFrame:
    """R² of each fold under the fit to the others: columns block, fold, r2."""
    rows = []
    for block in folds[0]:
        cells = [fold[block] for fold in folds]
        everything = total(cells)
        for k, cell in enumerate(cells):
            r2 = cell.score((everything - cell).fit()).r2
            rows.append({"block": block, "fold": k, "r2": r2})
    return pd.DataFrame(rows)


def rank_with_drawn(scores: pd.DataFrame) -> Interval:
    """Spearman correlation over blocks of the trained FFNs and of drawn ones on the same inputs,
    both means over folds and draws, mean over models; the interval is over draws and documents.
    scores: columns model, weights, block, fold, r2."""
    found = []
    for _, table in scores.groupby("model", sort=False):
        fixed, others = table.weights == "trained", table[table.weights != "trained"]
        own = table[fixed].pivot(index="fold", columns="block", values="r2")
        draws = others.pivot_table(index="weights", columns="block", values="r2")
        folds = others.pivot_table(index="fold", columns="block", values="r2")
        error = 1 / len(own) + 1 / max(1, len(own) - 1)  # of a mean over folds
        found.append(rank_draws([(own, error)], [(draws, 1 / len(draws)), (folds, error)]))
    return rank_interval(found)
