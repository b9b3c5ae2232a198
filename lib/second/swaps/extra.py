"""What a second swap in the same place costs beyond the first: a map cut to its rank (Whipp §5.4: a
low-rank block "would compress further"), or one fitted on another text (§5.7)."""

from collections.abc import Mapping

import numpy as np
import torch

from lib.second.base.errors import InputError
from lib.second.stats.intervals import Interval, bootstrap, clustered


def extra_cost(
    base: np.ndarray,
    swapped: np.ndarray,
    again: np.ndarray,
    document: np.ndarray | torch.Tensor,
    level: float = 0.95,
) -> Interval:
    """Perplexity with the swap `again` less that with `swapped`, as a fraction of the base.

    Losses are [n, seq_len-1] on the same windows, `document` [n] says where each was cut. With a
    and b the mean losses of the two swaps over the base this is exp(a) - exp(b); the interval is
    paired and clustered by document, to first order in the deviations of a and b. Raises InputError
    for losses whose shapes differ.
    """
    if not np.shape(base) == np.shape(swapped) == np.shape(again):
        raise InputError(
            f"losses of shape {np.shape(base)}, {np.shape(swapped)} and {np.shape(again)} cannot "
            "be paired: measure all three on the same windows."
        )
    more, less = ((losses - base).mean(1) for losses in (again, swapped))
    tops = np.exp(more.mean()), np.exp(less.mean())
    linear = tops[0] * (more - more.mean()) - tops[1] * (less - less.mean())
    around = clustered(linear, document, level)
    value = float(tops[0] - tops[1])
    return Interval(value, value + around.low, value + around.high)


def median_extra_cost(
    base: np.ndarray,
    own: Mapping[int, np.ndarray],
    other: Mapping[int, np.ndarray],
    document: np.ndarray | torch.Tensor,
    seed: int = 42,
) -> Interval:
    """Median over blocks of the cost of the swaps `other` less that of `own` in the same place, as
    fractions of the base perplexity (Whipp §5.7); 95% bootstrap over documents, paired.

    base and the losses by block are [n, seq_len-1] on the same windows, `document` [n].
    """
    rises = np.stack([[(m[block] - base).mean(1) for block in own] for m in (other, own)])
    _, index = np.unique(np.asarray(document), return_inverse=True)
    sizes = np.bincount(index).astype(float)
    sums = rises @ np.eye(len(sizes))[index]  # [2, n_blocks, n_documents]

    def median(drawn: np.ndarray) -> float:
        costs = np.expm1(sums[..., drawn].sum(-1) / sizes[drawn].sum())
        return float(np.median(costs[0] - costs[1]))

    return bootstrap(median, np.arange(len(sizes)), seed=seed)
