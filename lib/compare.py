"""Comparisons: what a paper printed, what is measured here, what a control gave, and the outcome.

The rows stand in data/published/comparisons.csv. There is no threshold of ours: an effect is judged
by the paired difference from its control, a bound by the limit that the paper prints, and what has
neither is measured. "Not found" follows replication research (LeBel et al., 2019): it asks for more
than no signal, namely that an effect of the printed size would have been seen.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from lib.errors import InputError, unknown
from lib.stats import Interval
from lib.text import DATA

PUBLISHED = DATA / "published"
KINDS = ("effect", "bound", "measured")
MARKS = {
    "reproduced": "✔",
    "found": "✔",
    "reversed": "✘",
    "not found": "✘",
    "exceeded": "✘",
    "undecided": "?",
    "measured": "–",
}
Values = Interval | float | Sequence[Interval]
"""one value, or one for each unit (block) where the quantity names "some" or "every" """


@cache
def rows() -> pd.DataFrame:
    """data/published/comparisons.csv, indexed by id."""
    table = pd.read_csv(PUBLISHED / "comparisons.csv", keep_default_na=False, dtype=str)
    return table.set_index("id", drop=False)


def published(paper: str, **where: str) -> pd.DataFrame:
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
    rows = published(paper, metric=metric, experiment=experiment, **chosen)
    rows = rows[rows["block"].notna()]  # what is said of several blocks is left out
    return rows.pivot(index="block", columns="subject", values="value")


def errata(paper: str, notebook: str) -> pd.DataFrame:
    """Where a paper contradicts itself or its author's code, as far as it touches a notebook."""
    table = pd.read_csv(PUBLISHED / "errata.csv", keep_default_na=False, dtype=str)
    named = table.here.str.partition(":")[0]  # "08, 14: what is done there"
    table = table[(table.paper == paper) & named.str.contains(rf"\b{notebook}\b")]
    return table[["section", "says", "but"]]


@dataclass(frozen=True)
class Comparison:
    """One row of the table at the top of a report."""

    id: str
    outcome: str
    """one of MARKS"""
    here: Interval
    control: Interval | None
    difference: Interval | None
    why: str = ""
    """which block decided; how the sign turns; the smallest effect that would have been seen"""
    note: str = ""
    """what else the row's own line says, and the table at the top does not"""

    @property
    def row(self) -> pd.Series:
        return rows().loc[self.id]

    @property
    def cells(self) -> dict[str, str]:
        """The row as a reader sees it, a cell for each column."""
        unit = self.row.unit
        whose = "(ours) " if self.row.paper == "ours" else ""
        section = "" if self.row.paper == "ours" else self.row.section
        # Shares and changes end in a sign of their own, other units are named.
        named = "" if unit == "1" or _scale_and_end(unit)[1] else unit
        measured = "; ".join(filter(None, [self.row.quantity, named, section]))
        quantity = f"{whose}{self.row.sentence} *({measured})*"
        control = "–"
        if self.control is not None:
            control = ", ".join(filter(None, [in_words(self.control, unit), self.row.control]))
        return {
            "the paper says": quantity,
            "paper": printed_in_words(self.row),
            "here": in_words(self.here, unit),
            "control": control,
            "outcome": self.in_words,
        }

    @property
    def in_words(self) -> str:
        """The outcome, for an effect with the paired difference that decided it, and why."""
        return f"{self.outcome_alone}; {self.why}" if self.why else self.outcome_alone

    @property
    def outcome_alone(self) -> str:
        """The outcome, for an effect with the paired difference that decided it."""
        if self.outcome == "measured":
            return "measured"
        missed = self.outcome == "exceeded" and bool(self.row.printed_low)  # a limit from below
        words = f"{MARKS[self.outcome]} {'not reached' if missed else self.outcome}"
        # A gain is its own difference, and stands in the row already.
        if self.difference not in (None, self.here) and self.row.kind == "effect":
            decided = self.outcome in ("reproduced", "found", "reversed")
            words += ", by " if decided else ", difference "
            words += in_words(self.difference, unit_of_difference(self.row.unit), signed=True)
        return words


def compare(
    id: str,
    here: Values,
    control: Values | None = None,
    difference: Values | None = None,
    blocks: Sequence[int | str] | None = None,
    note: str = "",
    turns: str = "",
) -> Comparison:
    """Judge a row: `here` and `control` with their intervals, and their paired `difference`.

    Where the paper prints the difference itself (a gain, a change), `here` and `difference` are
    both that gain and `control` is the baseline's value. A quantity that begins with "some" or
    "every" takes a joint interval for each unit, which are all blocks or those named in `blocks`.
    `note`: what else the row's own line says; `turns`: how its sign turns under another recipe, for
    the outcome. Raises InputError for an unknown id, an effect without control and difference, and
    values that do not fit the row.
    """
    if id not in rows().index:
        near = get_close_matches(id, rows().index, 3)
        raise unknown("comparison", id, near or [f"the ids of {PUBLISHED / 'comparisons.csv'}"])
    row = rows().loc[id]
    if row.kind == "effect" and (control is None or difference is None):
        raise InputError(
            f"comparison {id} is an effect: give its control and the paired difference, or make it "
            "a row of kind measured."
        )
    listed = [_listed(values, here) for values in (here, control, difference)]
    if len({len(values) for values in listed}) > 1:
        raise InputError(
            f"comparison {id} was given {[len(v) for v in listed]} values of here, control and "
            "difference: give one of each for every unit."
        )
    units = [_Unit(*of_unit) for of_unit in zip(*listed)]
    if len(units) > 1 and not _words(row, "some", "every"):
        raise InputError(
            f"comparison {id} was given {len(units)} units, but its quantity names neither some "
            "nor every: give one value, for example the median block's."
        )
    judge: Callable = {"effect": _effect, "bound": _bound, "measured": _measured}[row.kind]
    outcomes = [judge(row, unit) for unit in units]
    chosen = _decisive(row, outcomes, units)
    outcome, reason = outcomes[chosen]
    why = [reason, turns]
    if row.paper == "ours" and outcome == "reproduced":
        outcome = "found"
    unit = units[chosen]
    if len(units) > 1 and row.kind != "measured":
        name = chosen if blocks is None else blocks[chosen]
        why.insert(0, name if isinstance(name, str) else f"block {name}")
    in_one = "; ".join(part for part in why if part)
    return Comparison(id, outcome, unit.here, unit.control, unit.difference, in_one, note)


@dataclass(frozen=True)
class _Unit:
    here: Interval
    control: Interval | None
    difference: Interval | None


def _listed(values: Values | None, like: Values | None = None) -> list[Interval | None]:
    """One Interval for each unit; a number has no interval, and None is as many as `like`."""
    if values is None:
        return [None] * (1 if like is None else len(_listed(like)))
    if isinstance(values, Interval):
        return [values]
    if isinstance(values, int | float | np.number):
        return [Interval(float(values), np.nan, np.nan)]
    return [i for value in values for i in _listed(value)]


def _words(row: pd.Series, *words: str) -> bool:
    """Whether the quantity names one of `words` as its quantifier."""
    return any(f" {word} " in f" {row.quantity.replace(',', ' ')} " for word in words)


def _limits(row: pd.Series) -> tuple[float, float]:
    """The printed range; nan where nothing is printed."""
    low, high = (float(v) if v else np.nan for v in (row.printed_low, row.printed_high))
    return low, high


def _effect(row: pd.Series, unit: _Unit) -> tuple[str, str]:
    """(outcome, why) of an effect, by the paired difference turned to the paper's side."""
    sign = 1 if row.side == "more" else -1
    here, difference = _turned(unit.here, sign), _turned(unit.difference, sign)
    if not np.isfinite([here.value, difference.low, difference.high]).all():
        return "undecided", "nothing differs" if difference.value == 0 else "no interval"
    is_gain = unit.here == unit.difference
    # What the paper prints, on the same side: its nearest and its farthest value.
    printed = sorted(sign * value for value in _limits(row))
    base = 0.0 if is_gain else sign * unit.control.value
    if difference.low > 0:
        # The size is compared only where the paper prints this very distance.
        if is_gain and difference.high < printed[0]:
            return "reproduced", "a smaller effect"
        if is_gain and difference.low > printed[1]:
            return "reproduced", "a larger effect"
        return "reproduced", ""
    if difference.high < 0:
        return "reversed", ""
    # An effect of the printed size would have been seen: here lies nearer the control.
    middle = (base + printed[0]) / 2
    nothing_near = np.isfinite(here.high) and here.high < middle
    if np.isfinite(printed).all() and printed[0] > base and nothing_near:
        return "not found", ""
    seen = float(f"{difference.value - difference.low:.2g}")
    words = in_words(seen, unit_of_difference(row.unit))
    return "undecided", f"visible beyond {words}"


def _bound(row: pd.Series, unit: _Unit) -> tuple[str, str]:
    """(outcome, why) of a bound, by the one limit that the paper prints."""
    at_least, at_most = _limits(row)
    if np.isfinite(at_least) == np.isfinite(at_most):
        raise InputError(f"comparison {row.id} is a bound: print one limit, at most or at least.")
    sign, limit = (1, at_most) if np.isfinite(at_most) else (-1, -at_least)
    here = _turned(unit.here, sign)
    if not np.isfinite([here.low, here.high]).all():
        return "undecided", "no interval"
    if here.low > limit:
        return "exceeded", ""
    control = None if unit.control is None else _turned(unit.control, sign)
    if here.high <= limit:
        if control is None:
            return "undecided", "no control"
        # A control that is a known number needs no interval.
        outside = control.low if np.isfinite(control.low) else control.value
        return ("reproduced", "") if outside > limit else ("undecided", "so is its control")
    return "undecided", "the limit lies in the interval"


def _measured(row: pd.Series, unit: _Unit) -> tuple[str, str]:
    return "measured", ""


def _turned(i: Interval, sign: int) -> Interval:
    """The interval of the value times sign."""
    return i if sign > 0 else Interval(-i.value, -i.high, -i.low)


def _decisive(row: pd.Series, outcomes: list[tuple[str, str]], units: list[_Unit]) -> int:
    """Which unit decides: "some" asks for one on the paper's side and shows the farthest of those
    that agree, "every" for all of them and shows the nearest."""
    names = [outcome for outcome, _ in outcomes]
    sides = [_on_the_papers_side(row, unit) for unit in units]
    if _words(row, "some"):
        order = ("reproduced", "undecided", "not found", "exceeded", "reversed", "measured")
        return min(range(len(units)), key=lambda k: (order.index(names[k]), -sides[k]))
    order = ("reversed", "exceeded", "not found", "undecided", "reproduced", "measured")
    return min(range(len(units)), key=lambda k: (order.index(names[k]), sides[k]))


def _on_the_papers_side(row: pd.Series, unit: _Unit) -> float:
    """How far a unit lies on the paper's side: by its difference, or for a bound by itself."""
    if row.kind == "effect":
        return unit.difference.value if row.side == "more" else -unit.difference.value
    at_least, _ = _limits(row)
    return unit.here.value if np.isfinite(at_least) else -unit.here.value


def printed_in_words(row: pd.Series) -> str:
    """What the paper prints, in the row's unit: a value, a range or a limit; "in words" else. What
    only its author's repository has is named so."""
    low, high = _limits(row)
    if not np.isfinite([low, high]).any():
        return "–" if row.paper == "ours" else "in words"
    if row.kind == "bound":
        limit, sign = (high, "≤ ") if np.isfinite(high) else (low, "≥ ")
        words = sign + in_words(limit, row.unit)
    elif low == high:
        words = in_words(low, row.unit)
    else:
        words = f"{in_words(low, row.unit)} to {in_words(high, row.unit)}"
    not_printed = str(row.printed_for).startswith("author's repository")
    return f"{words} (author's repository)" if not_printed else words


def unit_of_difference(unit: str) -> str:
    """The unit of a difference of two values: of two percentages, points."""
    return "points" if unit.startswith(("relative change", "share")) else unit


def in_words(value: Interval | float, unit: str = "1", signed: bool = False) -> str:
    """A value with its interval, in the digits that the width deserves: 0.55 [0.54, 0.56]; relative
    changes in per cent, or from tenfold up as a factor; their differences in percentage points."""
    i = value if isinstance(value, Interval) else Interval(float(value), np.nan, np.nan)
    if not np.isfinite(i.value):
        return "–"
    is_change = unit.startswith("relative change")
    as_factor = is_change and not signed  # what is signed is a difference, and no factor
    plus = "+" if signed or is_change else ""
    scale, end = _scale_and_end(unit)
    # A value without an interval.
    if as_factor and i.value >= 10 and not np.isfinite(i.low):
        return f"×{1 + i.value:,.0f}"
    width = scale * (i.high - i.low)
    if not np.isfinite(width) or width <= 0:
        return _number(f"{scale * i.value:{plus}.3g}") + end
    # Thousands are rounded, to two digits or as many as the width deserves.
    if abs(scale * i.value) >= 1000:
        offset = 1 if as_factor else 0
        multiplied = [(1 if as_factor else scale) * part + offset for part in i]
        middle, low, high = (_rounded(part, multiplied[2] - multiplied[1]) for part in multiplied)
        if as_factor:
            return f"×{middle} [{low}, {high}]"
        if i.value > 0:
            middle = plus + middle
        return _number(f"{middle}{end} [{low}, {high}]")
    digits = int(np.clip(1 - np.floor(np.log10(width)), 0, 4))
    middle = f"{scale * i.value:{plus}.{digits}f}"
    low, high = f"{scale * i.low:.{digits}f}", f"{scale * i.high:.{digits}f}"
    return _number(f"{middle}{end} [{low}, {high}]")


def _scale_and_end(unit: str) -> tuple[int, str]:
    """What a value of this unit is multiplied by where it is shown, and what follows it."""
    if unit == "points":
        return 100, " points"
    if unit.startswith(("relative change", "share")):
        return 100, "%"
    return 1, ""


def _rounded(value: float, width: float) -> str:
    """A large number in two significant digits, or in more where an interval is narrower: 49,974
    is 50,000, or within ±4 49,974."""
    if value == 0:
        return "0"
    digits = np.floor(np.log10(abs(value))) - np.floor(np.log10(width)) + 1
    rounded = float(f"{value:.{max(2, int(digits))}g}")
    return f"{rounded:,.0f}"


def _number(text: str) -> str:
    """A real minus sign, none before a zero, and a positive exponent of one digit as one digit."""
    return re.sub(r"[+-](0(\.0+)?)(?![\d.])", r"\1", text).replace("e+0", "e").replace("-", "−")


def as_table(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """All numbers of the judged rows, as they are kept beside a report's tables."""
    nothing = Interval(np.nan, np.nan, np.nan)
    kept = []
    for c in comparisons:
        control = nothing if c.control is None else c.control
        difference = nothing if c.difference is None else c.difference
        kept.append(
            {
                "id": c.id,
                "outcome": c.outcome,
                "value": c.here.value,
                "low": c.here.low,
                "high": c.here.high,
                "control": control.value,
                "control_low": control.low,
                "control_high": control.high,
                "difference": difference.value,
                "difference_low": difference.low,
                "difference_high": difference.high,
                "why": c.why,
                "note": c.note,
            }
        )
    return pd.DataFrame(kept)


def from_table(path: Path) -> list[Comparison]:
    """The judged rows that `as_table` kept; those no longer registered are left out, and those that
    have become measured since have no outcome."""
    table = pd.read_csv(path)
    table = table[table["id"].isin(rows().index)].fillna({"why": "", "note": ""})
    comparisons = []
    for row in table.to_dict("records"):
        if rows().kind[row["id"]] == "measured":
            row["outcome"] = "measured"
        here = Interval(row["value"], row["low"], row["high"])
        control = _kept_interval(row, "control")
        difference = _kept_interval(row, "difference")
        why = row.get("why", "")  # results from before the two were told apart have a note alone
        said = (row["outcome"], here, control, difference, why, row["note"])
        comparisons.append(Comparison(row["id"], *said))
    return comparisons


def _kept_interval(row: dict, name: str) -> Interval | None:
    """The interval in three columns of a kept row; None where they are empty."""
    if not np.isfinite(row[name]):
        return None
    return Interval(row[name], row[f"{name}_low"], row[f"{name}_high"])


KEY = {
    "reproduced": "✔ reproduced: the difference from the control excludes 0 on the paper's side, "
    "or a limit is kept that the control does not keep",
    "found": "✔ found: the difference excludes 0 on the side of our statement",
    "reversed": "✘ reversed: it excludes 0 on the other side",
    "not found": "✘ not found: an effect of the printed size would have been seen",
    "exceeded": "✘ exceeded, not reached: wholly outside the printed limit",
    "undecided": "? undecided: the interval holds 0 or the limit, or the control is no better",
    "measured": "measured: numbers beside each other, nothing is tested",
}


def key_to(comparisons: Sequence[Comparison]) -> str:
    """What the outcomes in a table mean, for who reads it first."""
    there = {c.outcome for c in comparisons}
    meanings = "; ".join(meaning for outcome, meaning in KEY.items() if outcome in there)
    if any("visible beyond" in c.why for c in comparisons):
        meanings += "; visible beyond: the size from which a difference would exclude 0"
    brackets = "Brackets: 95% intervals, joint over several rows or blocks where the page says so. "
    if any(_within_blocks(c) for c in comparisons):
        brackets += "Where a difference is not that of the two medians beside it, it was taken "
        brackets += "within each block before the median. "
    brackets += "Outcomes speak of the model here, not of the paper's."
    return f"{meanings}. {brackets}"


def _within_blocks(c: Comparison) -> bool:
    """Whether a median block's difference is another than that of the two medians."""
    if c.difference is None or "median block" not in rows().quantity[c.id]:
        return False
    of_medians = c.here.value - c.control.value
    return abs(c.difference.value - of_medians) > 1e-3 * max(
        abs(c.here.value), abs(c.control.value)
    )


def markdown_table(cells: Sequence[dict[str, str]]) -> str:
    """Rows of cells as a table of Markdown."""
    names = list(cells[0])
    lines = [names, ["---"] * len(names), *([row[n] for n in names] for row in cells)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
