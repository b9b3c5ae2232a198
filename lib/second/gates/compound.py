"""All gates active at once: what each costs alone, what they cost together, and what a random
router of the same shares costs (Balogh §3.4, Table 7)."""

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from torch import nn

from lib.second.gates.fitted import Fitted
from lib.second.gates.flops import Work
from lib.second.gates.frontier import masked
from lib.second.gates.protocol import Protocol
from lib.second.gates.routing import Route, Routed, random_mask, routed_losses
from lib.second.models.subjects import Subject
from lib.second.stats.intervals import Interval, clustered
from lib.second.stats.joint import joint_level
from lib.second.stats.ratios import influence
from lib.second.swaps.costs import as_costs, joint_costs
from lib.second.texts.windows import Windows

COMPOUNDED = "single costs compounded"
"""the cost that the losses of single blocks add up to: as perplexities, the single ones compound"""


def gated(maps: Mapping[int, nn.Module], gates: Mapping[int, nn.Module]) -> Route:
    """The route of all `gates` at once."""
    return {block: (maps[block], gate) for block, gate in gates.items()}


def pooled(*found: Routed) -> Routed:
    """Routes that were measured in several calls on the same windows, as if in one."""
    losses = {k: v for part in found for k, v in part.losses.items()}
    linear = {k: v for part in found for k, v in part.linear.items()}
    return Routed(found[0].base, losses, linear)


def same_shares(
    maps: Mapping[int, nn.Module],
    linear: Mapping[int, np.ndarray],
    windows: Windows,
    seed: int,
) -> Route:
    """A random router that sends as many tokens of each block down the linear path as `linear`
    {block: bool [...]} does."""
    masks = {b: random_mask(windows, mask.mean(), seed + b) for b, mask in linear.items()}
    return masked(maps, masks)


def inflation(
    found: Routed, alone: Mapping[int, Hashable], together: Hashable, document
) -> Interval:
    """Log of perplexity over the base under the route `together`, over the sum of the logs under
    the routes `alone` {block: route}, 95% over documents, paired; nan where the sum is not above
    0. Costs that add give 1."""
    sums = sum((found.losses[route] - found.base).mean(1) for route in alone.values())
    both = (found.losses[together] - found.base).mean(1)
    return clustered(influence(both, sums), document)


def over_draws(found: Routed, draws: Sequence) -> np.ndarray:
    """Cost of several routes, window by window, mean over them: [n]."""
    return np.mean([as_costs(found.base, found.losses[route]) for route in draws], axis=0)


def less_random(found: Routed, route: Hashable, draws: Sequence, document) -> Interval:
    """Cost of a route less the mean cost of random ones, fractions of the base perplexity, 95% over
    documents, paired."""
    own = as_costs(found.base, found.losses[route])
    return clustered(own - over_draws(found, draws), document)


def all_costs(
    found: Routed,
    alone: Mapping[int, Hashable],
    others: Iterable,
    draws: Mapping[str, Sequence],
    document,
) -> dict[Hashable, Interval]:
    """Costs as fractions of the base perplexity, 95% over documents each: COMPOUNDED of the routes
    `alone` {block: route}, each of the routes `others`, and the mean of each set of random routes
    `draws` {name: routes}."""
    of = lambda mean: Interval(*(float(np.expm1(v)) for v in (mean.value, mean.low, mean.high)))
    left = lambda route: (found.losses[route] - found.base).mean(1)
    costs = {COMPOUNDED: of(clustered(sum(map(left, alone.values())), document))}
    costs |= {route: of(clustered(left(route), document)) for route in others}
    return costs | {name: clustered(over_draws(found, d), document) for name, d in draws.items()}


def less_each(
    found: Routed,
    alone: Mapping[int, Hashable],
    together: Hashable,
    others: Iterable,
    draws: Mapping[str, Sequence],
    document,
) -> dict[Hashable, Interval]:
    """Cost of the route `together` less each of the others of `all_costs`, fractions of the base
    perplexity: 95% over documents, paired, for all of them at once."""
    base = found.base
    singles = base + sum(found.losses[route] - base for route in alone.values())
    costs = {COMPOUNDED: as_costs(base, singles)}
    costs |= {r: as_costs(base, found.losses[r]) for r in others if r != together}
    costs |= {name: over_draws(found, d) for name, d in draws.items()}
    own, level = as_costs(base, found.losses[together]), joint_level(len(costs))
    return {name: clustered(own - cost, document, level) for name, cost in costs.items()}


def one_by_one(found: Routed, alone: Mapping[int, Hashable], document) -> pd.DataFrame:
    """Each gated block alone: block, linear_share, cost (a fraction of the base perplexity) with
    its 95% interval over documents for all blocks at once, and beats (it lies below 0)."""
    costs = joint_costs(found.base, {b: found.losses[r] for b, r in alone.items()}, document)
    rows = [
        {
            "block": block,
            "linear_share": found.share(route),
            "cost": costs[block].value,
            "low": costs[block].low,
            "high": costs[block].high,
            "beats": bool(costs[block].high < 0),
        }
        for block, route in alone.items()
    ]
    return pd.DataFrame(rows)


def share_interval(linear: Mapping[int, np.ndarray], document) -> Interval:
    """Share of the evaluations that were linear, mean over blocks of {block: bool [n, seq_len-1]},
    95% over documents."""
    return clustered(np.mean([mask.mean(1) for mask in linear.values()], axis=0), document)


def printed_block(
    subject: Subject, parts: Protocol, fitted: Fitted, linear: Mapping[int, np.ndarray]
) -> dict[str, Interval | None]:
    """What Table 7 prints of GPT-2 Medium: the average share over the blocks from 1 on (of `linear`
    {block: bool [n, seq_len-1]}), and cost and share of block 9 alone under its linear gate; None
    for what was not gated."""
    found: dict[str, Interval | None] = dict.fromkeys(("share", "best-block", "best-share"))
    document = parts.report.document
    if later := {b: mask for b, mask in linear.items() if b >= 1}:
        found["share"] = share_interval(later, document)
    if (9, "linear") in fitted.gates:
        route = {9: (parts.maps[9], fitted.gates[9, "linear"])}
        nine = routed_losses(subject, parts.report, {9: route})
        (found["best-block"],) = joint_costs(nine.base, nine.losses, document).values()
        found["best-share"] = share_interval(nine.linear[9], document)
    return found


def saved_interval(
    work: Work, linear: Mapping[int, np.ndarray], gates: Mapping[int, nn.Module], document
) -> Interval:
    """Share of the forward pass that routing saves, counted (see `lib.second.gates.flops.saved`), 95% over
    documents."""
    by_window = sum(m.mean(1) * (work.ffn[b] - work.affine) for b, m in linear.items())
    gate = sum(g.n_params for g in gates.values())
    return clustered((by_window - gate) / work.total, document)
