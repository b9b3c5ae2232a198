"""A linear mixer composed into two matrices (Badger, "Linear models inference with O(log n)
complexity").

Mixing acts on positions and every other matrix on channels, so they commute: whatever is stacked,
O_i = Q Σ_j c_ij t_j with one-hot tokens t_j, one lower triangular c and one Q = H…W.
"""

from dataclasses import dataclass

import numpy as np
import torch

from lib.second.base.errors import InputError
from lib.second.models.mixers import LINEAR, MixerLM


@dataclass(frozen=True)
class Composed:
    """A linear language model of two matrices, in float64."""

    mixing: np.ndarray
    """c [context, context], lower triangular"""
    q: np.ndarray
    """Q [|t|, |t|]: column t is what a token t adds to the logits"""

    @property
    def vocab(self) -> int:
        return len(self.q)

    @property
    def context(self) -> int:
        return len(self.mixing)

    def logits(self, tokens) -> np.ndarray:
        """Next-token logits at every position, [n, |t|], of token ids [n]. Raises InputError for
        more tokens than the mixing matrix has positions, or an id that is no token."""
        tokens = self._checked(tokens)
        return self.mixing[: len(tokens), : len(tokens)] @ self.q.T[tokens]

    def next_logits(self, tokens) -> np.ndarray:
        """Those at the last position, [|t|], as the page computes them: a_n, then Q a_n."""
        tokens = self._checked(tokens)
        a = np.zeros(self.vocab)
        np.add.at(a, tokens, self.mixing[len(tokens) - 1, : len(tokens)])
        return self.q @ a

    def _checked(self, tokens) -> np.ndarray:
        tokens = np.asarray(tokens)
        if not 0 < len(tokens) <= self.context:
            raise InputError(
                f"{len(tokens)} tokens do not fit the mixing matrix, which has {self.context} "
                "positions: give between one and that many."
            )
        if tokens.min() < 0 or tokens.max() >= self.vocab:
            wrong = int(tokens.max() if tokens.max() >= self.vocab else tokens.min())
            raise InputError(
                f"token {wrong} is not in the vocabulary of {self.vocab}: encode the text with the "
                "model's own tokenizer."
            )
        return tokens


@torch.no_grad()
def compose(model: MixerLM) -> Composed:
    """The two matrices of a linear mixer, however often it is stacked. Raises InputError for a
    model that is not linear."""
    kind = model.spec.kind if isinstance(model, MixerLM) else type(model).__name__
    if kind not in LINEAR:
        raise InputError(f"a model of kind {kind!r} is not linear: compose one of {LINEAR}.")
    double = lambda weight: weight.detach().cpu().double().numpy()
    mixing = double(model.mixing[0].matrix)
    for more in model.mixing[1:]:
        mixing = double(more.matrix) @ mixing
    q = double(model.table.weight).T  # [m, |t|]
    for linear in (*model.maps, *([] if model.head is None else [model.head])):
        q = double(linear.weight) @ q
    return Composed(mixing, q)


def identities(composed: Composed, rng: np.random.Generator) -> dict[str, float]:
    """Largest relative deviation, in float64, of what linear algebra says is equal: `product`, a
    chain of matrices applied in turn and at once, of the page's sizes (8 by 2, 2 by 8) and of
    random ones; `scaling`, tokens scaled before and after the matrices."""
    product = []
    for small, large in ((2, 8), *rng.integers(2, 60, size=(5, 2))):
        w, h, x = (rng.standard_normal(s) for s in ((large, small), (small, large), (small, 9)))
        product.append(_apart(h @ (w @ x), (h @ w) @ x))
    c, t = rng.standard_normal(5), rng.integers(composed.vocab, size=5)
    after = sum(scale * composed.q[:, token] for scale, token in zip(c, t, strict=True))
    a = np.zeros(composed.vocab)
    np.add.at(a, t, c)
    return {"product": max(product), "scaling": _apart(after, composed.q @ a)}


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(a))


def count_next(composed: Composed, tokens) -> tuple[int, int]:
    """Operations of `next_logits`: additions into a, and multiplications of Q a."""
    return len(tokens), composed.q.size


def sum_depth(n: int) -> int:
    """Depth of a tree of additions of n terms."""
    depth = 0
    while n > 1:
        n, depth = (n + 1) // 2, depth + 1
    return depth
