"""One run of a notebook: its parameters checked, its budgets, its tables, figures and claims."""

import ast
import json
import os
import platform
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
import transformers
from IPython import get_ipython
from IPython.display import HTML, Image, Markdown, display, update_display

from lib import plots
from lib.cache import whole
from lib.claims import judge, ledger
from lib.errors import InputError, unknown
from lib.model import check_model
from lib.stats import Interval
from lib.text import DATA, Corpus, Windows, check_corpus, cut_windows

ROOT = DATA.parent
RENDER = "NONLINEARITY_RENDER"  # set by make render: this run makes what the repository shows
# What several notebooks share; what one alone uses stands below its parameters, as run.pick(...).
PROFILES = {
    "smoke": dict(
        model="tiny-gpt2", corpus="wikipedia-sample",
        fit=4_096, maps=2_048, read=1_536, documents=6, per_document=2,
    ),
    "laptop": dict(
        model="smollm2-135m", corpus="wikipedia",
        fit=8_192, maps=6_144, read=1_536, documents=24, per_document=1,
    ),
    "study": dict(
        model="smollm2-135m", corpus="wikipedia",
        fit=122_880, maps=61_440, read=12_288, documents=24, per_document=4,
    ),
    "paper": dict(
        model="gpt2", corpus="wikitext-2",
        fit=30_720, maps=10_240, read=30_720, documents=60, per_document=32,
    ),
}  # fmt: skip


@dataclass
class Run:
    """One run of one notebook; made by `start`."""

    notebook: str
    profile: str
    model: str
    corpus: str
    seed: int
    began: float = field(default_factory=time.time)
    verdicts: list = field(default_factory=list)
    hero: bytes | None = None

    def pick(self, smoke, laptop, study, paper):
        """The value for this run's profile."""
        return dict(zip(PROFILES, (smoke, laptop, study, paper)))[self.profile]

    @property
    def folder(self) -> Path:
        """Where this run's tables go: data/results for what is committed, else runs/."""
        usual = PROFILES[self.profile]
        parts = [self.model.rstrip("/").rpartition("/")[2].replace(":", "~")]
        parts += [Path(self.corpus).stem] if self.corpus != usual["corpus"] else []
        parts += [f"seed{self.seed}"] if self.seed != 42 else []
        home = DATA / "results" if RENDER in os.environ else ROOT / "runs" / "tables"
        return home / self.profile / "+".join(parts) / self.notebook

    def windows(
        self, text: Corpus, tokenizer, seq_len: int = 128, fit: int | None = None
    ) -> tuple[Windows, Windows]:
        """(fit, test): this profile's sample of each part of a corpus, disjoint by document."""
        budget = PROFILES[self.profile]
        cut = lambda part: cut_windows(
            getattr(text, part), tokenizer, seq_len, self.seed, f"{text.name} ({part})"
        )
        test = cut("test")
        most = budget["documents"] * budget["per_document"] * seq_len
        n = min(most, test.n_tokens)
        return cut("fit").take(fit or budget["fit"]), test.take(n, evenly=True)

    def parts(
        self, text: Corpus, tokenizer, seq_len: int | None = None, read: int | None = None
    ) -> tuple[Windows, Windows, Windows]:
        """(fit, train, test), disjoint by document: maps are fitted on the first, gates and routers
        on the second (every third document of the corpus's fit part), all is reported on the third.
        `read`: tokens of the last two, each spread evenly over its documents."""
        budget = PROFILES[self.profile]
        length = seq_len or self.pick(64, 256, 256, 256)
        read = read or budget["read"]
        if len(text.fit) < 2:
            raise InputError(
                f"corpus {text.name!r} has one document to fit on, but maps and gates need some "
                "each: give a longer text."
            )
        third = lambda part, k: [d for i, d in enumerate(part) if (i % 3 == 0) == k]
        parts = []
        for documents, name in (
            (third(text.fit, False), "maps"), (third(text.fit, True), "gates"), (text.test, "test")
        ):  # fmt: skip
            cut = cut_windows(documents, tokenizer, length, self.seed, f"{text.name} ({name})")
            n = min(budget["maps"] if not parts else read, cut.n_tokens)
            parts.append(cut.take(n, evenly=bool(parts)))
        return tuple(parts)

    def table(self, table: pd.DataFrame, name: str, show: bool = True, digits: int = 3) -> None:
        """Keep a table as <name>.csv among the results, and show it."""
        with whole(self.folder / f"{name}.csv") as part:
            table.to_csv(part, index=False, float_format="%.5g", lineterminator="\n")
        if show:
            show_table(table, digits)

    def figure(self, figure: plt.Figure, what: str, alt: str, hero: bool = False) -> None:
        """Show a figure, and keep it in figures/ when the committed notebooks are made; `hero`
        shows it under the answer, at the top. `alt` is one sentence for who does not see it."""
        home = ROOT / "figures" if RENDER in os.environ else self.folder
        with whole(home / f"{self.notebook[:2]}_{what}.png") as part:
            figure.savefig(part, format="png", dpi=160)
            png = part.read_bytes()
        plt.close(figure)
        width = round(figure.get_size_inches()[0] * 80)
        image = Image(png, width=width, alt=alt)
        if hero:
            update_display(image, display_id="hero")
        else:
            display(image)

    def claim(self, id: str, statistic, null=None, units=None) -> None:
        """Judge a claim of the ledger (see lib.claims.judge) and show it in one line."""
        verdict = judge(id, statistic, null, units)
        if ledger().loc[id].notebook != self.notebook:
            raise InputError(f"claim {id} belongs to {ledger().loc[id].notebook}: judge it there.")
        self.verdicts.append(verdict)
        display(Markdown(verdict.line))

    def holds(self, id: str) -> bool:
        """Whether a claim judged in this run holds here."""
        return any(v.id == id and v.verdict == "holds here" for v in self.verdicts)

    def answer(self, *sentences: str) -> None:
        """The answer, in three or four computed sentences, shown at the top."""
        text = " ".join(" ".join(s.split()) for s in sentences)
        update_display(Markdown(f"> **The answer.** {text}"), display_id="answer")
        lines = {"notebook": self.notebook, "answer": text}
        with whole(self.folder / "answer.json") as part:
            part.write_text(json.dumps(lines, ensure_ascii=False, indent=1) + "\n")

    def end(self, **facts) -> None:
        """Keep verdicts and provenance beside the tables, and show the latter in one line."""
        rows = [
            {"id": v.id, "verdict": v.verdict, **v.measured._asdict(), "unit": v.unit}
            | {"null": v.null.value if v.null else "", "why": v.why}
            for v in self.verdicts
        ]
        names = ["id", "verdict", *Interval._fields, "unit", "null", "why"]
        self.table(pd.DataFrame(rows, columns=names), "claims", show=False)
        facts = {
            "profile": self.profile,
            "model": self.model,
            "corpus": self.corpus,
            "seed": self.seed,
            **{k: repr(v) if isinstance(v, Windows) else v for k, v in facts.items()},
            "device": torch.cuda.get_device_name()
            if torch.cuda.is_available()
            else f"CPU, {torch.get_num_threads()} thread(s)",
            "python": platform.python_version(),
            **{p: version(p) for p in ("torch", "transformers", "numpy")},
            "seconds": round(time.time() - self.began),
        }
        with whole(self.folder / "provenance.json") as part:
            part.write_text(json.dumps(facts, indent=1) + "\n")
        display(Markdown("*" + " · ".join(f"{k} {v}" for k, v in facts.items()) + "*"))


def top() -> None:
    """Keep the places of the answer and of the figure that shows it: a notebook's first call."""
    display(Markdown(""), display_id="answer")
    display(Markdown(""), display_id="hero")


def start(
    notebook: str, profile: str, model: str | None, corpus: str | None, seed: int = 42
) -> Run:
    """Check a notebook's parameters and begin its run, before any long work.

    `model` and `corpus` default to the profile's own. Raises InputError for an unknown profile,
    model or corpus, or a misspelt papermill parameter (papermill itself only warns).
    """
    if profile not in PROFILES:
        raise unknown("profile", profile, [*PROFILES])
    _check_parameters()
    if type(seed) is not int or seed < 0:
        raise InputError(f"seed {seed!r} is no whole number from 0 up: give one, for example 42.")
    usual = PROFILES[profile]
    run = Run(notebook, profile, model or usual["model"], corpus or usual["corpus"], seed)
    check_model(run.model)
    check_corpus(run.corpus)
    plots.style()
    transformers.logging.set_verbosity_error()
    return run


def _check_parameters() -> None:
    """Raise InputError if papermill injected a name that the notebook's own cells do not set."""
    cells = get_ipython().user_ns.get("In", []) if get_ipython() else []
    names = lambda cell: {
        t.id
        for node in ast.parse(cell).body
        if isinstance(node, ast.Assign)
        for t in node.targets
        if isinstance(t, ast.Name)
    }
    known: set = set()
    for cell in cells:
        if cell.startswith("# Parameters"):
            for name in sorted(names(cell) - known):
                raise unknown("parameter", name, sorted(known))
        elif not cell.lstrip().startswith(("%", "!")):
            known |= names(cell)


def show_table(table: pd.DataFrame, digits: int = 3) -> None:
    """A table as it should be read: without index, names in words, `digits` significant digits."""
    words = lambda v: (
        "" if isinstance(v, float) and v != v
        else f"{v:,.0f}" if isinstance(v, float) and abs(v) >= 1000
        else f"{v:.{digits}g}" if isinstance(v, float)
        else str(v)
    )  # fmt: skip
    view = table.rename(columns=lambda c: str(c).replace("_", " ")).map(words)
    display(HTML(view.to_html(index=False, border=0, escape=False)))


def beside(printed: pd.DataFrame, measured: pd.DataFrame, on: list[str]) -> pd.DataFrame:
    """The paper's numbers with what is measured here in the columns beside them, matched by `on`;
    where a row has no counterpart, its cells stay empty."""
    return printed.merge(measured, on=on, how="outer", suffixes=(" (paper)", " (here)"))
