"""The figure of the trained candidates (Whipp §5.5)."""

import matplotlib.pyplot as plt
import pandas as pd

from lib.second.base.style import COLOURS, SUBJECT


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
