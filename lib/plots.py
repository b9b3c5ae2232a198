"""House style, and the chart forms that several notebooks draw. Okabe-Ito colours; legible at half
size and in grey. A form draws on given axes and returns nothing."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

SUBJECT = "#000000"  # the run's own model
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")


def style() -> None:
    """Switch the house style on, and off that a cell shows a figure which the next one goes on
    with: run.figure shows it when it is done."""
    plt.switch_backend(mpl.get_backend())  # now, for a notebook's backend switches it on again
    plt.ioff()
    rc = {
        "figure.dpi": 100,
        "savefig.bbox": "tight",
        "figure.constrained_layout.use": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#E4E4E4",
        "axes.titlesize": 12,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": 11,
        "legend.frameon": False,
        "legend.fontsize": 10,
        "lines.linewidth": 1.8,
        "lines.markersize": 5,
        "svg.hashsalt": "nonlinearity-budget",
        "svg.fonttype": "none",
    }
    sns.set_theme(context="notebook", style="ticks", palette=COLOURS, rc=rc)


def plain_names(figure: plt.Figure, *names: str) -> None:
    """Have names stand in a figure as they are: matplotlib reads signs such as $ as a formula."""
    for text in figure.findobj(mpl.text.Text):
        if any(name in text.get_text() for name in names):
            text.set_parse_math(False)


def block_axis(ax: plt.Axes, n_blocks: int) -> None:
    """Integer block numbers on the x axis."""
    ax.set_xlabel("block (zero-indexed)")
    ax.set_xlim(-0.6, n_blocks - 0.4)
    ax.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True, nbins=10))


def end_label(ax: plt.Axes, x: float, y: float, text: str, colour: str = SUBJECT) -> None:
    """A line's name beside its last point, in its colour."""
    ax.annotate(
        text, (x, y), (6, 0), textcoords="offset points", color=colour, fontsize=10, va="center"
    )


def forest(
    ax: plt.Axes,
    rows: Mapping[str, Sequence],
    labels: Sequence[str],
    printed: Mapping[str, float] | None = None,
) -> None:
    """One row a name with an Interval for each label (None: none), below each other; `printed`: a
    paper's number beside some of them."""
    names = list(rows)
    for k, label in enumerate(labels):
        shift = 0.22 * (k - (len(labels) - 1) / 2)
        known = [(y + shift, rows[n][k]) for y, n in enumerate(names) if rows[n][k] is not None]
        at = [y for y, _ in known]
        values = [i.value for _, i in known]
        ends = [[i.value - i.low for _, i in known], [i.high - i.value for _, i in known]]
        look = dict(fmt=MARKERS[k], color=COLOURS[k], lw=1.2, label=label)
        ax.errorbar(values, at, xerr=np.nan_to_num(ends), **look)
    if printed:
        spots = [names.index(n) for n in printed]
        ax.plot([*printed.values()], spots, "*", color=SUBJECT, ms=11, label="paper", zorder=4)
    ax.axvline(0, color="#999999", lw=1)
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.legend(fontsize=9)


def number_points(ax: plt.Axes, x: Sequence, y: Sequence, names: Sequence) -> None:
    """Each point's name beside it, above and below in turn, for neighbours are often close."""
    for k, (at_x, at_y, name) in enumerate(zip(x, y, names)):
        beside = (4, -11 if k % 2 else 3)  # points of a line
        ax.annotate(str(name), (at_x, at_y), beside, textcoords="offset points", fontsize=9)


def labelled_lines(ax: plt.Axes, table: pd.DataFrame, x: str, y: str, hue: str) -> None:
    """A line with its band (columns low and high) for each value of `hue`, its name at its end;
    names that would stand on each other are moved apart. Scales and limits of x are set before."""
    ends = []
    for k, (name, line) in enumerate(table.groupby(hue, sort=False)):
        line = line.sort_values(x)
        ax.plot(line[x], line[y], marker=MARKERS[k], color=COLOURS[k])
        ax.fill_between(line[x], line.low, line.high, color=COLOURS[k], alpha=0.15, lw=0)
        ends.append((line[x].iloc[-1], line[y].iloc[-1], str(name), COLOURS[k]))
    ax.autoscale_view()
    to_points = 72 / ax.figure.dpi
    taken = -np.inf
    for at_x, at_y, name, colour in sorted(ends, key=lambda end: end[1]):
        height = to_points * ax.transData.transform((at_x, at_y))[1]
        taken = max(height, taken + 13)
        beside = dict(textcoords="offset points", color=colour, fontsize=10, va="center")
        ax.annotate(name, (at_x, at_y), (8, taken - height), **beside)


def by_depth(
    table: pd.DataFrame,
    y: str,
    hue: str,
    ax: plt.Axes,
    colours: Sequence[str] = COLOURS,
) -> None:
    """Lines along depth from a tidy table with a column `block`."""
    palette = list(colours[: table[hue].nunique()])
    sns.lineplot(table, x="block", y=y, hue=hue, palette=palette, lw=1.6, ax=ax)
    block_axis(ax, int(table.block.max()) + 1)


def panels_by_depth(
    axes: Sequence[plt.Axes],
    table: pd.DataFrame,
    panels: Mapping[str, Mapping[str, str]],
    costs: Sequence[str],
    colours: Mapping[str, str],
) -> None:
    """A panel for each title of `panels`, in it a line a model over relative depth for each
    instrument, drawn as its format says; `table` has model, block, instrument, value. Panels that
    show one of `costs` stand on one log scale."""
    for ax, (title, instruments) in zip(axes, panels.items()):
        for name, of in table.groupby("model", sort=False):
            for instrument, look in instruments.items():
                line = of[of.instrument == instrument]
                at = line.block / of.block.max()
                ax.plot(at, line.value, look, ms=4.5, color=colours[name])
        ax.set_title(title, fontsize=11)
        ax.set_xlabel("relative depth")
    added = table[table.instrument.isin(costs)].value
    for ax in [ax for ax, of in zip(axes, panels.values()) if {*costs} & {*of}]:
        ax.set_yscale("symlog", linthresh=0.01, linscale=0.4)
        ax.set(ylim=(min(0, added.min()), 1.5 * added.max()), ylabel="loss added, nats a token")
        plain_ticks(ax.yaxis)


def ranges(
    ax: plt.Axes,
    table: pd.DataFrame,
    x: str,
    y: str,
    order: Sequence[str],
    colours: Mapping[str, str],
) -> None:
    """A row for each of `order`, the values of column `y`: each model's median of `x`, and a line
    from the least to the most where there are several."""
    for k, (name, of) in enumerate(table.groupby("model", sort=False)):
        spread = of.groupby(y)[x].agg(["min", "median", "max"]).reindex(order)
        at = np.arange(len(order)) + 0.25 * (k - (table.model.nunique() - 1) / 2)
        ax.hlines(at, spread["min"], spread["max"], color=colours[name], lw=2)
        ax.plot(spread["median"], at, MARKERS[k], color=colours[name], ms=6)
    ax.set_yticks(range(len(order)), order)
    ax.invert_yaxis()


def plain_ticks(*axes: mpl.axis.Axis) -> None:
    """Numbers as 0.1 rather than powers of ten."""
    for axis in axes:
        axis.set_major_formatter("{x:g}")


def identity(ax: plt.Axes, text: str) -> None:
    """The line on which both axes are equal, with its name."""
    ends = max(ax.get_xlim()[0], ax.get_ylim()[0]), min(ax.get_xlim()[1], ax.get_ylim()[1])
    ax.plot(ends, ends, color="#999999", lw=1, zorder=0)
    beside = dict(textcoords="offset points", ha="right", color="#777777", fontsize=10)
    ax.annotate(text, (ends[1], ends[1]), (-22, -4), **beside)


def percent_axis(
    ax: plt.Axes,
    which: str = "y",
    linear_to: float = 0.01,
    ticks: Sequence[float] = (-0.1, -0.01, 0, 0.01, 0.1, 1, 9, 99, 999, 9999),
) -> None:
    """A symmetric-log axis for relative costs: linear within ±`linear_to`, `ticks` as +5% or
    ×10."""
    getattr(ax, f"set_{which}scale")("symlog", linthresh=linear_to)
    axis = getattr(ax, f"{which}axis")
    # Within the linear part, ticks of a tenth of it would stand on each other.
    ticks = [t for t in ticks if t == 0 or abs(t) >= linear_to / 2]
    axis.set_major_locator(mpl.ticker.FixedLocator(ticks))
    axis.set_major_formatter(
        mpl.ticker.FuncFormatter(lambda v, _: cost_in_words(v).replace(".0%", "%"))
    )
    axis.set_minor_locator(mpl.ticker.NullLocator())


def cost_in_words(cost: float) -> str:
    """A relative change of perplexity as a reader likes it: +4%, −0.3%, or ×8.2 from +100% up."""
    if not np.isfinite(cost):
        return "–"
    if cost >= 1:
        many = f"×{1 + cost:,.0f}" if cost < 1e6 else f"×{cost:.2g}".replace("e+", "e")
        return f"×{1 + cost:.2g}" if cost < 99 else many
    digits = 0 if abs(cost) >= 0.095 else 1
    return f"{100 * cost:+.{digits}f}%".replace("-", "−") if cost else "0"
