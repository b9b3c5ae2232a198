"""What gated blocks say of Balogh's claims: statistics with intervals over documents (§4.2, §4.4,
§4.8)."""

from collections.abc import Mapping, Sequence

import numpy as np

from lib.second.gates.fitted import Chosen
from lib.second.gates.gate import GATES
from lib.second.gates.routers import LARGER, ORACLE, Gated
from lib.second.stats.intervals import Interval, cluster_variance, clustered
from lib.second.stats.joint import joint_level
from lib.second.stats.resampled import over_documents, over_halves, weighted_mean
from lib.second.stats.twoway import pooled_half_width

Router = str | Mapping[int, str]


def as_cost(rise: np.ndarray) -> np.ndarray:
    """Costs as fractions of the base, window by window, from mean loss differences [..., n]: their
    mean is exactly the cost, their spread to first order its own (as `lib.second.swaps.as_costs`)."""
    mean = rise.mean(-1, keepdims=True)
    return np.expm1(mean) + np.exp(mean) * (rise - mean)


def joint(values: np.ndarray, blocks: Sequence[int], document) -> dict[int, Interval]:
    """Intervals of the means of values [n_blocks, n] that hold for all blocks at once."""
    level = joint_level(len(blocks))
    return {b: clustered(row, document, level) for b, row in zip(blocks, values, strict=True)}


def gated_costs(found: Gated, router: Router) -> dict[int, Interval]:
    """Cost of each block under a router, a fraction of the base, jointly over blocks."""
    level, units = joint_level(len(found.blocks)), {}
    for block, rise in zip(found.blocks, found.rise(router), strict=True):
        mean = clustered(rise, found.document, level)
        units[block] = Interval(*(float(np.expm1(v)) for v in (mean.value, mean.low, mean.high)))
    return units


def less_half(found: Gated, router: Router) -> dict[int, Interval]:
    """Gated less half of the all-linear cost, jointly over blocks, paired."""
    values = as_cost(found.rise(router)) - as_cost(found.whole()) / 2
    return joint(values, found.blocks, found.document)


def less_random_by_block(found: Gated, router: Router) -> dict[int, Interval]:
    """Cost under a router less that of a random one of the same share, jointly over blocks,
    paired."""
    values = as_cost(found.rise(router)) - as_cost(found.by_chance(router))
    return joint(values, found.blocks, found.document)


def less_random(found: Gated, router: Router) -> Interval:
    """Cost under a router less that of a random one of the same share, median over blocks."""
    return median_less(found.rise(router), found.by_chance(router), found.document)


def median_less(rise: np.ndarray, other: np.ndarray, document) -> Interval:
    """Cost under one router less that under another, fractions of the base, median over blocks,
    paired: from mean loss differences [n_blocks, n] on windows of `document` [n]."""
    cost = lambda values, weight: np.expm1(weighted_mean(values, weight))
    return over_documents(lambda w: np.median(cost(rise, w) - cost(other, w)), document)


def routing_a_quarter(found: Gated, chosen: Chosen, least: float = 0.25) -> Interval:
    """Cost of the gate that is cheapest on the documents for choosing among those that send at
    least `least` to the map there, median over blocks; a block without one counts with its
    all-linear cost."""
    rows = []
    for block, whole in zip(found.blocks, found.whole(), strict=True):
        table = chosen.table[(chosen.table.block == block) & (chosen.table.linear_share >= least)]
        if len(table):
            kind = table.loc[table.cost.idxmin()].kind
            rows.append((found.losses[block, kind] - found.base).mean(1))
        else:
            rows.append(whole)
    rise = np.stack(rows)
    return over_documents(lambda w: np.median(np.expm1(weighted_mean(rise, w))), found.document)


def larger_gain(found: Gated) -> Interval:
    """Cost of the linear gate less that of the best larger one at its share, median over blocks,
    paired."""
    return median_less(found.rise(GATES[0]), found.rise(LARGER), found.document)


def of_oracle(found: Gated) -> Interval:
    """What the linear gate saves over what the oracle of its share saves, each against a random
    router and as its own median over blocks; nan where the oracle saves nothing."""
    rises = found.by_chance(GATES[0]), found.rise(GATES[0]), found.rise(ORACLE)

    def share(weight: np.ndarray) -> float:
        chance, gate, oracle = (np.expm1(weighted_mean(rise, weight)) for rise in rises)
        most = np.median(chance - oracle)
        return np.median(chance - gate) / most if most > 0 else np.nan

    return over_documents(share, found.document)


def _kinds(found: Gated) -> np.ndarray:
    """Mean loss difference by kind of gate, [4, n_blocks, n]."""
    return np.stack([found.rise(kind) for kind in GATES])


def dominance(found: Gated, seed: int = 42) -> Interval:
    """Share of the blocks at which the kind that is cheapest at most blocks on one half of the
    documents is cheapest on the other, each kind at its own share."""
    rise = _kinds(found)

    def share(choice: np.ndarray, read: np.ndarray) -> float:
        wins = weighted_mean(rise, choice).argmin(0)
        best = np.bincount(wins, minlength=len(GATES)).argmax()
        return float((weighted_mean(rise, read).argmin(0) == best).mean())

    return over_halves(share, found.document, seed=seed)


def flattery(found: Gated, splits: int = 20, seed: int = 42) -> Interval:
    """Loss (nats) of the gate chosen on one half of the documents, on the other half less on its
    own, mean over blocks; the halves exchanged and averaged, so that the documents cancel.

    That is half the difference between the halves of what the one choice loses more than the other.
    Mean over `splits`; the interval is that of a single split, the choices given. The bounds are
    nan, which decides nothing, with fewer than four documents.
    """
    rise, names = _kinds(found), np.unique(found.document)
    rng, each = np.random.default_rng(seed), []
    for _ in range(splits):
        half = np.isin(found.document, rng.permutation(names)[: len(names) // 2])
        if min(half.sum(), (~half).sum()) == 0:
            return Interval(np.nan, np.nan, np.nan)
        one, other = (rise[..., part].mean(-1).argmin(0)[None, :, None] for part in (half, ~half))
        more = np.take_along_axis(rise, one, 0) - np.take_along_axis(rise, other, 0)
        more = more[0].mean(0)  # [n]
        parts = [cluster_variance(more[part], found.document[part]) for part in (half, ~half)]
        value = (more[~half].mean() - more[half].mean()) / 2
        each.append((value, pooled_half_width(parts, 0.95) / 2 if len(names) > 3 else np.nan))
    value, width = np.mean(each, axis=0)
    return Interval(float(value), float(value - width), float(value + width))


def wins_of(found: Gated, kind: str, blocks: Sequence[int]) -> Interval:
    """Number of `blocks` at which a kind is the cheapest of the four gates."""
    rows = [found.blocks.index(b) for b in blocks]
    rise, place = _kinds(found)[:, rows], GATES.index(kind)
    wins = lambda w: (weighted_mean(rise, w).argmin(0) == place).sum()
    return over_documents(wins, found.document)


def wins_over_chance(found: Gated, router: Router, draws: int = 40, seed: int = 42) -> Interval:
    """Share of the blocks with a gated cost below 0 less that with random routers of the same
    shares, mean over draws."""
    gate, chance = found.rise(router), random_draws(found, router, draws, seed)

    def more(weight: np.ndarray) -> float:
        return float(
            (weighted_mean(gate, weight) < 0).mean() - (weighted_mean(chance, weight) < 0).mean()
        )

    return over_documents(more, found.document)


def random_draws(found: Gated, router: Router, draws: int, seed: int = 42) -> np.ndarray:
    """Mean loss differences under random routers of a router's shares, [draws, n_blocks, n]."""
    shares = found.shares(router).mean(1)
    each = [
        found.random[b].draws(s, draws, seed + 1000 * b)
        for b, s in zip(found.blocks, shares, strict=True)
    ]
    return np.stack(each, 1)


def wins_by_chance(found: Gated, draws: int = 400, seed: int = 42) -> np.ndarray:
    """How many blocks fall below 0 when the best of four random routers, of the four gates' shares,
    is picked on the very documents that judge it: [draws]."""
    rise = [
        random_draws(found, kind, draws, seed + k).mean(2) for k, kind in enumerate(GATES)
    ]  # each [draws, n_blocks]
    return (np.min(rise, axis=0) < 0).sum(1)


def around_tail(masks: Mapping[int, np.ndarray], delta, document) -> Interval:
    """Share sent to the map among the tenth of the positions with the largest δ over that among the
    others, mean over blocks.

    masks and delta: {block: [n, t]} on windows of `document` [n].
    """
    counts = []
    for block, mask in masks.items():
        tail = delta[block] > np.quantile(delta[block], 0.9)
        parts = (mask & tail, tail, mask & ~tail, ~tail)
        counts.append([part.sum(1) for part in parts])
    counts = np.array(counts, dtype=float)  # [n_blocks, 4, n]

    def ratio(weight: np.ndarray) -> float:
        in_tail, tail, elsewhere, rest = np.moveaxis(counts @ weight, 1, 0)
        return float(np.mean((in_tail / tail) / (elsewhere / rest)))

    return over_documents(ratio, document)
