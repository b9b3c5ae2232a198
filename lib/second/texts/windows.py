"""Token windows that know their document: budgets sample every document, splits never cut one.

A budget is the prefix of a seeded permutation of all windows of a corpus part. So every budget
samples the whole corpus, a smaller one lies inside a larger one, and nothing depends on which
article happens to stand first. Folds and splits go by document: no document stands on both sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from lib.second.base import InputError, progress
from lib.second.base.cache import digest
from lib.second.base.checks import check_count, check_texts


@dataclass(frozen=True, eq=False)
class Windows:
    """Non-overlapping windows of tokens, each cut from one document."""

    tokens: torch.Tensor
    """[n, seq_len], int64"""
    document: torch.Tensor
    """[n], int64: which document of the corpus part each window was cut from"""
    sizes: torch.Tensor
    """[n_documents], int64: windows that each document has in the whole part, taken or not"""
    name: str = "this corpus"
    in_order: bool = False
    """whether the windows stand in the corpus' own order; folds are then contiguous"""

    @classmethod
    def of(cls, tokens: torch.Tensor, name: str = "these tokens") -> "Windows":
        """View bare tokens [n, seq_len] as windows, each a document of its own, in their order."""
        if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2 or not len(tokens):
            shape = tuple(tokens.shape) if isinstance(tokens, torch.Tensor) else tokens
            raise InputError(
                f"{shape!r} are no windows of tokens: give a tensor [n, seq_len] with n of "
                "at least 1."
            )
        each = torch.arange(len(tokens))
        return cls(tokens, each, torch.ones_like(each), name, in_order=True)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, chosen) -> "Windows":
        """Some of the windows: a slice, indices or a mask."""
        return replace(self, tokens=self.tokens[chosen], document=self.document[chosen])

    @property
    def seq_len(self) -> int:
        return self.tokens.shape[1]

    @property
    def n_tokens(self) -> int:
        return self.tokens.numel()

    @property
    def n_documents(self) -> int:
        """Documents with at least one window here."""
        return len(self.document.unique())

    @property
    def left_out(self) -> int:
        """Documents of the part that are shorter than a window."""
        return int((self.sizes == 0).sum())

    @cached_property
    def key(self) -> str:
        """What a cached result of these windows depends on."""
        return digest([self.tokens, self.document])

    def take(self, n_tokens: int, evenly: bool = False) -> "Windows":
        """The first `n_tokens` tokens in whole windows; `evenly`: as many of each document as of
        any other, as far as it has them. Raises InputError if there are fewer."""
        check_count(n_tokens, "tokens")
        n = n_tokens // self.seq_len
        if n < 1:
            raise InputError(
                f"{n_tokens} tokens in windows of {self.seq_len} make no window: ask for at least "
                f"{self.seq_len}."
            )
        if n > len(self):
            raise InputError(
                f"{self.name} has {self.n_tokens:,} tokens in windows of {self.seq_len} but "
                f"{n_tokens:,} were asked for: choose a smaller profile or a longer corpus."
            )
        return self[self._rounds()[:n]] if evenly else self[:n]

    def _rounds(self) -> torch.Tensor:
        """The order that goes round the documents, one window of each a round."""
        by_document = torch.argsort(self.document, stable=True)
        sizes = self.document.bincount()
        starts = sizes.cumsum(0) - sizes
        rank = torch.empty_like(self.document)
        rank[by_document] = torch.arange(len(self)) - starts[self.document[by_document]]
        return torch.argsort(rank, stable=True)

    def folds(self, n_folds: int) -> torch.Tensor:
        """The fold of each window, [n]: documents dealt to the fold with the fewest windows, the
        largest first, by their sizes in the whole part, so a document keeps its fold in every
        budget.

        Contiguous folds of windows where these stand in order (Whipp §4, §5.7). Raises InputError
        if there are fewer documents than folds, or a fold without a window.
        """
        if not isinstance(n_folds, int) or n_folds < 2:
            raise InputError(f"{n_folds!r} folds are not possible: use a whole number from 2 up.")
        if self.in_order:
            found = torch.empty(len(self), dtype=torch.int64)
            for fold, part in enumerate(torch.arange(len(self)).tensor_split(n_folds)):
                found[part] = fold
        else:
            found = torch.from_numpy(_deal(self.sizes.numpy(), n_folds, self.name))[self.document]
        empty = [k for k in range(n_folds) if not (found == k).any()]
        if empty:
            raise InputError(
                f"{len(self)} windows of {self.n_documents} documents leave fold {empty[0]} of "
                f"{n_folds} empty: use more tokens or fewer folds."
            )
        return found

    def held_out(self, n_folds: int) -> torch.Tensor:
        """Which windows are held out, [n] bool: the last of `n_folds` folds."""
        return self.folds(n_folds) == n_folds - 1

    def halves(self) -> "tuple[Windows, Windows]":
        """Two samples without a document in common, about alike in size: what two samples of one
        corpus differ by. Raises InputError if there is one document alone."""
        half = torch.from_numpy(_deal(self.sizes.numpy(), 2, self.name))
        first, second = (
            replace(self[half[self.document] == k], sizes=self.sizes.where(half == k, 0))
            for k in (0, 1)
        )
        return first, second

    def __repr__(self) -> str:
        order = "in order" if self.in_order else "permuted"
        return (
            f"Windows({self.name}: {len(self):,} of {self.seq_len} tokens from {self.n_documents} "
            f"of {len(self.sizes)} documents, {order})"
        )


def _deal(sizes: np.ndarray, n_folds: int, name: str) -> np.ndarray:
    """The fold of each document, [n_documents]."""
    usable = int((sizes > 0).sum())
    if usable < n_folds:
        raise InputError(
            f"{name} has {usable} document(s) of at least a window but {n_folds} folds need "
            "as many: "
            "give a corpus of more documents, or use fewer folds."
        )
    fold, filled = np.zeros(len(sizes), dtype=np.int64), np.zeros(n_folds)
    for document in np.argsort(-sizes, kind="stable"):
        fold[document] = filled.argmin()
        filled[fold[document]] += sizes[document]
    return fold


def cut_windows(
    documents: Sequence[str],
    tokenizer,
    seq_len: int,
    seed: int | None = 42,
    name: str = "this corpus",
    batch: int = 64,
) -> Windows:
    """Cut every document into windows of `seq_len` tokens and permute them by `seed` (None: keep
    their order).

    What is left of a document after its last whole window is dropped; a document shorter than a
    window is left out and counted. Raises InputError if no document has a window.
    """
    if not isinstance(seq_len, int) or seq_len < 2:
        raise InputError(f"windows of {seq_len!r} tokens are not possible: use two or more.")
    if tokenizer is None:
        raise InputError(f"{name} cannot be cut without a tokenizer: give the subject one.")
    check_texts(documents, name)
    documents = [documents] if isinstance(documents, str) else list(documents)
    rows: list[torch.Tensor] = []
    with progress(total=len(documents), desc=f"tokens of {name}", unit="document") as bar:
        for first in range(0, len(documents), batch):
            some = documents[first : first + batch]
            # Long texts would only warn about the model's context, which windows never reach.
            for ids in tokenizer(some, add_special_tokens=False, verbose=False)["input_ids"]:
                whole = len(ids) // seq_len * seq_len
                rows.append(torch.tensor(ids[:whole], dtype=torch.int64).view(-1, seq_len))
            bar.update(len(some))
    sizes = torch.tensor([len(r) for r in rows], dtype=torch.int64)
    if not sizes.sum():
        raise InputError(
            f"{name} has no document of {seq_len} tokens: give longer texts, or shorter windows."
        )
    tokens, document = torch.cat(rows), torch.arange(len(rows)).repeat_interleave(sizes)
    if seed is None:
        return Windows(tokens, document, sizes, name, in_order=True)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(tokens)))
    return Windows(tokens[order], document[order], sizes, name)
