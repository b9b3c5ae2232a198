"""Three ways to the vectors of a linear rollout, and what each costs (Badger, "Linear models
inference with O(log n) complexity").

A rollout feeds output vectors back, not tokens. With the tokens and vectors as rows of X, X0 the
prompt's one-hot rows and S the mixing matrix moved down by one row, X = X0 + S X Qᵀ, so
X = Σ_k S^k X0 (Qᵀ)^k: a polynomial in Q whose coefficients are entries of powers of S, which is
nilpotent.
"""

import math
from collections.abc import Callable

import numpy as np

from lib.second.base.errors import InputError
from lib.second.models.composed import Composed


def one_by_one(composed: Composed, prompt, n: int) -> np.ndarray:
    """`n` vectors after `prompt` (token ids), [n, |t|]: the recurrence as it stands."""
    s, x = _start(composed, prompt, n)
    for i in range(len(prompt), len(x)):
        x[i] = composed.q @ (s[i, :i] @ x[:i])
    return x[len(prompt) :]


def by_powers(composed: Composed, prompt, n: int) -> np.ndarray:
    """The same as a polynomial: columns Q^k t_j of the prompt's tokens, which could be kept,
    weighted by the coefficients S^k."""
    s, x = _start(composed, prompt, n)
    p, columns, coefficients = len(prompt), x[: len(prompt)], np.eye(len(x))[:, : len(prompt)]
    for _ in range(n):
        columns = columns @ composed.q.T  # Q^k t_j, [p, |t|]
        coefficients = s @ coefficients  # [p + n, p]
        x = x + coefficients @ columns
    return x[p:]


def by_doubling(composed: Composed, prompt, n: int) -> np.ndarray:
    """The same in rounds(n) rounds: Σ_{k<2^r} N^k = Π_{i<r} (1 + N^{2^i}) for X → N X = S X Qᵀ."""
    s, x = _start(composed, prompt, n)
    q = composed.q.T
    for _ in range(rounds(n)):
        x = x + s @ x @ q
        s, q = s @ s, q @ q
    return x[len(prompt) :]


def rounds(n: int) -> int:
    """Rounds of the doubling for n vectors, whose highest power is n."""
    return math.ceil(math.log2(n + 1))


def greedy(composed: Composed, prompt, n: int) -> np.ndarray:
    """`n` tokens after `prompt` as a language model writes them: the likeliest token is fed
    back."""
    text = list(prompt)
    _check(composed, len(text), n)
    for _ in range(n):
        text.append(int(composed.logits(text)[-1].argmax()))
    return np.array(text[len(prompt) :])


def _start(composed: Composed, prompt, n: int) -> tuple[np.ndarray, np.ndarray]:
    """S [p + n, p + n], without rows for the prompt, and X0 [p + n, |t|]."""
    p = len(prompt)
    _check(composed, p, n)
    s = np.zeros((p + n, p + n))
    s[p:, : p + n - 1] = composed.mixing[p - 1 : p + n - 1, : p + n - 1]
    x = np.zeros((p + n, composed.vocab))
    x[np.arange(p), prompt] = 1
    return s, x


def _check(composed: Composed, p: int, n: int) -> None:
    if p < 1 or n < 1 or p + n > composed.context:
        raise InputError(
            f"{p} tokens and {n} more do not fit the mixing matrix, which has {composed.context} "
            "positions: give at least one of each, and no more together."
        )


def largest_difference(ways: list[np.ndarray]) -> float:
    """Largest distance of a vector from that of the first way, relative to its length."""
    first, *others = ways
    size = np.linalg.norm(first, axis=1)
    return float(max((np.linalg.norm(x - first, axis=1) / size).max() for x in others))


# What they cost in multiplications, for n vectors after one token, m = |t|.


def cost_one_by_one(n: int, m: int) -> int:
    """Mixing of the vectors so far, and one product with Q, for each."""
    return n * m * m + m * n * (n + 1) // 2


def cost_powers(n: int, m: int) -> int:
    """n products of Q with a vector, n of S with one, and the weighted sums."""
    return n * m * m + n * n * (n + 1) // 2 + m * n * (n + 1) // 2


def cost_doubling(n: int, m: int) -> int:
    """Each round: S X, (S X) Qᵀ, S S, Q Q."""
    rows = n + 1
    return rounds(n) * (rows * rows * m + rows * m * m + rows**3 + m**3)


def kept_numbers(n: int, m: int) -> tuple[int, int]:
    """What the expansion keeps for n vectors after one token: entries of columns, and
    coefficients."""
    return n * m, n * (n + 1) // 2


def cost_attention(n: int, width: int, cached: bool, layers: int = 1) -> int:
    """Multiplications of attention's scores for n tokens written one by one: each token against
    all before it, and without a cache every earlier token anew each time."""
    pairs = n * (n + 1) // 2 if cached else n * (n + 1) * (2 * n + 1) // 6
    return pairs * width * layers


def exponent(cost: Callable[[int], float], at: int) -> float:
    """Local exponent of a count: log2 of what doubling `at` multiplies it by."""
    return math.log2(cost(2 * at) / cost(at))


def agreement(composed: Composed, prompts: np.ndarray, n: int) -> np.ndarray:
    """Whether the largest entry of each vector of the linear rollout is the token that greedy
    decoding writes, [prompts, n] bool, after prompts of token ids [prompts, p]."""
    found = [one_by_one(composed, p, n).argmax(1) == greedy(composed, p, n) for p in prompts]
    return np.array(found)
