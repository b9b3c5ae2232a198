"""Which reports a series consists of: its parameters, checked, and its order.

Light (no torch, no pandas), for Snakemake reads this in every job.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from lib.second.base import ROOT, InputError, Profile, get_profile, label, unknown
from lib.second.reports.digest import source_of

NOTEBOOKS = ROOT / "notebooks"
PAPERS = ("whipp", "balogh", "ikeda", "tapered", "badger")
PARAMETERS = ("profile", "model", "corpus", "seed", "paper", "number", "at_once", "gpus")
"""what `--config` of Snakemake takes; make has them in capitals, but N for number and JOBS for
at_once, and no gpus, which are for the nodes of a cluster"""


# The same parameters as make has them, and what else may stand in its command line.
VARIABLES = {
    "PROFILE": "profile",
    "MODEL": "model",
    "CORPUS": "corpus",
    "SEED": "seed",
    "PAPER": "paper",
    "N": "number",
    "JOBS": "at_once",
}
OPTIONS = [*VARIABLES, "PYTHON", "VENV"]


@dataclass(frozen=True)
class Task:
    """One report of a series."""

    run: str
    """folder of its model, corpus and seed: lib.second.base.label"""
    notebook: str
    """name of the notebook without its ending"""


@dataclass(frozen=True)
class Plan:
    """A series: every notebook for every model and seed."""

    profile: Profile
    corpus: str
    runs: dict[str, tuple[str, int]]
    """(model, seed) of each run's folder"""
    notebooks: tuple[str, ...]
    at_once: int
    gpus: int = 0
    """how many a report asks of a cluster's node; here PyTorch uses what it sees"""

    @property
    def home(self) -> Path:
        """runs/<profile>, relative to the checkout."""
        return Path("runs") / self.profile.name

    @property
    def tasks(self) -> list[Task]:
        """In the order in which they start: by notebook, the tour last."""
        return [Task(run, notebook) for notebook in self.notebooks for run in self.runs]


def asked(environment: Mapping[str, str]) -> dict[str, str]:
    """The parameters that make's environment sets. Raises InputError for an unknown name on its
    command line, or an empty value there; an empty variable of the shell counts as none."""
    named = environment.get("NONLINEARITY_OPTIONS", "").split()
    for name in named:
        if name not in OPTIONS:
            raise unknown("option", name, OPTIONS)
    return {
        key: environment.get(name, "")
        for name, key in VARIABLES.items()
        if name in named or environment.get(name)
    }


def plan(given: Mapping[str, object]) -> Plan:
    """The series that these parameters ask for; an absent one is at its default.

    `model` and `seed` may name several with commas between; `number` is notebook numbers ("01,03",
    "08-12"), `paper` a paper's short name. Raises InputError for an unknown parameter or value;
    whether a model and a corpus are known is asked by `check_names`.
    """
    texts = {}
    for key, value in given.items():
        if key not in PARAMETERS:
            raise unknown("parameter", key, list(PARAMETERS))
        texts[key] = "" if value is None else str(value).strip()
        if not texts[key]:
            raise InputError(f"{key} is empty: give a value, or leave it out for its default.")
    profile = get_profile(texts.get("profile", "laptop"))
    models = _several("model", texts.get("model", profile.subject))
    seeds = [_whole("seed", s, 0, 2**32 - 1) for s in _several("seed", texts.get("seed", "42"))]
    corpus = texts.get("corpus", profile.corpus)
    runs: dict[str, tuple[str, int]] = {}
    for model, seed in product(models, seeds):
        run = label(profile, model, corpus, seed)
        twin = next((name for name in runs if name.lower() == run.lower()), None)  # one on macOS
        if twin:
            raise InputError(
                f"models {runs[twin][0]!r} and {model!r} would share the folder {run!r}: leave one "
                "out, or rename it."
            )
        runs[run] = model, seed
    # Small models leave cores idle between operations: two at once take less time than one by one.
    usual = "2" if profile.name in ("smoke", "laptop") and (os.cpu_count() or 1) > 1 else "1"
    return Plan(
        profile,
        corpus,
        runs,
        tuple(chosen(texts.get("number"), texts.get("paper"))),
        _whole("at_once (JOBS)", texts.get("at_once", usual), 1, 1_000),
        _whole("gpus", texts.get("gpus", "0"), 0, 64),
    )


def check_names(plan: Plan) -> None:
    """Raise InputError unless models and corpus are known names, or can be on the hub or the
    disk. Loads torch where they are not the profile's own."""
    models = {model for model, _ in plan.runs.values()}
    if models != {plan.profile.subject}:
        from lib.second.models.names import check_subject

        for model in models:
            check_subject(model)
    if plan.corpus != plan.profile.corpus:
        from lib.second.texts.corpora import check_corpus

        check_corpus(plan.corpus)


def chosen(numbers: str | None = None, paper: str | None = None) -> list[str]:
    """Names of the notebooks with these numbers and of this paper, all by default: ascending, 00,
    the tour, last, for it collates what the others found. Raises InputError if there is none."""
    every = sorted(p.stem for p in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    every.sort(key=lambda name: name.startswith("00"))
    wanted = every if numbers is None else _numbered(numbers, every)
    if paper is None:
        return wanted
    if paper.lower() not in PAPERS:
        raise unknown("paper", paper, list(PAPERS))
    found = [name for name in wanted if paper.lower() in papers_of(name)]
    if not found:
        have = ", ".join(p for p in PAPERS if any(p in papers_of(name) for name in every))
        among = "" if numbers is None else f" among {numbers}"
        raise InputError(
            f"no notebook{among} reproduces paper {paper!r}: papers with notebooks are {have}."
        )
    return found


def title(notebook: str) -> str:
    """The first line of a notebook, such as "01 · Linear recoverability"."""
    return _first_text(notebook).strip().splitlines()[0].lstrip("# ")


def papers_of(notebook: str) -> set[str]:
    """The papers that a notebook names in the line under its title; none of the tour."""
    source = re.search(r"^\*([^*].*)$", _first_text(notebook), re.M)
    return {p for p in PAPERS if source and re.search(rf"\b{p}\b", source[1], re.I)}


def _first_text(notebook: str) -> str:
    cells = json.loads((NOTEBOOKS / f"{notebook}.ipynb").read_text())["cells"]
    return next((source_of(c) for c in cells if c["cell_type"] == "markdown"), "") or notebook


def _numbered(numbers: str, every: list[str]) -> list[str]:
    known, wanted = [name[:2] for name in every], set()
    for part in numbers.split(","):
        ends = re.fullmatch(r"\s*(\d{1,2})(?:\s*-\s*(\d{1,2}))?\s*", part, re.ASCII)
        if not ends:
            raise InputError(
                f"notebook numbers {numbers!r} cannot be read: give for example 01, 01,03 or 08-12."
            )
        first, last = int(ends[1]), int(ends[2] or ends[1])
        found = {k for k in known if first <= int(k) <= last}
        if not found:
            raise unknown("notebook number", part.strip(), sorted(known))
        wanted |= found
    return [name for name in every if name[:2] in wanted]


def _several(what: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise InputError(f"{what} {text!r} has an empty or a repeated part: name each once.")
    return names


def _whole(what: str, text: str, low: int, high: int) -> int:
    if not re.fullmatch(r"\d{1,10}", text, re.ASCII) or not low <= int(text) <= high:
        raise InputError(
            f"{what} {text!r} is no whole number from {low} to {high:,}: give for example "
            f"{max(low, 42 if what == 'seed' else 2)}."
        )
    return int(text)
