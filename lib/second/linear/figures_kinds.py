"""Figures of the kinds of linearity: ranks, weighings, swap costs, and who carries the variance
(Whipp §5.4, §6, §8)."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd

from lib.second.base.style import COLOURS, SUBJECT, block_axis, number_points, percent_axis

LEDGER = {"color": "#777777", "ls": (0, (1, 2)), "lw": 1.2}
"""lines at thresholds of the ledger"""
POINTS = {"fmt": "o", "color": SUBJECT, "ms": 4.5, "capsize": 2, "elinewidth": 1}


def kinds_figure(
    table, name: str, published, recovered: float, limits: tuple[float, float]
) -> plt.Figure:
    """Whipp Figure 4: R²_lin against the per-feature median, area by effective rank; and the rank
    by block.

    table: columns block, r2_lin, r2_feature_median, effective_rank, rank_low, rank_high,
    effective_rank_standardized, effective_rank_whitened. published: columns subject, block, r2_lin,
    per_feature_r2_median, effective_rank. `recovered` is the R²_lin from which a block counts as
    well recovered, `limits` the ranks below and above which it counts as of low or high rank.
    """
    figure, (plane, ranks) = plt.subplots(1, 2, figsize=(11.5, 5.4), width_ratios=(1.1, 1.2))
    _plane(plane, table, name, published, recovered)
    ends = table.effective_rank - table.rank_low.clip(lower=1), table.rank_high
    bars = ends[0].clip(lower=0), (ends[1] - table.effective_rank).clip(lower=0)
    looks = {"color": SUBJECT, "marker": "o", "capsize": 2, "elinewidth": 1.1}
    ranks.errorbar(table.block, table.effective_rank, bars, label="as the paper has it", **looks)
    for column, label, colour, marker, dash in (
        ("standardized", "features at unit variance", COLOURS[1], "s", "--"),
        ("whitened", "outputs whitened", COLOURS[0], "^", ":"),
    ):
        values = table[f"effective_rank_{column}"]
        ranks.plot(table.block, values, color=colour, ls=dash, marker=marker, label=label)
    for limit in limits:
        ranks.axhline(limit, **LEDGER)
    ranks.set(ylabel="effective rank (90% of $R^2$)", yscale="log", ylim=(0.8, None))
    ranks.set_title(f"{name}: directions of the linear map")
    _plain_ticks(ranks)
    block_axis(ranks, len(table))
    figure.legend(*ranks.get_legend_handles_labels(), loc="outside lower right", ncols=3)
    return figure


def _plane(ax: plt.Axes, table, name: str, published, recovered: float) -> None:
    """Per-feature median against R²_lin."""

    def area(rank):
        return 14 + 1.1 * rank

    ax.axline((0, 0), slope=1, color="#BBBBBB", lw=1)
    ax.axvline(recovered, **LEDGER)
    sizes = area(table.effective_rank.fillna(0))
    looks = {"color": COLOURS[0], "alpha": 0.55, "edgecolor": "white", "label": name}
    ax.scatter(table.r2_lin, table.r2_feature_median, s=sizes, **looks)
    rings = {"facecolor": "none", "edgecolor": COLOURS[1], "lw": 1.6, "label": "the paper's"}
    sizes = area(published.effective_rank)
    ax.scatter(published.r2_lin, published.per_feature_r2_median, s=sizes, **rings)
    low = min(0, 1.1 * table.r2_feature_median.min(), 1.1 * table.r2_lin.min())
    ax.set(xlim=(low, 1.1), ylim=(low, 1.06), title="Two kinds of linearity")
    ax.set(xlabel=r"$R^2_{\mathrm{lin}}$ (variance-weighted)", ylabel="per-feature median $R^2$")
    for rank in (1, 100, 300):
        ax.scatter([], [], s=area(rank), color="#BBBBBB", label=f"rank {rank}")
    ax.legend(loc="upper left", handletextpad=0.3, labelspacing=0.8)
    apart = table.r2_lin - table.r2_feature_median
    chosen = sorted({*apart.nlargest(5).index, *table.r2_lin.nlargest(6).index})
    letters = published.subject.str[0].str.upper() + published.block.astype(str)
    ours = table.loc[chosen, ["block", "r2_lin", "r2_feature_median"]]
    theirs = published.rename(columns={"per_feature_r2_median": "r2_feature_median"})
    theirs = theirs.assign(block=letters)[ours.columns]
    both = [*ours.to_dict("records"), *theirs.to_dict("records")]
    number_points(ax, pd.DataFrame(both), "r2_lin", "r2_feature_median", lettered=COLOURS[1])


def weighings_figure(table, name: str) -> plt.Figure:
    """Effective rank against the rank of the raw weight spectrum (Whipp §3.3), and the per-feature
    median against R² on whitened outputs (§8).

    table: columns block, spectrum_rank, effective_rank, r2_whitened, r2_feature_median.
    """
    figure, (spectrum, white) = plt.subplots(1, 2, figsize=(11, 4.4))
    spectrum.scatter(table.spectrum_rank, table.effective_rank, s=26, color=SUBJECT)
    spectrum.set(yscale="log", xlabel="singular values of $W^*$ that hold 90% of its square")
    spectrum.set(ylabel="effective rank (90% of $R^2$)", title=f"{name}: weights against use")
    _plain_ticks(spectrum)
    white.scatter(table.r2_whitened, table.r2_feature_median, s=26, color=SUBJECT)
    white.set(xlabel="$R^2$ on whitened outputs", ylabel="per-feature median $R^2$")
    white.set_title("Directions alike against features alike")
    lowest = table.effective_rank.nsmallest(4).index
    ends = [*table.spectrum_rank.nsmallest(2).index, *table.spectrum_rank.nlargest(2).index]
    number_points(spectrum, table.loc[sorted({*lowest, *ends})], "spectrum_rank", "effective_rank")
    ends = [*table.r2_feature_median.nlargest(3).index, *table.r2_whitened.nlargest(3).index]
    number_points(white, table.loc[sorted({*lowest, *ends})], "r2_whitened", "r2_feature_median")
    return figure


def costs_figure(table, name: str) -> plt.Figure:
    """What a linear swap costs against two readings of the same fit: R²_lin, weighted by variance,
    and the per-feature median.

    table: columns block, r2_lin, r2_feature_median, delta_ppl_percent(_low, _high).
    """
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True)
    value, low, high = (table[f"delta_ppl_percent{end}"] for end in ("", "_low", "_high"))
    labels = {
        "r2_lin": r"$1 - R^2_{\mathrm{lin}}$",
        "r2_feature_median": "1 − median per-feature $R^2$",
    }
    extreme = {*value.nlargest(5).index, *table.r2_lin.nlargest(4).index}
    for ax, (column, label) in zip(axes, labels.items(), strict=True):
        left = table.assign(left=1 - table[column])
        ax.errorbar(left.left, value, (value - low, high - value), **POINTS)
        percent_axis(ax, [*low, *high])
        ax.set(xlabel=label)
        number_points(ax, left.loc[sorted(extreme)], "left", "delta_ppl_percent")
    axes[0].set(ylabel="ΔPPL of a linear swap", title=f"{name}: weighted by variance")
    axes[1].set_title("every feature alike")
    return figure


def tokens_figure(table, name: str, seq_len: int) -> plt.Figure:
    """Who carries the output variance, and R²_lin without them. table: the columns of notebook
    04's token table."""
    figure, (share, score) = plt.subplots(1, 2, figsize=(11.5, 4.8), width_ratios=(1, 1.15))
    for column, colour, marker, dash, label in (
        ("first_position", COLOURS[0], "o", "-", "first position of the window"),
        ("massive", COLOURS[1], "s", "--", "massive tokens"),
    ):
        looks = {"color": colour, "marker": marker, "ls": dash, "label": label}
        share.plot(table.block, table[f"variance_share_{column}"], **looks)
    share.axhline(1 / seq_len, color="#777777", ls=":", lw=1.2)
    share.set(ylim=(-0.03, 1.03), ylabel="share of the output variance")
    share.set_title(f"{name}: who carries the variance")
    same = table.r2_without_massive
    for values, colour, marker, dash, label in (
        (table.r2_held_out, SUBJECT, "o", "-", "all tokens"),
        (same.where(same > -0.55), COLOURS[1], "s", "--", "same map without massive tokens"),
        (table.r2_refit, COLOURS[2], "D", "-.", "refitted without massive tokens"),
    ):
        looks = {"color": colour, "marker": marker, "ls": dash, "label": label, "ms": 4}
        score.plot(table.block, values, **looks)
    score.set(ylim=(-0.55, 1.03), ylabel="held-out $R^2$", title="What they do to the score")
    for row in table[same < -0.55].itertuples():
        text, place = f"{row.r2_without_massive:.1f}".replace("-", "−"), (row.block, -0.53)
        score.annotate(text, place, ha="center", fontsize=11, color=COLOURS[1])
    for ax, columns in ((share, 1), (score, 1)):
        block_axis(ax, len(table))
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=columns)
    return figure


def _plain_ticks(ax: plt.Axes) -> None:
    """Ranks on a logarithmic axis as 1, 2, 5, 10, …"""
    ax.yaxis.set_major_locator(mpl.ticker.LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
    ax.yaxis.set_minor_formatter(mpl.ticker.NullFormatter())
