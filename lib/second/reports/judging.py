"""Claims as a run judges them: one line each where they are decided, and a table at the end.

These functions are methods of `Report`: run.claim, run.claims_table, run.tally.
"""

import html
from dataclasses import asdict, dataclass
from typing import Protocol

import pandas as pd

from lib.second.base.errors import InputError
from lib.second.base.names import RANDOM
from lib.second.base.profiles import Profile
from lib.second.reports.display import show
from lib.second.stats.claims import JUDGED, count_findings
from lib.second.stats.ledger import VERDICTS, claim_row, rows_of, same_setting, threshold_in_words
from lib.second.stats.verdicts import Judged, judge, not_run

# Told apart by shape and word as well as by colour (blue against orange); white on each at 4.5:1.
BADGES = {
    "reproduced": ("✔", "#00629b"),
    "contradicted": ("✘", "#a84300"),
    "inconclusive": ("?", "#595959"),
    "not run": ("–", "#767676"),
}
NOT_REACHED = "not reached"


class Run(Protocol):
    """What is read here of a `Report`."""

    slug: str
    profile: Profile
    model: str
    corpus: str
    seed: int
    options: dict
    about: dict
    judged: dict[str, Judged]
    beside: dict[str, str]

    def save(self, table: pd.DataFrame, name: str) -> pd.DataFrame: ...


def claim(
    run: Run,
    id: str,
    statistic,
    *,
    exact: bool = False,
    ok: bool = True,
    why: str = "",
    here: str | None = None,
    model: str | None = None,
    corpus: str | None = None,
    of_subject: bool = True,
) -> None:
    """Judge claim `id` by its rule in the ledger, and show it in one line right here.

    The arguments are those of `lib.second.stats.judge`: a statistic with its interval, or None and `why`.
    A claim whose row says "Judged only for …" is "not run" on another model or corpus; `model` and
    `corpus` name what the statistic is about where that is not the run's own. With
    `of_subject=False` it is about models trained here, and a null subject cannot tell. What was
    judged lies in `run.judged[id]`. Raises InputError for an id that is not in the ledger, belongs
    to another notebook, or was judged in this run before.
    """
    row = claim_row(id)
    if id not in set(rows_of(run.slug).id):
        home = row.notebook or "none"
        raise InputError(
            f"claim {id!r} belongs to notebook {home}, not to {run.slug}: judge it there, and link "
            "to it from here."
        )
    if id in run.judged:
        raise InputError(
            f"claim {id!r} was judged in this run before: judge it once, or start the run again."
        )
    if elsewhere := _elsewhere(row, model or run.model, corpus or run.corpus):
        statistic, why = None, elsewhere
    elif not of_subject and run.model.endswith(RANDOM):
        statistic, why = None, "about models trained here, whatever the subject"
    run.judged[id] = judge(id, statistic, exact=exact, ok=ok, why=why, here=here)
    display_line(run.judged[id], run.beside.get(id, ""))


def claims_table(run: Run):
    """Close the notebook: write claims.csv and show every claim that the ledger gives it, in the
    ledger's order; what this run did not judge is "not run", with the reason."""
    found = _all(run)
    facts = {
        "profile": run.profile.name,
        "model": run.about.get("model", run.model),
        "corpus": run.about.get("corpus", run.corpus),
        "seed": run.seed,
        "options": ";".join(f"{name}={value}" for name, value in run.options.items()),
    }
    rows = [asdict(judged) | facts for judged in found]
    run.save(pd.DataFrame(rows, columns=[*JUDGED]), "claims")
    beside = run.beside
    table = pd.DataFrame(
        [
            {
                "importance": j.importance,
                "claim": j.sentence,
                "published": j.published,
                "here": j.here,
                "verdict": mark(j),
                "random_weights": beside.get(j.id, ""),
                "rule": threshold_in_words(claim_row(j.id)).partition(": ")[0] + ")" * bool(j.why),
                "note": _note(j),
            }
            for j in found
        ],
        columns=[
            *("importance", "claim", "published", "here"),
            *("verdict", "random_weights", "rule", "note"),
        ],
    )
    if not beside:
        table = table.drop(columns="random_weights")
    return show(table.map(html.escape))  # show writes text as it is


def tally(run: Run) -> str:
    """How many findings of this notebook had which verdict, and of these the headline ones, in
    words, and how many of the reproduced ones hold for random weights as well; identities and
    settings are not counted."""
    found = pd.DataFrame([asdict(j) for j in _all(run)], columns=[*JUDGED])
    ours = found.paper == "ours"
    counts = count_findings(found[~ours])
    text = f"of {int(counts.to_numpy().sum())} findings of the paper {_words(counts.sum())}"
    headline = counts.loc["headline"]
    if headline.any():
        text += f"; of the headline ones {_words(headline)}"
    beyond = count_findings(found[ours])
    if beyond.to_numpy().any():
        text += f"; of {int(beyond.to_numpy().sum())} of ours {_words(beyond.sum())}"
    beside = run.beside
    held = found[(found.kind == "finding") & (found.verdict == "reproduced")].id
    told = [beside[id] for id in held if id in beside]
    if told:
        same = told.count("reproduced")
        text += (
            f". Of {len(told)} reproduced findings that a network with random weights can tell "
            f"about, it reproduces {same or 'none'} as well"
            + (": these are not about learning" if same else "")
        )
    return text


def _words(counts: pd.Series) -> str:
    return ", ".join(f"{counts[v]} {v}" for v in VERDICTS if counts[v]) or "none"


def _all(run: Run) -> list[Judged]:
    """Every claim of the ledger for this notebook, judged or not."""
    rows = rows_of(run.slug)
    return [
        run.judged.get(row.id) or not_run(row, _unreached(row, run.model, run.corpus))
        for _, row in rows.set_index("id", drop=False).iterrows()
    ]


def _unreached(row: pd.Series, model: str, corpus: str) -> str:
    """Why a claim was not judged, where the ledger does not say why."""
    if row.reason or row.kind == "setting":
        return ""
    return _elsewhere(row, model, corpus) or NOT_REACHED


def _elsewhere(row: pd.Series, model: str, corpus: str) -> str:
    """Why a claim cannot be judged on this model and corpus; "" where it can."""
    same = same_setting(row, model, corpus)
    return "" if same else f"{model} on {corpus} is not what the claim is about"


def mark(judged: Judged) -> str:
    """The verdict in words: an identity is a check, and a dagger marks an amended rule."""
    check = " (identity)" if judged.kind == "identity" else ""
    return f"{judged.verdict}{check}{' †' if judged.amended else ''}"


def _note(judged: Judged) -> str:
    amended = f"† amended: {judged.amended}" if judged.amended else ""
    return "; ".join(part for part in (judged.note, amended) if part)


@dataclass(frozen=True)
class Line:
    """One judged claim as a line of a report, in HTML and as plain text."""

    judged: Judged
    null_verdict: str = ""
    """the verdict on the same architecture with random weights, where there is one"""

    def _parts(self) -> list[str]:
        j = self.judged
        if j.verdict == "not run":  # published, rule and threshold stand in the closing table
            return [j.note]
        return [
            f"published: {j.published}" if j.published else "",
            f"here: {j.here}" if j.here else "",
            f"rule: {threshold_in_words(claim_row(j.id))}" if j.rule else "",
            f"with random weights: {self.null_verdict}" if self.null_verdict else "",
            _note(j),
        ]

    def __repr__(self) -> str:
        j = self.judged
        parts = [part for part in self._parts() if part]
        return f"{BADGES[j.verdict][0]} {mark(j)}: {j.sentence} ({'; '.join(parts)})"

    def _repr_html_(self) -> str:
        j = self.judged
        shape, colour = BADGES[j.verdict]
        badge = (
            f'<strong style="background:{colour};color:#fff;padding:.1em .5em;border-radius:.3em;'
            f'white-space:nowrap">{shape} {html.escape(mark(j))}</strong>'
        )
        parts = " · ".join(html.escape(part) for part in self._parts() if part)
        return (
            f'<p id="claim-{html.escape(j.id)}" style="margin:.2em 0">{badge} '
            f"{html.escape(j.sentence)}<br><small>{parts}</small></p>"
        )


def display_line(judged: Judged, null_verdict: str = "") -> None:
    """Show a judged claim in the notebook; in plain Python it is printed."""
    from IPython.display import display

    display(Line(judged, null_verdict))
