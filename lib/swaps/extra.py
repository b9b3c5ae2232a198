"""What a second swap in the same place costs beyond the first (Whipp §5.4: a low-rank block "would
compress further")."""

import numpy as np
import torch

from lib.base.errors import InputError
from lib.stats.intervals import Interval, clustered


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
