"""Figures of what gates see: token or context (Balogh Table 4, Figure 2, §4.3)."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from lib.base.style import COLOURS, MARKERS, SUBJECT, block_axis
from lib.gates.words import TYPES
from lib.stats.published import published


def printed_areas() -> dict[tuple[int, str], float]:
    """Balogh's Table 4 by (row from the top, gate)."""
    rows = published("balogh", "Table 4", "auc")
    order = {block: k for k, block in enumerate(sorted(rows.block.unique()))}
    gate = rows.input.replace({"token-type": "type"})
    return {(order[b], g): v for b, g, v in zip(rows.block, gate, rows.value, strict=True)}


def areas_figure(table, name: str) -> plt.Figure:
    """Table 4 as a figure: the area of each gate with its interval, a panel a block.

    table: columns block, gate, mean, low, high, gates in one order.
    """
    blocks, gates = list(table.block.unique()), list(dict.fromkeys(table.gate))
    figure, axes = plt.subplots(
        1, len(blocks), figsize=(4.4 * len(blocks), 0.36 * len(gates) + 1.4), sharey=True
    )
    printed = printed_areas()
    for k, (ax, block) in enumerate(zip(np.atleast_1d(axes), blocks, strict=True)):
        part = table[table.block == block].set_index("gate").loc[gates]
        at = np.arange(len(gates))
        bars = np.nan_to_num([part["mean"] - part.low, part.high - part["mean"]])
        point = {"fmt": "o", "color": SUBJECT, "capsize": 3, "label": f"{name} (95%)"}
        ax.errorbar(part["mean"], at, xerr=bars, **point)
        theirs = [(printed[k, g], y) for y, g in enumerate(gates) if (k, g) in printed]
        if theirs:
            diamond = {"marker": "D", "facecolor": "none", "edgecolor": COLOURS[1], "zorder": 3}
            ax.scatter(*zip(*theirs, strict=True), label="GPT-2 Medium, printed", **diamond)
        ax.axvline(0.5, color="#777777", lw=1)
        ax.axvline(part["mean"]["full"], color=COLOURS[0], lw=1, ls=":", label="the full gate's")
        ax.set_yticks(at, gates)
        ax.set(ylim=(len(gates) - 0.4, -0.6), xlabel="area under the ROC curve")
        ax.set_title(f"block {block}")
        ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    handles = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def cosine_figure(table, name: str) -> plt.Figure:
    """Cosine of token and context by depth, beside what subtraction alone gives, a panel a reading.

    table: columns block, space, cosine, another, unrelated (geometry_table).
    """
    titles = {
        "literal": "x after the norm, less e",
        "stream": "h before the norm, less e",
        "split": "split by the norm's statistics",
    }
    figure, axes = plt.subplots(1, len(titles), figsize=(13.2, 3.9), sharey=True)
    lines = {
        "cosine": "its own token",
        "another": "another position's token",
        "unrelated": "−|e|/|c| if x and e are orthogonal",
    }
    for ax, (space, title) in zip(axes, titles.items(), strict=True):
        part = table[table.space == space].sort_values("block")
        for k, (column, label) in enumerate(lines.items()):
            colour = (SUBJECT, *COLOURS)[k]
            style = {"marker": MARKERS[k], "ms": 4, "ls": ("-", "--", ":")[k]}
            ax.plot(part.block, part[column], color=colour, label=label, **style)
        ax.axhline(0, color="#777777", lw=1)
        block_axis(ax, int(table.block.max()) + 1)
        ax.set_title(title)
    axes[0].set_ylabel("mean cosine of context and token")
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=9)
    figure.suptitle(name, fontsize=11)
    return figure


def explained_figure(table, name: str, printed=(0.002, 0.013, 0.008)) -> plt.Figure:
    """Held-out R² of δ by regressor, a panel a block; δ as it is and clipped.

    table: columns block, regressor, target, mean, low, high. printed: the paper's three R².
    """
    blocks, names = list(table.block.unique()), list(dict.fromkeys(table.regressor))
    figure, axes = plt.subplots(
        1, len(blocks), figsize=(4.4 * len(blocks), 0.42 * len(names) + 1.5), sharey=True
    )
    for k, (ax, block) in enumerate(zip(np.atleast_1d(axes), blocks, strict=True)):
        part = table[table.block == block]
        for j, (target, rows) in enumerate(part.groupby("target", sort=False)):
            rows = rows.set_index("regressor").loc[names]
            bars = np.nan_to_num([rows["mean"] - rows.low, rows.high - rows["mean"]])
            at, colour = np.arange(len(names)) + 0.2 * (2 * j - 1), (SUBJECT, COLOURS[0])[j]
            point = {"fmt": MARKERS[j], "color": colour, "capsize": 3, "label": f"δ {target}"}
            ax.errorbar(rows["mean"], at, xerr=bars, **point)
        ax.axvline(0, color="#777777", lw=1)
        if k < len(printed):
            label = "thirteen features, GPT-2 Medium, printed"
            ax.axvline(printed[k], color=COLOURS[1], lw=1, ls=":", label=label)
        ax.set_yticks(range(len(names)), names)
        ax.set(ylim=(len(names) - 0.4, -0.6), xlabel="held-out R² of δ", title=f"block {block}")
        ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    handles = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=9)
    figure.suptitle(name, fontsize=11)
    return figure


def types_figure(table, name: str, chosen) -> plt.Figure:
    """Figure 2, mean δ by type of token and depth, and the spread that it leaves out.

    table: columns block, type, mean, low, high, p5, p25, p50, p75, p95 (type_table); chosen: the
    blocks whose spread is drawn.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(13.2, 4.6))
    for k, kind in enumerate(TYPES):
        part = table[table.type == kind]
        style = {"marker": MARKERS[k], "color": COLOURS[k], "ms": 4}
        left.plot(part.block, part["mean"], label=kind, **style)
        left.fill_between(part.block, part.low, part.high, color=COLOURS[k], alpha=0.12, lw=0)
        for j, block in enumerate(chosen):
            row = part[part.block == block]
            if len(row):
                at = j + 0.14 * (k - (len(TYPES) - 1) / 2)
                right.plot([at, at], [row.p5, row.p95], color=COLOURS[k], lw=1)
                right.plot([at, at], [row.p25, row.p75], color=COLOURS[k], lw=5, alpha=0.5)
                right.plot(at, row["mean"], color=COLOURS[k], marker=MARKERS[k], ms=5)
    for ax in (left, right):
        ax.axhline(0, color="#777777", lw=1)
    left.set_yscale("symlog", linthresh=0.05)
    left.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    left.set(ylabel="mean δ, nats", title="Mean δ by type of token")
    block_axis(left, int(table.block.max()) + 1)
    right.set_xticks(range(len(chosen)), [f"block {b}" for b in chosen])
    right.set(ylabel="δ, nats", title="The spread within each type")
    handles = left.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(TYPES), fontsize=9)
    figure.suptitle(name, fontsize=11)
    return figure
