"""Figures that lay models beside each other (Balogh Figure 3, Table 8)."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np

from lib.second.base.style import COLOURS, MARKERS, SUBJECT, percent_axis
from lib.second.gates.survey import Survey

GREY = "#777777"
LEGEND = {"fontsize": 11, "loc": "upper center"}


def across_figure(named: Sequence[Survey], trained: Mapping[str, Sequence[Survey]]) -> plt.Figure:
    """All-linear cost by relative depth, a line a model; and the medians over blocks of models that
    were trained here, a point a seed and a grey line through those of a seed: all linear (filled),
    and the linear gate cut at 40% (open). A family has the colour of the model of its name."""
    figure, (depth, seeds) = plt.subplots(1, 2, figsize=(11, 5.6), width_ratios=(1.35, 1))
    colours = _colours([s.model for s in named], list(trained))
    _by_depth(depth, named, colours)
    _by_seed(seeds, trained, colours)
    for ax in (depth, seeds):
        ax.axhline(0, color=GREY, lw=1)
        ax.tick_params(labelsize=12)
        ax.yaxis.label.set_size(13)
    return figure


def _colours(models: Sequence[str], families: Sequence[str]) -> dict[str, str]:
    """One colour a name, black for the first model; grey where there are too many."""
    names = list(dict.fromkeys([*models, *families]))
    return dict.fromkeys(names, GREY) | dict(zip(names, (SUBJECT, *COLOURS), strict=False))


def _by_depth(ax: plt.Axes, named: Sequence[Survey], colours: Mapping[str, str]) -> None:
    shown = []
    for k, s in enumerate(named):
        cost = 100 * np.expm1(s.rise("linear").mean(1))
        at = np.array(sorted(s.linear)) / max(1, s.n_blocks - 1)
        ax.plot(
            at,
            cost,
            "--" if s.parallel else "-",
            marker=MARKERS[k % 6],
            markersize=4 if len(cost) > 12 else 7,
            color=colours[s.model],
            label=f"{s.model} ({'parallel' if s.parallel else 'sequential'})",
        )
        shown += cost.tolist()
    percent_axis(ax, shown)
    ax.set_xlabel("relative depth of the block", size=13)
    ax.set(ylabel="all linear, % of the base perplexity", title="One block linear at a time")
    ax.legend(bbox_to_anchor=(0.5, -0.16), ncols=2, **LEGEND)


def _by_seed(
    ax: plt.Axes, trained: Mapping[str, Sequence[Survey]], colours: Mapping[str, str]
) -> None:
    shown = [0.0]
    rows = (("linear", None, "all linear"), ("equal", "linear", "linear gate cut for 40%"))
    for j, (what, part, label) in enumerate(rows):
        cost = np.array(
            [
                [100 * np.median(np.expm1(s.rise(what, part).mean(1))) for s in models]
                for models in trained.values()
            ]
        )  # [families, seeds]
        at = np.arange(len(cost)) + 0.16 * (2 * j - 1)
        ax.plot(at, cost, color="#BBBBBB", lw=1, zorder=1)
        for x, name, points in zip(at, trained, cost, strict=True):
            look = {"mec": colours[name], "mfc": "white" if j else colours[name]}
            ax.plot(np.full(len(points), x), points, MARKERS[j], ms=8, ls="", **look)
        look = {"mec": GREY, "mfc": "white" if j else GREY}
        ax.plot([], [], MARKERS[j], ms=8, ls="", label=label, **look)
        shown += cost.ravel().tolist()
    names = [name.replace(", ", ",\n").replace("tiny-", "") for name in trained]
    ax.set_xticks(range(len(names)), names)
    ax.set_ylabel("median over blocks, % of the base")
    ax.set_title("Trained here, a line a seed")
    ax.set_xlim(-0.5, len(names) - 0.5)
    percent_axis(ax, shown, linear_to=0.1 if max(shown) < 0.5 else 1.0)
    ax.legend(bbox_to_anchor=(0.5, -0.2), ncols=1, **LEGEND)
