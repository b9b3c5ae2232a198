"""What a token's other occurrences say: means by token type, from other documents, shrunk."""

import numpy as np

from lib.second.base.errors import InputError


def type_means(
    x: np.ndarray, tokens: np.ndarray, document: np.ndarray, unseen: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """For each row the mean of `x` over the same token in other text, shrunk: (for the rows
    themselves [n, d], without those of their own document; for the tokens `unseen` [m], [m, d]).

    x [n, d], tokens and document [n]. A mean of k rows is weighed k / (k + s) against the mean of
    all, s the variance within types over that between them (empirical Bayes, summed over features),
    so a token that other text does not have gets the mean of all. Raises InputError for rows that
    do not fit.
    """
    if not len(x) == len(tokens) == len(document):
        raise InputError(
            f"{len(x)} rows, {len(tokens)} tokens and {len(document)} documents do not fit: give "
            "one of each a position."
        )
    kinds, index = np.unique(tokens, return_inverse=True)
    centre = x.mean(0, dtype=np.float64)
    left = (x - centre).astype(np.float32)
    sums, counts = _by(index, left, len(kinds))
    within, between = variances(left, index)
    strength = within / between if between > 0 else 1e9
    shrunk = lambda total, n: (total / (n + strength)[:, None] + centre).astype(np.float32)
    _, pairs = np.unique(np.stack([index, document]), axis=1, return_inverse=True)
    own_sums, own_counts = _by(pairs, left, pairs.max() + 1)
    seen = shrunk(sums[index] - own_sums[pairs], counts[index] - own_counts[pairs])
    at = np.searchsorted(kinds, unseen).clip(max=len(kinds) - 1)
    known = kinds[at] == unseen
    return seen, shrunk(sums[at] * known[:, None], counts[at] * known)


def _by(index: np.ndarray, x: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums [n, d] and counts [n] of rows by index."""
    order = np.argsort(index, kind="stable")
    counts = np.bincount(index, minlength=n)
    starts = np.r_[0, counts.cumsum()[:-1]]
    return np.add.reduceat(x[order], starts, axis=0), counts.astype(float)


def variances(x: np.ndarray, index: np.ndarray) -> tuple[float, float]:
    """Variance of rows within groups and of the groups' own means, from a one-way analysis of
    variance, summed over features; x [n, d], index [n] from 0 up. The second may be negative."""
    left = x - x.mean(0)
    sums, counts = _by(index, left, index.max() + 1)
    n, k = counts.sum(), len(counts)
    explained = (np.square(sums, dtype=np.float64).sum(1) / counts).sum()
    if k < 2 or n <= k:
        return float(np.square(left, dtype=np.float64).sum() / max(n - 1, 1)), 0.0
    within = (np.square(left, dtype=np.float64).sum() - explained) / (n - k)
    effective = (n - np.square(counts).sum() / n) / (k - 1)
    return float(within), float((explained / (k - 1) - within) / effective)
