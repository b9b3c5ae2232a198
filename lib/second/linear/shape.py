"""The shape of a profile of R²_lin over depth, each statistic with its interval (Whipp §5.1).

All take `folds`, the table of Recoverability (columns block, fold, r2): documents vary from fold to
fold, and the intervals allow for folds that share training rows (stats.fold_mean). What is chosen
after a look, such as the most linear block, is chosen on some folds and read on the others.
"""

from collections.abc import Callable, Mapping
from itertools import combinations, pairwise

import numpy as np
import pandas as pd

from lib.second.stats.intervals import Interval, fold_mean, spearman
from lib.second.stats.joint import jointly, largest, smallest
from lib.second.stats.ratios import absolute

Units = dict[int, Interval]
NOTHING = Interval(np.nan, np.nan, np.nan)


def block_intervals(folds: pd.DataFrame, level: float = 0.95) -> Units:
    """R² of each block, mean over folds; the intervals hold for all blocks at once."""
    return jointly(_wide(folds), _over_folds, level)


def step_intervals(folds: pd.DataFrame, level: float = 0.95) -> dict[str, Interval]:
    """Change of R² from each block to the next, paired by fold, for all steps at once; keys such as
    "blocks 3–4". Empty for a single block."""
    wide = _wide(folds)
    steps = wide.diff(axis=1).iloc[:, 1:]
    steps.columns = [f"blocks {a}–{b}" for a, b in pairwise(wide.columns)]
    return jointly(steps, _over_folds, level) if steps.shape[1] else {}


def straddling(blocks: Units, high: float, low: float) -> dict[str, Interval]:
    """For each pair of neighbours how far one lies above `high` and the other below `low`: the
    smaller of (higher R² - high) and (low - lower R²). `blocks` hold jointly, and so do these."""
    found = {}
    for (a, one), (b, other) in pairwise(blocks.items()):
        pair = {a: one, b: other}
        top, bottom = largest(pair), smallest(pair)
        above = Interval(*(v - high for v in (top.value, top.low, top.high)))
        below = Interval(*(low - v for v in (bottom.value, bottom.high, bottom.low)))
        found[f"blocks {a}–{b}"] = smallest({"above": above, "below": below})
    return found


def turns(steps: Mapping[str, Interval], least: float = 0.03) -> Interval:
    """How often the profile changes direction, counting steps of more than `least`.

    The interval runs from the fewest to the most changes that the joint intervals of the steps
    admit: a step whose interval touches ±least may point either way or be left out. nan with fewer
    than three steps, which cannot turn twice.
    """
    if len(steps) < 3:
        return NOTHING
    fewest, most = {0: 0}, {0: 0}  # changes so far, by the last direction taken
    for step in steps.values():
        ways = _ways(step, least)
        fewest, most = _extend(fewest, ways, min), _extend(most, ways, max)
    seen = [np.sign(i.value) for i in steps.values() if abs(i.value) > least]
    value = sum(a != b for a, b in pairwise(seen))
    return Interval(float(value), float(min(fewest.values())), float(max(most.values())))


def _ways(step: Interval, least: float) -> tuple[int, ...]:
    """Directions that a step may have, 0 for one that is left out."""
    if step.low > least:
        return (1,)
    if step.high < -least:
        return (-1,)
    return (0,) if -least < step.low and step.high < least else (-1, 0, 1)  # nan: all three


def _extend(counts: dict[int, int], ways: tuple[int, ...], best: Callable) -> dict[int, int]:
    found: dict[int, list[int]] = {}
    for last, count in counts.items():
        for way in ways:
            changed = way != 0 and last != 0 and way != last
            found.setdefault(way or last, []).append(count + changed)
    return {way: best(many) for way, many in found.items()}


def fair_range(folds: pd.DataFrame) -> Interval:
    """R² of the most less that of the least linear block, the two chosen on one half of the folds
    and read on the other, both ways, over all halves. nan with a single block."""
    wide = _wide(folds)
    if wide.shape[1] < 2:
        return NOTHING
    return _over_folds(_crossed(wide, lambda mean: (mean.argmax(), mean.argmin())))


def rise_and_fall(folds: pd.DataFrame) -> Interval:
    """The smaller of the largest rise and the largest fall of R² between any two blocks in the
    order of depth, 0 on a monotone profile; chosen and read as in `fair_range`. nan with fewer than
    three blocks, which cannot do both and yet be told from noise."""
    wide = _wide(folds)
    if wide.shape[1] < 3:
        return NOTHING
    sides = {
        "rise": _crossed(wide, lambda mean: _steepest(mean)[::-1]),
        "fall": _crossed(wide, lambda mean: _steepest(-mean)),
    }
    return smallest(jointly(pd.DataFrame(sides), _over_folds))


def _steepest(profile: np.ndarray) -> tuple[int, int]:
    """(from, to), from <= to: the two places between which the profile rises most."""
    rises = np.triu(profile - profile[:, None])
    return tuple(map(int, np.unravel_index(rises.argmax(), rises.shape)))


def depth_trend(folds: pd.DataFrame) -> Interval:
    """Spearman correlation of the block index and R², mean over the profiles of the folds. Noise
    draws it towards 0, so read it where `folds_agree`. nan with fewer than four blocks."""
    wide = _wide(folds)
    if wide.shape[1] < 4:
        return NOTHING
    depth = np.arange(wide.shape[1])
    return _over_folds([spearman(depth, profile) for profile in wide.to_numpy()])


def folds_agree(folds: pd.DataFrame) -> float:
    """Mean Spearman correlation between the profiles of two folds: near 1 where the order of the
    blocks is measured, near 0 where it is noise, and with it any correlation of the profile."""
    profiles = _wide(folds).to_numpy()
    if profiles.shape[1] < 3:
        return float("nan")
    return float(np.mean([spearman(a, b) for a, b in combinations(profiles, 2)]))


def ends_less_middle(folds: pd.DataFrame) -> Interval:
    """Mean R² of the first and the last block less the mean of the middle third, paired by fold.
    nan with fewer than three blocks."""
    wide = _wide(folds).to_numpy()
    n = wide.shape[1]
    if n < 3:
        return NOTHING
    middle = wide[:, n // 3 : n - n // 3].mean(1)
    return _over_folds((wide[:, 0] + wide[:, -1]) / 2 - middle)


def largest_miss(blocks: Units, printed: Mapping[int, float]) -> Interval:
    """Largest absolute difference between R² here and printed, over the blocks that both have; nan
    where there are none."""
    shared = [b for b in blocks if b in printed]
    misses = {
        b: Interval(*(v - printed[b] for v in (blocks[b].value, blocks[b].low, blocks[b].high)))
        for b in shared
    }
    return largest(absolute(misses)) if misses else NOTHING


def _wide(folds: pd.DataFrame) -> pd.DataFrame:
    return folds.pivot_table(index="fold", columns="block", values="r2")


def _over_folds(values, level: float = 0.95) -> Interval:
    return fold_mean(values, 1 / max(len(values) - 1, 1), level)


def _crossed(wide: pd.DataFrame, choose: Callable[[np.ndarray], tuple[int, int]]) -> np.ndarray:
    """Difference of two blocks on each fold, [n_folds], the pair chosen by `choose` on the mean
    profile of other folds: averaged over all halves that do not hold the fold."""
    data = wide.to_numpy()
    n = len(data)
    sums, counts = np.zeros(n), np.zeros(n)
    for size in {n // 2, n - n // 2}:
        for half in map(list, combinations(range(n), size)):
            rest = [k for k in range(n) if k not in half]
            first, second = choose(data[half].mean(0))
            sums[rest] += data[rest, first] - data[rest, second]
            counts[rest] += 1
    return sums / np.maximum(counts, 1)
