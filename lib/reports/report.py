"""What every notebook needs around its science: checked parameters, a place for results, and
provenance."""

import ast
import json
import os
import platform
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import torch

from lib.base import style as plots
from lib.base.errors import InputError, unknown
from lib.base.names import label, slugify
from lib.base.paths import DATA, ROOT, whole
from lib.base.profiles import Profile, get_profile
from lib.models.subjects import check_subject
from lib.reports import judging
from lib.reports.display import show
from lib.stats import claims
from lib.texts.corpora import check_corpus

# Set by `make render`: this run makes what the repository shows.
COMMITTING = "NONLINEARITY_COMMITTING"


@dataclass
class Report:
    """One run of one notebook."""

    slug: str
    profile: Profile
    model: str
    corpus: str
    seed: int
    options: dict = field(default_factory=dict)
    """further parameters of the notebook that are not at their default"""
    started: float = field(default_factory=time.time)
    judged: dict = field(default_factory=dict)
    """the claims judged so far, by id"""
    claim, claims_table, tally = judging.claim, judging.claims_table, judging.tally

    @property
    def folder(self) -> Path:
        """data/results/<profile>/<model>/<notebook>; corpus, seed and options that are not the
        usual ones are part of the model's folder."""
        run = label(self.profile, self.model, self.corpus, self.seed) + "".join(
            f"+{name}={slugify(str(value))}" for name, value in self.options.items()
        )
        return DATA / "results" / self.profile.name / run / self.slug

    def save(self, table: pd.DataFrame, name: str) -> pd.DataFrame:
        """Write a table as <name>.csv among the results and hand it back."""
        with whole(self.folder / f"{name}.csv") as part:
            table.to_csv(part, index=False, float_format="%.6g", lineterminator="\n")
        return table

    def figure(self, figure, what: str = "") -> None:
        """Write a figure as PNG and SVG: into figures/ when the committed notebooks are made,
        else beside the run's tables."""
        folder = ROOT / "figures" if COMMITTING in os.environ else self.folder
        for kind in ("png", "svg"):
            with whole(folder / f"{self.slug}{'_' if what else ''}{what}.{kind}") as part:
                figure.savefig(
                    part, metadata={"Date": None} if kind == "svg" else {"Software": None}
                )

    def scorecard(self) -> pd.DataFrame:
        """Every claims.csv found, as one table by paper; written to data/results/scorecard.csv
        when the committed notebooks are made."""
        found = claims.collate()
        if (
            COMMITTING in os.environ
        ):  # the results that are committed, not those that this machine happens to hold
            found = found[found.profile.isin(["study", "paper"])]
        target = (
            DATA / "results" / "scorecard.csv"
            if COMMITTING in os.environ
            else self.folder / "scorecard.csv"
        )
        with whole(target) as part:
            found.to_csv(part, index=False, lineterminator="\n")
        return found

    def verdicts(self, found: list[claims.Claim]):
        """Write claims.csv and show it as a table."""
        return show(self.save(claims.table(found), "claims"))

    def provenance(self, **counts: int) -> str:
        """Store what this run was beside its results, and say it in one line. `counts` are token
        counts and the like."""
        facts = {
            "profile": self.profile.name,
            "model": self.model,
            "corpus": self.corpus,
            "seed": self.seed,
            **self.options,
            **counts,
            "device": torch.cuda.get_device_name()
            if torch.cuda.is_available()
            else f"CPU, {torch.get_num_threads()} threads",
            "python": platform.python_version(),
            **{p: version(p) for p in ("torch", "transformers", "numpy")},
            "wall": f"{time.time() - self.started:.0f} s (steps found in the cache not repeated)",
        }
        with whole(self.folder / "provenance.json") as part:
            part.write_text(json.dumps(facts, indent=1) + "\n")
        return " · ".join(
            f"{k} {v:,}" if isinstance(v, int) and k != "seed" else f"{k} {v}"
            for k, v in facts.items()
        )


def start(
    slug: str,
    profile: str,
    model: str | None = None,
    corpus: str | None = None,
    seed: int = 42,
    **options,
) -> Report:
    """Check the notebook's parameters and begin its report; the first call of every notebook,
    before any long work.

    `options` are further parameters of the notebook, None where at their default. `model` and
    `corpus` default to the profile's own. Raises InputError for an unknown profile, model, corpus,
    or a misspelt
    papermill parameter (papermill itself only warns).
    """
    check_parameters(_cells())
    chosen = get_profile(profile)
    report = Report(
        slug,
        chosen,
        model or chosen.subject,
        corpus or chosen.corpus,
        seed,
        {name: value for name, value in options.items() if value is not None},
    )
    check_subject(report.model)
    check_corpus(report.corpus)
    if type(seed) is not int or not 0 <= seed < 2**32:
        raise InputError(
            f"seed {seed!r} is no whole number from 0 to 2³²-1: give one, for example 42."
        )
    plots.style()
    return report


def blocks_named(blocks: str | int | None, n_blocks: int) -> list[int]:
    """The blocks of a parameter such as "1,10"; None: an early and a deep one, the second and
    the last but one (Whipp §5.5)."""
    if blocks is None or blocks == "":
        return sorted({min(1, n_blocks - 1), max(n_blocks - 2, 0)})
    parts = [part.strip() for part in str(blocks).split(",")]
    if not all(part.isdecimal() and int(part) < n_blocks for part in parts) or len(
        set(parts)
    ) < len(parts):
        raise InputError(
            f"blocks {blocks!r} are not distinct block numbers from 0 to {n_blocks - 1} with "
            f"commas between: give for example '1,{max(n_blocks - 2, 0)}'."
        )
    return [int(part) for part in parts]


def domains_named(domains: str | None, reference: str, usual: Collection[str]) -> list[str]:
    """The corpora of a parameter such as "king-james,python-stdlib", each checked; None: the
    profile's own, without the reference."""
    names = (
        [name.strip() for name in domains.split(",")]
        if domains
        else [name for name in usual if name != reference]
    )
    if reference in names or len(set(names)) < len(names):
        raise InputError(
            f"domains {domains!r} name {reference!r}, the reference, or one corpus twice: "
            "name each other corpus once."
        )
    for name in names:
        check_corpus(name)
    return names


def _cells() -> list[str]:
    """Source of the cells that this kernel has executed so far; none outside a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return list(shell.user_ns.get("In", [])) if shell else []


def check_parameters(cells: list[str]) -> None:
    """Raise InputError if a cell that papermill injected sets a name that no cell before it set."""
    known: list[str] = []
    for cell in cells:
        try:
            tree = ast.parse(cell)
        except SyntaxError:  # a cell with magics sets no parameters
            continue
        names = [
            t.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            for t in node.targets
            if isinstance(t, ast.Name)
        ]
        if cell.startswith("# Parameters"):
            for name in names:
                if name not in known:
                    raise unknown("parameter", name, known)
        known += names
