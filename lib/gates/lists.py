"""No-Fly lists: token types whose mean δ is high on one text, looked up on another (Balogh §4.3.3,
Table 5), beside types that are not listed, and what the noise of the means allows."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from sklearn.neighbors import NearestNeighbors

from lib.base.errors import InputError

THRESHOLD, LEAST = 0.05, 10
"""a token is listed with a mean δ above THRESHOLD nats over at least LEAST occurrences"""
MATCHES = 3
"""unlisted types beside each listed one, the nearest by log counts in both texts"""
GROUPS = 64
"""documents are drawn in at most so many groups"""
HALVINGS = 10
"""random halvings of the occurrences, averaged"""


@dataclass(frozen=True, eq=False)
class Sums:
    """δ by token type and document group, for the types `kinds`."""

    counts: np.ndarray
    """[groups, types]"""
    sums: np.ndarray
    """[groups, types], nats"""
    halves: tuple[np.ndarray, np.ndarray]
    """counts and sums of a random half of the occurrences, [halvings, groups, types]"""

    def of(self, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Counts and sums of the groups with their weights, [types] each."""
        return weight @ self.counts, weight @ self.sums


@dataclass(frozen=True, eq=False)
class Pair:
    """Two texts: the one that lists are made on, and the one they are looked up on."""

    kinds: np.ndarray
    """token types that stand at least LEAST times in the first, [types]"""
    first: Sums
    second: Sums


def pair(first: tuple, second: tuple, seed: int = 42) -> Pair:
    """Sums of two texts, each (tokens, δ, document): tokens and δ [n, t], document [n]. Raises
    InputError where no type is frequent enough, or shapes differ."""
    for tokens, delta, document in (first, second):
        if tokens.shape != delta.shape or len(document) != len(tokens):
            raise InputError(
                f"tokens {tokens.shape}, δ {delta.shape} and {len(document)} documents do not fit: "
                "give a token and a δ a position, and a document a window."
            )
    kinds, counts = np.unique(first[0], return_counts=True)
    kinds = kinds[counts >= LEAST]
    if not len(kinds):
        raise InputError(
            f"no token stands {LEAST} times in {first[0].size:,} positions: use more tokens."
        )
    return Pair(kinds, *(_sums(kinds, *text, seed) for text in (first, second)))


def _sums(kinds: np.ndarray, tokens, delta, document, seed: int) -> Sums:
    _, group = np.unique(document, return_inverse=True)
    chance = np.random.default_rng(seed)
    n_groups = min(GROUPS, group.max() + 1)
    group = (chance.permutation(group.max() + 1) % n_groups)[group]
    at = np.searchsorted(kinds, tokens).clip(max=len(kinds) - 1)
    known = kinds[at] == tokens
    cell = (group[:, None] * len(kinds) + at)[known]
    values = delta[known]
    of = lambda cells, weights: np.bincount(
        cells, weights, minlength=n_groups * len(kinds)
    ).reshape(n_groups, len(kinds))
    picks = chance.random((HALVINGS, len(cell))) < 0.5
    halves = [np.stack([of(cell[p], w[p]) for p in picks]) for w in (np.ones(len(cell)), values)]
    return Sums(of(cell, np.ones(len(cell))), of(cell, values), tuple(halves))


def measures(
    both: Pair, first: np.ndarray, second: np.ndarray, least_there: int = LEAST
) -> dict[str, float]:
    """What lists of the first text are worth on the second, with weights of their groups.

    listed, found (`least_there` times in the second too), still (mean δ above THRESHOLD there),
    flipped (below 0), and the same two shares of unlisted types matched by count; r over the listed
    that were found and over all types that are frequent in both; the lead of the listed over the
    matched in each text and what is kept of it; the mean of the still listed over what it was.
    """
    (n, s), (m, u) = both.first.of(first), both.second.of(second)
    with np.errstate(invalid="ignore", divide="ignore"):
        a, b = s / n, u / m
    frequent = (n >= LEAST) & (m >= least_there)
    listed = (n >= LEAST) & (a > THRESHOLD)
    found, rest = listed & frequent, ~listed & frequent
    share = lambda mask: float(mask.mean()) if len(mask) else np.nan
    out = {"listed": float(listed.sum()), "found": float(found.sum())}
    out |= {"still": share(b[found] > THRESHOLD), "flipped": share(b[found] < 0)}
    out |= {"r_listed": correlation(a[found], b[found]), "frequent": float(frequent.sum())}
    out |= {"r_frequent": correlation(a[frequent], b[frequent])}
    beside = _matched(*np.log1p([n, m]), found, rest)
    out |= {"base_still": share(b[beside] > THRESHOLD), "base_flipped": share(b[beside] < 0)}
    mean = lambda values: float(values.mean()) if len(values) else np.nan
    out["lead"] = mean(a[found]) - mean(a[beside])
    out["lead_there"] = mean(b[found]) - mean(b[beside])
    out["lead_kept"] = out["lead_there"] / out["lead"]
    out["flips_less"] = out["base_flipped"] - out["flipped"]
    kept = found & (b > THRESHOLD)
    out["survivors"] = mean(b[kept]) / mean(a[kept]) if kept.any() else np.nan
    return out


def _matched(x: np.ndarray, y: np.ndarray, found: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Indices of the MATCHES types of `rest` that are nearest to each of `found`."""
    if not found.any() or rest.sum() < MATCHES:
        return np.empty(0, dtype=int)
    at = np.stack([x, y], axis=1)
    near = NearestNeighbors(n_neighbors=MATCHES).fit(at[rest])
    return np.flatnonzero(rest)[near.kneighbors(at[found], return_distance=False)].ravel()


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson correlation; nan with fewer than three pairs, or where a side does not vary."""
    if len(a) < 3:
        return np.nan
    a, b = a - a.mean(), b - b.mean()
    size = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / size) if size > 0 else np.nan


def reliability(text: Sums, weight: np.ndarray, chosen: np.ndarray) -> float:
    """Reliability of the mean δ of the types `chosen` (a mask): the correlation of two random
    halves of their occurrences, stepped up to the full count (Spearman-Brown)."""
    r = float(np.mean([correlation(*pair) for pair in _halves(text, weight, chosen)]))
    return 2 * r / (1 + r) if r > -1 else np.nan


def variance_of_types(text: Sums) -> float:
    """Variance of the types' own means: the covariance of two random halves of their occurrences;
    0 where it is negative."""
    ones = np.ones(len(text.counts))
    halves = _halves(text, ones, np.ones(text.counts.shape[1], dtype=bool))
    return max(0.0, float(np.mean([np.cov(*pair)[0, 1] for pair in halves])))


def _halves(text: Sums, weight: np.ndarray, chosen: np.ndarray) -> Iterator[tuple]:
    """Means of the types in the two halves, one pair a halving."""
    n, s = text.of(weight)
    for counts, sums in zip(*text.halves, strict=True):
        k, t = weight @ counts, weight @ sums
        both = chosen & (k > 0) & (n - k > 0)
        yield t[both] / k[both], (s - t)[both] / (n - k)[both]


def reliabilities(both: Pair, first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """candidates: reliability in the first text of all types that stand there LEAST times; of the
    types frequent in both texts: here and there, and transfer, their correlation over the root of
    the product of the two, nan where one is not above 0.1."""
    n, _ = both.first.of(first)
    m, _ = both.second.of(second)
    frequent = (n >= LEAST) & (m >= LEAST)
    out = {"candidates": reliability(both.first, first, n >= LEAST)}
    out["here"] = reliability(both.first, first, frequent)
    out["there"] = reliability(both.second, second, frequent)
    known = out["here"] > 0.1 and out["there"] > 0.1
    limit = np.sqrt(out["here"] * out["there"]) if known else np.nan
    (_, s), (_, u) = both.first.of(first), both.second.of(second)
    r = correlation(s[frequent] / n[frequent], u[frequent] / m[frequent])
    return out | {"transfer": r / limit}
