"""Figures of clusters of FFN inputs (Balogh Table 6)."""

import matplotlib.pyplot as plt
import numpy as np

from lib.second.base.style import COLOURS, MARKERS, SUBJECT
from lib.second.stats.published import published

PLACES = ("clusters of x", "clusters of the stream", "gate on x − e", "gate on x")


def clusters_figure(table, means, name: str) -> plt.Figure:
    """Mean δ of every cluster on other documents, in the order of its mean where centres were
    learned, with its standard deviation beside the error of its mean; a panel a block.

    table: columns block, cluster, need, value, low, high, sd (cluster_table); means: {block: mean δ
    of all its positions}.
    """
    blocks = list(table.block.unique())
    figure, axes = plt.subplots(1, len(blocks), figsize=(4.4 * len(blocks), 4.0))
    for ax, block in zip(np.atleast_1d(axes), blocks, strict=True):
        part = table[table.block == block].sort_values("need")
        at = np.arange(len(part))
        spread = {"color": "#BBBBBB", "lw": 5, "label": "± standard deviation within"}
        ax.vlines(at, part.value - part.sd, part.value + part.sd, **spread)
        bars = np.nan_to_num([part.value - part.low, part.high - part.value])
        point = {"fmt": "o", "color": SUBJECT, "ms": 4, "capsize": 2, "elinewidth": 1}
        ax.errorbar(at, part.value, bars, label="mean δ, 95% joint", **point)
        line = {"color": COLOURS[1], "marker": MARKERS[1], "ms": 6, "lw": 0, "zorder": 4}
        line |= {"markerfacecolor": "none", "markeredgewidth": 1.5}
        ax.plot(at + 0.3, part.need, label="mean δ where centres were learned", **line)
        ax.axhline(means[block], color=COLOURS[0], lw=1, ls="--", label="mean δ of the block")
        ax.axhline(0, color="#777777", lw=1)
        ax.set(title=f"block {block}", xlabel="cluster, by mean δ where learned")
        ax.set_xticks(at, part.cluster, fontsize=8)
        ax.grid(axis="x", visible=False)
    np.atleast_1d(axes)[0].set_ylabel("δ, nats")
    handles = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, fontsize=9)
    figure.suptitle(name, fontsize=11)
    return figure


def cluster_areas_figure(table, name: str) -> plt.Figure:
    """Areas under the ROC curve of clusters and gates by block, beside the paper's at its own
    blocks of the same relative depths.

    table: columns block, reader (of PLACES), mean, low, high.
    """
    blocks = list(table.block.unique())
    figure, ax = plt.subplots(figsize=(10.0, 4.0))
    for k, reader in enumerate(PLACES):
        rows = table[table.reader == reader].set_index("block").loc[blocks]
        at = np.arange(len(blocks)) + 0.13 * (k - 1.5)
        bars = np.nan_to_num([rows["mean"] - rows.low, rows.high - rows["mean"]])
        colour = (SUBJECT, *COLOURS)[k]
        ax.errorbar(at, rows["mean"], bars, fmt=MARKERS[k], color=colour, capsize=3, label=reader)
    printed = published("balogh", "Table 6", "auc").sort_values("block").head(len(blocks))
    of = ", ".join(f"{float(b):.0f}" for b in printed.block)
    star = {"marker": "*", "s": 80, "facecolor": "none", "edgecolor": SUBJECT, "zorder": 3}
    at = np.arange(len(printed)) - 0.3
    label = f"clusters, GPT-2 Medium, printed\n(its blocks {of})"
    ax.scatter(at, printed.value, label=label, **star)
    ax.axhline(0.5, color="#777777", lw=1)
    ax.set_xticks(range(len(blocks)), [f"block {b}" for b in blocks])
    ax.set(ylabel="area under the ROC curve", title=name)
    ax.legend(fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    return figure
