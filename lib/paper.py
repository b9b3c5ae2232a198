"""What the papers print, and how a number of ours is shown."""

import re

import numpy as np
import pandas as pd

from lib.files import DATA
from lib.stats import Interval

PUBLISHED = DATA / "published"
CHANGES = ("relative change", "change of perplexity")
"""units that are shown in per cent, or as a factor"""


def numbers(paper: str, **where: str) -> pd.DataFrame:
    """Rows of data/published/<paper>.csv, numbers that a paper or its author's repository prints;
    each key of `setting` (block, candidate, …) is a column of its own, and `where` filters by these
    as by the others."""
    table = pd.read_csv(PUBLISHED / f"{paper}.csv", dtype=str, keep_default_na=False)
    for name in where.keys() & {*table.columns}:
        table = table[table[name] == where[name]]
    settings = [
        dict(pair.split("=", 1) for pair in setting.split(";") if "=" in pair)
        for setting in table.setting
    ]
    table = table.join(pd.DataFrame(settings, index=table.index))
    for name in where:
        table = table[table[name] == where[name]]
    table = table.assign(value=pd.to_numeric(table.value))
    if "block" in table:
        table["block"] = pd.to_numeric(table["block"], errors="coerce")
    return table


def by_block(paper: str, metric: str, experiment: str, **where: str) -> pd.DataFrame:
    """What a figure of a paper holds, from its author's repository: a row a block, a column a
    model; of the affine map, unless another `candidate` is named."""
    chosen = {"table": "repository", "candidate": "linear"} | where
    rows = numbers(paper, metric=metric, experiment=experiment, **chosen)
    rows = rows[rows["block"].notna()]  # what is said of several blocks is left out
    return rows.pivot(index="block", columns="subject", values="value")


def format_interval(
    value: Interval | float, unit: str = "1", signed: bool = False, digits: int = 3
) -> str:
    """A value with its interval, in the digits that the width deserves: 0.55 [0.54, 0.56]; relative
    changes in per cent, or from tenfold up as a factor; their differences in percentage points. A
    value without an interval has `digits`."""
    i = value if isinstance(value, Interval) else Interval(float(value), np.nan, np.nan)
    if not np.isfinite(i.value):
        return "–"
    is_change = unit.startswith(CHANGES)
    as_factor = is_change and not signed  # what is signed is a difference, and no factor
    plus = "+" if signed or is_change else ""
    scale, end = scale_and_end(unit)
    # A value without an interval.
    if as_factor and i.value >= 9.995 and not np.isfinite(i.low):
        return f"×{_rounded(1 + i.value, 1)}"
    width = scale * (i.high - i.low)
    if not np.isfinite(width) or width <= 0:
        shown = f"{scale * i.value:{plus}.{digits}g}"
        shown = f"{scale * i.value:{plus},.0f}" if "e+0" in shown else shown
        return tidy(shown) + end
    # Thousands are rounded, to two digits or as many as the width deserves.
    if abs(scale * i.value) >= 1000:
        offset = 1 if as_factor else 0
        multiplied = [(1 if as_factor else scale) * part + offset for part in i]
        middle, low, high = (_rounded(part, multiplied[2] - multiplied[1]) for part in multiplied)
        if as_factor:
            return f"×{middle} [{low}, {high}]"
        if i.value > 0:
            middle = plus + middle
        return tidy(f"{middle}{end} [{low}, {high}]")
    places = int(np.clip(1 - np.floor(np.log10(width)), 0, 4))
    middle = f"{scale * i.value:{plus}.{places}f}"
    low, high = f"{scale * i.low:.{places}f}", f"{scale * i.high:.{places}f}"
    return tidy(f"{middle}{end} [{low}, {high}]")


def shown(value: Interval | float | int | str, unit: str) -> str:
    """A value of a summary: text and whole numbers as they are, others as `format_interval`."""
    if isinstance(value, str | int | np.integer):
        return f"{value:,}" if not isinstance(value, str) else value
    return format_interval(value, unit)


def scale_and_end(unit: str) -> tuple[int, str]:
    """What a value of this unit is multiplied by where it is shown, and what follows it."""
    if unit == "points":
        return 100, " points"
    if unit.startswith((*CHANGES, "share")):
        return 100, "%"
    return 1, ""


def _rounded(value: float, width: float) -> str:
    """A large number in two significant digits, or in more where an interval is narrower: 49,974
    is 50,000, or within ±4 49,974; from a million up 1.2e6."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return tidy(f"{value:.2g}")
    digits = np.floor(np.log10(abs(value))) - np.floor(np.log10(width)) + 1
    rounded = float(f"{value:.{max(2, int(digits))}g}")
    return f"{rounded:,.0f}"


def tidy(text: str) -> str:
    """A real minus sign, none before a zero, and a positive exponent of one digit as one digit."""
    return (
        re.sub(r"[+-](0(\.0+)?)(?![\d.])", r"\1", text)
        .replace("e+0", "e")
        .replace("e+", "e")
        .replace("-", "−")
    )


def markdown_table(cells: list[dict[str, str]]) -> str:
    """Rows of cells as a table of Markdown."""
    names = list(cells[0])
    lines = [names, ["---"] * len(names), *([row[n] for n in names] for row in cells)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
