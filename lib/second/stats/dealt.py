"""Values dealt anew: what is left of a statistic when only the groups of its rows count."""

import numpy as np


def dealt_within(values: np.ndarray, groups: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """`values` [n] permuted at random among the rows of each group; `groups` [n], any labels."""
    _, group = np.unique(groups, return_inverse=True)
    found = np.empty_like(values)
    # Sorted by group, then at random.
    found[np.argsort(group, kind="stable")] = values[np.argsort(group + chance.random(len(group)))]
    return found
