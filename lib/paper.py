"""What the papers print, what is claimed from them, and what a person reads in our numbers."""

import re
from functools import cache

import numpy as np
import pandas as pd

from lib.errors import InputError, unknown
from lib.stats import Contrast, Interval
from lib.store import DATA

PUBLISHED = DATA / "published"
CHANGES = ("relative change", "change of perplexity")
"""units that are shown in per cent, or as a factor"""
WORDS = ("agrees", "opposite", "cannot tell")
"""how a reading may begin where the numbers carry it"""


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


def errata(paper: str, notebook: str) -> pd.DataFrame:
    """Where a paper contradicts itself or its author's code, as far as it touches a notebook."""
    table = pd.read_csv(PUBLISHED / "errata.csv", keep_default_na=False, dtype=str)
    named = table.here.str.partition(":")[0]  # "08, 14: what is done there"
    table = table[(table.paper == paper) & named.str.contains(rf"\b{notebook}\b")]
    return table[["section", "says", "but"]]


@cache
def claims() -> pd.DataFrame:
    """data/published/claims.csv, indexed by id."""
    table = pd.read_csv(PUBLISHED / "claims.csv", keep_default_na=False, dtype=str)
    return table.set_index("id", drop=False)


@cache
def readings() -> pd.DataFrame:
    """data/published/readings.csv: claim, model, the row's numbers as they were displayed when it
    was read, the words. Raises InputError for a reading of no claim and for more than twelve
    words."""
    table = pd.read_csv(PUBLISHED / "readings.csv", keep_default_na=False, dtype=str)
    for row in table.itertuples():
        if row.claim not in claims().index:
            raise unknown("claim in readings.csv", row.claim, [*claims().index])
        if len(row.words.split()) > 12:
            raise InputError(
                f"the reading of {row.claim} has {len(row.words.split())} words: say it in 12."
            )
    return table


def claim(id: str, notebook: str) -> pd.Series:
    """A row of claims.csv. Raises InputError for one that is not there or of another notebook."""
    full = id if "/" in id else f"{notebook[:2]}/{id}"
    if full not in claims().index:
        raise unknown("claim", full, [*claims().index])
    row = claims().loc[full]
    if row.notebook != notebook[:2]:
        raise InputError(f"claim {full} belongs to notebook {row.notebook}: make it there.")
    return row


def in_cells(row: pd.Series, found: Contrast) -> dict[str, str]:
    """What was found for a claim, as it is displayed: the value, and what it is set against."""
    here, against = format_interval(found.value, row.unit), row.against
    if found.against is not None:
        against = f"{row.against} {format_interval(found.against, row.unit)}".strip()
    return {"here": here, "against": f"{against}{_by(row, found)}"}


def in_one_cell(row: pd.Series, found: Contrast) -> str:
    """The same for another model, in one cell: the value and the difference."""
    return f"{format_interval(found.value, row.unit)}{_by(row, found, '; ')}"


def _by(row: pd.Series, found: Contrast, link: str = ": ") -> str:
    """By how much the value differs from what it is set against; where that may be nothing, with
    the smallest effect that would have been detected."""
    difference = found.difference
    if difference is None:
        return ""
    words = f"{link}by {format_interval(difference, unit_of_difference(row.unit), signed=True)}"
    if difference.low <= 0 <= difference.high:
        half_width = (difference.high - difference.low) / 2
        detectable = format_interval(half_width, unit_of_difference(row.unit), digits=2)
        words += f", smallest detectable {detectable}"
    return words


def first_word(row: pd.Series, found: Contrast) -> str:
    """The word of WORDS that a claim's numbers carry, "agrees, smaller" for an effect below what
    the paper prints; "" where the claim is no difference. A claim that something is equal has a
    margin."""
    difference = found.difference
    if difference is None or not np.isfinite(difference.low):
        return ""
    if row.side == "equal":
        margin = float(row.margin)
        inside = -margin < difference.low and difference.high < margin
        outside = difference.low > margin or difference.high < -margin
        return "agrees" if inside else "opposite" if outside else "cannot tell"
    if difference.low <= 0 <= difference.high:
        return "cannot tell"
    on_side = (difference.value > 0) == (row.side == "more")
    if not on_side:
        return "opposite"
    smaller = row.printed and abs(difference.value) < abs(float(row.printed))
    return "agrees, smaller" if smaller else "agrees"


def check_reading(row: pd.Series, found: Contrast, words: str) -> None:
    """Raise InputError where a reading begins with a word that the numbers do not carry."""
    said = next((word for word in WORDS if words.lower().startswith(word)), None)
    if said is None:
        return
    carried = first_word(row, found)
    if said != carried.partition(",")[0]:
        raise InputError(
            f"the reading of {row.id} begins with {said!r}, but its numbers say "
            f"{carried or 'no difference'!r}: read them again."
        )
    if carried == "agrees, smaller" and not words.startswith(carried):
        raise InputError(
            f"the reading of {row.id} says {said!r}, but the effect is below what the paper prints "
            f"({row.printed}): begin with {carried!r}."
        )


def reading_of(row: pd.Series, model: str, cells: dict[str, str], found: Contrast) -> str:
    """What a person wrote about these numbers, as long as they are the ones that were read."""
    table = readings()
    written = table[(table.claim == row.id) & (table.model == model)]
    if not len(written):
        return "not read yet"
    if written["numbers"].iloc[0] != as_displayed(cells):
        return "the numbers changed: to be read again"
    check_reading(row, found, written.words.iloc[0])
    return written.words.iloc[0]


def as_displayed(cells: dict[str, str]) -> str:
    """The numbers of a row as a reading is pinned to them."""
    return " | ".join(cells.values())


def unit_of_difference(unit: str) -> str:
    """The unit of a difference of two values: of two percentages, points."""
    return "points" if unit.startswith((*CHANGES, "share")) else unit


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
