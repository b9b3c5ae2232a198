"""The budget curve: perplexity against the share of FFN evaluations that stay nonlinear, over the
whole network (beyond Balogh §4.5).

An evaluation is one block at one position. A router ranks them all by a score; the lowest go down
the linear path.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import pandas as pd
from torch import nn

from lib.second.base.errors import InputError
from lib.second.gates.routing import Route, Routed, padded
from lib.second.stats.intervals import Interval, clustered
from lib.second.stats.joint import joint_level
from lib.second.swaps.costs import as_costs, joint_costs

Scores = Mapping[int, np.ndarray]
"""{block: a number for each evaluation [n, seq_len-1]}"""
Point = tuple[str, float]
"""(router, share that was asked to be linear)"""


def lowest(score: Scores, share: float) -> dict[int, np.ndarray]:
    """Linear at the `share` of all evaluations with the lowest score, {block: bool [n, seq_len]};
    ties go in order of block and position.

    The last position of a window has no loss and keeps its FFN. Raises InputError for a share that
    is none, or a score that is not finite.
    """
    share, blocks = _checked(share), list(score)
    stacked = np.stack([score[b] for b in blocks])  # [blocks, n, seq_len-1]
    if not np.isfinite(stacked).all():
        where = blocks[int(np.argwhere(~np.isfinite(stacked))[0, 0])]
        raise InputError(f"a score of block {where} is not finite: evaluations cannot be ranked.")
    linear = np.zeros(stacked.size, dtype=bool)
    order = np.argsort(stacked, axis=None, kind="stable")
    linear[order[: round(share * stacked.size)]] = True
    return {b: padded(m) for b, m in zip(blocks, linear.reshape(stacked.shape), strict=True)}


def _checked(share: float) -> float:
    if not 0 <= share <= 1:
        raise InputError(f"share {share} is no share of evaluations: use one between 0 and 1.")
    return share


def cut_elsewhere(score: Scores, share: float, document, seed: int = 42) -> dict[int, np.ndarray]:
    """As `lowest`, with the cut found on one half of the documents and applied to the other, both
    ways round: what a router can do that has not seen the text. The share is met up to sampling.

    document: [n], of the windows. Raises InputError as `lowest`, and for one document.
    """
    first = in_first_half(document, seed)
    found = {b: np.zeros_like(padded(s.astype(bool))) for b, s in score.items()}
    for side in (first, ~first):
        seen = np.stack([s[~side] for s in score.values()]).ravel()
        if not np.isfinite(seen).all():
            raise InputError("a score is not finite: evaluations cannot be ranked.")
        cut = np.quantile(seen, _checked(share))
        for block, s in score.items():
            found[block][side] = padded(s[side] < cut)
    return found


def in_first_half(document, seed: int = 42) -> np.ndarray:
    """Which windows are of a random half of the documents, bool [n]. Raises InputError for one
    document."""
    document = np.asarray(document)
    each = np.unique(document)
    if len(each) < 2:
        raise InputError("one document has no halves: a cut is found on others; use more text.")
    chosen = np.random.default_rng(seed).permutation(each)[: len(each) // 2]
    return np.isin(document, chosen)


def by_layer(costs: Mapping[int, float], like: np.ndarray, seed: int = 42) -> dict[int, np.ndarray]:
    """A score that sends whole layers down the linear path, those of the lowest cost first; the
    last of them in part, at random positions, where a share does not divide evenly."""
    order, chance = sorted(costs, key=lambda block: costs[block]), np.random.default_rng(seed)
    return {block: order.index(block) + chance.random(like.shape) for block in costs}


def at_random(blocks: Sequence[int], like: np.ndarray, seed: int) -> dict[int, np.ndarray]:
    """A score that says nothing."""
    chance = np.random.default_rng(seed)
    return {block: chance.random(like.shape) for block in blocks}


def masked(maps: Mapping[int, nn.Module], masks: Mapping[int, np.ndarray]) -> Route:
    """A route by masks, without the blocks in which nothing is linear."""
    return {block: (maps[block], mask) for block, mask in masks.items() if mask.any()}


def router_points(
    routers: Mapping[str, Scores],
    shares: Sequence[float],
    maps: Mapping[int, nn.Module],
    document=None,
) -> dict[Point, Route]:
    """A route for each router and share: the evaluations with the lowest score over all blocks;
    with `document` [n], by cuts found on the other half of the documents."""
    return {
        (name, share): masked(
            maps,
            lowest(score, share) if document is None else cut_elsewhere(score, share, document),
        )
        for name, score in routers.items()
        for share in shares
    }


def linear_share(found: Routed, route: Hashable, n_blocks: int) -> float:
    """Share of the evaluations of `n_blocks` blocks that were linear under a route, which may name
    fewer of them."""
    return sum(mask.mean() for mask in found.linear[route].values()) / n_blocks


def frontier(found: Routed, points: Sequence[Point], n_blocks: int, document) -> pd.DataFrame:
    """A row a point: router, asked, nonlinear (share of the evaluations that stayed nonlinear),
    cost (a fraction of the base perplexity) with its 95% interval over documents, and joint_low,
    joint_high, which hold for all points of the router at once."""
    rows = []
    for router in dict.fromkeys(router for router, _ in points):
        own = [point for point in points if point[0] == router]
        joint = joint_costs(found.base, {p: found.losses[p] for p in own}, document)
        for point in own:
            (alone,) = joint_costs(found.base, {point: found.losses[point]}, document).values()
            rows.append(
                {
                    "router": router,
                    "asked": point[1],
                    "nonlinear": 1 - linear_share(found, point, n_blocks),
                    "cost": alone.value,
                    "low": alone.low,
                    "high": alone.high,
                    "joint_low": joint[point].low,
                    "joint_high": joint[point].high,
                }
            )
    return pd.DataFrame(rows)


def compared(found: Routed, pairs: Mapping[Hashable, tuple], document) -> dict[Hashable, Interval]:
    """Cost of the first route of each pair less that of the second, fractions of the base
    perplexity: 95% over documents, paired, for all pairs at once."""
    level = joint_level(len(pairs))
    cost = lambda route: as_costs(found.base, found.losses[route])
    return {k: clustered(cost(a) - cost(b), document, level) for k, (a, b) in pairs.items()}
