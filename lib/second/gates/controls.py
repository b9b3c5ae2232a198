"""Random routers that share one thing with a gate: how many positions of each block they send down
the linear path, or that they spare massive tokens (beyond Balogh §4.5)."""

from collections.abc import Mapping

import numpy as np

from lib.second.gates.frontier import Scores, at_random
from lib.second.gates.routing import padded

HEAVIEST = 0.01
"""share of a block's positions, those with the longest FFN output, that count as the heaviest"""


def sparing_heaviest(norm: Scores, seed: int) -> dict[int, np.ndarray]:
    """A score that says nothing but which positions of each block are the HEAVIEST by `norm`: they
    go last. Elsewhere it is that of `at_random` with the same seed."""
    chance = at_random(list(norm), next(iter(norm.values())), seed)
    return {b: chance[b] + (v > np.quantile(v, 1 - HEAVIEST)) for b, v in norm.items()}


def as_many(score: Scores, linear: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
    """Linear at as many positions of each block as `linear` {block: bool [n, seq_len-1]} is, those
    with the lowest score: {block: bool [n, seq_len]}."""
    found = {}
    for block, mask in linear.items():
        chosen = np.zeros(mask.size, dtype=bool)
        chosen[np.argsort(score[block], axis=None, kind="stable")[: mask.sum()]] = True
        found[block] = padded(chosen.reshape(mask.shape))
    return found
