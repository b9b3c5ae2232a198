"""Figures of what gates see: token or context (Balogh Table 4, Figure 2, §4.3)."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from lib.second.base.style import COLOURS, MARKERS, SUBJECT, block_axis
from lib.second.gates.words import TYPES
from lib.second.stats.published import published


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
        1,
        len(blocks),
        figsize=(3.6 * len(blocks), 0.36 * len(gates) + 1.4),
        sharex=True,
        sharey=True,
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
        ax.axvline(0.5, color="#777777", lw=1, label="chance")
        ax.axvline(part["mean"]["full"], color=COLOURS[0], lw=1, ls=":", label="the full gate's")
        ax.set_yticks(at, gates)
        ax.set(ylim=(len(gates) - 0.4, -0.6), xlabel="area under the ROC curve")
        ax.set_title(f"block {block}")
        ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4))
    handles = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, fontsize=9)
    return figure


def cosine_figure(table, name: str) -> plt.Figure:
    """Cosine of token and context by depth, beside what subtraction alone gives, a panel a reading;
    below, by how much the token's own lies above that of another position's.

    table: columns block, space, cosine, another, unrelated (geometry_table).
    """
    titles = {
        "literal": "x after the norm, less e",
        "stream": "h before the norm, less e",
        "split": "split by the norm's statistics",
    }
    figure, axes = plt.subplots(
        2, len(titles), figsize=(11.4, 6.2), sharey="row", height_ratios=(1.3, 1)
    )
    lines = {
        "cosine": "its own token",
        "another": "another position's token",
        "unrelated": "−|e|/|c| if x and e are orthogonal",
    }
    for ax, below, (space, title) in zip(*axes, titles.items(), strict=True):
        part = table[table.space == space].sort_values("block")
        for k, (column, label) in enumerate(lines.items()):
            colour = (SUBJECT, *COLOURS)[k]
            style = {"marker": MARKERS[k], "ms": 4, "ls": ("-", "--", ":")[k]}
            ax.plot(part.block, part[column], color=colour, label=label, **style)
        less = part.cosine - part.another
        below.plot(part.block, less, color=SUBJECT, marker=MARKERS[0], ms=4)
        for one in (ax, below):
            one.axhline(0, color="#777777", lw=1)
            block_axis(one, int(table.block.max()) + 1)
        ax.set(title=title, xlabel="")
    axes[0, 0].set_ylabel("mean cosine of context and token")
    axes[1, 0].set_ylabel("its own less another's")
    handles = axes[0, 0].get_legend_handles_labels()
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
    """Figure 2, mean δ by type of token and depth, a panel a type over the other types; below, the
    spread that it leaves out, a panel a block.

    table: columns block, type, mean, low, high, p5, p25, p50, p75, p95 (type_table); chosen: the
    blocks whose spread is drawn.
    """
    figure = plt.figure(figsize=(11.4, 6.6))
    above, below = figure.subfigures(2, 1)
    kinds = [kind for kind in TYPES if (table.type == kind).any()]
    panels = above.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for k, (ax, kind) in enumerate(zip(panels, kinds, strict=True)):
        for other in kinds:
            part = table[table.type == other]
            mine = other == kind
            ax.plot(
                part.block,
                part["mean"],
                color=COLOURS[k] if mine else "#BBBBBB",
                lw=1.8 if mine else 0.8,
                zorder=3 if mine else 1,
            )
            if mine:
                band = {"color": COLOURS[k], "alpha": 0.25, "lw": 0}
                ax.fill_between(part.block, part.low, part.high, **band)
        ax.axhline(0, color="#777777", lw=1)
        block_axis(ax, int(table.block.max()) + 1)
        ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(4, integer=True))
        ax.set(title=kind, xlabel="block")
    panels[0].set_yscale("symlog", linthresh=0.05)
    panels[0].yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    panels[0].set_ylabel("mean δ, nats")
    spread = below.subplots(1, len(chosen), squeeze=False)[0]
    for ax, block in zip(spread, chosen, strict=True):
        for k, kind in enumerate(kinds):
            row = table[(table.type == kind) & (table.block == block)]
            if row.empty:
                continue
            ax.plot([k, k], [row.p5, row.p95], color=COLOURS[k], lw=1)
            ax.plot([k, k], [row.p25, row.p75], color=COLOURS[k], lw=6, alpha=0.5)
            ax.plot(k, row["mean"], color=COLOURS[k], marker=MARKERS[k], ms=5)
        ax.axhline(0, color="#777777", lw=1)
        ax.set_xticks(range(len(kinds)), [kind.replace(" ", "\n") for kind in kinds], fontsize=9)
        ax.set_title(f"block {block}: spread within")
    spread[0].set_ylabel("δ, nats")
    figure.suptitle(name, fontsize=11)
    return figure
