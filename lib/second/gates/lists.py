"""No-Fly lists: token types whose mean δ is high on one text, looked up on another (Balogh §4.3.3,
Table 5), beside types that are not listed, and what the noise of the means allows."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from sklearn.neighbors import NearestNeighbors

from lib.second.base.errors import InputError

THRESHOLD, LEAST = 0.05, 10
"""a token is listed with a mean δ above THRESHOLD nats over at least LEAST occurrences"""
MATCHES = 3
"""unlisted types beside each listed one, the nearest by log counts in both texts"""
GROUPS = 64
"""documents are drawn in at most so many groups"""
HALVINGS = 10
"""random halvings of the documents, averaged"""


@dataclass(frozen=True, eq=False)
class Sums:
    """δ by token type and document group, for the types `kinds`."""

    counts: np.ndarray
    """[groups, types]"""
    sums: np.ndarray
    """[groups, types], nats"""

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
    return Sums(of(cell, np.ones(len(cell))), of(cell, values))


def measures(
    both: Pair, first: np.ndarray, second: np.ndarray, least_there: int = LEAST
) -> dict[str, float]:
    """What lists of the first text are worth on the second, with weights of their groups.

    listed, found (`least_there` times in the second too), still (mean δ above THRESHOLD there),
    flipped (below 0), and the same two shares of unlisted types matched by count (how many are
    matched, a type counted once, and how often the listed and the matched stand in the two texts,
    geometric mean); r over the listed that were found and over all types that are frequent in both;
    the lead of the listed over the matched in each text and what is kept of it; the mean of the
    still listed over what it was. What needs matched types is nan where fewer unlisted types than
    listed ones are left to draw from.
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
    out["matched"] = float(len(np.unique(beside)))
    often = np.log(np.maximum(n * m, 1)) / 2
    out |= {"base_still": share(b[beside] > THRESHOLD), "base_flipped": share(b[beside] < 0)}
    mean = lambda values: float(values.mean()) if len(values) else np.nan
    out["times"], out["base_times"] = (np.exp(mean(often[of])) for of in (found, beside))
    out["lead"] = mean(a[found]) - mean(a[beside])
    out["lead_there"] = mean(b[found]) - mean(b[beside])
    out["lead_kept"] = out["lead_there"] / out["lead"]
    out["flips_less"] = out["base_flipped"] - out["flipped"]
    kept = found & (b > THRESHOLD)
    out["survivors"] = mean(b[kept]) / mean(a[kept]) if kept.any() else np.nan
    return out


def _matched(x: np.ndarray, y: np.ndarray, found: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Indices of the MATCHES types of `rest` that are nearest to each of `found`; none where `rest`
    has fewer types than `found`, or than MATCHES."""
    if not found.any() or rest.sum() < max(MATCHES, found.sum()):
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
    halves of the documents, stepped up to all of them (Spearman-Brown)."""
    r = float(np.mean([correlation(a, b) for a, b, _, _ in _halves(text, weight, chosen)]))
    return 2 * r / (1 + r) if r > -1 else np.nan


def components(text: Sums, weight: np.ndarray, chosen: np.ndarray) -> tuple[float, float]:
    """(variance of the own means of the types `chosen`, variance of one occurrence about them), in
    nats squared: the covariance of two random halves of the documents, which may be below 0, and
    what their differences say, so that what occurrences of one document share counts as noise. nan
    with fewer than three types."""
    between, within = [], []
    for a, b, k, others in _halves(text, weight, chosen):
        if len(a) < 3:
            return np.nan, np.nan
        between.append(np.cov(a, b)[0, 1])
        apart = a - b - (a - b).mean()
        within.append(np.mean(apart**2 / (1 / k + 1 / others)))
    return float(np.mean(between)), float(np.mean(within))


def _halves(text: Sums, weight: np.ndarray, chosen: np.ndarray) -> Iterator[tuple]:
    """Means of the types in two random halves of the documents, and their counts, one tuple a
    halving; the halvings are the same for all weights."""
    (n, s), chance = text.of(weight), np.random.default_rng(0)
    for _ in range(HALVINGS):
        k, t = text.of(weight * (chance.permutation(len(weight)) % 2))
        both = chosen & (k > 0) & (n - k > 0)
        k, t, others, left = (values[both] for values in (k, t, n - k, s - t))
        yield t / k, left / others, k, others


def reliabilities(both: Pair, first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """Of all types that stand LEAST times in the first text: candidates, how many; occurrences,
    their median count; ten, the reliability of a mean of LEAST occurrences; all, that of the means
    of all occurrences. Of the types frequent in both texts: here and there, and transfer, their
    correlation over the root of the product of the two, nan where one is not above 0.1."""
    n, s = both.first.of(first)
    m, u = both.second.of(second)
    listable, frequent = n >= LEAST, (n >= LEAST) & (m >= LEAST)
    own, single = components(both.first, first, listable)
    size = own + single / LEAST
    out = {"candidates": float(listable.sum()), "occurrences": float(np.median(n[listable]))}
    out |= {"ten": own / size if size > 0 else np.nan}
    out |= {"all": reliability(both.first, first, listable)}
    out["here"] = reliability(both.first, first, frequent)
    out["there"] = reliability(both.second, second, frequent)
    known = out["here"] > 0.1 and out["there"] > 0.1
    limit = np.sqrt(out["here"] * out["there"]) if known else np.nan
    r = correlation(s[frequent] / n[frequent], u[frequent] / m[frequent])
    return out | {"transfer": r / limit}
