"""Reporting of the fourth edition, for notebooks that are not in the new form yet: it goes with the
last of them. Their marks are withdrawn (see CHANGELOG.md), and their pages are not rendered.

Comparisons: what a paper printed, what is measured here, what a control gave, and the outcome. The
rows stand in data/published/comparisons.csv. An effect is judged by the paired difference from its
control, a bound by the limit that the paper prints, and what has neither is measured.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import HTML, Image, Markdown, display, update_display

from lib import plots, report
from lib.errors import InputError, unknown

# ruff: noqa: F401
from lib.models.loading import load_subject
from lib.models.names import MODEL_NOTES, PROFILES
from lib.paper import (
    PUBLISHED,
    by_block,
    errata,
    markdown_table,
    scale_and_end,
    unit_of_difference,
)
from lib.paper import format_interval as in_words
from lib.paper import numbers as published
from lib.stats import Interval, over_seeds, paired, paired_seeds
from lib.store import atomic_write
from lib.swap.sweep import token_losses as losses
from lib.text.corpora import load_corpus
from lib.text.grammar import STORIES, entropy, write
from lib.text.ngram import KneserNey
from lib.training.decoder import build_decoder
from lib.training.decoder_study import decoder_study as open_lab
from lib.training.decoder_study import scatter, train_all
from lib.training.mixer_study import cut_mixer_study as cut_mixer_lab
from lib.training.mixer_study import mixer_study as open_mixer_lab
from lib.training.mixers import MODELS, composed, matched_width
from lib.training.widths import (
    ffn_layers,
    ffn_widths,
    grouped,
    importance,
    share_moved,
    shuffled,
    taper,
)

SECOND = "gemma-3-270m"
"""the second model whose tables the committed reports show beside the default's"""
ROW_KINDS = ("effect", "bound", "measured")
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
        named = "" if unit == "1" or scale_and_end(unit)[1] else unit
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


@dataclass
class Run(report.Run):
    """One run of one notebook of the old form; made by `start`."""

    comparisons: list = field(default_factory=list)
    in_sections: list = field(default_factory=list)
    """ids of the comparisons that the table at the top leaves to their sections"""
    main_figure: str | None = None

    def table(self, table: pd.DataFrame, name: str, show: bool = True, digits: int = 3) -> None:
        """Keep a table as <name>.csv among the results, and show it."""
        with atomic_write(self.folder / f"{name}.csv") as part:
            table.to_csv(part, index=False, float_format="%.5g", lineterminator="\n")
        if show:
            show_table(table, digits)

    def figure(
        self, figure: plt.Figure, what: str, alt: str, main: bool = False, caption: str = ""
    ) -> None:
        """Show a figure, and keep it in figures/ when the committed notebooks are made; `main`
        shows it under the answer, at the top, with its `caption`. `alt` is one sentence for who
        does not see it."""
        shown = self.renders and self.model == PROFILES["study"]["model"]
        name = f"{self.notebook[:2]}_{what}.png"
        home = (
            report.ROOT / "figures"
            if shown
            else report.ROOT / "runs" / "figures" / self.folder.parent.name
        )
        with atomic_write(home / name) as part:
            plots.plain_names(figure, self.model, self.corpus)
            figure.savefig(part, format="png", dpi=160)
            png = part.read_bytes()
        plt.close(figure)
        width = round(figure.get_size_inches()[0] * 80)
        image = Image(png, width=width, alt=alt)
        if main:
            self.main_figure = name
            update_display(image, display_id="figure")
            update_display(Markdown(f"*{caption}*" if caption else ""), display_id="caption")
        else:
            display(image)

    def compare(
        self,
        id: str,
        here,
        control=None,
        difference=None,
        blocks=None,
        note: str = "",
        turns: str = "",
        at_top: bool = True,
    ) -> None:
        """Judge a row of comparisons.csv (see `compare`) and show it in one line, which
        ends in the note; the table at the top has it too, unless the answer does not rest on it."""
        comparison = compare(id, here, control, difference, blocks, note, turns)
        if comparison.row.notebook != self.notebook:
            raise InputError(
                f"comparison {id} belongs to {comparison.row.notebook}: judge it there."
            )
        self.comparisons.append(comparison)
        if not at_top:
            self.in_sections.append(id)
        said = {k: v for k, v in comparison.cells.items() if k != "the paper says"}
        line = " · ".join(f"{name} {value}" for name, value in said.items())
        line += f"; {note}" if note else ""
        display(Markdown(f"{comparison.cells['the paper says']} — {line}"))

    def second_table(self, name: str) -> pd.DataFrame | None:
        """A table of the second model's run of this notebook, where the committed page of the
        default one is made and it has been run; else None."""
        path = report.DATA / "results" / "study" / SECOND / self.notebook / f"{name}.csv"
        if not self.renders or self.model == SECOND or not path.exists():
            return None
        return pd.read_csv(path)

    def _second_model(self) -> dict[str, Comparison]:
        """{id: row} of the second model, for the committed page of the default one."""
        path = report.DATA / "results" / "study" / SECOND / self.notebook / "comparisons.csv"
        if not self.renders or self.model == SECOND or not path.exists():
            return {}
        # Its cell shows the outcome alone.
        return {c.id: replace(c, why="") for c in from_table(path)}

    def _show_comparisons(self) -> None:
        """Fill the table at the top, and keep all numbers of its rows; a tour has none."""
        if not self.comparisons:
            return
        second = self._second_model()
        at_top = [c for c in self.comparisons if c.id not in self.in_sections]
        cells = []
        for comparison in at_top:
            row = comparison.cells
            if second:
                row[SECOND] = "not run"
            if there := second.get(comparison.id):
                row[SECOND] = f"{in_words(there.here, there.row.unit)}, {there.outcome_alone}"
            cells.append(row)
        key = key_to([*self.comparisons, *second.values()])
        if n_below := len(self.in_sections):
            key += f" {n_below} further comparison{'s' * (n_below > 1)} in the sections."
        table = f"{markdown_table(cells)}\n\n*{key}*"
        update_display(Markdown(table), display_id="comparisons")
        self.table(as_table(self.comparisons), "comparisons", show=False)

    def answer(self, *sentences: str) -> None:
        """The answer, in one or two computed sentences, shown at the top."""
        text = " ".join(" ".join(s.split()) for s in sentences)
        update_display(Markdown(f"> **The answer.** {text}"), display_id="answer")
        lines = {"notebook": self.notebook, "answer": text, "figure": self.main_figure}
        with atomic_write(self.folder / "answer.json") as part:
            part.write_text(
                json.dumps(lines, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
            )

    def end(self, **facts) -> None:
        """Fill the table at the top, keep it and the provenance beside the tables, and show the
        latter in one line."""
        self._show_comparisons()
        self.provenance(**facts)


def top() -> None:
    """Keep the places of the answer, the figure that shows it and the table of comparisons: a
    notebook's first call."""
    for place in ("answer", "figure", "caption", "comparisons"):
        display(Markdown(""), display_id=place)


def start(
    notebook: str, profile: str, model: str | None, corpus: str | None, seed: int = 42
) -> Run:
    """lib.report.start for a notebook of the old form."""
    return report.start(notebook, profile, model, corpus, seed, kind=Run)


def show_table(table: pd.DataFrame, digits: int = 3) -> None:
    """A table as it should be read: without index, names in words, `digits` significant digits."""

    def in_a_cell(value) -> str:
        if not isinstance(value, float):
            return str(value)
        if np.isnan(value):
            return ""
        number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"
        return number.replace("-", "−")

    named = table.rename(columns=lambda column: str(column).replace("_", " "))
    display(HTML(named.map(in_a_cell).to_html(index=False, border=0)))


def does_width_pay(doubling: np.ndarray) -> str:
    """What doubling all widths gains, [seeds], nats, and whether that is ten times its scatter over
    seeds, as was asked for beforehand."""
    words = f"Doubling all widths gains {doubling.mean():.3f} nats"
    if len(doubling) < 2:
        return f"{words}; one seed has no scatter."
    times = doubling.mean() / np.std(doubling, ddof=1)
    reached = "reached" if times >= 10 else "not reached"
    return f"{words}, {times:.1f} times its SD over seeds; ten times were asked for: {reached}."


def visible(gains: np.ndarray) -> str:
    """The smallest effect that would be seen in a paired difference, [seeds], in nats."""
    found = over_seeds(gains)
    half_width = found.high - found.value
    return f"{half_width:.3f}" if np.isfinite(half_width) else ""


def judge_gain(
    run,
    id: str,
    here: np.ndarray,
    control: np.ndarray,
    others: Mapping[str, np.ndarray] | None = None,
    level: float = 0.95,
) -> None:
    """Judge a row by a gain: the control's losses [seeds] less those here; `level` of its interval,
    1 - 0.05 / k where k rows are judged together. `others`: the same gain under other recipes,
    {name: [seeds]}; the row's line gives each, the outcome says where the sign turns, or where
    alone a gain is visible."""
    gain = over_seeds(control - here, level)
    elsewhere = {name: over_seeds(values, level) for name, values in (others or {}).items()}
    expected = -1 if rows().loc[id].side == "less" else 1
    note, turns = under_other_recipes(gain, elsewhere, expected)
    run.compare(id, gain, over_seeds(control), gain, note=note, turns=turns)


def under_other_recipes(
    gain: Interval, others: Mapping[str, Interval], expected: int
) -> tuple[str, str]:
    """A gain under other recipes in words; and those with which its sign turns, where both exclude
    0 on different sides, with which alone it is visible (as the row says, whose sign is
    `expected`, or the other way), or with which it is not."""
    words, turned = [], []
    seen = {"as stated": [], "the other way": []}
    for name, other in others.items():
        value = f"{other.value:+.3f}".replace("-", "−")
        half_width = f" ± {other.high - other.value:.3f}" if np.isfinite(other.high) else ""
        words.append(f"{name} {value}{half_width}")
        if _sign(gain) * _sign(other) < 0:
            turned.append(name)
        if _sign(other):
            way = "as stated" if _sign(other) == expected else "the other way"
            seen[way].append(f"{name} ({value})")
    turns = ""
    if turned:
        turns = f"the sign turns with {', '.join(turned)}"
    elif not _sign(gain):
        ways = [f"{way} with {', '.join(names)}" for way, names in seen.items() if names]
        turns = "; ".join(ways)
    elif unseen := [name for name, other in others.items() if not _sign(other)]:
        turns = f"not visible with {', '.join(unseen)}"
    return "; ".join(words), turns


def _sign(gain: Interval) -> int:
    """1 or -1 where an interval excludes 0, else 0."""
    return int(gain.low > 0) - int(gain.high < 0)
