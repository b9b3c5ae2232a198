"""Token windows of a text, and the start tokens that a tokenizer puts in front."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from lib.errors import InputError


@dataclass(frozen=True, eq=False)
class Windows:
    """Non-overlapping windows of tokens, each cut from one document."""

    tokens: torch.Tensor
    """[n, seq_len], int64"""
    document: np.ndarray
    """[n], int: which document of its part each window was cut from"""
    name: str

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, chosen) -> "Windows":
        """Some of the windows: a slice, indices or a mask."""
        return replace(self, tokens=self.tokens[chosen], document=self.document[chosen])

    @property
    def n_tokens(self) -> int:
        return self.tokens.numel()

    @property
    def n_documents(self) -> int:
        return len(np.unique(self.document))

    @property
    def provenance(self) -> str:
        """The text in words, for keys: its name, how much of it, and a digest of its tokens and
        documents as they are now, whole numbers that are the same on any machine."""
        given = hashlib.sha256(np.ascontiguousarray(self.tokens.numpy()).data)
        given.update(self.document.astype(np.int64).data)
        n, length = self.tokens.shape
        return f"{self.name}, {n}x{length}, {given.hexdigest()[:16]}"

    def take(self, n_tokens: int, evenly: bool = False) -> "Windows":
        """The first `n_tokens` tokens in whole windows; `evenly`: as many of each document as of
        any other, as far as it has them. Raises InputError if there are fewer."""
        n = n_tokens // self.tokens.shape[1]
        if not 1 <= n <= len(self):
            raise InputError(
                f"{self.name} has {self.n_tokens:,} tokens in windows of {self.tokens.shape[1]} "
                f"but {n_tokens:,} were asked for: choose a smaller profile or a longer corpus."
            )
        if not evenly:
            return self[:n]
        turn = np.zeros(len(self), int)  # which window of its document each is
        for d in np.unique(self.document):
            turn[self.document == d] = np.arange((self.document == d).sum())
        return self[np.argsort(turn, kind="stable")[:n]]

    def per_document(self, windows: int, documents: int, seed: int = 42) -> "Windows":
        """Up to so many windows of each document, from up to so many documents: a prefix of a
        seeded order, so that fewer documents are always among more."""
        order = np.random.default_rng(seed).permutation(np.unique(self.document))
        chosen = set(order[:documents].tolist())
        kept, seen = [], dict.fromkeys(chosen, 0)
        for k, name in enumerate(self.document.tolist()):
            if name in chosen and seen[name] < windows:
                kept.append(k)
                seen[name] += 1
        return self[np.array(kept)]

    @property
    def first_of_document(self) -> np.ndarray:
        """Which windows are the first of their document, [n] bool."""
        _, first = np.unique(self.document, return_index=True)
        return np.isin(np.arange(len(self)), first)

    def folds(self, k: int) -> np.ndarray:
        """The fold of each window, [n]: documents dealt to the fold with the fewest windows, the
        longest first. Raises InputError if there are fewer documents than folds."""
        found, size = np.unique(self.document, return_counts=True)
        if len(found) < k:
            raise InputError(
                f"{self.name} has {len(found)} document(s) of at least a window but {k} folds need "
                "as many: give a corpus of more documents, or use fewer folds."
            )
        fold, filled = {}, np.zeros(k)
        for i in np.argsort(-size, kind="stable"):
            fold[found[i]] = filled.argmin()
            filled[fold[found[i]]] += size[i]
        return np.array([fold[d] for d in self.document])

    def __repr__(self) -> str:
        n, length = self.tokens.shape
        return f"{self.name}: {n:,} windows of {length} tokens from {self.n_documents} documents"


def start_tokens(tokenizer) -> tuple[int, ...]:
    """The tokens that this tokenizer by itself puts in front of a text.

    Found by tokenizing a text that it knows, for attributes such as `add_bos_token` do not always
    tell. Raises InputError where it knows none, or cuts it otherwise without them.
    """
    text = _known_text(tokenizer)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    with_special = tokenizer(text)["input_ids"]
    for k in range(len(with_special) - len(ids) + 1):
        if with_special[k : k + len(ids)] == ids:
            return tuple(with_special[:k])
    raise InputError(
        f"the tokenizer cuts {text!r} into {ids} without special tokens and into {with_special} "
        "with them, so what it puts in front of a text cannot be told: choose another model."
    )


def _known_text(tokenizer) -> str:
    """A text that this tokenizer has tokens for: an English word, or one of its own tokens."""
    candidates = ["word"]
    if hasattr(tokenizer, "get_vocab"):
        ids = sorted({*tokenizer.get_vocab().values()} - {*tokenizer.all_special_ids})[:1_000]
        candidates += [tokenizer.decode([i]) for i in ids]
    for text in candidates:
        if text.strip() and tokenizer(text, add_special_tokens=False)["input_ids"]:
            return text
    raise InputError(
        "the tokenizer knows no tokens: put the model's tokenizer.json beside its weights."
    )


def cut_windows(
    documents: Sequence[str],
    tokenizer,
    seq_len: int,
    seed: int | None = 42,
    name: str = "this corpus",
) -> Windows:
    """Cut every document into windows of `seq_len` tokens and permute them by `seed`; None leaves
    them in their order.

    Where the tokenizer by itself puts start tokens in front of a text, every window begins with
    them, and tokens of the document follow up to seq_len. What is left of a document after its last
    whole window is dropped. Raises InputError if no document has a window.
    """
    start = start_tokens(tokenizer)
    n_text = seq_len - len(start)  # tokens of the document in each window
    if n_text < 1:
        raise InputError(f"windows of {seq_len} tokens hold no text: give longer windows.")
    rows = []
    for text in documents:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        n_windows = len(ids) // n_text
        rows.append(torch.tensor(ids[: n_windows * n_text]).long().view(-1, n_text))
    sizes = [len(r) for r in rows]
    if not sum(sizes):
        raise InputError(
            f"{name} has no document of {seq_len} tokens: give longer texts or shorter windows."
        )
    tokens = torch.cat(rows)
    if start:
        tokens = torch.cat([torch.tensor(start).repeat(len(tokens), 1), tokens], 1)  # [n, seq_len]
    document = np.repeat(np.arange(len(rows)), sizes)
    if seed is None:
        return Windows(tokens, document, name)
    order = np.random.default_rng(seed).permutation(sum(sizes))
    return Windows(tokens[order], document[order], name)
