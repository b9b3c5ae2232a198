"""Figures that lay models beside each other (Balogh Figure 3, Table 8)."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np

from lib.base.style import COLOURS, MARKERS, SUBJECT, percent_axis
from lib.gates.survey import Survey


def across_figure(named: Sequence[Survey], trained: Mapping[str, Sequence[Survey]]) -> plt.Figure:
    """All-linear cost by relative depth, a line a model; and the medians over blocks of models that
    were trained here, a point a seed: all linear, and the linear gate cut at 40%."""
    figure, (depth, seeds) = plt.subplots(1, 2, figsize=(12.8, 4.8), width_ratios=(1.5, 1))
    shown = []
    for k, s in enumerate(named):
        cost = 100 * np.expm1(s.rise("linear").mean(1))
        at = np.array(sorted(s.linear)) / max(1, s.n_blocks - 1)
        colour = (SUBJECT, *COLOURS)[k % 7]
        line = "--" if s.parallel else "-"
        label = f"{s.model} ({'parallel' if s.parallel else 'sequential'})"
        depth.plot(at, cost, line, marker=MARKERS[k % 6], color=colour, label=label)
        shown += cost.tolist()
    percent_axis(depth, shown)
    depth.axhline(0, color="#777777", lw=1)
    depth.set(xlabel="relative depth of the block", ylabel="all linear, % of the base perplexity")
    depth.set_title("One block linear at a time")
    depth.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    shown, places = [0.0], []
    for k, models in enumerate(trained.values()):
        for j, (what, part) in enumerate((("linear", None), ("equal", "linear"))):
            costs = [100 * np.median(np.expm1(s.rise(what, part).mean(1))) for s in models]
            label = ("all linear", "linear gate at 40%")[j] if not k else None
            at = np.full(len(costs), k + 0.16 * (2 * j - 1))
            seeds.plot(at, costs, MARKERS[j], color=(SUBJECT, COLOURS[1])[j], label=label)
            shown += costs
        places.append(k)
    seeds.set_xticks(places, [name.replace(", ", ",\n") for name in trained], fontsize=9)
    seeds.set(title="Trained here, a point a seed", ylabel="median over blocks, % of the base")
    seeds.set_xlim(-0.5, len(trained) - 0.5)
    percent_axis(seeds, shown)
    seeds.axhline(0, color="#777777", lw=1)
    seeds.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    return figure
