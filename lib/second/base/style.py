"""One house style for figures: legible at half size, safe for colour-blind readers and grey
printing."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
from adjustText import adjust_text

# Okabe-Ito colours, in an order whose greys also differ; black is kept for the subject of the run.
SUBJECT = "#000000"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
COLUMN = "blocks with massive tokens"
"""what a shaded column stands for"""


def style() -> None:
    """Switch the house style on."""
    sns.set_theme(
        context="notebook",
        style="ticks",
        palette=COLOURS,
        rc={
            "figure.dpi": 110,
            "savefig.dpi": 200,
            "savefig.bbox": "tight",
            "figure.constrained_layout.use": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.color": "#E4E4E4",
            "grid.linewidth": 0.7,
            "axes.titlesize": 12,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.labelsize": 11,
            "legend.frameon": False,
            "legend.fontsize": 10,
            "xtick.labelsize": 10,
            "ytick.labelsize": 10,
            "lines.linewidth": 1.8,
            "lines.markersize": 5,
            "svg.hashsalt": "nonlinearity-budget",
            "svg.fonttype": "none",
        },
    )


def block_axis(ax: plt.Axes, n_blocks: int) -> None:
    """Integer block numbers on the x axis."""
    ax.set_xlabel("block (zero-indexed)")
    ax.set_xlim(-0.6, n_blocks - 0.4)
    ax.xaxis.set_major_locator(
        mpl.ticker.MaxNLocator(integer=True, nbins=10 if n_blocks > 15 else 7)
    )


def shade_blocks(ax: plt.Axes, blocks) -> None:
    """A shaded column behind each of `blocks`, with one entry in the legend."""
    for k, block in enumerate(blocks):
        look = {"color": COLOURS[1], "alpha": 0.18, "lw": 0, "zorder": 0}
        ax.axvspan(block - 0.5, block + 0.5, label=None if k else COLUMN, **look)


def percent_axis(ax: plt.Axes, values, linear_to: float = 1.0) -> None:
    """A symmetric-log y axis around `values`, costs in percent that span several powers of ten."""
    percent_scale(ax, "y", values, linear_to)
    low, high = min(values), max(values)
    ax.set_ylim(1.6 * low if low < 0 else -0.3 * linear_to, 2 * max(high, linear_to))


def percent_scale(ax: plt.Axes, which: str, values, linear_to: float = 1.0) -> None:
    """The symmetric-log scale of axis `which` ("x" or "y") for costs in percent; ticks at every
    second power of ten where there are many."""
    getattr(ax, f"set_{which}scale")("symlog", linthresh=linear_to)
    ticks = mpl.ticker.SymmetricalLogLocator(base=10, linthresh=linear_to)
    if max(values) > 1e4 * linear_to:
        ticks = mpl.ticker.FixedLocator([-100, -1, 0, *(linear_to * 100.0**k for k in range(6))])
    axis = getattr(ax, f"{which}axis")
    axis.set_major_locator(ticks)
    axis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: _percent(v)))


def _percent(value: float) -> str:
    """A tick's label, such as +10%; a power of ten where that is shorter."""
    if abs(value) >= 1e4:
        return f"$+10^{{{round(np.log10(abs(value)))}}}$%"
    return f"{value:+,.4g}%" if value else "0"


def power_of_ten(value: float) -> str:
    """A large number as 4 × 10⁸, in mathtext."""
    digits, exponent = f"{value:.0e}".split("e")
    return rf"${digits} \times 10^{{{int(exponent)}}}$"


def number_points(ax: plt.Axes, table, x: str, y: str, lettered: str = SUBJECT) -> None:
    """Write the block of each row of `table` beside its point (columns `x`, `y`), clear of
    each other, of points and of bars; names with a letter, such as those of the
    papers' blocks, in the colour `lettered`. To be called when the axes have their limits.
    """
    rows = zip(table.block, table[x], table[y], strict=True)
    texts = [ax.text(at_x, at_y, str(block), fontsize=11) for block, at_x, at_y in rows]
    for text in texts:
        text.set_color(SUBJECT if text.get_text().isdecimal() else lettered)
    ax.figure.draw_without_rendering()
    points = np.concatenate([table[[x, y]], _taken(ax)])
    adjust_text(
        texts,
        *points.T,
        ax=ax,
        expand=(1.5, 1.6),
        iter_lim=300,  # else it stops after a second, and no run repeats another's picture
        arrowprops={"arrowstyle": "-", "color": "#999999", "lw": 0.6},
    )


def _taken(ax: plt.Axes) -> np.ndarray:
    """Points that a label should keep clear of, [n, 2]: the centre and edge of every marker of a
    scatter plot, and points along every error bar."""
    pixels = [np.empty((0, 2))]
    for drawn in ax.collections:
        if isinstance(drawn, mpl.collections.PathCollection):
            centres = ax.transData.transform(drawn.get_offsets())  # [n_points, 2]
            sizes = np.broadcast_to(drawn.get_sizes(), len(centres))
            radii = np.sqrt(sizes)[:, None] / 2 * ax.figure.dpi / 72  # a size is an area in points
            for direction in ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)):
                pixels.append(centres + radii * np.array(direction))
        elif isinstance(drawn, mpl.collections.LineCollection):
            for bar in drawn.get_segments():
                pixels.append(np.linspace(*ax.transData.transform(bar[[0, -1]]), 9))
    return ax.transData.inverted().transform(np.concatenate(pixels))
