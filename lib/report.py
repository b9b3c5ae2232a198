"""One run of a notebook: its parameters checked, its budgets, tables, figures, comparisons."""

import ast
import json
import os
import platform
import time
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import transformers
from IPython import get_ipython
from IPython.display import HTML, Image, Markdown, display, update_display

from lib import plots
from lib.cache import COST
from lib.compare import (
    Comparison,
    as_table,
    compare,
    from_table,
    in_words,
    key_to,
    markdown_table,
)
from lib.errors import InputError, unknown
from lib.files import whole
from lib.model import Subject
from lib.names import PROFILES, check_model, label, tiny_models
from lib.text import DATA, Corpus, Windows, check_corpus, cut_windows, measured_sample

ROOT = DATA.parent
RENDER = "NONLINEARITY_RENDER"  # set by make render: this run makes what the repository shows
MODEL_NOTES = {
    "smollm2-135m": "smollm2-135m (SmolLM2-135M-Instruct, read from a 4-bit file)",
    "gemma-3-270m": "gemma-3-270m (base model, read from a 4-bit file; every window begins with "
    "its start token, which is neither fitted nor scored)",
}
SECOND = "gemma-3-270m"
"""the second model whose tables the committed reports show beside the default's"""


class MeasuredText(NamedTuple):
    """Windows for a measured subject, disjoint by document."""

    maps: Windows
    gates: Windows
    test: Windows


@dataclass
class Run:
    """One run of one notebook; made by `start`."""

    notebook: str
    profile: str
    model: str
    corpus: str
    seed: int
    began: float = field(default_factory=time.time)
    comparisons: list = field(default_factory=list)
    in_sections: list = field(default_factory=list)
    """ids of the comparisons that the table at the top leaves to their sections"""
    main_figure: str | None = None

    def pick(self, smoke, laptop, study, paper):
        """The value for this run's profile, by name: run.pick(smoke=…, laptop=…, …)."""
        return dict(zip(PROFILES, (smoke, laptop, study, paper)))[self.profile]

    @property
    def renders(self) -> bool:
        """Whether this run makes what the repository shows (make render)."""
        return RENDER in os.environ

    @property
    def folder(self) -> Path:
        """Where this run's tables go: data/results for what is committed, else runs/."""
        usual = PROFILES[self.profile]
        parts = [label(self.model)]
        parts += [label(self.corpus)] if self.corpus != usual["corpus"] else []
        parts += [f"seed{self.seed}"] if self.seed != 42 else []
        home = DATA / "results" if self.renders else ROOT / "runs" / "tables"
        return home / self.profile / "+".join(parts) / self.notebook

    @property
    def divisor(self) -> int:
        """By how much token budgets shrink: the second model's at `study` are a third."""
        return 3 if self.model == SECOND and self.profile == "study" else 1

    def sample(self, subject: Subject, text: Corpus) -> MeasuredText:
        """The run's windows of a text for a measured subject, disjoint by document: for maps, for
        gates and routers, and the one test sample (lib.text.measured_sample)."""
        budget = PROFILES[self.profile]
        parts = measured_sample(text, read_before=subject.name in tiny_models())

        def cut(part: str) -> Windows:
            documents = getattr(parts, part)[: budget.get("most_documents")]
            name = f"{text.name} ({part})"
            return cut_windows(documents, subject.tokenizer, budget["seq_len"], self.seed, name)

        def up_to(windows: Windows, n_tokens: int) -> Windows:
            return windows.take(min(n_tokens // self.divisor, windows.n_tokens))

        n_documents = -(-budget["test_documents"] // self.divisor)
        return MeasuredText(
            up_to(cut("maps"), budget["map_tokens"]),
            up_to(cut("gates"), budget["gate_tokens"]),
            cut("test").per_document(budget["test_windows"], n_documents),
        )

    def table(self, table: pd.DataFrame, name: str, show: bool = True, digits: int = 3) -> None:
        """Keep a table as <name>.csv among the results, and show it."""
        with whole(self.folder / f"{name}.csv") as part:
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
        home = ROOT / "figures" if shown else ROOT / "runs" / "figures" / self.folder.parent.name
        with whole(home / name) as part:
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
        """Judge a row of comparisons.csv (see lib.compare.compare) and show it in one line, which
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
        path = DATA / "results" / "study" / SECOND / self.notebook / f"{name}.csv"
        if not self.renders or self.model == SECOND or not path.exists():
            return None
        return pd.read_csv(path)

    def _second_model(self) -> dict[str, Comparison]:
        """{id: row} of the second model, for the committed page of the default one."""
        path = DATA / "results" / "study" / SECOND / self.notebook / "comparisons.csv"
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
        with whole(self.folder / "answer.json") as part:
            part.write_text(json.dumps(lines, ensure_ascii=False, indent=1) + "\n")

    def end(self, **facts) -> None:
        """Fill the table at the top, keep it and the provenance beside the tables, and show the
        latter in one line."""
        self._show_comparisons()
        facts = {
            "profile": self.profile,
            "model": MODEL_NOTES.get(self.model, self.model),
            "corpus": self.corpus,
            "seed": self.seed,
            **{k: repr(v) if isinstance(v, Windows) else v for k, v in facts.items()},
            "device": torch.cuda.get_device_name()
            if torch.cuda.is_available()
            else f"CPU, {torch.get_num_threads()} thread(s)",
            "python": platform.python_version(),
            **{p: version(p) for p in ("torch", "transformers", "numpy")},
            "core-minutes of the steps behind it": round(COST.seconds / 60, 1),
            "seconds of this run": round(time.time() - self.began),
        }
        with whole(self.folder / "provenance.json") as part:
            part.write_text(json.dumps(facts, indent=1) + "\n")
        display(Markdown("*" + " · ".join(f"{k} {v}" for k, v in facts.items()) + "*"))


def top() -> None:
    """Keep the places of the answer, the figure that shows it and the table of comparisons: a
    notebook's first call."""
    for place in ("answer", "figure", "caption", "comparisons"):
        display(Markdown(""), display_id=place)


def start(
    notebook: str, profile: str, model: str | None, corpus: str | None, seed: int = 42
) -> Run:
    """Check a notebook's parameters and begin its run, before any long work.

    `model` and `corpus` default to the profile's own. Raises InputError for an unknown profile,
    model or corpus, or a misspelt papermill parameter (papermill itself only warns).
    """
    if not isinstance(profile, str) or profile not in PROFILES:
        raise unknown("profile", profile, [*PROFILES])
    _check_parameters()
    if type(seed) is not int or not 0 <= seed < 2**32:
        raise InputError(f"seed {seed!r} is no whole number from 0 to 2**32 - 1: give one like 42.")
    usual = PROFILES[profile]
    run = Run(notebook, profile, model or usual["model"], corpus or usual["corpus"], seed)
    check_model(run.model)
    check_corpus(run.corpus)
    plots.style()
    transformers.logging.set_verbosity_error()
    return run


def _check_parameters() -> None:
    """Raise InputError if papermill injected a name that the notebook's own cells do not set."""
    shell = get_ipython()
    cells = shell.user_ns.get("In", []) if shell else []
    known: set[str] = set()
    for cell in cells:
        if cell.startswith("# Parameters"):
            for name in sorted(_assigned(cell) - known):
                raise unknown("parameter", name, sorted(known))
        elif not cell.lstrip().startswith(("%", "!")):
            known |= _assigned(cell)


def _assigned(cell: str) -> set[str]:
    """Names that a cell's own statements assign."""
    names = set()
    for statement in ast.parse(cell).body:
        if isinstance(statement, ast.Assign):
            targets = statement.targets
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


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
