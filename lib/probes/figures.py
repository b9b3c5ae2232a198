"""Figures of the probes and candidates (Whipp §5.3, §5.5, §5.6)."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lib.base.style import COLOURS, MARKERS, SUBJECT, block_axis


def gain_figure(table, name: str, printed, r: str) -> plt.Figure:
    """Whipp Figure 3: gain of the bilinear probe against residual nonlinearity, and by block.

    table: one row a block, columns block, residual, gain, gain_low, gain_high (range over seeds).
    printed: columns subject, block, residual, gain. r: the correlation, in words.
    """
    figure, (plane, depth) = plt.subplots(1, 2, figsize=(12.5, 4.5), width_ratios=(1.15, 1))
    bars = (table.gain - table.gain_low).clip(lower=0), (table.gain_high - table.gain).clip(lower=0)
    plane.errorbar(
        table.residual,
        table.gain,
        bars,
        fmt="o",
        color=SUBJECT,
        capsize=2,
        elinewidth=1.1,
        label=f"{name}: {r}",
    )
    named = {*table.nlargest(5, "gain").index, (table.gain / table.residual).idxmax()}
    for row in table.loc[sorted(named)].itertuples():
        plane.annotate(
            str(row.block),
            (row.residual, row.gain),
            xytext=(6, 2),
            textcoords="offset points",
            fontsize=9,
        )
    plane.scatter(
        printed.residual,
        printed.gain,
        marker="D",
        facecolor="none",
        edgecolor=COLOURS[1],
        lw=1.5,
        label="printed by the paper",
        zorder=3,
    )
    for row in printed.itertuples():
        plane.annotate(
            f"{row.subject[0].upper()}{row.block}",
            (row.residual, row.gain),
            xytext=(-7, -3),
            textcoords="offset points",
            fontsize=8,
            ha="right",
            color=COLOURS[1],
        )
    limit = np.array([0, max(0.15, 1.15 * table.gain.max())])
    plane.plot(limit, limit, color="#999999", ls=":", lw=1.2)
    plane.annotate(
        "all of the residual",
        (0.9 * limit[1], 0.9 * limit[1]),
        xytext=(5, -2),
        textcoords="offset points",
        fontsize=8,
        color="#666666",
    )
    plane.set(
        xlim=(0, 1),
        ylim=(-0.004, limit[1]),
        xlabel=r"residual nonlinearity $1-R^2_{\mathrm{lin}}$",
        ylabel=r"gain $R^2_{\mathrm{poly}}-R^2_{\mathrm{lin}}$",
        title="What a rank-16 product adds",
    )
    plane.legend(loc="upper right", fontsize=9)
    depth.bar(table.block, table.gain / table.residual, color="#BBBBBB", edgecolor=SUBJECT, lw=0.8)
    depth.set(
        ylabel="share of the residual recovered",
        title="By depth",
        ylim=(0, 1.03 * max(0.3, (table.gain / table.residual).max())),
    )
    depth.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, decimals=0))
    block_axis(depth, len(table))
    return figure


def solver_figure(pairs, adamw, direct, n_seeds: int) -> plt.Figure:
    """Two solvers of the same branch: final gain block by block, and the way there in seconds.

    pairs: columns block, gain_adamw, gain_direct. adamw, direct: curves (columns block, seed,
    seconds, gain).
    """
    shown = list(pairs.sort_values("gain_adamw").block.iloc[[-1, len(pairs) // 2]].unique())
    figure, axes = plt.subplots(
        1, 1 + len(shown), figsize=(4.3 * (1 + len(shown)), 4), squeeze=False
    )
    plane, *ways = axes[0]
    top = 1.3 * pairs[["gain_adamw", "gain_direct"]].to_numpy().max()
    low = 0.7 * max(1e-4, pairs[["gain_adamw", "gain_direct"]].to_numpy().min())
    plane.plot([low, top], [low, top], color="#BBBBBB", lw=1)
    plane.scatter(pairs.gain_adamw.clip(low), pairs.gain_direct.clip(low), color=SUBJECT, s=26)
    plane.set(
        xscale="log",
        yscale="log",
        xlim=(low, top),
        ylim=(low, top),
        xlabel="gain by AdamW",
        ylabel="gain by the direct solver",
        title="Same branch, two solvers",
    )
    for ax, block in zip(ways, shown, strict=True):
        slow, fast = (
            curve[(curve.block == block) & (curve.seed == direct.seed.iloc[0]) & (curve.step > 0)]
            for curve in (adamw, direct)
        )
        ax.plot(slow.seconds, slow.gain, color=COLOURS[1], ls="--", label="AdamW, one seed")
        ax.plot(fast.seconds, fast.gain, color=COLOURS[0], label=f"direct, {n_seeds} seeds at once")
        ax.set(
            xscale="log",
            xlabel="seconds of fitting",
            ylabel="held-out gain",
            title=f"block {block}",
            ylim=(-0.1 * slow.gain.max(), 1.15 * max(slow.gain.max(), fast.gain.max())),
        )
        ax.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    ways[0].legend(loc="lower right", fontsize=9)
    return figure


def diagnostics_figure(conjunction, gates, blocks) -> plt.Figure:
    """Conjunction index by candidate, and the recruitment gate along training.

    conjunction: columns block, candidate, index (one row a half and seed). gates: columns block,
    step, gate. blocks: those drawn in colour.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4))
    names, labels = ["linear", "poly", "dense2x"], ["linear", "poly", "dense (2×)"]
    for k, (block, rows) in enumerate(conjunction.groupby("block")):
        at = np.arange(len(names)) + 0.16 * (k - (conjunction.block.nunique() - 1) / 2)
        spread = rows.groupby("candidate")["index"].agg(["mean", "min", "max"]).reindex(names)
        left.errorbar(
            at,
            spread["mean"],
            (spread["mean"] - spread["min"], spread["max"] - spread["mean"]),
            fmt=MARKERS[k],
            color=COLOURS[k],
            capsize=3,
            label=f"block {block}",
        )
    left.set(ylim=(-0.03, 1.03), ylabel="conjunction index", title="Is the response joint?")
    left.set_xticks(range(len(names)), labels)
    left.legend(loc="upper left", fontsize=9)
    for block, rows in gates.groupby("block"):
        if block not in blocks:
            right.plot(rows.step, rows.gate, color="#C4C4C4", lw=1)
    for k, block in enumerate(blocks):
        rows = gates[gates.block == block]
        right.plot(
            rows.step,
            rows.gate,
            color=COLOURS[k],
            ls=("-", "--", "-.")[k % 3],
            label=f"block {block}",
        )
    right.axhline(np.exp(-2), color=SUBJECT, lw=1, ls=":")
    right.annotate(
        "start",
        (rows.step.max(), np.exp(-2)),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        fontsize=8,
    )
    right.set(
        xlabel="AdamW steps",
        ylabel="mean of exp(quad_scale)",
        title="Recruitment gate",
        ylim=(0, None),
    )
    right.legend(loc="best", fontsize=9)
    return figure


def degree_figure(table, layouts: dict) -> plt.Figure:
    """Gain by block for several branches. table: columns block, branch, mean, low, high (range
    over seeds)."""
    figure, ax = plt.subplots(figsize=(11, 4.2))
    for k, (name, rows) in enumerate(table.groupby("branch", sort=False)):
        bars = (rows["mean"] - rows.low).clip(lower=0), (rows.high - rows["mean"]).clip(lower=0)
        ax.errorbar(
            rows.block,
            rows["mean"],
            bars,
            color=(SUBJECT, *COLOURS)[k],
            marker=MARKERS[k],
            ls=("-", "--", ":")[k % 3],
            lw=1.3,
            capsize=2,
            label=layouts[name],
        )
    ax.set(
        ylabel=r"gain over $R^2_{\mathrm{lin}}$", title="Does a third factor help?", ylim=(0, None)
    )
    ax.legend(loc="upper center", fontsize=9)
    block_axis(ax, table.block.nunique())
    return figure


def two_blocks_figure(table, plain, printed, name: str) -> plt.Figure:
    """Whipp Tables 2 and 3 as a figure: what each candidate adds to the linear map in R², and its
    cosine, against its parameters, one column a block.

    table: columns block, candidate, params_over_d2, r2, gain, gain_low, gain_high, cosine,
    cosine_low, cosine_high. plain: the same candidates by another recipe, columns block,
    params_over_d2, gain, cosine. printed: columns subject, block, place (position of the block in
    the figure), candidate, params_over_d2, r2, cosine.
    """
    blocks = list(table.block.unique())
    linear = table[table.candidate == "linear"].set_index("block").r2
    theirs_linear = printed[printed.candidate == "linear"].set_index(["subject", "block"]).r2
    printed = printed.assign(
        gain=printed.r2 - printed.set_index(["subject", "block"]).index.map(theirs_linear)
    )
    figure, axes = plt.subplots(
        2, len(blocks), figsize=(5.6 * len(blocks), 6.6), sharex=True, squeeze=False
    )
    styles = dict(
        zip(
            sorted(printed.subject.unique()),
            [(COLOURS[1], "s"), (COLOURS[2], "^"), (COLOURS[3], "D")],
            strict=False,
        )
    )
    for k, block in enumerate(blocks):
        rows = table[table.block == block]
        for ax, metric in zip(axes[:, k], ("gain", "cosine"), strict=True):
            bars = (
                (rows[metric] - rows[f"{metric}_low"]).clip(lower=0),
                (rows[f"{metric}_high"] - rows[metric]).clip(lower=0),
            )
            ax.errorbar(
                rows.params_over_d2,
                rows[metric],
                bars,
                fmt="o",
                color=SUBJECT,
                capsize=3,
                label=name,
                zorder=3,
            )
            for row in rows.itertuples():
                side = {"linear": "right", "dense2x": "right"}.get(row.candidate, "left")
                at = {"linear": (-6, 5), "poly": (6, 6), "dense2x": (-6, 7), "poly2x": (6, -10)}
                ax.annotate(
                    row.candidate.replace("2x", " (2×)"),
                    (row.params_over_d2, getattr(row, metric)),
                    xytext=at[row.candidate],
                    textcoords="offset points",
                    ha=side,
                    fontsize=9,
                )
            naive, theirs = plain[plain.block == block], printed[printed.place == k]
            known = pd.concat([rows[metric], rows[f"{metric}_low"], theirs[metric]])
            low, high = known.min(), max(known.max(), naive[metric].max())
            edge = low - 0.14 * (high - low)
            ax.set_ylim(edge, high + 0.18 * (high - low))
            ax.scatter(
                naive.params_over_d2,
                naive[metric].clip(edge),
                marker="o",
                s=46,
                facecolor="none",
                edgecolor=SUBJECT,
                lw=1.1,
                label="plain recipe, one seed",
                clip_on=False,
                zorder=2,
            )
            for subject, theirs in printed[printed.place == k].groupby("subject"):
                colour, marker = styles[subject]
                ax.plot(
                    theirs.params_over_d2,
                    theirs[metric],
                    color=colour,
                    marker=marker,
                    mfc="none",
                    ls=":",
                    lw=1,
                    label=f"{subject} (paper)",
                )
        axes[0, k].set_title(
            f"block {block} ({'early' if k == 0 else 'deep'}), linear $R^2$ {linear[block]:.3f}"
        )
        axes[1, k].set(xlabel="parameters / d²", xlim=(0.7, table.params_over_d2.max() + 0.45))
    axes[0, 0].set_ylabel("held-out $R^2$ over the linear map's")
    axes[1, 0].set_ylabel("cosine, mean over tokens")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)
    return figure
