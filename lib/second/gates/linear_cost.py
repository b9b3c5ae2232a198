"""What it costs to make one FFN linear: statistics over blocks with intervals over documents
(Balogh §4.1, Table 3)."""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from lib.second.stats.intervals import Interval
from lib.second.stats.published import published
from lib.second.stats.resampled import over_documents, over_halves, weighted_mean

Losses = Mapping[int, np.ndarray]
"""{block: losses [n, seq_len-1] in nats}"""


def rises(base: np.ndarray, losses: Losses) -> np.ndarray:
    """Mean loss difference of each window, [n_blocks, n], in the order of `losses`."""
    return np.stack([(swapped - base).mean(1) for swapped in losses.values()])


def middle(blocks: Collection[int], n_blocks: int) -> list[int]:
    """The blocks between the boundary ones: without the first and the last eighth of all
    `n_blocks`, at least one each."""
    edge = max(1, n_blocks // 8)
    return [b for b in blocks if edge <= b < n_blocks - edge]


def median_cost(base: np.ndarray, losses: Losses, document, seed: int = 42) -> Interval:
    """Perplexity increase as a fraction of the base, median over blocks."""
    rise = rises(base, losses)
    return over_documents(
        lambda w: np.median(np.expm1(weighted_mean(rise, w))), document, seed=seed
    )


def share_below(costs: Mapping[int, Interval], limit: float) -> Interval:
    """Share of the blocks that cost less than `limit`; the interval runs from the share that surely
    does to the share that possibly does, by joint intervals."""
    value, surely, possibly = (
        np.mean([getattr(i, end) < limit for i in costs.values()])
        for end in ("value", "high", "low")
    )
    return Interval(float(value), float(surely), float(possibly))


def nth_largest(costs: Mapping[int, Interval], n: int) -> Interval:
    """The n-th largest cost, from the n-th largest lower to the n-th largest upper joint bound."""
    ends = ([getattr(i, end) for i in costs.values()] for end in ("value", "low", "high"))
    return Interval(*(float(np.sort(values)[-n]) for values in ends))


def extreme(
    base: np.ndarray, losses: Losses, document, dearest: bool, seed: int = 42
) -> tuple[int, Interval]:
    """The cheapest or the `dearest` block, and its cost when it is found on one half of the
    documents and read on the other."""
    rise, sign = rises(base, losses), -1 if dearest else 1

    def read(choice: np.ndarray, other: np.ndarray) -> float:
        found = (sign * weighted_mean(rise, choice)).argmin()
        return float(np.expm1(weighted_mean(rise[found], other)))

    block = list(losses)[int((sign * rise.mean(1)).argmin())]
    return block, over_halves(read, document, seed=seed)


def ends_less_rest(base: np.ndarray, losses: Losses, document, seed: int = 42) -> Interval:
    """Smaller of the costs of the first and the last block less the largest of any other, its block
    found on one half of the documents; fractions of the base."""
    rise = rises(base, losses)

    def difference(choice: np.ndarray, read: np.ndarray) -> float:
        found = 1 + weighted_mean(rise[1:-1], choice).argmax()
        costs = np.expm1(weighted_mean(rise, read))
        return float(min(costs[0], costs[-1]) - costs[found])

    return over_halves(difference, document, seed=seed)


def ends_over_middle(
    base: np.ndarray, losses: Losses, document, n_blocks: int, level: float = 0.95
) -> Interval:
    """Log of the smaller of the median costs of the entry and of the exit blocks (first and last
    eighth of all `n_blocks`, at least one each) over the median cost of those between; nan where a
    median is not positive."""
    rise, blocks, edge = rises(base, losses), np.array(list(losses)), max(1, n_blocks // 8)
    entry, leaving = blocks < edge, blocks >= n_blocks - edge

    def ratio(w: np.ndarray) -> float:
        cost = np.expm1(weighted_mean(rise, w))
        medians = [np.median(cost[part]) for part in (entry, leaving, ~(entry | leaving))]
        first, last, middle = np.log(medians) if min(medians) > 0 else [np.nan] * 3
        return float(min(first, last) - middle)

    return over_documents(ratio, document, level=level)


def median_share(
    base: np.ndarray,
    part: Losses,
    whole: Losses,
    document,
    least: float | None = None,
    of: Callable[[np.ndarray], np.ndarray] = np.asarray,
    seed: int = 42,
) -> Interval | None:
    """Mean loss difference of `part` over that of `whole`, median over blocks.

    Only blocks where `whole` costs more than `least` of the base count; None where none does.
    `of` is applied to both means (np.expm1 makes them costs).
    """
    blocks = list(part)
    small, large = rises(base, part), rises(base, {b: whole[b] for b in blocks})
    if least is not None:
        counts = np.expm1(large.mean(1)) > least
        small, large = small[counts], large[counts]
    if not len(small):
        return None
    share = lambda w: np.median(of(weighted_mean(small, w)) / of(weighted_mean(large, w)))
    return over_documents(share, document, seed=seed)


def less_from_one(interval: Interval) -> Interval:
    """1 less the quantity."""
    return Interval(1 - interval.value, 1 - interval.high, 1 - interval.low)


def depth_range(measured: Mapping[str, tuple], seed: int = 42) -> Interval:
    """Largest less smallest relative depth (index over the last) of the dearest block, over models.

    measured: {model: (base, losses, document)}. The models read the same documents, so a resample
    draws the same ones for all of them, and finds the dearest block of each anew.
    """
    rise = {name: rises(base, losses) for name, (base, losses, _) in measured.items()}
    documents = {name: np.asarray(document) for name, (_, _, document) in measured.items()}
    shared = sorted(set.intersection(*(set(d.tolist()) for d in documents.values())))

    def spread(weight: np.ndarray) -> float:
        drawn = dict(zip(shared, weight, strict=True))
        depths = []
        for name, values in rise.items():
            each = np.array([drawn.get(d, 0.0) for d in documents[name].tolist()])
            if not each.sum():
                return np.nan
            depths.append(weighted_mean(values, each).argmax() / max(1, len(values) - 1))
        return float(np.ptp(depths))

    return over_documents(spread, np.array(shared), seed=seed)


def apart_by_chance(n_blocks: Sequence[int], limit: float) -> float:
    """How often blocks drawn at random, one from each of models with so many blocks, have relative
    depths that range over more than `limit`."""
    depths = np.meshgrid(*(np.linspace(0, 1, n) for n in n_blocks))
    return float((np.ptp(depths, axis=0) > limit).mean())


def printed_costs(model: str, *tables: str) -> pd.Series:
    """The all-linear costs that Balogh's `tables` print for a model, by block, fractions of the
    base; empty for a model that is in none of them."""
    rows = published("balogh", metric="delta_ppl_relative")
    wanted = rows.table.isin(tables) & (rows.subject == model) & (rows.candidate == "linear")
    rows = rows[wanted & rows.block.notna()]
    return rows.drop_duplicates("block").set_index(rows.block.astype(int)).value


def printed_miss(
    base: np.ndarray, losses: Losses, printed: pd.Series, document, seed: int = 42
) -> Interval | None:
    """Largest relative difference of the costs here from the printed ones, over their blocks; None
    where a block, or the whole table, is not there."""
    if not len(printed) or not set(printed.index) <= set(losses):
        return None
    rise = rises(base, {b: losses[b] for b in printed.index})
    target = printed.to_numpy(float)
    miss = lambda w: np.abs(np.expm1(weighted_mean(rise, w)) / target - 1).max()
    return over_documents(miss, document, seed=seed)
