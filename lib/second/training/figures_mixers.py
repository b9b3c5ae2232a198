"""Figures of linear and nearly linear language models (Badger)."""

import matplotlib as mpl
import matplotlib.pyplot as plt

from lib.second.base.style import COLOURS, MARKERS, SUBJECT
from lib.second.models.mixers import KINDS
from lib.second.stats.intervals import mean_interval

LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))


def widths_figure(runs) -> plt.Figure:
    """Test loss at the end of training by hidden dimension, by parameters and by FLOPs a token: a
    line a model, mean over seeds with its 95% t-interval; stacked variants are single points.

    runs: the table of `lib.second.training.mixers.sweep`.
    """
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.4), sharey=True)
    looks = dict(zip(KINDS, (SUBJECT, *COLOURS), strict=False))
    shown = list(dict.fromkeys(runs.model))
    for ax, by in zip(axes, ("width", "parameters", "flops"), strict=True):
        for k, model in enumerate(shown):
            rows = runs[runs.model == model]
            table = rows.pivot(index="seed", columns=by, values="loss")
            found = mean_interval(table)
            many, kind = table.shape[1] > 1, rows.kind.iloc[0]
            half = (found.high - found["mean"]).where(lambda h: h < 1, 0)
            ax.errorbar(
                found.index,
                found["mean"],
                half,
                color=looks[kind],
                marker=MARKERS[k % len(MARKERS)],
                ls=LINES[list(KINDS).index(kind)] if many else "none",
                mfc=looks[kind] if many else "white",
                capsize=2,
                lw=1.4,
                label=model,
            )
        ax.set_xscale("log", base=2 if by == "width" else 10)
    axes[0].axvline(runs.vocab.iloc[0], color="#888888", lw=1, ls=":")
    axes[0].annotate(
        "m = |t|",
        (runs.vocab.iloc[0], 1),
        xycoords=("data", "axes fraction"),
        xytext=(3, -10),
        textcoords="offset points",
        fontsize=9,
    )
    axes[0].xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:,.0f}"))
    axes[0].set(xlabel="hidden dimension m", ylabel="test loss (nats per token)")
    axes[1].set(xlabel="parameters")
    axes[2].set(xlabel="FLOPs a token, forward")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=9
    )
    return figure


def differences_figure(groups) -> plt.Figure:
    """Differences of loss with their joint 95% intervals, a panel a group, and the margin of
    equivalence as a band.

    groups: {title: {what: Interval}}.
    """
    heights = [max(1, len(units)) for units in groups.values()]
    figure, axes = plt.subplots(
        len(groups),
        1,
        figsize=(8, 0.8 + 0.42 * sum(heights) + 0.35 * len(groups)),
        sharex=True,
        squeeze=False,
        gridspec_kw={"height_ratios": heights},
    )
    for ax, (title, units) in zip(axes[:, 0], groups.items(), strict=True):
        ax.axvspan(-0.04, 0.04, color="#E4E4E4", lw=0)
        ax.axvline(0, color="#888888", lw=1)
        for y, found in enumerate(reversed(units.values())):
            if found.low < found.high:
                ax.plot([found.low, found.high], [y, y], color=COLOURS[0], lw=2)
            ax.plot(found.value, y, marker="o", color=COLOURS[0])
            ax.annotate(
                f"{found.value:+.3f}".replace("-", "−"),
                (1.01, y),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=9,
            )
        ax.set_yticks(range(len(units)), list(reversed(units)), fontsize=9)
        ax.set_ylim(-0.6, len(units) - 0.4)
        ax.set_title(title, fontsize=10)
    axes[-1, 0].set_xlabel("difference of test loss (nats per token)")
    return figure


def rollout_figure(costs, agreement) -> plt.Figure:
    """What n vectors of a linear rollout cost, counted, and how long its text is the decoded one.

    costs: columns n, rounds, and multiplications of one_by_one, powers, doubling. agreement:
    columns position (1 the first new token), mean, low, high.
    """
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.2))
    ways = {"one_by_one": "one by one", "powers": "powers of Q", "doubling": "parallel (doubling)"}
    for k, (way, label) in enumerate(ways.items()):
        look = {"color": COLOURS[k], "marker": MARKERS[k], "ls": LINES[k], "label": label}
        axes[0].plot(costs.n, costs[way], **look)
    axes[0].set(xlabel="vectors n", ylabel="multiplications", title="work")
    axes[0].set_yscale("log")
    axes[1].plot(costs.n, costs.n, color=COLOURS[0], marker=MARKERS[0], label="one by one")
    axes[1].plot(
        costs.n, costs.rounds, color=COLOURS[2], marker=MARKERS[2], ls=LINES[2], label="parallel"
    )
    axes[1].set(xlabel="vectors n", ylabel="rounds, one after another", title="rounds")
    axes[1].set_yscale("log", base=2)
    axes[1].yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:,.0f}"))
    for ax in axes[:2]:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:,.0f}"))
        ax.legend(fontsize=9)
    axes[2].fill_between(
        agreement.position, agreement.low, agreement.high, color=COLOURS[0], alpha=0.2, lw=0
    )
    axes[2].plot(agreement.position, agreement["mean"], color=COLOURS[0], marker="o", ms=3)
    axes[2].set(xlabel="new token", ylabel="share that agree", title="text", ylim=(-0.03, 1.03))
    return figure


def memory_figure(memory) -> plt.Figure:
    """Entries of Q over those of W and H by m / |t|. memory: columns share, ratio."""
    figure, ax = plt.subplots(figsize=(6, 3.4))
    ax.plot(memory.share, memory.ratio, color=COLOURS[0], marker="o")
    ax.axhline(1, color="#888888", lw=1)
    ax.axvline(0.5, color="#888888", lw=1, ls=":")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    ax.set(xlabel="m / |t|", ylabel="entries of Q / (W and H)")
    return figure


def bits_figure(bits, beside) -> plt.Figure:
    """Bits per byte by vocabulary, a panel a way to fix the context: linear mixers (mean over seeds
    with 95% t-interval) and n-gram models; compressors as lines across.

    bits: columns fixed, model, vocab, seed, bits_per_byte. beside: {name: bits per byte}.
    """
    ways = list(bits.fixed.unique())
    figure, axes = plt.subplots(1, len(ways), figsize=(5.6 * len(ways), 4.6), sharey=True)
    for ax, fixed in zip(axes, ways, strict=True):
        for k, (model, rows) in enumerate(bits[bits.fixed == fixed].groupby("model", sort=False)):
            found = mean_interval(rows.pivot(index="seed", columns="vocab", values="bits_per_byte"))
            look = {"color": (SUBJECT, *COLOURS)[k], "marker": MARKERS[k], "ls": LINES[k]}
            half = (found.high - found["mean"]).where(lambda h: h < 1, 0)
            ax.errorbar(found.index, found["mean"], half, capsize=2, label=model, **look)
        for k, (name, value) in enumerate(beside.items()):
            ax.axhline(value, color="#888888", lw=1, ls=LINES[k % len(LINES)], label=name)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:,.0f}"))
        ax.set(xlabel="vocabulary |t| (d_m = |t|)", title=f"context fixed in {fixed}")
    axes[0].set_ylabel("bits per byte")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9
    )
    return figure
