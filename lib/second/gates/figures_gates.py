"""Figures of gated blocks: cost beside random and oracle routers, AUC, and the distribution of δ
(Balogh Figure 1, §4.2, §4.4)."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lib.second.base.style import COLOURS, MARKERS, SUBJECT, block_axis, percent_axis
from lib.second.gates.figures_cost import in_percent
from lib.second.stats.intervals import Interval

PRINTED_AUC = (0.54, 0.61)
PRINTED_SHARE = (0.25, 0.56)
"""of GPT-2 Medium's gates (Balogh §4.2)"""
APART = 0.2
"""of a block, between a marker and its block's place where two stand side by side"""


def gated_figure(
    table: pd.DataFrame,
    gate: Mapping[int, Interval],
    gains: Mapping[str, Mapping[int, Interval]],
    name: str,
    n_blocks: int,
) -> plt.Figure:
    """Balogh Figure 1 and what it lacks: on the left best gates and random routers of their shares,
    on the right gates at the linear gate's share; above costs, below differences from random.

    table: columns block, all_linear, gated, random, and linear_gate, larger_at_it, random_at_it,
    first_kept_at_it, oracle_at_it (percent). gate: cost of the best gate. gains: cost less that of
    a random router, of the "best", "linear" and "larger" gates; fractions of the base, jointly over
    blocks.
    """
    figure, ((own, alike), (less, differ)) = plt.subplots(2, 2, figsize=(12.8, 8), sharex=True)
    look = {
        "all positions": {"color": SUBJECT, "marker": MARKERS[0], "lw": 1},
        "random router of that share": {"color": COLOURS[1], "marker": MARKERS[5], "ls": "--"},
        "random, first position kept": {"color": COLOURS[5], "lw": 1, "ls": "-."},
        "best gate": {"color": COLOURS[0], "marker": MARKERS[1], "ls": ""},
        "linear gate": {"color": COLOURS[2], "marker": MARKERS[3], "ls": ""},
        "best larger gate": {"color": COLOURS[4], "marker": MARKERS[4], "ls": ""},
        "positions of lowest δ": {"color": COLOURS[3], "marker": MARKERS[2], "lw": 1, "ls": ":"},
    }
    small = {"ms": 4}

    def line(ax: plt.Axes, column: str, what: str, shift: float = 0) -> None:
        ax.plot(table.block + shift, table[column], label=what, **look[what], **small)

    def bars(ax: plt.Axes, units: Mapping[int, Interval], what: str, shift: float = 0) -> list:
        value, low, high = in_percent(units)
        error = np.nan_to_num([value - low, high - value])
        at = np.array(list(units)) + shift
        ax.errorbar(at, value, error, capsize=1.5, elinewidth=1, label=what, **look[what], **small)
        return [*(value - error[0]), *(value + error[1])]

    line(own, "all_linear", "all positions")
    line(own, "random", "random router of that share")
    shown = [*bars(own, gate, "best gate"), *table.all_linear, *table.random]
    below = table[table.gated < 0]
    ring = {"s": 130, "facecolor": "none", "edgecolor": SUBJECT, "lw": 1.4}
    own.scatter(below.block, below.gated, label="below the original", zorder=4, **ring)
    percent_axis(own, np.nan_to_num(shown))
    line(alike, "random_at_it", "random router of that share")
    line(alike, "first_kept_at_it", "random, first position kept")
    line(alike, "oracle_at_it", "positions of lowest δ")
    line(alike, "linear_gate", "linear gate", -APART)
    line(alike, "larger_at_it", "best larger gate", APART)
    columns = ["random_at_it", "first_kept_at_it", "oracle_at_it", "linear_gate", "larger_at_it"]
    percent_axis(alike, np.nan_to_num(table[columns].to_numpy().ravel()))
    percent_axis(less, bars(less, gains["best"], "best gate"))
    ends = bars(differ, gains["linear"], "linear gate", -APART)
    percent_axis(differ, [*ends, *bars(differ, gains["larger"], "best larger gate", APART)])
    own.set(ylabel="cost, % of the base perplexity", title=f"{name}: best gate, at its own share")
    alike.set_title("At the linear gate's share")
    less.set(ylabel="difference, % of the base perplexity", title="Less random, same shares")
    differ.set_title("Less random, that share")
    for ax in figure.axes:
        ax.axhline(0, color="#777777", lw=1)
        block_axis(ax, n_blocks)
    own.set_xlabel(""), alike.set_xlabel("")
    handles = {
        label: handle
        for ax in (own, alike)
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, fontsize=9)
    return figure


def auc_figure(table: pd.DataFrame, name: str, n_blocks: int) -> plt.Figure:
    """Held-out AUC and the share sent to the map, by block and kind of gate, one above the other.

    table: that of `auc_table`.
    """
    figure, (auc, share) = plt.subplots(2, 1, figsize=(12.8, 7.4), sharex=True)
    kinds = list(dict.fromkeys(table.kind))
    for ax, (low, high) in ((auc, PRINTED_AUC), (share, PRINTED_SHARE)):
        ax.axhspan(low, high, color="#EEEEEE", zorder=0, label="printed for GPT-2 Medium")
        ax.axhline(0.5, color="#777777", lw=1, ls=":")
    for k, kind in enumerate(kinds):
        rows = table[table.kind == kind]
        at = rows.block + 0.17 * (k - (len(kinds) - 1) / 2)  # markers of 30 blocks stay apart
        look = {"color": (SUBJECT, *COLOURS)[k], "marker": MARKERS[k], "ls": "", "ms": 3.6}
        share.plot(at, rows.linear_share, label=kind, **look)
        if k == 0:
            bars = np.nan_to_num([rows.auc - rows.joint_low, rows.joint_high - rows.auc])
            auc.errorbar(at, rows.auc, bars, capsize=1.5, elinewidth=1, **look)
        else:
            auc.plot(at, rows.auc, **look)
    auc.set(ylabel="AUC on unseen documents", title=f"{name}: how well gates rank positions")
    share.set(ylabel="share sent to the map", ylim=(-0.03, 1.03), title="How much they route")
    for ax in (auc, share):
        block_axis(ax, n_blocks)
    auc.set_xlabel("")
    handles, labels = share.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)
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
    block_axis(spread, n_blocks)
    spread.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4, fontsize=9)
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
    plane.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=5, fontsize=9)
    return figure
