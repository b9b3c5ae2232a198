"""Figures of compound gating and of the budget curve (Balogh §4.5 and beyond)."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np

from lib.second.base.style import COLOURS, MARKERS, SUBJECT, block_axis, percent_axis, percent_scale
from lib.second.stats.intervals import Interval

LIMITS = (1, 5, 10)
"""percent of the base perplexity at which the curve is read"""
MOST = 3000
"""percent beyond which the curve is not drawn"""
WIDE = 500
"""percent beyond which costs of all gates together need a logarithmic axis"""
DODGE = 0.4
"""percent of the evaluations by which the markers of a panel's routers stand apart"""


def compound_figure(blocks, together: Mapping[str, Interval], name: str) -> plt.Figure:
    """What each gate costs alone and what share it sends to the map, by block, and what all cost
    together.

    blocks: one row a block, columns block, linear_share, cost, low, high (fractions of the base).
    together: costs by what was active.
    """
    figure = plt.figure(figsize=(12.8, 5.2))
    grid = figure.add_gridspec(2, 2, width_ratios=(1.5, 1), height_ratios=(2.4, 1))
    alone, both = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[:, 1])
    shares = figure.add_subplot(grid[1, 0], sharex=alone)
    value, low, high = (100 * blocks[c].to_numpy() for c in ("cost", "low", "high"))
    bars = np.nan_to_num([value - low, high - value])
    alone.errorbar(blocks.block, value, bars, fmt="o", color=SUBJECT, capsize=2, elinewidth=1)
    alone.axhline(0, color="#777777", lw=1)
    percent_axis(alone, [*value, *(value - bars[0]), *(value + bars[1])])
    alone.set(ylabel="cost, % of the base", title=f"{name}: one gate at a time")
    alone.tick_params(labelbottom=False)
    shares.bar(blocks.block, 100 * blocks.linear_share, color=COLOURS[0])
    shares.set(ylim=(0, 100), ylabel="linear, %")
    block_axis(shares, int(blocks.block.max()) + 1)
    value = 100 * np.array([i.value for i in together.values()])
    ends = 100 * np.array([[i.low, i.high] for i in together.values()])
    bars = np.nan_to_num([value - ends[:, 0], ends[:, 1] - value])
    rows = np.arange(len(together))
    both.errorbar(value, rows, xerr=bars, fmt="s", color=COLOURS[0], capsize=3)
    if max(value) > WIDE:
        percent_scale(both, "x", value, linear_to=10.0)
        both.set_xlim(left=min(-0.5, 1.6 * 100 * min(i.low for i in together.values())))
    both.axvline(0, color="#777777", lw=1)
    both.set_yticks(rows, list(together))
    both.set(ylim=(len(rows) - 0.5, -0.5), title="All at once")
    both.set_xlabel("cost, % of the base perplexity")
    return figure


def budget_figure(routers, labels, everything: Interval, name: str) -> plt.Figure:
    """Perplexity against the share of FFN evaluations that stay nonlinear: routers with their
    controls, and labels with the routers that learn them; all start at no cost and end at
    `everything`, all evaluations linear. A router looks the same in both panels.

    routers, labels: columns router, nonlinear, cost, low, high (fractions of the base).
    """
    figure, axes = plt.subplots(1, 2, figsize=(13.2, 6.2), sharex=True, sharey=True)
    looks = _looks([*routers.router, *labels.router])
    panels = (routers, f"{name}: routers and controls"), (labels, "Labels, and who learns them")
    for ax, (table, title) in zip(axes, panels, strict=True):
        _curves(ax, table, everything, looks)
        for limit in LIMITS:
            ax.axhline(limit, color="#777777", lw=1, ls=":")
        ax.set(title=title, xlabel="FFN evaluations that stay nonlinear, %")
        ax.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3)
    costs = [100 * t[["cost", "low", "high"]].to_numpy().ravel() for t in (routers, labels)]
    costs = np.concatenate([*costs, [100 * everything.value]])
    percent_axis(axes[0], costs[np.isfinite(costs)])
    low, high = axes[0].get_ylim()
    axes[0].set(xlim=(102, -2), ylim=(low, min(high, MOST)))
    axes[0].set_ylabel("cost, % of the base perplexity")
    return figure


def _looks(routers) -> dict[str, dict]:
    """A colour, a marker and a dash for each router."""
    colours = (SUBJECT, *COLOURS)
    return {
        router: {
            "color": colours[k % len(colours)],
            "marker": MARKERS[k % len(MARKERS)],
            "ls": "-" if k < len(colours) else "--",
        }
        for k, router in enumerate(dict.fromkeys(routers))
    }


def _curves(ax: plt.Axes, table, everything: Interval, looks: Mapping[str, dict]) -> None:
    routers = list(dict.fromkeys(table.router))
    for k, router in enumerate(routers):
        rows = table[table.router == router].sort_values("nonlinear", ascending=False)
        value = 100 * rows.cost.to_numpy()
        bars = np.nan_to_num([value - 100 * rows.low, 100 * rows.high - value])
        look = looks[router]
        ax.plot(*_read(rows, everything), color=look["color"], ls=look["ls"], lw=1.4)
        at = 100 * rows.nonlinear + DODGE * (k - (len(routers) - 1) / 2)
        ax.errorbar(at, value, bars, **look | {"ls": "none"}, capsize=2, elinewidth=0.8)
        ax.plot([], [], label=router, lw=1.4, **look)


def _read(rows, everything: Interval) -> tuple[np.ndarray, np.ndarray]:
    """The curve through a router's points as its table is read, the mean loss linear in the share:
    (percent that stay nonlinear, cost in percent)."""
    measured = np.r_[0.0, 1 - rows.nonlinear, 1.0]
    losses = np.log1p(np.r_[0.0, rows.cost, everything.value])
    shares = np.union1d(np.linspace(0, 1, 401), measured)
    return 100 * (1 - shares), 100 * np.expm1(np.interp(shares, measured, losses))
