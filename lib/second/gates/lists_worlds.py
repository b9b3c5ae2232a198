"""What No-Fly lists would show if token types had no need of their own, and if they kept one
(beyond Balogh §4.3.3)."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.second.gates.lists import Pair, Sums, components, measures
from lib.second.gates.lists_error import over_both
from lib.second.stats.dealt import dealt_within
from lib.second.stats.intervals import Interval
from lib.second.stats.ledger import claim_row, threshold, threshold_in_words
from lib.second.stats.verdicts import interval_text

WORLDS = {
    "noise": "δ were dealt at random",
    "stable": "types kept their means",
    "upper": "types kept means of the largest variance that is likely",
}
DRAWS = 200
"""draws of each world"""


def worlds(both: Pair, first: tuple, second: tuple, seed: int = 42) -> pd.DataFrame:
    """What lists would show in three worlds of these texts, their counts and their δ: columns
    world, statistic, mean, low, high (95% of DRAWS draws: no interval of an estimate).

    noise: δ is dealt at random to the positions of its document, so no type has a mean of its own.
    stable: each type has one, the same in both texts, with the variance that random halves of the
    first text's documents have in common; the rest is dealt at random. upper: the same with the
    upper end of that variance's 95% interval over documents. first, second: as in `pair`.
    """
    chance, rows = np.random.default_rng(seed), []
    texts = [_positions(both.kinds, *text) for text in (first, second)]
    every = np.ones(len(both.kinds), dtype=bool)
    own = over_both(lambda a, b: {"own": components(both.first, a, every)[0]}, both)["own"]
    variances = 0.0, own.value, np.fmax(own.value, own.high)
    for world, between in zip(WORLDS, variances, strict=True):
        spread = np.sqrt(np.fmax(0, between))
        found = []
        for _ in range(DRAWS):
            means = chance.normal(0, 1, len(both.kinds)) * spread
            dealt = [_dealt(*text, means, chance) for text in texts]
            one = np.ones(1)
            found.append(measures(Pair(both.kinds, *dealt), one, one))
        for name in found[0]:
            values = np.array([draw[name] for draw in found])
            values = values[np.isfinite(values)]
            ends = np.quantile(values, [0.025, 0.975]) if len(values) else (np.nan, np.nan)
            mean = values.mean() if len(values) else np.nan
            rows.append((world, name, mean, *ends))
    return pd.DataFrame(rows, columns=["world", "statistic", "mean", "low", "high"])


def _positions(kinds: np.ndarray, tokens: np.ndarray, delta: np.ndarray, document) -> tuple:
    """The type of each position as an index into `kinds`, -1 for others; its δ; its document."""
    at = np.searchsorted(kinds, tokens).clip(max=len(kinds) - 1)
    type_of = np.where(kinds[at] == tokens, at, -1).ravel()
    return type_of, delta.ravel(), np.repeat(np.asarray(document), delta.shape[1])


def _dealt(at: np.ndarray, delta: np.ndarray, document, means: np.ndarray, chance) -> Sums:
    """Sums with δ dealt within documents, shrunk towards its mean to make room for the types'."""
    room = np.sqrt(max(0.0, 1 - means.var() / max(delta.var(), 1e-30)))
    known = at >= 0
    values = delta.mean() + room * (dealt_within(delta, document, chance)[known] - delta.mean())
    values += means[at[known]]
    counts = np.bincount(at[known], minlength=len(means)).astype(float)
    sums = np.bincount(at[known], values, minlength=len(means))
    return Sums(counts[None], sums[None])


def yardsticks(
    asked: Mapping[str, tuple], looked: Mapping[str, Mapping[str, Interval]], table: pd.DataFrame
) -> pd.DataFrame:
    """Each claim's threshold between what the worlds of noise and of stable types would show: a row
    a claim and text, with columns claim, text, statistic, rule, noise, here, stable, upper, and
    tells: whether the claim holds in the mean of noise and in none of the middle 95% of stable
    draws. Where it does not, the claim's side is no news, and neither is the other.

    asked: {claim: (statistic, text, …)}; looked: {text: measures}; table: `worlds` with a column
    text.
    """
    rows = []
    for claim, (statistic, *texts) in asked.items():
        row = claim_row(claim)
        (mark,) = threshold(row)
        sign = 1 if row.rule.endswith("below") else -1
        for text in texts:
            of = table[(table.text == text) & (table.statistic == statistic)].set_index("world")
            nearest = min(sign * of.low["stable"], sign * of.high["stable"])
            told = {"claim": claim, "text": text, "statistic": statistic}
            told |= {"rule": threshold_in_words(row).partition(" (")[0]}
            told |= {"here": interval_text(looked[text][statistic])}
            told |= {world: _span(of.loc[world]) for world in WORLDS}
            tells = bool(sign * of["mean"]["noise"] < sign * mark < nearest)
            rows.append(told | {"tells": tells})
    return pd.DataFrame(rows)


def _span(row: pd.Series) -> str:
    """Mean and middle 95% of draws, "0.07 (−0.46 to 0.55)", told apart from an interval."""
    return f"{row['mean']:.2f} ({row.low:.2f} to {row.high:.2f})".replace("-", "−")
