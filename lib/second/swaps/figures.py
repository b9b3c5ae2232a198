"""Figures of swapped and healed FFNs (Whipp §5.6, Table 4)."""

from collections.abc import Mapping

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lib.second.base.style import (
    COLOURS,
    MARKERS,
    SUBJECT,
    block_axis,
    number_points,
    percent_axis,
    shade_blocks,
)
from lib.second.stats.intervals import Interval

KEPT = {
    "linear": {"fmt": "o", "color": SUBJECT, "label": "linear, on all tokens"},
    "kept": {"fmt": "s", "color": COLOURS[0], "label": "same map, FFN kept\non massive tokens"},
    "refitted": {"fmt": "D", "color": COLOURS[2], "label": "refitted, FFN kept\non massive tokens"},
    "refit_alone": {
        "fmt": "D",
        "color": COLOURS[2],
        "mfc": "white",
        "label": "refitted, nothing kept",
    },
}
"""linear swaps of blocks with massive tokens"""
MARGIN = 2.0
"""percent of the base perplexity within which the ledger takes a saving for none"""


def dissociation_figure(table, name: str, printed, savings: Mapping[int, Interval]) -> plt.Figure:
    """Whipp §5.6: swap cost against fit, for the linear map and the bilinear layer, and what the
    layer saves by depth.

    table: one row a block, columns block, r2_lin, r2_bilinear, cost_linear, cost_bilinear
    (percent).
    printed: columns subject, block, r2, cost (percent) of linear swaps.
    savings: linear less bilinear cost of each block, fractions of the base perplexity.
    """
    figure, (plane, depth) = plt.subplots(1, 2, figsize=(11.5, 5.2), width_ratios=(1.15, 1))
    _plane(plane, table, name, printed)
    blocks = list(savings)
    value, low, high = (
        100 * np.array([getattr(i, end) for i in savings.values()])
        for end in ("value", "low", "high")
    )
    bars = np.nan_to_num([value - low, high - value])
    depth.axhspan(-MARGIN, MARGIN, color="#EEEEEE", zorder=0, label=f"±{MARGIN:g}% (ours)")
    depth.axhline(0, color="#777777", lw=1)
    depth.axvline(len(table) / 3 - 0.5, color="#777777", lw=1, ls=":")
    depth.errorbar(blocks, value, bars, fmt="s", color=COLOURS[0], capsize=2, elinewidth=1)
    percent_axis(depth, [*value, *(value - bars[0]), *(value + bars[1])], linear_to=MARGIN)
    depth.set(ylabel="saved, % of the base perplexity", title="What the product branch saves")
    depth.legend(loc="upper left", bbox_to_anchor=(0.4, 1))
    block_axis(depth, len(table))
    return figure


def _plane(ax: plt.Axes, table, name: str, printed) -> None:
    for row in table.itertuples():
        fits, costs = [row.r2_lin, row.r2_bilinear], [row.cost_linear, row.cost_bilinear]
        ax.plot(fits, costs, color="#BBBBBB", lw=1, zorder=1)
    linear, bilinear = table.cost_linear, table.cost_bilinear
    ax.scatter(table.r2_lin, linear, color=SUBJECT, s=26, label=f"{name}, linear", zorder=3)
    square = {"color": COLOURS[0], "marker": "s", "s": 20, "zorder": 2}
    ax.scatter(table.r2_bilinear, bilinear, label=f"{name}, bilinear", **square)
    diamond = {"marker": "D", "facecolor": "none", "edgecolor": COLOURS[1], "lw": 1.3}
    ax.scatter(printed.r2, printed.cost, label="linear, printed by the paper", **diamond)
    percent_axis(ax, [*linear, *bilinear, *printed.cost])
    least = min(table.r2_lin.min(), printed.r2.min(), 0.2)
    ax.set(
        xlim=(least - 0.05, 1.03),
        xlabel="held-out $R^2$ of the replacement",
        ylabel="cost of the swap, % of the base perplexity",
        title="Fit and cost",
    )
    ax.axvline(0.9, color="#777777", lw=1, ls=":")
    for cost in (5, 50):
        ax.axhline(cost, color="#777777", lw=1, ls=":")
    ax.legend(loc="lower left")
    telling = table[(table.cost_linear > 50) | (table.r2_lin > 0.9)]
    ours = telling.rename(columns={"r2_lin": "r2", "cost_linear": "cost"})
    theirs = printed.assign(block=printed.subject.str[0].str.upper() + printed.block.astype(str))
    columns = ["block", "r2", "cost"]
    both = [*ours[columns].to_dict("records"), *theirs[columns].to_dict("records")]
    number_points(ax, pd.DataFrame(both), "r2", "cost", lettered=COLOURS[1])


def massive_figure(table, name: str) -> plt.Figure:
    """What a linear swap costs when the FFN is kept on its massive tokens, by block and against the
    fit on ordinary tokens.

    table: one row a block, columns block, massive (bool), r2_lin, r2_ordinary and, in percent with
    intervals (_low, _high), cost_linear, cost_kept, cost_refitted and cost_refit_alone.
    """
    figure, axes = plt.subplot_mosaic(
        [["depth", "depth"], ["plane", "legend"]], figsize=(11.5, 8), width_ratios=(2, 1)
    )
    depth, plane = axes["depth"], axes["plane"]
    few, rest = table[table.massive], table[~table.massive]
    shade_blocks(depth, few.block)
    _swaps(depth, rest, "linear", 0, fmt="o", color=SUBJECT)
    for k, (kind, look) in enumerate(KEPT.items()):
        _swaps(depth, few, kind, 0.23 * k - 0.345, **look)
    depth.axhline(0, color="#777777", lw=1)
    depth.set(ylabel="cost, % of the base perplexity", title=f"{name}: cost of the swap by block")
    block_axis(depth, len(table))
    for row in few.itertuples():
        ends = [row.r2_lin, row.r2_ordinary], [row.cost_linear, row.cost_refitted]
        plane.plot(*ends, color="#BBBBBB", lw=1, zorder=1)
    plane.scatter(rest.r2_lin, rest.cost_linear, s=24, color="#999999", label="no massive tokens")
    plane.scatter(few.r2_lin, few.cost_linear, s=30, color=SUBJECT)
    plane.scatter(few.r2_ordinary, few.cost_refitted, s=30, color=COLOURS[2], marker="D")
    plane.axvline(0.9, color="#777777", lw=1, ls=":")
    plane.set(xlabel="held-out $R^2$ on the tokens that are replaced")
    plane.set(ylabel="cost, % of the base perplexity", title="Fit and cost")
    ends = table.filter(regex="^cost_.*_(low|high)$").to_numpy().ravel()
    for ax in (depth, plane):
        percent_axis(ax, ends)
    plane.legend(loc="lower left")
    axes["legend"].axis("off")
    axes["legend"].legend(*depth.get_legend_handles_labels(), loc="center left")
    if len(few):
        number_points(plane, few, "r2_ordinary", "cost_refitted")
    return figure


def _swaps(ax: plt.Axes, table, kind: str, shift: float, **look) -> None:
    """Costs of one kind of swap as points with bars."""
    value, low, high = (table[f"cost_{kind}{end}"] for end in ("", "_low", "_high"))
    bars = np.nan_to_num([value - low, high - value])
    ax.errorbar(table.block + shift, value, bars, ms=5, capsize=2, elinewidth=1, **look)


def healing_figure(table, name: str) -> plt.Figure:
    """Whipp Table 4 as a figure: zero-shot and healed cost of each candidate beside the healed
    original.

    table: columns block, candidate, phase, mean, low, high (percent).
    """
    blocks, names = list(table.block.unique()), list(dict.fromkeys(table.candidate))
    figure, axes = plt.subplots(
        1, len(blocks), figsize=(6.2 * len(blocks), 0.85 * len(names) + 1.6), squeeze=False
    )
    for ax, block in zip(axes[0], blocks, strict=True):
        part = table[table.block == block]
        for k, phase in enumerate(dict.fromkeys(table.phase)):
            rows = part[part.phase == phase].set_index("candidate").reindex(names)
            _costs(ax, rows, 0.18 * (2 * k - 1), MARKERS[k], (SUBJECT, COLOURS[0])[k], phase)
        ax.axvline(0, color="#777777", lw=1)
        original = part[(part.candidate == "original") & (part.phase == "healed")]["mean"]
        if len(original):
            ax.axvline(original.iloc[0], color=COLOURS[0], ls=":", lw=1.2)
        _percent_below(ax, np.nan_to_num([*part["mean"], *part.low, *part.high]))
        ax.set_yticks(range(len(names)), [n.replace("2x", " (2×)") for n in names])
        ax.set(ylim=(len(names) - 0.4, -0.6), title=f"{name}, block {block}")
        ax.set_xlabel("cost, % of the base perplexity")
    handles = axes[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, fontsize=9)
    return figure


def _costs(ax: plt.Axes, rows, shift: float, marker: str, colour: str, label: str) -> None:
    """Costs of one phase as points with bars, each number written beside its bar."""
    at = np.arange(len(rows)) + shift
    bars = np.nan_to_num([rows["mean"] - rows.low, rows.high - rows["mean"]])
    point = {"fmt": marker, "color": colour, "capsize": 3, "label": label}
    ax.errorbar(rows["mean"], at, xerr=bars, **point)
    for y, mean, bar in zip(at, rows["mean"], bars[1], strict=True):
        if np.isfinite(mean):
            text, digits = {"textcoords": "offset points"}, 1 if abs(mean) < 100 else 0
            number = f"{mean:+,.{digits}f}%".replace("-", "−")
            ax.annotate(number, (mean + bar, y), (6, -3), fontsize=9, color=colour, **text)


def _percent_below(ax: plt.Axes, values) -> None:
    """An x axis of percentages: linear where they span less than 50, else logarithmic beyond
    ±10."""
    low, high = min(*values, 0), max(*values, 0)
    room = 0.25 * (high - low)
    if high - low >= 50:
        ax.set_xscale("symlog", linthresh=10)
        ax.xaxis.set_major_locator(mpl.ticker.FixedLocator([-10, 0, 10, 30, 100, 300, 1000, 10000]))
        low, high, room = min(low, -5), high * 4, 0
    ax.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    ax.set_xlim(low - 0.3 * room - 0.3, high + room)
    ax.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:+,.4g}%" if v else "0"))
