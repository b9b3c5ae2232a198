"""What the documents do to statistics of No-Fly lists (Balogh §4.3.3)."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.special import stdtrit  # quantiles of Student's t

from lib.second.gates.lists import LEAST, THRESHOLD, Pair, measures
from lib.second.stats.intervals import Interval
from lib.second.stats.joint import joint_level
from lib.second.stats.ratios import jackknife
from lib.second.stats.verdicts import interval_text

DRAWS = 200
"""draws of documents"""
RANGES = {
    **dict.fromkeys(("still", "flipped", "base_still", "base_flipped"), (0, 1)),
    **dict.fromkeys(("r_listed", "r_frequent"), (-1, 1)),
}
"""where a statistic cannot be elsewhere, its interval ends"""
COUNTS = ("listed", "found", "matched", "frequent", "times", "base_times", "candidates")
COUNTS += ("occurrences",)
"""statistics that are told as whole numbers"""


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
    """`measures` with their intervals, within the RANGES."""
    found = over_both(lambda a, b: measures(both, a, b, least_there), both, level)
    ends = {name: RANGES.get(name, (-np.inf, np.inf)) for name in found}
    return {name: _clipped(i, *ends[name]) for name, i in found.items()}


def _clipped(i: Interval, low: float, high: float) -> Interval:
    return Interval(i.value, *(float(np.clip(end, low, high)) for end in (i.low, i.high)))


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


def in_words(
    looked: Mapping[tuple, Mapping[str, Interval]], statistics: Sequence[str]
) -> pd.DataFrame:
    """The same for readers: a row a block and text, with columns block, text and the statistics,
    numbers of types whole and all else with its interval."""
    rows = [
        {"block": block, "text": text}
        | {
            name: _whole(found[name].value) if name in COUNTS else interval_text(found[name])
            for name in statistics
        }
        for (block, text), found in looked.items()
    ]
    return pd.DataFrame(rows)


def _whole(value: float) -> str:
    return f"{value:.0f}" if np.isfinite(value) else "–"


def _interval(value: float, draws: np.ndarray, n: int, level: float) -> Interval:
    draws = draws[np.isfinite(draws)]
    if n < 2 or not np.isfinite(value) or len(draws) < 0.9 * DRAWS or not np.ptp(draws) > 0:
        return Interval(float(value), np.nan, np.nan)
    half = float(stdtrit(n - 1, (1 + level) / 2) * draws.std() * np.sqrt(n / (n - 1)))
    return Interval(float(value), float(value - half), float(value + half))


def both_ways(tokens: np.ndarray, delta: np.ndarray, document, kinds: np.ndarray) -> Interval:
    """The smaller of two shares of a type's occurrences, with δ above THRESHOLD and with δ below 0,
    median over the types `kinds`; 95% jackknife over documents. tokens and δ [n, t], document
    [n]."""
    document = np.asarray(document)

    def of(kept: np.ndarray) -> float:
        values = [delta[kept][tokens[kept] == kind] for kind in kinds]
        shares = [min((v > THRESHOLD).mean(), (v < 0).mean()) for v in values if len(v)]
        return float(np.median(shares)) if shares else np.nan

    whole = of(np.ones(len(document), dtype=bool))
    return jackknife(whole, [of(document != left_out) for left_out in np.unique(document)])
