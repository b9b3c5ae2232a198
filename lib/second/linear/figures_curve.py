"""Figure of the learning curve: what a larger token budget would still add to R²_lin."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from lib.second.base.style import COLOURS, SUBJECT
from lib.second.stats.intervals import fold_mean


def curve_figure(table, limits, name: str) -> plt.Figure:
    """R² against the training tokens, one panel a block: least squares and ridge with the 95%
    intervals of their fold means, and the limit at n → ∞ with its own at the right edge.

    table: columns block, fold, budget, n_tokens, r2, r2_ridge (LearningCurve.table of each block).
    limits: columns block, r2_limit, limit_low, limit_high (Recoverability.limits). A panel shows R²
    down to half under its limit at most; a budget whose R² lies lower leaves it by the bottom edge.
    """
    n_columns = min(len(limits), 3)
    n_rows = -(-len(limits) // n_columns)
    figure, axes = plt.subplots(
        n_rows,
        n_columns,
        figsize=(1.2 + 3.7 * n_columns, 0.9 + 3.1 * n_rows),
        squeeze=False,
    )
    looks = {
        "r2": {"color": SUBJECT, "marker": "o", "ls": "-", "label": "least squares"},
        "r2_ridge": {
            "color": COLOURS[0],
            "marker": "s",
            "ls": "--",
            "label": "ridge chosen on the other folds",
        },
    }
    for ax, limit in zip(axes.flat, limits.itertuples()):
        block = table[table.block == limit.block]
        shown = [limit.r2_limit, limit.limit_low, limit.limit_high]
        n_tokens = block.groupby("budget").n_tokens.mean().to_numpy()
        infinity = n_tokens[-1] * (n_tokens[-1] / n_tokens[0]) ** 0.45
        for k, (column, look) in enumerate(looks.items()):
            means = [fold_mean(v) for _, v in block.groupby("budget")[column]]
            value, low, high = (
                np.array([getattr(m, end) for m in means]) for end in ("value", "low", "high")
            )
            # The ridge stands a little to the right, so that the two error bars do not collide.
            at = n_tokens * (1 + 0.07 * k)
            ax.errorbar(at, value, (value - low, high - value), capsize=2, elinewidth=1.1, **look)
            shown += [*low, *high]
        if np.isfinite(limit.r2_limit):
            below, above = limit.r2_limit - limit.limit_low, limit.limit_high - limit.r2_limit
            ends = np.nan_to_num([[below], [above]])
            ax.axhline(limit.r2_limit, color=COLOURS[1], lw=1, ls=":")
            ax.errorbar(
                [infinity],
                [limit.r2_limit],
                ends,
                color=COLOURS[1],
                marker="D",
                ls="",
                capsize=4,
                elinewidth=1.8,
                label="limit of both, with its interval",
            )
        _ranges(ax, np.array(shown, float), limit.r2_limit)
        ax.axvline((n_tokens[-1] * infinity) ** 0.5, color="#BBBBBB", lw=1)
        _token_axis(ax, n_tokens, infinity)
        ax.set(xlabel="training tokens", title=f"block {limit.block}")
    for ax in axes.flat[len(limits) :]:
        figure.delaxes(ax)
    for ax in axes[:, 0]:
        ax.set_ylabel("held-out $R^2$")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    figure.suptitle(f"{name}: recoverability against the token budget", fontweight="bold")
    return figure


def _ranges(ax: plt.Axes, shown: np.ndarray, limit: float) -> None:
    """At least a tenth of R² high, so that noise is not magnified, and cut half under the limit."""
    shown = shown[np.isfinite(shown)]
    top = min(max(shown), 1.0)
    bottom = max(min(shown), (limit if np.isfinite(limit) else top) - 0.5)
    room = max(top - bottom, 0.1)
    middle = min((top + bottom) / 2, 1 - room / 2)
    ax.set_ylim(middle - 0.56 * room, middle + 0.56 * room)


def _token_axis(ax: plt.Axes, n_tokens: np.ndarray, infinity: float) -> None:
    """A log axis with the budgets' own numbers, and ∞ behind a line."""
    ax.set_xscale("log")
    ax.set_xlim(n_tokens[0] / 1.3, infinity * 1.3)
    ax.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    shown = n_tokens[::-2]  # the largest, and every other one: their numbers have room
    ax.set_xticks([*shown, infinity], [*map(_short, shown), "∞"])


def _short(n: float) -> str:
    """980, 6.1k, 98k."""
    if n < 1000:
        return f"{n:.0f}"
    return f"{n / 1000:.1f}k" if n < 9950 else f"{n / 1000:.0f}k"
