"""Counted n-gram models: the yardstick that a small language model is to pass."""

import numpy as np

from lib.errors import InputError


class KneserNey:
    """A counted n-gram model: interpolated modified Kneser-Ney (Chen and Goodman, 1999)."""

    def __init__(self, tokens: np.ndarray, vocabulary: int, order: int = 3):
        """Count `tokens` [n, seq_len], each row by itself."""
        if not 1 <= order <= 5:
            raise InputError(f"{order}-grams are not counted here: give an order from 1 to 5.")
        if vocabulary**order >= 2**62:
            raise InputError(
                f"{order}-grams of {vocabulary:,} tokens have no numbers of 62 bits: give a lower "
                "order or a smaller vocabulary."
            )
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < vocabulary:
            raise InputError(
                f"tokens from {tokens.min()} to {tokens.max()} are not all among {vocabulary}: "
                "give the vocabulary of the tokenizer that cut them."
            )
        self.vocabulary, self.order = vocabulary, order
        self.levels: list[_Level] = []
        for k in range(order, 0, -1):
            if k == order:
                occurring = self._grams(tokens, k)
            else:  # continuation counts: after how many different tokens a k-gram stands
                occurring = self.levels[-1].grams % vocabulary**k
            grams, count = np.unique(occurring, return_counts=True)
            self.levels.append(_Level(grams, count.astype(float), vocabulary))
        self.levels.reverse()

    def _grams(self, tokens: np.ndarray, k: int) -> np.ndarray:
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
                p = self._probability(self._grams(tokens, k), k).reshape(n, -1)
                found[:, k - 2 :] = p
        return -np.log(found)

    def _probability(self, grams: np.ndarray, k: int) -> np.ndarray:
        """p of each k-gram's last token after its others, interpolated down to the uniform one."""
        if k == 1:
            lower: float | np.ndarray = 1 / self.vocabulary
        else:  # the same k-gram without its first token
            lower = self._probability(grams % self.vocabulary ** (k - 1), k - 1)
        return self.levels[k - 1].probability(grams, lower)


class _Level:
    """Discounted counts of the k-grams of one order."""

    def __init__(self, grams: np.ndarray, count: np.ndarray, vocabulary: int):
        """grams [m], sorted: the k-grams as numbers; count [m]: how often each occurs."""
        self.grams, self.count, self.vocabulary = grams, count, vocabulary
        # Chen and Goodman's D_c = c - (c + 1) Y n_{c+1} / n_c with Y = n_1 / (n_1 + 2 n_2), where
        # n_c k-grams occur c times; D_3 is for three and more.
        n = [float((count == c).sum()) for c in range(5)]
        y = n[1] / (n[1] + 2 * n[2]) if n[1] + n[2] else 0.5
        self.discounts = np.zeros(4)
        for c in (1, 2, 3):
            discount = c - (c + 1) * y * n[c + 1] / n[c] if n[c] else 0.5
            self.discounts[c] = np.clip(discount, 0.0, c)
        # Of each context: all its counts, and all that was discounted from them.
        self.contexts, index = np.unique(grams // vocabulary, return_inverse=True)
        self.context_count = np.bincount(index, count)
        self.context_discount = np.bincount(index, self._discount(count))

    def _discount(self, count: np.ndarray) -> np.ndarray:
        return self.discounts[np.minimum(count, 3).astype(int)]

    def probability(self, grams: np.ndarray, lower: np.ndarray | float) -> np.ndarray:
        """(c - D + discounted · lower) / c(context); `lower` alone after an unknown context."""
        i = np.searchsorted(self.grams, grams).clip(max=len(self.grams) - 1)
        count = np.where(self.grams[i] == grams, self.count[i], 0.0)
        context = grams // self.vocabulary
        j = np.searchsorted(self.contexts, context).clip(max=len(self.contexts) - 1)
        known = self.contexts[j] == context
        kept = count - self._discount(count)
        interpolated = (kept + self.context_discount[j] * lower) / self.context_count[j]
        return np.where(known, interpolated, lower)
