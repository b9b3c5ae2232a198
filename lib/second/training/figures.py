"""Figures of models in training (Whipp §5.2)."""

import matplotlib.pyplot as plt
import numpy as np

from lib.second.base.style import COLOURS, MARKERS, SUBJECT, block_axis
from lib.second.stats.intervals import mean_interval

LINES = ("-", "--", "-.", ":")


def models_figure(models) -> plt.Figure:
    """R²_lin of every block of models as they are, against relative depth: mean and 95% interval
    over folds of documents. models: {name: table [fold, block]}."""
    figure, ax = plt.subplots(figsize=(8, 4.2))
    for k, (name, table) in enumerate(models.items()):
        found = mean_interval(table, test_over_train=1 / max(1, len(table) - 1))
        depth = np.linspace(0, 1, len(found))
        look = {"color": (SUBJECT, *COLOURS)[k % 7], "ls": LINES[k % 4]}
        ax.fill_between(depth, found.low, found.high, color=look["color"], alpha=0.15, lw=0)
        ax.plot(depth, found["mean"], marker=MARKERS[k % 6], ms=4, lw=1.3, label=name, **look)
    ax.set(xlabel="relative depth (first to last block)", ylabel=r"$R^2_{\mathrm{lin}}$")
    ax.set_ylim(top=1.03)
    figure.legend(loc="outside lower center", ncols=4, fontsize=9)
    return figure


def families_figure(final, start, texts) -> plt.Figure:
    """R²_lin by block after training, one panel a text: colour is the family, a thin line a seed;
    dotted is random initialisation.

    final, start: columns family, text, seed, block, r2.
    """
    figure, axes = plt.subplots(
        1, len(texts), figsize=(5.8 * len(texts), 4.2), sharey=True, squeeze=False
    )
    for ax, text in zip(axes[0], texts, strict=True):
        for k, family in enumerate(final.family.unique()):
            rows = final[(final.family == family) & (final.text == text)]
            for n, (_, seed) in enumerate(rows.groupby("seed")):
                ax.plot(
                    seed.block,
                    seed.r2,
                    color=COLOURS[k],
                    ls=LINES[k],
                    marker=MARKERS[k],
                    ms=4,
                    lw=1.3,
                    alpha=0.85,
                    label=family if n == 0 else None,
                )
            before = (
                start[(start.family == family) & (start.text == text)].groupby("block").r2.mean()
            )
            ax.plot(
                before.index,
                before,
                color=COLOURS[k],
                ls=":",
                lw=1.2,
                label=f"{family}, random" if text == texts[0] else None,
            )
        ax.set(title=f"trained on {text}", ylim=(-0.02, 1.03))
        block_axis(ax, final.block.nunique())
    axes[0, 0].set_ylabel(r"$R^2_{\mathrm{lin}}$")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9
    )
    return figure


def trajectory_figure(profiles) -> plt.Figure:
    """R²_lin of each block along training, one panel a family: mean and range over seeds.
    profiles: columns family, seed, step, block, r2."""
    families, n = list(profiles.family.unique()), profiles.block.nunique()
    figure, axes = plt.subplots(
        1, len(families), figsize=(4.5 * len(families), 4), sharey=True, squeeze=False
    )
    shades = plt.get_cmap("viridis")(np.linspace(0.05, 0.9, n))
    for ax, family in zip(axes[0], families, strict=True):
        for block, rows in profiles[profiles.family == family].groupby("block"):
            by = rows.groupby("step").r2.agg(["mean", "min", "max"])
            ax.fill_between(by.index, by["min"], by["max"], color=shades[block], alpha=0.18, lw=0)
            ax.plot(
                by.index,
                by["mean"],
                color=shades[block],
                marker=MARKERS[block % 6],
                ms=4,
                label=f"block {block}",
            )
        ax.set_xscale("symlog", linthresh=max(1, float(profiles.step[profiles.step > 0].min())))
        ax.set(title=family, xlabel="training steps", ylim=(-0.02, 1.03))
    axes[0, 0].set_ylabel(r"$R^2_{\mathrm{lin}}$")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=n, fontsize=9
    )
    return figure


def shares_figure(shares) -> plt.Figure:
    """Shares of the variance of R² as bars, a panel for each design; a tick where pure noise would
    put each.

    shares: columns varied (the factor besides family and block), term, degrees, share, kind.
    """
    designs, kinds = list(shares.varied.unique()), list(dict.fromkeys(shares.kind))
    figure, axes = plt.subplots(
        1, len(designs), figsize=(6 * len(designs), 3.4), sharex=True, squeeze=False
    )
    colours = dict(zip(kinds, (SUBJECT, *COLOURS), strict=False))
    for ax, varied in zip(axes[0], designs, strict=True):
        rows = shares[shares.varied == varied].iloc[::-1]
        noise = rows.degrees / rows.degrees.sum()
        fills = [colours[k] for k in rows.kind]
        # An edge, so that the smallest share shows.
        ax.barh(rows.term.str.replace(":", " × "), rows.share, color=fills, edgecolor=fills)
        ax.plot(noise, range(len(rows)), ls="none", marker="|", ms=11, mew=2, color="#888888")
        for y, share in enumerate(rows.share):
            ax.annotate(
                f"{share:.1%}",
                (1, y),
                xycoords=("axes fraction", "data"),
                xytext=(-4, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=9,
            )
        ax.set(
            title=f"{varied}s varied",
            xlabel="share of the variance of $R^2_{\\mathrm{lin}}$",
            xlim=(0, 1.2 * max(shares.share.max(), noise.max())),
        )
    handles = [
        *(plt.Rectangle((0, 0), 1, 1, color=colours[k]) for k in kinds),
        plt.Line2D([], [], ls="none", marker="|", ms=11, mew=2, color="#888888"),
    ]
    figure.legend(handles, [*kinds, "pure noise"], loc="outside lower center", ncols=5, fontsize=9)
    return figure
