"""Figures of the all-linear cost: beside deletion and the mean output, without massive tokens, and
across models (Balogh §4.1, Figure 3)."""

from collections.abc import Mapping

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
    percent_scale,
)
from lib.second.stats.intervals import Interval


def cost_figure(
    costs: Mapping[str, Mapping[int, Interval]], name: str, n_blocks: int
) -> plt.Figure:
    """What stands in each FFN's place and what that costs, by block; and the cost of the linear map
    against that of deleting the FFN.

    costs: {what: {block: Interval}}, fractions of the base perplexity; "linear map" and "nothing"
    are among them.
    """
    figure, (by_block, plane) = plt.subplots(1, 2, figsize=(11.6, 4.8), width_ratios=(1.8, 1))
    ends = []
    for k, (what, units) in enumerate(costs.items()):
        value, low, high = in_percent(units)
        ends += [*low, *high]
        by_block.errorbar(
            np.array(list(units)) + 0.26 * (k - 1),
            value,
            np.nan_to_num([value - low, high - value]),
            fmt=MARKERS[k],
            color=(SUBJECT, *COLOURS)[k],
            mfc=SUBJECT if k == 0 else "white",
            ms=4,
            capsize=1.5,
            elinewidth=1,
            label=what,
        )
    by_block.axhline(0, color="#777777", lw=1)
    percent_axis(by_block, np.nan_to_num(ends))
    by_block.set(ylabel="cost, % of the base perplexity", title=f"{name}: in the FFN's place")
    by_block.legend(loc="best", fontsize=9)
    block_axis(by_block, n_blocks)
    table = pd.DataFrame(
        {
            "block": list(costs["linear map"]),
            "linear": in_percent(costs["linear map"])[0],
            "deleted": in_percent(costs["nothing"])[0],
        }
    )
    _plane(plane, table)
    return figure


def _plane(ax: plt.Axes, table: pd.DataFrame) -> None:
    """Cost of the linear map against that of deleting the FFN, both logarithmic beyond 1%."""
    ax.scatter(table.deleted, table.linear, color=SUBJECT, s=24, zorder=3)
    both = [*table.linear, *table.deleted]
    percent_axis(ax, both)
    percent_scale(ax, "x", both)
    ax.set_xlim(ax.get_ylim())
    line = np.linspace(*ax.get_xlim(), 2000)
    ax.plot(line, line, color="#777777", lw=1, label="the map saves nothing")
    half = 100 * np.sqrt(np.maximum(1 + line / 100, 0)) - 100
    ax.plot(line, half, color="#777777", lw=1, ls=":", label="half of the loss deletion adds")
    ax.set(
        xlabel="cost of deleting the FFN (numbers: blocks)",
        ylabel="cost of the linear map",
        title="What the map is worth",
    )
    ax.legend(loc="upper left", fontsize=9)
    telling = {*table.linear.nlargest(4).index, *table.deleted.nlargest(4).index}
    telling |= {*table.index[table.linear > table.deleted], table.linear.idxmin()}
    number_points(ax, table.loc[sorted(telling)], "deleted", "linear")


def in_percent(units: Mapping[int, Interval]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, lower and upper bounds in percent."""
    ends = ("value", "low", "high")
    return tuple(100 * np.array([getattr(i, end) for i in units.values()]) for end in ends)


def massive_figure(table: pd.DataFrame, name: str) -> plt.Figure:
    """All-linear cost of the blocks with massive tokens: as it is, with these tokens on the FFN,
    and with a map fitted without them.

    table: columns block, linear, kept, refit (percent), share (of tokens that are massive).
    """
    figure, ax = plt.subplots(figsize=(7.6, 4.4))
    at = np.arange(len(table))
    labels = {
        "linear": "map at every token",
        "kept": "massive tokens keep the FFN",
        "refit": "and the map is fitted without them",
    }
    for k, (column, label) in enumerate(labels.items()):
        ax.plot(
            at + 0.18 * (k - 1),
            table[column],
            ls="",
            marker=MARKERS[k],
            color=(SUBJECT, *COLOURS)[k],
            label=label,
        )
    ax.axhline(0, color="#777777", lw=1)
    percent_axis(ax, [*table.linear, *table.kept, *table.refit, 0])
    names = [f"{r.block}\n{r.share:.2%}" for r in table.itertuples()]
    ax.set_xticks(at, names)
    ax.set(
        xlabel="block, and the share of its tokens that are massive",
        ylabel="cost, % of the base perplexity",
        title=f"{name}: a few massive tokens",
    )
    ax.set_xlim(-0.6, len(table) - 0.4)
    ax.legend(loc="best", fontsize=9)
    return figure


def size_figure(ours: pd.DataFrame, printed: pd.DataFrame) -> plt.Figure:
    """Balogh Figure 3: all-linear cost of models of several sizes, median over blocks with the
    range; beside it the cheapest and dearest blocks that the paper prints.

    ours: the table of `size_table`, one or two rows a model; printed: that of `printed_sizes`.
    """
    figure, (here, paper) = plt.subplots(1, 2, figsize=(10.4, 4.6), sharey=True)
    for k, (_, rows) in enumerate(ours.groupby("model", sort=False)):
        colour = SUBJECT if k == 0 else COLOURS[2 + k % 4]
        for j, row in enumerate(rows.itertuples()):
            at = k + 0.4 * (j - (len(rows) - 1) / 2)
            here.vlines(at, row.cheapest, row.dearest, color=colour, lw=1)
            filled = colour if j == 0 else "white"
            here.plot(at, row.median, ls="", marker=MARKERS[k], color=colour, mfc=filled)
            here.annotate(
                f"{row.tokens_per_feature:.3g}",
                (at, row.dearest),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
    sizes = ours.groupby("model", sort=False).n_params.first()
    here.set_xticks(range(len(sizes)), [f"{m}\n{n / 1e6:.3g} M" for m, n in sizes.items()])
    here.set(
        xlabel="model and parameters (numbers: tokens a feature)",
        ylabel="all-linear cost, % of the base perplexity",
        title="Here: median and range over blocks",
    )
    for k, (family, rows) in enumerate(printed.groupby("family", sort=False)):
        span = {"color": COLOURS[k], "lw": 4, "alpha": 0.7, "ls": ("-", "--")[k], "label": family}
        paper.vlines(rows.n_params, rows.cheapest, rows.dearest, **span)
    paper.set_xscale("log")
    paper.set_xticks([2e8, 5e8, 1e9, 2e9], ["200 M", "500 M", "1,000 M", "2,000 M"])
    paper.minorticks_off()
    paper.set(
        xlabel="parameters of the model", title="Printed: cheapest to dearest block of Table 3"
    )
    paper.legend(loc="upper left", fontsize=9)
    percent_axis(here, [*ours.cheapest, *ours.dearest, *printed.cheapest, *printed.dearest])
    for ax in (here, paper):
        ax.axhline(0, color="#777777", lw=1)
    return figure
