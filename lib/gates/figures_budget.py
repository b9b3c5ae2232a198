"""Figures of compound gating and of the budget curve (Balogh §4.5 and beyond)."""

from collections.abc import Mapping

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from lib.base.style import COLOURS, MARKERS, SUBJECT, block_axis, percent_axis
from lib.stats.intervals import Interval

LIMITS = (1, 5, 10)
"""percent of the base perplexity at which the curve is read"""
MOST = 3000
"""percent beyond which the curve is not drawn"""


def compound_figure(blocks, together: Mapping[str, Interval], name: str) -> plt.Figure:
    """What each gate costs alone, by block, and what all cost together.

    blocks: one row a block, columns block, linear_share, cost, low, high (fractions of the base).
    together: costs by what was active.
    """
    figure, (alone, both) = plt.subplots(1, 2, figsize=(12.8, 4.4), width_ratios=(1.5, 1))
    value, low, high = (100 * blocks[c].to_numpy() for c in ("cost", "low", "high"))
    bars = np.nan_to_num([value - low, high - value])
    alone.errorbar(blocks.block, value, bars, fmt="o", color=SUBJECT, capsize=2, elinewidth=1)
    alone.axhline(0, color="#777777", lw=1)
    percent_axis(alone, [*value, *(value - bars[0]), *(value + bars[1])])
    alone.set(ylabel="cost, % of the base perplexity", title=f"{name}: one gate at a time")
    block_axis(alone, int(blocks.block.max()) + 1)
    shares = alone.twinx()
    shares.bar(blocks.block, 100 * blocks.linear_share, color=COLOURS[0], alpha=0.25, zorder=0)
    shares.set(ylim=(0, 100), ylabel="linear, % of the positions (bars)")
    shares.grid(False)
    value = 100 * np.array([i.value for i in together.values()])
    ends = 100 * np.array([[i.low, i.high] for i in together.values()])
    bars = np.nan_to_num([value - ends[:, 0], ends[:, 1] - value])
    rows = np.arange(len(together))
    both.errorbar(value, rows, xerr=bars, fmt="s", color=COLOURS[0], capsize=3)
    _percent_along(both, [*value, *(value - bars[0]), *(value + bars[1])])
    both.set_yticks(rows, list(together))
    both.set(ylim=(len(rows) - 0.5, -0.5), title="All at once")
    return figure


def budget_figure(main, further, everything: Interval, name: str) -> plt.Figure:
    """Perplexity against the share of FFN evaluations that stay nonlinear: routers, and what else
    was tried; all start at no cost and end at `everything`, all evaluations linear.

    main, further: columns router, nonlinear, cost, low, high (fractions of the base).
    """
    figure, axes = plt.subplots(1, 2, figsize=(13.2, 5.8), sharex=True, sharey=True)
    panels = (main, f"{name}: routers"), (further, "Other labels, and routers that learn them")
    for ax, (table, title) in zip(axes, panels, strict=True):
        _curves(ax, table, everything)
        for limit in LIMITS:
            ax.axhline(limit, color="#777777", lw=1, ls=":")
        ax.set(title=title, xlabel="FFN evaluations that stay nonlinear, %")
        ax.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3)
    costs = [100 * t[["cost", "low", "high"]].to_numpy().ravel() for t in (main, further)]
    costs = np.concatenate([*costs, [100 * everything.value]])
    percent_axis(axes[0], costs[np.isfinite(costs)])
    low, high = axes[0].get_ylim()
    axes[0].set(xlim=(102, -2), ylim=(low, min(high, MOST)))
    axes[0].set_ylabel("cost, % of the base perplexity")
    return figure


def _curves(ax: plt.Axes, table, everything: Interval) -> None:
    for k, router in enumerate(dict.fromkeys(table.router)):
        rows = table[table.router == router].sort_values("nonlinear", ascending=False)
        value = 100 * rows.cost.to_numpy()
        bars = np.nan_to_num([value - 100 * rows.low, 100 * rows.high - value])
        colour = (SUBJECT, *COLOURS)[k % 7]
        ends = [100, *100 * rows.nonlinear, 0], [0, *value, 100 * everything.value]
        ax.plot(*ends, color=colour, lw=1.4)
        points = {"fmt": MARKERS[k % len(MARKERS)], "color": colour, "label": router}
        ax.errorbar(100 * rows.nonlinear, value, bars, **points, capsize=2, elinewidth=0.8)


def _percent_along(ax: plt.Axes, values) -> None:
    """A symmetric-log x axis of percentages."""
    ax.set_xscale("symlog", linthresh=1)
    low, high = min(*values, 0), max(*values, 1)
    ax.set_xlim(1.6 * low if low < 0 else -0.3, 3 * high)
    ax.xaxis.set_major_locator(mpl.ticker.SymmetricalLogLocator(base=10, linthresh=1))
    ax.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:+,.4g}%" if v else "0"))
    ax.axvline(0, color="#777777", lw=1)
    ax.set_xlabel("cost, % of the base perplexity")
