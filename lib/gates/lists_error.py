"""What the documents, and what chance, do to statistics of No-Fly lists (Balogh §4.3.3)."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from scipy.special import stdtrit  # quantiles of Student's t

from lib.gates.lists import LEAST, Pair, Sums, measures, variance_of_types
from lib.stats.intervals import Interval
from lib.stats.joint import joint_level
from lib.stats.ratios import jackknife

DRAWS = 200
"""draws of documents, and of each world"""


def over_both(
    statistics: Callable[[np.ndarray, np.ndarray], dict[str, float]],
    both: Pair,
    level: float = 0.95,
    seed: int = 42,
) -> dict[str, Interval]:
    """Statistics of the weights of the documents of two texts, with intervals over both.

    Documents of either text are drawn with replacement, lists made anew each time; the interval is
    the value ± t times the standard deviation over DRAWS such draws, with t for the text of fewer
    documents. (Percentiles would be off: documents drawn twice add noise to the means, which pulls
    every correlation towards 0.) The bounds are nan, which decides nothing, with fewer than two
    documents in a text, or where a statistic is undefined in over a tenth of the draws.
    """
    sizes = [len(text.counts) for text in (both.first, both.second)]
    whole = statistics(*(np.ones(n) for n in sizes))
    chance = np.random.default_rng(seed)
    weights = [chance.multinomial(n, np.full(n, 1 / n), DRAWS).astype(float) for n in sizes]
    draws = [statistics(*pair) for pair in zip(*weights, strict=True)]
    return {
        name: _interval(value, np.array([d[name] for d in draws]), min(sizes), level)
        for name, value in whole.items()
    }


def look_up(both: Pair, level: float = 0.95, least_there: int = LEAST) -> dict[str, Interval]:
    """`measures` with their intervals."""
    return over_both(lambda a, b: measures(both, a, b, least_there), both, level)


def medians(pairs: Mapping[int, Pair]) -> dict[str, Interval]:
    """`measures`, median over the blocks of pairs of the same two texts, with their intervals."""

    def of(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
        every = [measures(pair, a, b) for pair in pairs.values()]
        return {name: float(np.median([one[name] for one in every])) for name in every[0]}

    return over_both(of, next(iter(pairs.values())))


def means_of(both: Pair, kinds: np.ndarray) -> list[Interval] | None:
    """Mean δ of each type of `kinds` in the first text, then in the second, with joint intervals;
    None where one is not frequent enough."""
    at = np.searchsorted(both.kinds, kinds).clip(max=len(both.kinds) - 1)
    if (both.kinds[at] != kinds).any() or (both.second.counts.sum(0)[at] < 1).any():
        return None

    def of(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
        found = {}
        for side, (text, weight) in enumerate(((both.first, a), (both.second, b))):
            n, s = text.of(weight)
            for k in at:
                found[f"{side}-{k}"] = float(s[k] / n[k]) if n[k] else np.nan
        return found

    return list(over_both(of, both, joint_level(2 * len(kinds))).values())


def lists_table(looked: Mapping[tuple, Mapping[str, Interval]]) -> pd.DataFrame:
    """{(block, text): measures} as rows: columns block, text, statistic, mean, low, high."""
    rows = [
        (block, text, name, i.value, i.low, i.high)
        for (block, text), found in looked.items()
        for name, i in found.items()
    ]
    return pd.DataFrame(rows, columns=["block", "text", "statistic", "mean", "low", "high"])


def _interval(value: float, draws: np.ndarray, n: int, level: float) -> Interval:
    draws = draws[np.isfinite(draws)]
    if n < 2 or not np.isfinite(value) or len(draws) < 0.9 * DRAWS or not np.ptp(draws) > 0:
        return Interval(float(value), np.nan, np.nan)
    half = float(stdtrit(n - 1, (1 + level) / 2) * draws.std() * np.sqrt(n / (n - 1)))
    return Interval(float(value), float(value - half), float(value + half))


def worlds(both: Pair, first: tuple, second: tuple, seed: int = 42) -> pd.DataFrame:
    """What lists would show in two worlds of these texts, their counts and their δ: columns world,
    statistic, mean, low, high (95% of DRAWS draws).

    noise: δ is dealt to the positions at random, so no type has a mean of its own. stable: each
    type has one, the same in both texts, with the variance that random halves of the occurrences in
    the first have in common; the rest is dealt at random. first, second: as in `pair`.
    """
    chance, rows = np.random.default_rng(seed), []
    texts = [_positions(both.kinds, tokens, delta) for tokens, delta, _ in (first, second)]
    between = variance_of_types(both.first)
    for world in ("noise", "stable"):
        found = []
        for _ in range(DRAWS):
            spread = np.sqrt(between) * (world == "stable")
            means = chance.normal(0, spread, len(both.kinds))
            dealt = [_dealt(at, delta, means, chance) for at, delta in texts]
            one = np.ones(1)
            found.append(measures(Pair(both.kinds, *dealt), one, one))
        for name in found[0]:
            values = np.array([draw[name] for draw in found])
            values = values[np.isfinite(values)]
            ends = np.quantile(values, [0.025, 0.975]) if len(values) else (np.nan, np.nan)
            mean = values.mean() if len(values) else np.nan
            rows.append((world, name, mean, *ends))
    return pd.DataFrame(rows, columns=["world", "statistic", "mean", "low", "high"])


def _positions(kinds: np.ndarray, tokens: np.ndarray, delta: np.ndarray) -> tuple:
    """The type of each position as an index into `kinds`, -1 for others; and all δ."""
    at = np.searchsorted(kinds, tokens).clip(max=len(kinds) - 1)
    return np.where(kinds[at] == tokens, at, -1).ravel(), delta.ravel()


def _dealt(at: np.ndarray, delta: np.ndarray, means: np.ndarray, chance) -> Sums:
    """Sums with δ dealt at random, shrunk towards its mean to make room for those of the types."""
    room = np.sqrt(max(0.0, 1 - means.var() / max(delta.var(), 1e-30)))
    known = at >= 0
    values = delta.mean() + room * (chance.permutation(delta)[known] - delta.mean())
    values += means[at[known]]
    counts = np.bincount(at[known], minlength=len(means)).astype(float)
    sums = np.bincount(at[known], values, minlength=len(means))
    return Sums(counts[None], sums[None], ())


def spread_of_frequent(
    tokens: np.ndarray, by_block: dict[int, np.ndarray], document, kinds: np.ndarray
) -> Interval:
    """Standard deviation over occurrences of δ over its absolute mean, median over the types
    `kinds` and over blocks; 95% jackknife over documents. tokens and δ [n, t], document [n]."""
    document = np.asarray(document)
    names, found = np.unique(document), []
    for left_out in (None, *names):
        kept = document != left_out if left_out is not None else np.ones(len(document), bool)
        ratios = []
        for delta in by_block.values():
            values = [delta[kept][tokens[kept] == kind] for kind in kinds]
            ratios.append([v.std() / abs(v.mean()) for v in values if len(v) > 1])
        found.append(float(np.median([np.median(r) for r in ratios])))
    return jackknife(found[0], found[1:])
