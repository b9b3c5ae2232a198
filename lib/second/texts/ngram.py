"""An interpolated n-gram model over tokens, with Witten and Bell's weights, to stand beside linear
language models of the same size (Badger, "Linear Mixer Scaling", has none)."""

from dataclasses import dataclass

import numpy as np

from lib.second.base.errors import InputError


@dataclass(frozen=True)
class NGram:
    """Counts of sequences up to an order: p(w|h) = (c(hw) + T(h) p(w|h')) / (c(h) + T(h)), with
    T(h) the number of different tokens after h, h' what is left of h without its first token, and
    1/|t| below all (Witten and Bell, IEEE Transactions on Information Theory 37, 1991)."""

    vocab: int
    grams: tuple[np.ndarray, ...]
    """by order, sorted codes of the sequences that are kept, int64"""
    counts: tuple[np.ndarray, ...]
    """by order, how often each occurs"""

    @property
    def size(self) -> int:
        """Numbers that are stored: a count for each sequence. Sums over them are not counted."""
        return sum(map(len, self.counts))

    def losses(self, windows: np.ndarray) -> np.ndarray:
        """Loss in nats of every token of `windows` [n, seq_len] but the first, [n, seq_len-1]; a
        context does not reach beyond its window."""
        windows = np.asarray(windows)
        p = np.full((len(windows), windows.shape[1] - 1), 1 / self.vocab)
        for order, (grams, counts) in enumerate(zip(self.grams, self.counts, strict=True), 1):
            if order > windows.shape[1]:
                break
            codes = _codes(windows, order, self.vocab)[:, 1 if order == 1 else 0 :]
            contexts, first = np.unique(grams // self.vocab, return_index=True)
            seen = np.add.reduceat(counts, first) if len(first) else np.zeros(0)
            kinds = np.diff([*first, len(grams)]) if len(first) else np.zeros(0)
            c = _look_up(codes, grams, counts)
            total = _look_up(codes // self.vocab, contexts, seen)
            t = _look_up(codes // self.vocab, contexts, kinds)
            there = slice(max(0, order - 2), None)  # earlier tokens have too short a context
            known = total > 0
            p[:, there] = np.where(
                known, (c + t * p[:, there]) / np.where(known, total + t, 1), p[:, there]
            )
        return -np.log(p)


def count_ngrams(windows: np.ndarray, vocab: int, order: int, size: int | None = None) -> NGram:
    """Count sequences of up to `order` tokens in `windows` [n, seq_len]; of those, the `size` most
    frequent are kept, shorter ones first among equals (None: all).

    Raises InputError for an order below 1, a size below 1, or one whose codes would not fit 63
    bits.
    """
    if order < 1 or (size is not None and size < 1):
        raise InputError(
            f"an n-gram model of order {order!r} and {size!r} numbers is not possible: use whole "
            "numbers from 1 up."
        )
    if vocab**order >= 2**63:
        raise InputError(
            f"sequences of {order} tokens out of {vocab:,} cannot be told apart in 63 bits: choose "
            "a lower order."
        )
    windows = np.asarray(windows)
    found = [
        np.unique(_codes(windows, k, vocab), return_counts=True)
        for k in range(1, min(order, windows.shape[1]) + 1)
    ]
    if size is not None:
        counts = np.concatenate([c for _, c in found])
        orders = np.concatenate([np.full(len(c), k) for k, (_, c) in enumerate(found)])
        keep = np.zeros(len(counts), dtype=bool)
        keep[np.lexsort((orders, -counts))[:size]] = True
        found = [(g[keep[orders == k]], c[keep[orders == k]]) for k, (g, c) in enumerate(found)]
    return NGram(vocab, tuple(g for g, _ in found), tuple(c for _, c in found))


def _codes(windows: np.ndarray, order: int, vocab: int) -> np.ndarray:
    """Every sequence of `order` neighbours as one number, [n, seq_len - order + 1]."""
    length = windows.shape[1] - order + 1
    codes = np.zeros((len(windows), length), dtype=np.int64)
    for k in range(order):
        codes = codes * vocab + windows[:, k : k + length]
    return codes


def _look_up(codes: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The value of each code in sorted `keys`, 0 where it is not there."""
    if not len(keys):
        return np.zeros(codes.shape)
    at = np.searchsorted(keys, codes).clip(max=len(keys) - 1)
    return np.where(keys[at] == codes, values[at], 0).astype(float)
