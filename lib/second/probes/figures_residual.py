"""Figures of products on residuals: gains, solvers, diagnostics, degrees (Whipp §5.3)."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lib.second.base.style import COLOURS, MARKERS, SUBJECT, block_axis, number_points

LIMIT = {"color": "#8A8A8A", "lw": 1.2, "ls": "--", "zorder": 1}  # a threshold of the ledger


def gain_figure(table, name: str, printed, limits: dict[str, tuple[float, float]]) -> plt.Figure:
    """Whipp Figure 3: gain of the bilinear probe against residual nonlinearity, and by block.

    table: one row a block, columns block, residual, gain, low, high, share. printed: columns
    subject, block, residual, gain. limits: a gain to mark and the residual from which it holds, by
    what it is.
    """
    figure, (plane, depth) = plt.subplots(1, 2, figsize=(12.5, 4.8), width_ratios=(1.25, 1))
    plane.errorbar(table.residual, table.gain, _bars(table), label=name, **_points(0))
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
    top = 1.2 * max(0.14, table.gain.max())  # a wide interval may leave the frame
    edge = np.linspace(0, 1, 200)
    plane.plot(edge, edge, color="#999999", ls=":", lw=1.2, label="all of the residual")
    for words, (limit, start) in limits.items():
        plane.plot([start, 1], [limit, limit], **LIMIT)
        plane.annotate(words, (0.99, limit), xytext=(0, 3), **_small(plane.get_yaxis_transform()))
    plane.set(
        xlim=(0, 1),
        ylim=(min(-0.12 * top, 1.2 * table.gain.min()), top),
        xlabel=r"residual nonlinearity $1-R^2_{\mathrm{lin}}$",
        ylabel=r"gain $R^2_{\mathrm{poly}}-R^2_{\mathrm{lin}}$, unseen documents",
        title="What a rank-16 product adds",
    )
    theirs = printed.assign(block=printed.subject.str[0].str.upper() + printed.block.astype(str))
    most = table.loc[sorted({*table.nlargest(6, "gain").index, *table.nlargest(2, "share").index})]
    columns = ["block", "residual", "gain"]
    number_points(plane, _stacked(most[columns], theirs[columns]), "residual", "gain")
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    depth.bar(table.block, table.share, color="#BBBBBB", edgecolor=SUBJECT, lw=0.8)
    depth.set(
        ylabel="share of the residual recovered",
        title="By depth",
        ylim=(min(0, 1.05 * table.share.min()), 1.05 * max(0.3, table.share.max())),
    )
    depth.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1, decimals=0))
    block_axis(depth, len(table))
    return figure


def solver_figure(pairs, adamw, direct, limit: float) -> plt.Figure:
    """Two solvers of the same branch: what the direct one gains over AdamW by block, and the way
    there in steps.

    pairs: columns block, gain_adamw, difference, low, high. adamw, direct: curves (columns block,
    seed, step, gain). limit: a difference to mark.
    """
    shown = list(pairs.sort_values("gain_adamw").block.iloc[[-1, len(pairs) // 2]].unique())
    size = 1 + len(shown)
    figure, axes = plt.subplots(1, size, figsize=(4.3 * size, 4), squeeze=False)
    level, *ways = axes[0]
    at = np.arange(len(pairs))
    level.errorbar(at, pairs.difference, _bars(pairs, "difference"), **_points(0))
    level.axhline(0, color="#BBBBBB", lw=1)
    level.axhline(limit, **LIMIT)
    level.annotate(
        f"{limit:g} (rule)", (0.99, limit), xytext=(0, 3), **_small(level.get_yaxis_transform())
    )
    level.set_xticks(at, pairs.block)
    level.set(
        xlabel="block (zero-indexed)",
        xlim=(-0.6, len(at) - 0.4),
        ylabel="gain, direct less AdamW",
        title="Same branch, two solvers",
    )
    for ax, block in zip(ways, shown, strict=True):
        slow, fast = (
            curve[(curve.block == block) & (curve.seed == direct.seed.iloc[0]) & (curve.step > 0)]
            for curve in (adamw, direct)
        )
        ax.plot(slow.step, slow.gain, color=COLOURS[1], ls="--", label="AdamW")
        ax.plot(fast.step, fast.gain, color=COLOURS[0], label="direct")
        best = max(slow.gain.max(), fast.gain.max(), 1e-6)
        ax.set(
            xscale="log",
            xlabel="optimizer steps",
            ylabel="gain, stopping documents",
            title=f"block {block}",
            ylim=(-0.1 * best, 1.15 * best),
        )
        ax.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:,g}"))
        ax.xaxis.set_minor_formatter(mpl.ticker.NullFormatter())
    ways[0].legend(loc="lower right", fontsize=9)
    return figure


def diagnostics_figure(conjunction, gates, limits: dict[str, float]) -> plt.Figure:
    """Conjunction index by candidate, and the recruitment gate on near-linear blocks.

    conjunction: columns block, candidate, index (one row a half and seed). gates: columns block,
    layer, change (one row a seed). limits: changes of the gate to mark, by what they are.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4))
    names, labels = ["linear", "poly", "dense2x"], ["linear", "poly", "dense (2×)"]
    for k, (block, rows) in enumerate(conjunction.groupby("block")):
        at = np.arange(len(names)) + 0.16 * (k - (conjunction.block.nunique() - 1) / 2)
        spread = rows.groupby("candidate")["index"].agg(["mean", "min", "max"]).reindex(names)
        bars = spread["mean"] - spread["min"], spread["max"] - spread["mean"]
        left.errorbar(at, spread["mean"], bars, label=f"block {block}", **_points(k, COLOURS[k]))
    for words, limit in (("poly 0.31 (paper)", 0.31), ("dense 0.90 (paper)", 0.9)):
        left.axhline(limit, **LIMIT)
        left.annotate(words, (0.99, limit), xytext=(0, 3), **_small(left.get_yaxis_transform()))
    left.set(ylim=(-0.03, 1.03), ylabel="conjunction index", title="Is the response joint?")
    left.set_xticks(range(len(names)), labels)
    left.legend(loc="center left", bbox_to_anchor=(0, 0.6), fontsize=9)
    blocks = sorted(gates.block.unique())
    for k, (layer, rows) in enumerate(gates.groupby("layer", sort=False)):
        at = np.array([blocks.index(block) for block in rows.block]) + 0.2 * (k - 0.5)
        fill = COLOURS[k] if k == 0 else "none"
        right.scatter(at, rows.change, marker=MARKERS[k], c=fill, edgecolor=COLOURS[k], label=layer)
    for words, limit in limits.items():
        right.axhline(limit, **LIMIT)
        right.annotate(words, (0.99, limit), xytext=(0, 3), **_small(right.get_yaxis_transform()))
    right.set_xticks(range(len(blocks)), blocks)
    right.set(
        xlim=(-0.6, max(len(blocks), 1) - 0.1),
        ylim=(0, 1.15 * max(1, *gates.change) if len(gates) else 1.15),
        xlabel="block (zero-indexed)",
        ylabel="gate at the end / at the start",
        title="Recruitment gate, near-linear blocks",
    )
    if blocks:
        right.legend(loc="lower right", fontsize=9)
    return figure


def degree_figure(table, difference, labels: dict[str, str], limit: float) -> plt.Figure:
    """Gain by block for several branches, and what a third factor adds at equal size.

    table: columns block, branch, mean, low, high (range over seeds). difference: columns block,
    value, low, high. limit: a difference to mark.
    """
    figure, (gains, third) = plt.subplots(2, 1, figsize=(11, 6.4), sharex=True)
    for k, (name, rows) in enumerate(table.groupby("branch", sort=False)):
        at = rows.block + 0.2 * (k - 1)
        colour = (SUBJECT, *COLOURS)[k]
        gains.errorbar(
            at, rows["mean"], _bars(rows, "mean"), label=labels[name], **_points(k, colour)
        )
    gains.set(ylabel=r"gain over $R^2_{\mathrm{lin}}$", title="Does a third factor help?")
    gains.legend(loc="upper center", fontsize=9)
    third.errorbar(difference.block, difference.value, _bars(difference, "value"), **_points(0))
    third.axhline(0, color="#BBBBBB", lw=1)
    third.axhline(limit, **LIMIT)
    third.annotate(
        f"{limit:g} (rule, median block)",
        (0.99, limit),
        xytext=(0, 3),
        **_small(third.get_yaxis_transform()),
    )
    third.set(ylabel="degrees 2 and 3\nless degree 2, same size")
    block_axis(third, table.block.nunique())
    return figure


def _bars(table, middle: str = "gain") -> tuple:
    """Lengths of the error bars from columns low and high; none where there is no interval."""
    lengths = (table[middle] - table.low, table.high - table[middle])
    return tuple(length.fillna(0).clip(lower=0) for length in lengths)


def _points(k: int, colour: str = SUBJECT) -> dict:
    return {"fmt": MARKERS[k], "color": colour, "capsize": 2, "elinewidth": 1.1, "zorder": 2}


def _small(at) -> dict:
    """How a threshold is named at the right end of its line."""
    return {
        "xycoords": at,
        "textcoords": "offset points",
        "ha": "right",
        "fontsize": 8,
        "color": "#666666",
    }


def _stacked(*tables):
    """Rows of several tables, one after the other, with numbers of blocks as text."""
    return pd.concat([table.astype({"block": str}) for table in tables], ignore_index=True)
