"""Figures of No-Fly lists on the text that they are made on and on others (Balogh Table 5)."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from lib.second.base.style import COLOURS, MARKERS, SUBJECT
from lib.second.gates.lists import LEAST, THRESHOLD
from lib.second.gates.lists_worlds import WORLDS


def types_figure(pairs, name: str) -> plt.Figure:
    """Mean δ of each type in the list's text and in another, a panel a text: what is listed is
    cut out of a cloud of noisy means.

    pairs: {title: Pair}.
    """
    size = (4.6 * len(pairs), 4.5)
    figure, axes = plt.subplots(1, len(pairs), figsize=size, sharex=True, sharey=True)
    for ax, (title, both) in zip(np.atleast_1d(axes), pairs.items(), strict=True):
        (n, s), (m, u) = (t.of(np.ones(len(t.counts))) for t in (both.first, both.second))
        known = m >= LEAST
        a, b = s[known] / n[known], u[known] / m[known]
        for listed, colour, label in (
            (False, "#999999", "not listed"),
            (True, COLOURS[1], "listed"),
        ):
            here = (a > THRESHOLD) == listed
            marker = {"s": 14, "marker": MARKERS[listed], "lw": 0, "alpha": 0.7}
            ax.scatter(a[here], b[here], color=colour, label=label, **marker)
            if here.any():
                ends = [a[here].min(), a[here].max()]
                ax.plot(ends, [b[here].mean()] * 2, color=colour, lw=2, label=f"mean, {label}")
        same = {"color": SUBJECT, "lw": 1, "ls": ":", "label": "no change"}
        ax.plot([a.min(), a.max()], [a.min(), a.max()], **same)
        ax.axhline(THRESHOLD, color="#777777", lw=1, ls="--", label="threshold of the list")
        ax.axhline(0, color="#777777", lw=1)
        for scale in (ax.set_xscale, ax.set_yscale):
            scale("symlog", linthresh=0.05)
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(
                mpl.ticker.FixedLocator([-1, -0.3, -0.1, -0.05, 0, 0.05, 0.1, 0.3, 1])
            )
            axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
            axis.set_minor_locator(mpl.ticker.NullLocator())
        ax.set(xlabel="mean δ in the list's documents, nats", title=title)
    np.atleast_1d(axes)[0].set_ylabel("mean δ there, nats")
    handles = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=6, fontsize=9)
    figure.suptitle(name, fontsize=11)
    return figure


def rates_figure(table, worlds, name: str, printed) -> plt.Figure:
    """Table 5 as a figure: shares that stay and flip, and the correlation, of listed types and of
    matched ones, above what the worlds of noise and of stable types would show.

    table: columns text, statistic, mean, low, high; worlds: the same and world; printed:
    {statistic: values in the order of texts}.
    """
    texts = list(dict.fromkeys(table.text))
    panels = {
        "Still listed": ("still", "base_still"),
        "Flipped": ("flipped", "base_flipped"),
        "Correlation of mean δ": ("r_listed", "r_frequent"),
    }
    figure, axes = plt.subplots(1, 3, figsize=(13.2, 1.15 * len(texts) + 2.2), sharey=True)
    for ax, (title, pair) in zip(axes, panels.items(), strict=True):
        for k, statistic in enumerate(pair):
            rows = table[table.statistic == statistic].set_index("text").loc[texts]
            at = np.arange(len(texts)) + 0.17 * k - 0.3
            bars = np.nan_to_num([rows["mean"] - rows.low, rows.high - rows["mean"]])
            label = ("listed", "not listed: matched by count, or all frequent types")[k]
            point = {"fmt": MARKERS[k], "capsize": 3, "color": (COLOURS[1], "#777777")[k]}
            ax.errorbar(rows["mean"], at, xerr=bars.clip(0), label=label, **point)
        for k, (world, colour) in enumerate((("noise", COLOURS[5]), ("stable", COLOURS[2]))):
            rows = worlds[(worlds.world == world) & (worlds.statistic == pair[0])]
            rows = rows.set_index("text").loc[texts]
            for y, row in enumerate(rows.itertuples()):
                label = f"listed, if {WORLDS[world]}" if not y else None
                span = {"height": 0.13, "color": colour, "alpha": 0.6, "lw": 0}
                ax.barh(y + 0.06 + 0.17 * k, row.high - row.low, left=row.low, label=label, **span)
        theirs = printed.get(pair[0], ())
        diamond = {"marker": "D", "facecolor": "none", "edgecolor": SUBJECT, "zorder": 3}
        if theirs:
            at = np.arange(len(theirs)) - 0.3
            ax.scatter(theirs, at, label="listed, GPT-2 Medium, printed", **diamond)
        ax.axvline(0, color="#777777", lw=1)
        ax.set_yticks(range(len(texts)), texts)
        ax.set(ylim=(len(texts) - 0.4, -0.6), title=title)
        of_types = "r_" not in pair[0]
        ax.set_xlim((-0.03, 1.03) if of_types else (-1.05, 1.05))
        ax.set_xlabel("share of types" if of_types else "correlation")
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=9)
    figure.suptitle(name, fontsize=11)
    return figure
