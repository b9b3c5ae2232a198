"""Counted n-gram models: the yardstick that a small language model is to pass."""

import numpy as np

from lib.errors import InputError


class KneserNey:
    """A counted n-gram model: interpolated modified Kneser-Ney (Chen and Goodman, 1999)."""

    def __init__(self, tokens: np.ndarray, vocabulary: int, order: int = 3):
        """Count `tokens` [n, seq_len], each row by itself."""
        if not 1 <= order <= 3 or vocabulary**order >= 2**62:
            raise InputError(
                f"order {order} of {vocabulary} tokens is not counted here: give 1 to 3."
            )
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < vocabulary:
            raise InputError(
                f"tokens from {tokens.min()} to {tokens.max()} are not all among {vocabulary}: "
                "give the vocabulary of the tokenizer that cut them."
            )
        self.vocabulary, self.order = vocabulary, order
        self.levels = []
        for k in range(order, 0, -1):
            if k == order:
                keys, n = np.unique(self._keys(tokens, k), return_counts=True)
            else:  # continuation counts: in how many different words' company
                longer = self.levels[-1].keys
                keys, n = np.unique(longer % vocabulary**k, return_counts=True)
            self.levels.append(_Level(keys, n.astype(float), vocabulary))
        self.levels.reverse()

    def _keys(self, tokens: np.ndarray, k: int) -> np.ndarray:
        """Each k-gram of the rows as one number, its last token the lowest digit."""
        columns = [tokens[:, i : tokens.shape[1] - k + 1 + i] for i in range(k)]
        key = np.zeros(columns[0].shape, np.int64)
        for column in columns:
            key = key * self.vocabulary + column
        return key.ravel()

    def losses(self, tokens: np.ndarray) -> np.ndarray:
        """NLL of each next token in nats, [n, seq_len - 1]; a row's first tokens with the context
        that is there."""
        n, length = tokens.shape
        found = np.empty((n, length - 1))
        for k in range(1, self.order + 1):
            if k == 1:
                p = self._probability(tokens[:, 1:].ravel(), 1).reshape(n, -1)
                found[:] = p
            else:
                p = self._probability(self._keys(tokens, k), k).reshape(n, -1)
                found[:, k - 2 :] = p
        return -np.log(found)

    def _probability(self, keys: np.ndarray, k: int) -> np.ndarray:
        lower = (
            1 / self.vocabulary
            if k == 1
            else self._probability(keys % self.vocabulary ** (k - 1), k - 1)
        )
        return self.levels[k - 1].probability(keys, lower)


class _Level:
    """Discounted counts of one order."""

    def __init__(self, keys: np.ndarray, n: np.ndarray, vocabulary: int):
        self.keys, self.n, self.vocabulary = keys, n, vocabulary
        of = [float((n == i).sum()) for i in range(5)]
        y = of[1] / (of[1] + 2 * of[2]) if of[1] + of[2] else 0.5
        d = [i - (i + 1) * y * of[i + 1] / of[i] if of[i] else 0.5 for i in (1, 2, 3)]
        self.discount = np.clip([0.0, *d], 0.0, [0.0, 1.0, 2.0, 3.0])
        self.contexts, at = np.unique(keys // vocabulary, return_inverse=True)
        self.total = np.bincount(at, n)
        self.left = np.bincount(at, self.discount[np.minimum(n, 3).astype(int)])

    def probability(self, keys: np.ndarray, lower) -> np.ndarray:
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        n = np.where(self.keys[at] == keys, self.n[at], 0.0)
        c = np.searchsorted(self.contexts, keys // self.vocabulary).clip(max=len(self.contexts) - 1)
        known = self.contexts[c] == keys // self.vocabulary
        kept = n - self.discount[np.minimum(n, 3).astype(int)]
        with_counts = (kept + self.left[c] * lower) / self.total[c]
        return np.where(known, with_counts, lower)
