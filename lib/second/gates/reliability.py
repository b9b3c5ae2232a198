"""How well a label of evaluations repeats on other documents, and how well it orders what single
evaluations cost (beyond Balogh §3.2)."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from lib.second.base.errors import InputError
from lib.second.stats.intervals import Interval, bootstrap, spearman
from lib.second.texts.windows import Windows

SPLITS = 20
"""random halvings of the documents that a reliability is the mean of"""
OCCURRENCES = 5
"""a token type counts where it occurs at least so often in each half"""


def split_half(label: Mapping[int, np.ndarray], windows: Windows, seed: int = 42) -> pd.Series:
    """Rank correlation of a label's means {block: [n, seq_len-1]} between two halves of the
    documents, stepped up to the whole sample (Spearman-Brown), mean over SPLITS halvings:
    `by_block`, of the blocks' means; `by_type`, of the means of token types about their block's
    median, over all blocks; `types`, how many that were, mean over the halvings. nan where there is
    nothing to correlate. Raises InputError for one document."""
    document = windows.document.numpy()
    if len(np.unique(document)) < 2:
        raise InputError(f"{windows.name} has one document: two halves need two.")
    stacked = np.stack([label[b] for b in sorted(label)])  # [blocks, n, seq_len-1]
    _, types = np.unique(windows.tokens[:, :-1].numpy(), return_inverse=True)
    types = types.reshape(stacked.shape[1:])
    chance, found = np.random.default_rng(seed), []
    for _ in range(SPLITS):
        half = np.isin(document, _half(np.unique(document), chance))
        means = [stacked[:, side].mean((1, 2)) for side in (half, ~half)]
        found.append((stepped_up(spearman(*means)), *_of_types(stacked, types, half)))
    return pd.Series(np.nanmean(found, axis=0), ["by_block", "by_type", "types"])


def _half(documents: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    return chance.permutation(documents)[: len(documents) // 2]


def _of_types(stacked: np.ndarray, types: np.ndarray, half: np.ndarray) -> tuple[float, int]:
    """The correlation of type means between windows in `half` and the others, and the number of
    types."""
    n_types, sides = types.max() + 1, []
    centred = stacked - np.median(stacked, axis=(1, 2), keepdims=True)
    for side in (half, ~half):
        kinds = types[side].ravel()
        count = np.bincount(kinds, minlength=n_types)
        sums = [np.bincount(kinds, row[side].ravel(), n_types) for row in centred]
        with np.errstate(invalid="ignore", divide="ignore"):
            sides.append((count, np.stack(sums) / count))
    often = (sides[0][0] >= OCCURRENCES) & (sides[1][0] >= OCCURRENCES)
    both = (means[:, often].ravel() for _, means in sides)
    return stepped_up(spearman(*both)), int(often.sum())


def stepped_up(r: float) -> float:
    """The reliability of the whole from the correlation of its halves (Spearman-Brown)."""
    return 2 * r / (1 + r) if r > -1 else float("nan")


def validity(
    label: Mapping[int, np.ndarray],
    positions: Mapping[int, np.ndarray],
    effects: Mapping[int, np.ndarray],
    seed: int = 42,
    *,
    within: bool = False,
) -> Interval:
    """Rank correlation of a label {block: [n, seq_len-1]} with the effects of single evaluations,
    {block: [n]}, one at `positions` {block: [n]} of each window (see `single_effects`), over all
    blocks, with a 95% bootstrap over windows. `within`: ranks are those within the block, so that
    differences between blocks do not count."""
    blocks = sorted(effects)
    rows = np.arange(len(effects[blocks[0]]))
    predicted = np.stack([label[b][rows, positions[b]] for b in blocks])  # [blocks, n]
    effect = np.stack([effects[b] for b in blocks])
    flat = lambda values: (_within(values) if within else values).ravel()
    at = lambda drawn: spearman(flat(predicted[:, drawn]), flat(effect[:, drawn]))
    return bootstrap(at, rows, seed=seed, resamples=200)


def _within(values: np.ndarray) -> np.ndarray:
    """Ranks of each row of [blocks, n]."""
    return rankdata(values, axis=1)
