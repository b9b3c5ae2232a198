"""Figures of swapped and healed FFNs (Whipp §5.6, Table 4)."""

from collections.abc import Mapping

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from lib.base.style import COLOURS, MARKERS, SUBJECT, block_axis, number_points, percent_axis
from lib.stats.intervals import Interval

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
    figure, (plane, depth) = plt.subplots(1, 2, figsize=(12.8, 4.8))
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
    depth.legend(loc="upper left", bbox_to_anchor=(0.36, 1), fontsize=9)
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
    for row in printed.itertuples():
        ax.annotate(
            f"{row.subject[0].upper()}{row.block}",
            (row.r2, row.cost),
            xytext=(-6, -3),
            textcoords="offset points",
            fontsize=8,
            ha="right",
            color=COLOURS[1],
        )
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
    ax.legend(loc="lower left", fontsize=9)
    telling = table[(table.cost_linear > 50) | (table.r2_lin > 0.9)]
    if len(telling):
        number_points(ax, telling, "r2_lin", "cost_linear")


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
