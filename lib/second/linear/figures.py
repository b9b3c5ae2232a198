"""Figures of linear recoverability, its baselines and its domains (Whipp §5.1, §5.7)."""

import matplotlib.pyplot as plt

from lib.second.base.style import (
    COLOURS,
    COLUMN,
    MARKERS,
    SUBJECT,
    block_axis,
    number_points,
    percent_axis,
    power_of_ten,
    shade_blocks,
)
from lib.second.linear.descent import OPTIMIZERS

THRESHOLDS = (0.3, 0.5, 0.9, 0.99)
"""of the claims that some block is nearly or hardly linear (data/published/claims.csv)"""


def recoverability_figure(table, name: str, published) -> plt.Figure:
    """Whipp Figure 2: R²_lin and zero-shot ΔPPL by block, beside the paper's own profiles.

    table: columns block, r2_lin, low, high (over folds of documents), r2_limit, limit_low,
    limit_high (n → ∞; may be absent), delta_ppl_percent(_low, _high), massive_tokens (how many; may
    be absent). published: columns subject, block, value.
    """
    figure, axes = plt.subplots(
        2, 2, figsize=(12.5, 6.6), width_ratios=(1.75, 1), sharex="col", height_ratios=(1.15, 1)
    )
    massive = table.massive_tokens > 0 if "massive_tokens" in table else table.block < 0
    (ours, theirs), (cost, scatter) = axes
    ours.fill_between(table.block, table.low, table.high, color="#9A9A9A", alpha=0.35, lw=0)
    ours.plot(table.block, table.r2_lin, color=SUBJECT, marker="o", label="here, 95% over folds")
    if "r2_limit" in table:
        ends = table.r2_limit - table.limit_low, table.limit_high - table.r2_limit
        ours.errorbar(
            table.block,
            table.r2_limit,
            [end.clip(lower=0) for end in ends],
            fmt="D",
            ms=4,
            mfc="white",
            color=COLOURS[0],
            capsize=2,
            elinewidth=1,
            label="at n → ∞",
        )
    for k, threshold in enumerate(THRESHOLDS):
        mark = "the claims' thresholds" if k == 0 else None
        ours.axhline(threshold, color="#777777", lw=0.9, ls=":", label=mark)
    ours.set(
        ylabel=r"$R^2_{\mathrm{lin}}$",
        ylim=(min(0, 1.1 * table.low.min()), 1.03),
        title=f"{name}: linear recoverability of each FFN",
    )
    for ax in (ours, cost):
        shade_blocks(ax, table.block[massive])
    ours.legend(loc="lower center", bbox_to_anchor=(0.48, 0), ncols=2)
    low, high = (
        abs(table[f"delta_ppl_percent_{end}"] - table.delta_ppl_percent) for end in ("low", "high")
    )
    cost.errorbar(
        table.block,
        table.delta_ppl_percent,
        (low, high),
        fmt="o",
        color=SUBJECT,
        capsize=2,
        elinewidth=1.1,
    )
    cost.axhline(0, color="#777777", lw=1)
    percent_axis(cost, [*table.delta_ppl_percent_low, *table.delta_ppl_percent_high])
    cost.set(
        ylabel="ΔPPL of a linear swap", title="What replacing that one FFN by its affine map costs"
    )
    block_axis(cost, len(table))
    for k, (subject, rows) in enumerate(published.groupby("subject", sort=False)):
        theirs.plot(
            rows.block.astype(int),
            rows.value,
            color=COLOURS[k],
            marker=MARKERS[k],
            ls=("-", "--", ":")[k % 3],
            label=subject,
        )
    theirs.set(ylim=(0, 1.03), title="The paper's three models (Whipp Fig. 2)")
    theirs.tick_params(labelbottom=True)
    block_axis(theirs, int(published.block.max()) + 1)
    theirs.legend(loc="lower left", fontsize=9)
    figure.delaxes(scatter)
    scatter = figure.add_subplot(axes[0, 0].get_gridspec()[1, 1])
    few, rest = table[massive], table[~massive]
    scatter.scatter(rest.r2_lin, rest.delta_ppl_percent, s=24, color=SUBJECT)
    if len(few):
        squares = {"marker": "s", "s": 30, "color": COLOURS[1], "label": COLUMN}
        scatter.scatter(few.r2_lin, few.delta_ppl_percent, **squares)
        scatter.legend(loc="lower left", handletextpad=0.3)
    percent_axis(scatter, [*table.delta_ppl_percent_low, *table.delta_ppl_percent_high])
    scatter.set(
        xlabel=r"$R^2_{\mathrm{lin}}$ (numbers: blocks)",
        ylabel="ΔPPL of a linear swap",
        title="Swap cost against fit",
    )
    extreme = {*table.delta_ppl_percent.nlargest(5).index, *table.r2_lin.nlargest(4).index}
    extreme.add(table.r2_lin.idxmin())
    number_points(scatter, table.loc[sorted(extreme)], "r2_lin", "delta_ppl_percent")
    return figure


def descent_figure(curves, exact, ceilings, whitened=None) -> plt.Figure:
    """Held-out R² of trained linear maps against steps, one panel a block, with the closed form as
    the ceiling.

    curves: columns block, optimizer, seed, step, r2. exact: columns block, step, r2 (full-batch
    gradient descent). ceilings: columns block, r2_lin, condition_number. whitened: columns block,
    step, r2, of SGD on whitened inputs, a point each.
    """
    figure, axes = plt.subplots(
        1, len(ceilings), figsize=(4.3 * len(ceilings), 3.9), sharey=True, squeeze=False
    )
    for ax, row in zip(axes[0], ceilings.itertuples(), strict=True):
        ax.axhline(row.r2_lin, color=SUBJECT, lw=1.4, label="closed form (exact least squares)")
        tail = exact[exact.block == row.block]
        ax.plot(
            tail.step, tail.r2.clip(-1), color="#777777", ls=":", label="full-batch descent, exact"
        )
        for k, (label, runs) in enumerate(
            curves[curves.block == row.block].groupby("optimizer", sort=False)
        ):
            band = runs.groupby("step").r2.agg(["mean", "min", "max"]).clip(-1)
            ax.plot(
                band.index,
                band["mean"],
                color=COLOURS[k],
                ls=("-", "--", "-.")[k % 3],
                label=OPTIMIZERS[label],
            )
            ax.fill_between(
                band.index, band["min"], band["max"], color=COLOURS[k], alpha=0.25, lw=0
            )
        if whitened is not None:
            points = whitened[whitened.block == row.block]
            ax.plot(
                points.step,
                points.r2.clip(-1),
                ls="",
                marker="D",
                mfc="white",
                color=COLOURS[2],
                label="SGD on whitened inputs",
            )
        ax.axvline(3000, color="#BBBBBB", lw=1)
        ax.annotate(
            "3,000",
            (3000, -0.22),
            xytext=(4, 0),
            textcoords="offset points",
            fontsize=8,
            va="bottom",
            color="#666666",
        )
        ax.set(
            xscale="log",
            ylim=(-0.25, 1.03),
            xlabel="optimiser steps",
            title=f"block {row.block}, κ = {power_of_ten(row.condition_number)}",
        )
    axes[0, 0].set_ylabel("held-out $R^2$ of the linear map")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def domains_figure(profiles, products, name: str) -> plt.Figure:
    """Whipp Figure 5: R²_lin by block on several domains, and on two of them the swap cost and what
    a product branch saves.

    profiles: columns domain, block, mean, low, high (over folds). products: columns domain, block,
    cost_linear(_low, _high), saved(_low, _high), percent.
    """
    figure, axes = plt.subplots(
        3, 1, figsize=(10.5, 9.4), sharex=True, height_ratios=(1.25, 1, 0.9)
    )
    colours = dict(zip(profiles.domain.unique(), (SUBJECT, *COLOURS), strict=False))
    dashes = dict(zip(profiles.domain.unique(), ("-", "--", ":", "-.") * 2, strict=False))
    markers = dict(zip(profiles.domain.unique(), MARKERS * 2, strict=False))
    for domain, rows in profiles.groupby("domain", sort=False):
        look = {"color": colours[domain], "ls": dashes[domain], "marker": markers[domain]}
        axes[0].fill_between(
            rows.block, rows.low, rows.high, color=colours[domain], alpha=0.12, lw=0
        )
        axes[0].plot(rows.block, rows["mean"], label=domain, ms=4, **look)
    axes[0].set(
        ylim=(min(0, 1.1 * profiles.low.min()), 1.03),
        ylabel=r"$R^2_{\mathrm{lin}}$",
        title=f"{name}: recoverability on several domains",
    )
    axes[0].legend(loc="lower center", ncols=2, fontsize=9)
    titles = {
        "cost_linear": "What a linear swap costs, each domain with its own maps and unseen text",
        "saved": "What a rank-16 product branch saves of that cost",
    }
    for ax, (column, title) in zip(axes[1:], titles.items(), strict=True):
        for k, (domain, rows) in enumerate(products.groupby("domain", sort=False)):
            ends = [abs(rows[f"{column}_{end}"] - rows[column]) for end in ("low", "high")]
            ax.errorbar(
                rows.block + 0.3 * k - 0.15,
                rows[column],
                ends,
                fmt=markers[domain],
                color=colours[domain],
                ms=4.5,
                capsize=2,
                elinewidth=1,
                label=domain,
            )
        ax.axhline(0, color="#777777", lw=1)
        percent_axis(ax, [*products[f"{column}_low"], *products[f"{column}_high"]])
        what = "cost" if column == "cost_linear" else "saved"
        ax.set(ylabel=f"{what}, % of base perplexity", title=title)
        ax.legend(loc="upper center", fontsize=9)
    block_axis(axes[2], int(profiles.block.max()) + 1)
    return figure
