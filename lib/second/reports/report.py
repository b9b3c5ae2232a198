"""What every notebook needs around its science: a place for results, a scorecard, provenance."""

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch

from lib.second.base import cache
from lib.second.base import style as plots
from lib.second.base.errors import InputError
from lib.second.base.names import label, slugify
from lib.second.base.paths import DATA, ROOT, whole
from lib.second.base.profiles import Profile, get_profile
from lib.second.base.results import COLD, PROVENANCE, finish, timeless
from lib.second.models.embedded import ORIGIN
from lib.second.models.names import check_subject
from lib.second.models.subjects import Subject
from lib.second.reports import judging, pictures
from lib.second.reports.digest import cells_digest
from lib.second.reports.display import fill_brief, picture, shell
from lib.second.reports.parameters import check_parameters, executed_cells
from lib.second.stats import claims
from lib.second.texts.corpora import check_corpus
from lib.second.texts.windows import Windows, cut_windows

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
    about: dict = field(default_factory=dict)
    """the model and corpus that verdicts are about, where a notebook trains its own"""
    written: set[str] = field(default_factory=set)
    """names of the tables and figures written so far"""
    claim, claims_table, tally = judging.claim, judging.claims_table, judging.tally

    @cached_property
    def beside(self) -> dict[str, str]:
        """Verdicts of this notebook's claims on the null subject, where one was run and could
        tell."""
        found = claims.null_verdicts(self.slug, self.model, self.corpus, self.seed, self.options)
        return {id: verdict for id, verdict in found.items() if verdict != "not run"}

    @property
    def folder(self) -> Path:
        """data/results/<profile>/<model>/<notebook>; corpus, seed and options that are not the
        usual ones are part of the model's folder."""
        run = label(self.profile, self.model, self.corpus, self.seed) + "".join(
            f"+{name}={slugify(str(value))}" for name, value in self.options.items()
        )
        return DATA / "results" / self.profile.name / run / self.slug

    @property
    def simple_corpus(self) -> str:
        """The text of the linear language models: the profile's simplest, unless the reader
        names a corpus."""
        usual = self.corpus == self.profile.corpus
        return self.profile.simple_corpus if usual else self.corpus

    def windows(
        self,
        documents: Sequence[str],
        tokenizer,
        n_tokens: int | None = None,
        name: str | None = None,
        evenly: bool = False,
    ) -> Windows:
        """A sample of `documents` in windows, as this run's profile and seed draw it.

        All windows unless `n_tokens` says how many to take; `evenly`: alike of every document, for
        perplexities. In a profile that keeps the corpus' order the windows are its first. `name` is
        the corpus' name, if it is not that of the run.
        """
        ordered = self.profile.in_order
        seed = None if ordered else self.seed
        name = name or self.corpus
        cut = cut_windows(documents, tokenizer, self.profile.seq_len, seed, name)
        return cut if n_tokens is None else cut.take(n_tokens, evenly and not ordered)

    def save(self, table: pd.DataFrame, name: str) -> pd.DataFrame:
        """Write a table as <name>.csv among the results and hand it back."""
        with whole(self.folder / f"{name}.csv") as part:
            table.to_csv(part, index=False, float_format="%.6g", lineterminator="\n")
        self.written.add(f"{name}.csv")
        return table

    def figure(self, figure, what: str = "", alt: str = "") -> None:
        """Write a figure as PNG and SVG, display it in the notebook as a smaller PNG, and close it.

        The files go into figures/ when the committed notebooks are made, else beside the run's
        tables. `alt` is one sentence that says what the figure shows, for readers who do not see
        it. Raises InputError if it is missing while the committed notebooks are made.
        """
        committing = COMMITTING in os.environ
        if committing and not alt.strip():
            raise InputError(
                f"figure {what or self.slug!r} has no alternative text: give run.figure an `alt`, "
                "one sentence that says what the figure shows."
            )
        name = f"{self.slug}_{what}" if what else self.slug
        pictures.save(figure, ROOT / "figures" if committing else self.folder, name)
        if not committing:
            self.written |= {f"{name}.png", f"{name}.svg"}
        if shell():
            picture(pictures.screen_png(figure), alt)
        plt.close(figure)  # or the inline backend would display it a second time

    def brief(self, *sentences: str) -> None:
        """Answer in three to five computed sentences, in the display that `lib.second.reports.brief`
        opened at the top of the notebook. Raises InputError for another number of them."""
        fill_brief(sentences)

    def scorecard(self) -> pd.DataFrame:
        """Every judged claim that lies under data/results, with a column `whose`: "committed" for
        the rows of data/results/scorecard.csv, as they stand there, "yours" for all others.

        That file is written when the committed notebooks are made, and then alone. Raises
        InputError where it is not as it was committed.
        """
        found = claims.collate()
        if COMMITTING in os.environ:
            found = found[found.profile.isin(["study", "paper"])]
            claims.commit_scorecard(found)
            return found.assign(whose="committed")
        committed = claims.committed_scorecard()
        committed = committed.reindex(columns=[*claims.SCORECARD]).fillna("")
        known = set(zip(committed.profile, committed.run))
        own = [run not in known for run in zip(found.profile, found.run)]
        return pd.concat(
            [committed.assign(whose="committed"), found[own].assign(whose="yours")],
            ignore_index=True,
        )

    def provenance(self, subject: Subject | None = None, **counts: int | Windows) -> str:
        """End the run: store what it was beside its results, seal these, and say it in one line.

        `subject` tells the precision of the weights, where ORIGIN does not. `counts` are samples of
        text, told by their tokens and documents, or numbers. The cold time is what the run takes
        with an empty cache. A stored file that differs in the times alone is left as it is. Tables
        and figures of an earlier run that this one did not write are removed.
        """
        for name, sample in list(counts.items()):
            if isinstance(sample, Windows):
                counts |= {
                    f"{name}_tokens": sample.n_tokens,
                    f"{name}_documents": sample.n_documents,
                }
                del counts[name]
        precision = str(subject.model.dtype).removeprefix("torch.") if subject else None
        weights = None if self.about else ORIGIN.get(self.model, precision)
        facts = {
            "profile": self.profile.name,
            "model": self.about.get("model", self.model),
            **({"weights": weights} if weights else {}),
            "corpus": self.about.get("corpus", self.corpus),
            "seed": self.seed,
            **self.options,
            **counts,
            "device": torch.cuda.get_device_name()
            if torch.cuda.is_available()
            else f"CPU, {torch.get_num_threads()} threads",
            "python": platform.python_version(),
            **{p: version(p) for p in ("torch", "transformers", "numpy")},
        }
        target = self.folder / PROVENANCE
        try:
            stored = dict(json.loads(target.read_text()))
        except (OSError, ValueError, TypeError):  # not there, or damaged
            stored = {}
        took = time.time() - self.started
        cold = max(took, sum(cache.cold_seconds().values()))
        timed = facts | {COLD: f"{cold:.0f} s (this run {took:.0f} s)"}
        if timeless(stored) != timeless(facts):
            with whole(target) as part:
                part.write_text(json.dumps(timed, indent=1) + "\n")
        finish(self.folder, self.written, cells_digest(executed_cells()))
        return " · ".join(
            f"{k} {v:,}" if isinstance(v, int) and k != "seed" else f"{k} {v}"
            for k, v in timed.items()
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
    or a misspelt papermill parameter (papermill itself only warns).
    """
    check_parameters(executed_cells())
    chosen = get_profile(profile)
    report = Report(
        slug,
        chosen,
        chosen.subject if model is None else model,
        chosen.corpus if corpus is None else corpus,
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
