"""One run of a notebook: its parameters checked, its budgets, tables, figures, summary."""

import json
import os
import platform
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import transformers
from IPython.display import Image, Markdown, display

from lib import page, paper, plots, store
from lib.errors import InputError, unknown
from lib.files import DATA, ROOT, atomic_write
from lib.models.blocks import Subject
from lib.models.loading import load_subject
from lib.models.names import (
    COMMITTED,
    MODEL_NOTES,
    PROFILES,
    TRAINED_HERE,
    check_model,
    label,
    tiny_models,
)
from lib.stats import Interval
from lib.text.corpora import Corpus, check_corpus, load_corpus, measured_sample
from lib.text.corpora import Sample as Documents
from lib.text.windows import Windows, cut_windows

LEAST_DOCUMENTS = 6
"""of a test text; there is no interval below"""
RENDER = "NONLINEARITY_RENDER"  # set by make render: this run makes what the repository shows
COMMAND = "NONLINEARITY_COMMAND"  # set by our commands, which take care of a page's words


class Sample(NamedTuple):
    """Windows of one text, disjoint by document: to fit on, to choose on, to report on."""

    fit: Windows
    choose: Windows
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
    behind: dict = field(default_factory=dict)
    """documents and fitted tokens behind the tables; none where the model is trained here"""

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
        return 3 if self.model in COMMITTED[1:] and self.profile == "study" else 1

    def load(self, least_blocks: int = 1) -> tuple[Subject, Sample]:
        """The run's model and its windows of the run's text. Raises InputError for a model with
        fewer blocks than this notebook needs."""
        subject = load_subject(self.model)
        check_depth(subject, least_blocks)
        sample = self.sample(subject, load_corpus(self.corpus))
        self.behind = {
            "documents": sample.test.n_documents,
            "fitted tokens": sample.fit.n_tokens,
        }
        print(subject, *sample, sep="\n")
        return subject, sample

    def _parts(self, text: Corpus) -> Documents:
        """The documents of a text by what they are for. What the models trained here have not read
        is the test of the sample for every model."""
        unread = self.model in tiny_models() or text is load_corpus("wikipedia-sample")
        return measured_sample(text, read_before=unread)

    def untested(self, subject: Subject, text: Corpus, seq_len: int) -> Windows:
        """Windows of all documents of a text that are not tested on, to train a model on."""
        parts = self._parts(text)
        documents, name = [*parts.maps, *parts.gates], f"{text.name} (not tested)"
        return cut_windows(documents, subject.tokenizer, seq_len, self.seed, name)

    def tested(self, subject: Subject, text: Corpus, seq_len: int) -> Windows:
        """Windows of all documents of a text that are tested on."""
        documents, name = self._parts(text).test, f"{text.name} (tested)"
        return cut_windows(documents, subject.tokenizer, seq_len, self.seed, name)

    def sample(self, subject: Subject, text: Corpus, seq_len: int | None = None) -> Sample:
        """The run's windows of a text for a measured subject, disjoint by document: for maps, for
        gates and routers, and the one test sample (lib.text.corpora.measured_sample). `seq_len`:
        tokens a window, where not the profile's."""
        budget = PROFILES[self.profile]
        seq_len = seq_len or budget["seq_len"]
        parts = self._parts(text)

        def cut(part: str) -> Windows:
            documents = getattr(parts, part)[: budget.get("most_documents")]
            name = f"{text.name} ({part})"
            return cut_windows(documents, subject.tokenizer, seq_len, self.seed, name)

        def up_to(windows: Windows, n_tokens: int) -> Windows:
            return windows.take(min(n_tokens // self.divisor, windows.n_tokens))

        n_documents = -(-budget["test_documents"] // self.divisor)
        test = cut("test").per_document(budget["test_windows"], n_documents)
        if test.n_documents < LEAST_DOCUMENTS:
            raise InputError(
                f"corpus {text.name!r} has {test.n_documents} test documents of at least "
                f"{seq_len} tokens, and intervals need {LEAST_DOCUMENTS}: give a text of "
                "at least 120,000 characters."
            )
        return Sample(
            up_to(cut("maps"), budget["map_tokens"]),
            up_to(cut("gates"), budget["gate_tokens"]),
            test,
        )

    def keep(self, table: pd.DataFrame, name: str) -> pd.DataFrame:
        """Keep a tidy table as <name>.csv among this run's results; the same table comes back."""
        with atomic_write(self.folder / f"{name}.csv") as part:
            table.to_csv(part, index=False, float_format="%.6g", lineterminator="\n")
        table.attrs["name"] = name
        return table

    def with_committed(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table that was kept, with the same table of the committed models below it (never of
        this run's own): columns model, profile, documents and fitted tokens tell them apart."""
        own = {"model": label(self.model), "profile": self.profile, **self.behind}
        parts = [table.assign(**own)]
        for model in self._others():
            folder = self.committed_folder(model)
            path = folder / f"{table.attrs['name']}.csv"
            if path.exists() and (folder / "provenance.json").exists():  # else it was stopped
                of_run = json.loads((folder / "provenance.json").read_text("utf-8"))
                behind = {name: of_run[name] for name in self.behind if name in of_run}
                parts.append(pd.read_csv(path).assign(model=model, profile="study", **behind))
        return pd.concat(parts, ignore_index=True)

    def _others(self) -> list[str]:
        """The committed models beside which this run stands."""
        return [model for model in COMMITTED if model != self.model]

    def committed_folder(self, model: str) -> Path:
        return DATA / "results" / "study" / model / self.notebook

    def colours(self, models: Iterable[str]) -> dict[str, str]:
        """{model: its colour in a figure}; a committed model always has the same one."""
        others = [name for name in dict.fromkeys(models) if name not in COMMITTED]
        return dict(zip((*COMMITTED, *others), plots.COLOURS))

    def figure(self, figure: plt.Figure, what: str, alt: str) -> Image:
        """A figure to end a cell with. `alt` is one sentence for who does not see it. "main" is
        shown at the top as well: of the committed pages it alone is kept in figures/."""
        png = BytesIO()
        plots.plain_names(figure, self.model, self.corpus)
        figure.savefig(png, format="png", dpi=160)
        plt.close(figure)
        if what == "main" or not self.shown:
            with atomic_write(self.figure_path(what)) as part:
                part.write_bytes(png.getvalue())
        width = round(figure.get_size_inches()[0] * 80)
        return Image(png.getvalue(), width=width, alt=alt)

    @property
    def shown(self) -> bool:
        """Whether this run's figures are those of the committed page."""
        return self.renders and self.model == COMMITTED[0] and self.profile == "study"

    def figure_path(self, what: str) -> Path:
        """Where a figure of this run is kept."""
        home = ROOT / "figures" if self.shown else self.folder
        return home / f"{self.notebook[:2]}_{what}.png"

    def summary(self, rows: Sequence[tuple[str, Interval | float | str, str]]) -> pd.DataFrame:
        """Keep the numbers that the page's words quote, and show them beside the committed runs'.

        A row is a quantity's name, its value, and its unit: "1", "nats a token", "share", "change
        of perplexity", "points", or what is counted. Raises InputError for a row without a name,
        and for a name that stands twice.
        """
        names = [name for name, *_ in rows]
        if bad := [name for name in names if not name.strip() or names.count(name) > 1]:
            raise InputError(
                f"the summary has a row named {bad[0]!r} {names.count(bad[0])} times: give each "
                "row a name of its own."
            )
        lines: list[dict[str, object]] = []
        for name, value, unit in rows:
            low, high = value[1:] if isinstance(value, Interval) else (np.nan, np.nan)
            number = value[0] if isinstance(value, Interval) else value
            numbers = {"value": number, "low": low, "high": high}
            shown = paper.shown(value, unit)
            lines.append({"quantity": name, "unit": unit, "shown": shown, **numbers})
        table = pd.DataFrame(lines)
        self.keep(table, "summary")
        committed = page.committed_summaries(self.notebook)
        own = "here" if self.notebook[:2] in TRAINED_HERE else label(self.model)
        if self.renders:
            committed.pop(own, None)
        else:
            own = f"{own}, {self.profile}"
        both = {own: page.summary_in(self.folder)} | committed
        return pd.DataFrame(page.side_by_side(both)).style.hide(axis="index").set_uuid("summary")

    def end(self, **facts) -> None:
        """Keep the run's provenance (with further facts) and the keys of what it asked for."""
        if store.USED:
            used = sorted((family, digest) for digest, (family, *_) in store.USED.items())
            self.keep(pd.DataFrame(used, columns=["family", "key"]), "measured")
        self.provenance(**self.behind, **facts)

    def provenance(self, **facts) -> None:
        """Keep, and show in one line, what this run was made with."""
        read = {"model": MODEL_NOTES.get(self.model, self.model), "corpus": self.corpus}
        facts = {
            "profile": self.profile,
            **(read if self.behind else {}),  # trained decoders read neither
            "seed": self.seed,
            **{k: repr(v) if isinstance(v, Windows) else v for k, v in facts.items()},
            "device": torch.cuda.get_device_name()
            if torch.cuda.is_available()
            else f"CPU, {torch.get_num_threads()} thread(s)",
            "python": platform.python_version(),
            **{p: version(p) for p in ("torch", "transformers", "numpy")},
            "measurements kept": len(store.USED) - sum(now for _, now, _ in store.USED.values()),
            "measured now": sum(now for _, now, _ in store.USED.values()),
            "core-minutes behind both": round(sum(s for *_, s in store.USED.values()) / 60, 1),
            "seconds of this run": round(time.time() - self.began),
        }
        with atomic_write(self.folder / "provenance.json") as part:
            part.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        display(Markdown("*" + " · ".join(f"{k} {v}" for k, v in facts.items()) + "*"))


def start(
    notebook: str,
    profile: str,
    model: str | None,
    corpus: str | None,
    seed: int = 42,
    kind: type[Run] = Run,
) -> Run:
    """Check a notebook's parameters and begin its run, before any long work.

    `model` and `corpus` default to the profile's own. Raises InputError for an unknown profile,
    model or corpus; of a parameter that the notebook does not have papermill warns.
    """
    if not isinstance(profile, str) or profile not in PROFILES:
        raise unknown("profile", profile, [*PROFILES])
    if type(seed) is not int or not 0 <= seed < 2**32:
        raise InputError(f"seed {seed!r} is no whole number from 0 to 2**32 - 1: give one like 42.")
    for name, value in (("model", model), ("corpus", corpus)):
        if value is not None and not isinstance(value, str):
            raise InputError(
                f"{name} {value!r} is a {type(value).__name__}, no name: hand it over as text, by "
                "papermill's -r in the place of -p."
            )
    usual = PROFILES[profile]
    store.USED.clear()  # what an earlier run of this kernel asked for is not this one's
    run = kind(notebook, profile, model or usual["model"], corpus or usual["corpus"], seed)
    check_model(run.model)
    check_corpus(run.corpus)
    plots.style()
    transformers.logging.set_verbosity_error()
    pd.options.display.float_format = lambda value: f"{value:.3g}".replace("-", "−")
    usual = PROFILES["study"]
    of_page = (COMMITTED[0], "study", usual["corpus"], 42)
    if COMMAND not in os.environ and (run.model, profile, run.corpus, seed) != of_page:
        measured = [m for m in COMMITTED if run.committed_folder(m).exists()]
        trained_here = notebook[:2] in TRAINED_HERE
        about = "decoders trained here" if trained_here else " and ".join(measured)
        decoders = f"decoders trained on {corpus}" if corpus else "decoders"
        here = decoders if trained_here else f"{run.model} on {run.corpus}"
        print(
            f"here: {here} at {profile}, seed {seed}. The words in this notebook are about "
            f"{about or COMMITTED[0]}, at study."
        )
    return run


def check_depth(subject: Subject, least: int) -> None:
    """Raise InputError for a model with fewer blocks than a notebook needs."""
    if len(subject) < least:
        raise InputError(
            f"{subject.name} has {len(subject)} blocks, and this notebook compares parts of at "
            f"least {least}: choose a deeper model, or notebook 00."
        )
