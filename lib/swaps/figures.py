"""Figures of swapped and healed FFNs (Whipp §5.6, Table 4)."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from lib.base.style import COLOURS, MARKERS, SUBJECT, block_axis


def dissociation_figure(table, name: str, printed) -> plt.Figure:
    """Whipp §5.6: swap cost against fit, for the linear map and the bilinear layer, and what the
    layer saves by depth.

    table: one row a block, columns block, r2_lin, r2_bilinear, cost_linear, cost_bilinear
    (percent), saved, saved_low, saved_high (percent). printed: columns subject, block, r2, cost
    (percent) of linear swaps.
    """
    figure, (plane, depth) = plt.subplots(1, 2, figsize=(12.8, 4.8))
    for row in table.itertuples():
        plane.plot(
            [row.r2_lin, row.r2_bilinear],
            [row.cost_linear, row.cost_bilinear],
            color="#BBBBBB",
            lw=1,
            zorder=1,
        )
    plane.scatter(
        table.r2_lin, table.cost_linear, color=SUBJECT, s=26, label=f"{name}, linear", zorder=3
    )
    plane.scatter(
        table.r2_bilinear,
        table.cost_bilinear,
        color=COLOURS[0],
        marker="s",
        s=20,
        label=f"{name}, bilinear",
        zorder=2,
    )
    plane.scatter(
        printed.r2,
        printed.cost,
        marker="D",
        facecolor="none",
        edgecolor=COLOURS[1],
        lw=1.3,
        label="linear, printed by the paper",
    )
    for row in printed.itertuples():
        plane.annotate(
            f"{row.subject[0].upper()}{row.block}",
            (row.r2, row.cost),
            xytext=(-6, -3),
            textcoords="offset points",
            fontsize=8,
            ha="right",
            color=COLOURS[1],
        )
    for row in table[(table.cost_linear > 50) | (table.r2_lin > 0.9)].itertuples():
        plane.annotate(
            str(row.block),
            (row.r2_lin, row.cost_linear),
            xytext=(5, 3),
            textcoords="offset points",
            fontsize=9,
        )
    plane.set_yscale("symlog", linthresh=1)
    plane.yaxis.set_major_formatter(
        mpl.ticker.FuncFormatter(lambda v, _: f"{v:+,.4g}%" if v else "0")
    )
    plane.set(
        xlim=(0.1, 1.02),
        xlabel="held-out $R^2$ of the replacement",
        ylabel="ΔPPL of the swap",
        title="Fit and cost",
    )
    plane.legend(loc="lower left", fontsize=9)
    depth.axhline(0, color="#777777", lw=1)
    bars = (table.saved - table.saved_low), (table.saved_high - table.saved)
    depth.errorbar(
        table.block, table.saved, bars, color=COLOURS[0], marker="s", capsize=2, elinewidth=1
    )
    depth.set_yscale("symlog", linthresh=1)
    depth.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:g}%"))
    depth.set(ylabel="perplexity saved by the bilinear layer", title="Where the product helps")
    block_axis(depth, len(table))
    return figure


def healing_figure(table, name: str) -> plt.Figure:
    """Whipp Table 4 as a figure: zero-shot and healed ΔPPL of each candidate beside the healed
    original.

    table: columns block, candidate, phase, mean, low, high (percent).
    """
    blocks, names = list(table.block.unique()), list(dict.fromkeys(table.candidate))
    figure, axes = plt.subplots(1, len(blocks), figsize=(5.6 * len(blocks), 4.3), squeeze=False)
    for ax, block in zip(axes[0], blocks, strict=True):
        for k, (phase, rows) in enumerate(table[table.block == block].groupby("phase", sort=False)):
            rows = rows.set_index("candidate").reindex(names)
            at = np.arange(len(names)) + 0.2 * (k - 0.5)
            ax.errorbar(
                at,
                rows["mean"],
                (rows["mean"] - rows.low, rows.high - rows["mean"]),
                fmt=MARKERS[k],
                color=(SUBJECT, COLOURS[0])[k],
                capsize=3,
                label=phase,
            )
        ax.axhline(0, color="#777777", lw=1)
        original = table[
            (table.block == block) & (table.candidate == names[-1]) & (table.phase == "healed")
        ]["mean"]
        if len(original):
            ax.axhline(original.iloc[0], color=COLOURS[0], ls=":", lw=1.2)
        ax.set_xticks(range(len(names)), [n.replace("2x", " (2×)") for n in names])
        ax.set_yscale("symlog", linthresh=10)
        small = table[table.block == block].high.max() < 30
        ax.yaxis.set_major_locator(
            mpl.ticker.FixedLocator(
                [
                    sign * v
                    for sign in (-1, 1)
                    for v in ((0, 5, 10, 15, 20) if small else (0, 5, 10, 30, 100, 300, 1000, 3000))
                ]
            )
        )
        ax.yaxis.set_major_formatter(
            mpl.ticker.FuncFormatter(lambda v, _: f"{v:+,.4g}%" if v else "0")
        )
        ax.set(title=f"{name}, block {block}", ylabel="ΔPPL against the untouched model")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9
    )
    return figure
