"""Figures of gated blocks: cost beside random and oracle routers, AUC, and the distribution of δ
(Balogh Figure 1, §4.2, §4.4)."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lib.base.style import COLOURS, MARKERS, SUBJECT, block_axis, percent_axis
from lib.gates.figures_cost import in_percent
from lib.stats.intervals import Interval

PRINTED_AUC = (0.54, 0.61)
PRINTED_SHARE = (0.25, 0.56)
"""of GPT-2 Medium's gates (Balogh §4.2)"""


def gated_figure(
    table: pd.DataFrame,
    gate: Mapping[int, Interval],
    gain: Mapping[int, Interval],
    name: str,
    n_blocks: int,
) -> plt.Figure:
    """Balogh Figure 1: all-linear and best-gate cost by block, and the routers of the same share.

    table: columns block, all_linear, gated, random, oracle_at_it (percent). gate: cost of the best
    gate, gain: the linear gate less a random router of its share; fractions of the base, jointly
    over blocks.
    """
    figure, (cost, less) = plt.subplots(1, 2, figsize=(12.8, 4.8), width_ratios=(1.4, 1))
    cost.plot(table.block, table.all_linear, "o-", color=SUBJECT, lw=1, label="all positions")
    value, low, high = in_percent(gate)
    cost.errorbar(
        table.block,
        value,
        np.nan_to_num([value - low, high - value]),
        fmt=MARKERS[1],
        color=COLOURS[0],
        capsize=2,
        elinewidth=1,
        label="best gate",
    )
    random = {"color": COLOURS[1], "lw": 1.2, "ls": "--", "marker": MARKERS[5], "ms": 4}
    cost.plot(table.block, table.random, label="random router of its share", **random)
    oracle = {"color": COLOURS[2], "lw": 1, "ls": ":", "marker": MARKERS[2], "ms": 5}
    cost.plot(table.block, table.oracle_at_it, label="lowest δ, the linear gate's share", **oracle)
    below = table[table.gated < 0]
    ring = {"s": 130, "facecolor": "none", "edgecolor": COLOURS[3], "lw": 1.6}
    cost.scatter(below.block, below.gated, label="below the original", zorder=4, **ring)
    cost.axhline(0, color="#777777", lw=1)
    shown = [*table.all_linear, *low, *high, *table.random, *table.oracle_at_it]
    percent_axis(cost, np.nan_to_num(shown))
    cost.set(ylabel="cost, % of the base perplexity", title=f"{name}: one block gated")
    figure.legend(loc="outside lower center", ncols=5, fontsize=9)
    block_axis(cost, n_blocks)
    value, low, high = in_percent(gain)
    bars = np.nan_to_num([value - low, high - value])
    less.errorbar(
        list(gain), value, bars, fmt=MARKERS[1], color=COLOURS[0], capsize=2, elinewidth=1
    )
    less.axhline(0, color="#777777", lw=1)
    percent_axis(less, [*(value - bars[0]), *(value + bars[1])])
    less.set(
        ylabel="difference, % of the base perplexity",
        title="Linear gate less a random router of its share",
    )
    block_axis(less, n_blocks)
    return figure


def auc_figure(table: pd.DataFrame, name: str, n_blocks: int) -> plt.Figure:
    """Held-out AUC and the share sent to the map, by block and kind of gate.

    table: that of `auc_table`.
    """
    figure, (auc, share) = plt.subplots(1, 2, figsize=(12.8, 4.2))
    kinds = list(dict.fromkeys(table.kind))
    for ax, (low, high), label in ((auc, PRINTED_AUC, "AUC"), (share, PRINTED_SHARE, "share")):
        text = f"printed for GPT-2 Medium: {label} {low:g} to {high:g}"
        ax.axhspan(low, high, color="#EEEEEE", zorder=0, label=text)
        ax.axhline(0.5, color="#777777", lw=1, ls=":")
    for k, kind in enumerate(kinds):
        rows = table[table.kind == kind]
        at = rows.block + 0.12 * (k - (len(kinds) - 1) / 2)
        look = {"color": (SUBJECT, *COLOURS)[k], "marker": MARKERS[k], "ls": "", "label": kind}
        if k == 0:
            bars = np.nan_to_num([rows.auc - rows.joint_low, rows.joint_high - rows.auc])
            auc.errorbar(at, rows.auc, bars, capsize=2, elinewidth=1, **look)
        else:
            auc.plot(at, rows.auc, ms=4, **look)
        share.plot(at, rows.linear_share, ms=4, **look)
    auc.set(ylabel="AUC on unseen documents", title=f"{name}: how well gates rank positions")
    share.set(ylabel="share sent to the map", ylim=(-0.03, 1.03), title="How much they route")
    for ax in (auc, share):
        ax.legend(loc="best", fontsize=8.5, ncols=2)
        block_axis(ax, n_blocks)
    return figure


def delta_figure(
    table: pd.DataFrame, single: Mapping[int, tuple], name: str, n_blocks: int
) -> plt.Figure:
    """δ by block as percentiles, and the same positions by two readings.

    table: that of `tails`. single: {block: (δ with the map at that position alone, δ with the map
    at all)}, each flat.
    """
    figure, (spread, plane) = plt.subplots(1, 2, figsize=(12.8, 4.6), width_ratios=(1.5, 1))
    band = {"color": COLOURS[0], "lw": 0}
    spread.fill_between(table.block, table.p5, table.p95, alpha=0.2, label="5% to 95%", **band)
    spread.fill_between(table.block, table.p25, table.p75, alpha=0.45, label="25% to 75%", **band)
    spread.plot(table.block, table.p50, color=COLOURS[0], label="median")
    spread.plot(table.block, table["mean"], color=SUBJECT, ls="--", marker="o", ms=4, label="mean")
    spread.set_yscale("symlog", linthresh=0.1)
    spread.axhline(0, color="#777777", lw=1)
    spread.set(ylabel="δ (nats)", title=f"{name}: δ over positions")
    spread.legend(loc="best", fontsize=9)
    block_axis(spread, n_blocks)
    for k, (block, (alone, together)) in enumerate(single.items()):
        look = {"color": COLOURS[k % 6], "marker": MARKERS[k % 6], "ls": "", "ms": 3.5}
        plane.plot(alone, together, alpha=0.6, label=f"block {block}", **look)
    plane.axline((0, 0), slope=1, color="#777777", lw=1)
    plane.set_xscale("symlog", linthresh=0.1)
    plane.set_yscale("symlog", linthresh=0.1)
    plane.set(
        xlabel="δ with the map at this position alone (nats)",
        ylabel="δ with the map at all positions (nats)",
        title="Two readings of δ",
    )
    plane.legend(loc="best", fontsize=8.5)
    return figure
