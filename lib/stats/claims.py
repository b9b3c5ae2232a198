"""Published-versus-here: one row a claim, with a verdict that is computed, never typed."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pandas as pd

from lib.base.errors import InputError
from lib.base.names import RANDOM
from lib.base.paths import DATA
from lib.stats.ledger import COLUMNS, IMPORTANCE, VERDICTS, ledger, threshold_in_words

RUN = ("profile", "model", "corpus", "seed", "options")
JUDGED = ("id", "verdict", "here", "note", *COLUMNS[1:], *RUN)
"""columns of a claims.csv: what was found, the ledger's row as it was then, and the run"""
SCORECARD = (
    *("id", "paper", "section", "importance", "kind", "claim", "published", "here", "verdict"),
    *("null_verdict", "note", "rule", "amended", "question", *RUN, "run", "notebook"),
)
"""columns of the scorecard"""


@dataclass(frozen=True)
class Claim:
    """One claim of a paper, what the paper reports, what this run found, and what follows."""

    paper: str
    section: str
    claim: str
    published: str
    here: str
    verdict: str
    note: str = ""
    """the predicate that was tested, or why it was not"""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise InputError(f"verdict {self.verdict!r} is none of {', '.join(VERDICTS)}.")


def above(low: float, high: float, threshold: float) -> str:
    """Verdict of "the quantity exceeds `threshold`" from its interval: it must lie wholly on one
    side."""
    if not low <= high:
        return "inconclusive"  # an undefined interval decides nothing
    return (
        "reproduced" if low > threshold else "contradicted" if high < threshold else "inconclusive"
    )


def below(low: float, high: float, threshold: float) -> str:
    """Verdict of "the quantity is less than `threshold`" from its interval."""
    return above(-high, -low, -threshold)


def all_of(verdicts: Iterable[str]) -> str:
    """Verdict of "all of these hold"; of none, "not run"."""
    found = _checked(verdicts)
    return (
        next((v for v in ("contradicted", "not run", "inconclusive") if v in found), "reproduced")
        if found
        else "not run"
    )


def any_of(verdicts: Iterable[str]) -> str:
    """Verdict of "at least one of these holds"; of none, "not run"."""
    found = _checked(verdicts)
    return (
        next((v for v in ("reproduced", "inconclusive", "not run") if v in found), "contradicted")
        if found
        else "not run"
    )


def _checked(verdicts: Iterable[str]) -> list[str]:
    found = list(verdicts)
    wrong = [v for v in found if v not in VERDICTS]
    if wrong:
        raise InputError(f"verdict {wrong[0]!r} is none of {', '.join(VERDICTS)}.")
    return found


def at_budget(verdict: str, spent: float, needed: float) -> str:
    """The verdict of a run that spent less than the claim is about: it may confirm, but its
    failure decides nothing."""
    return "inconclusive" if _checked([verdict]) == ["contradicted"] and spent < needed else verdict


def within(here: float, published: float, tolerance: float) -> str:
    """Verdict where subject and corpus equal the paper's: the number itself is compared."""
    if not math.isfinite(here):
        return "inconclusive"
    return "reproduced" if abs(here - published) <= tolerance else "contradicted"


def table(claims: list[Claim]) -> pd.DataFrame:
    """Columns paper, section, claim, published, here, verdict, note."""
    return pd.DataFrame([asdict(c) for c in claims])


def published(
    paper: str, table: str | None = None, metric: str | None = None, subject: str | None = None
) -> pd.DataFrame:
    """Rows of data/published/<paper>.csv with `setting` spread into columns (block, candidate, …;
    missing where absent).

    Raises InputError for an unknown paper, or if nothing fits.
    """
    path = DATA / "published" / f"{paper}.csv"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.csv")))
        raise InputError(f"no published numbers for {paper!r}: known are {known}.")
    rows = pd.read_csv(path, keep_default_na=False)
    for column, wanted in {"table": table, "metric": metric, "subject": subject}.items():
        rows = rows if wanted is None else rows[rows[column] == wanted]
    if rows.empty:
        raise InputError(
            f"no published number of {paper} has table={table!r}, metric={metric!r}, "
            f"subject={subject!r}."
        )
    settings = pd.DataFrame(
        [dict(part.split("=", 1) for part in s.split(";") if "=" in part) for s in rows["setting"]],
        index=rows.index,
    )
    found = pd.concat([rows.drop(columns="setting"), settings], axis=1)
    if "block" in found:
        found["block"] = pd.to_numeric(found["block"], errors="coerce").astype("Int64")
    return found.reset_index(drop=True)


def collate() -> pd.DataFrame:
    """The scorecard: one row a claim and run, from every claims.csv under data/results; empty if
    there is none.

    Columns id, paper, section, importance, kind, claim (the ledger's sentence), published, here,
    verdict, null_verdict, note, rule (with its threshold, in words), amended, question; then
    profile, model, corpus, seed, options, run (its folder) and notebook. What a run with random
    weights found, in any profile, stands as `null_verdict` beside the run of the trained model, and
    in no row of its own. A claim whose rule in the ledger is no longer the one it was judged by is
    "not run". A claims.csv without ledger ids has "" in the columns it lacks.
    """
    frames = [_read(p) for p in sorted((DATA / "results").glob("*/*/*/claims.csv"))]
    if not frames:
        return pd.DataFrame(columns=[*SCORECARD])
    columns = [*JUDGED, "claim", "run"]
    found = pd.concat(frames, ignore_index=True).reindex(columns=columns).fillna("")
    if found.id.any():
        found = _by_ledger(found)
    null = found.model.str.endswith(RANDOM)
    beside = found[null].assign(model=found.model.str.removesuffix(RANDOM))
    # At another budget it tells as much: of several profiles, the first by name.
    same = ["id", "notebook", *(column for column in RUN if column != "profile")]
    beside = beside.sort_values("profile").drop_duplicates(same)
    beside = beside[[*same, "verdict"]].rename(columns={"verdict": "null_verdict"})
    found = found[~null].merge(beside, "left", same)
    return found.reindex(columns=[*SCORECARD]).fillna("")


def null_verdicts(
    notebook: str, model: str, corpus: str, seed: int, options: dict | None = None
) -> dict[str, str]:
    """Verdicts by claim of the committed or local run of `notebook` on the null subject of `model`,
    with the same corpus, seed and options: of the first profile by name that has one, as in
    `collate`. {} without such a run, and for a null subject itself."""
    if model.endswith(RANDOM):
        return {}
    told = ";".join(f"{name}={value}" for name, value in (options or {}).items())
    same = {"model": model + RANDOM, "corpus": corpus, "seed": str(seed), "options": told}
    for path in sorted((DATA / "results").glob(f"*/*~random*/{notebook}/claims.csv")):
        found = _read(path)
        found = found[(found[[*same]] == [*same.values()]).all(axis=1)] if found.id.any() else ()
        if len(found):
            return dict(zip(found.id, found.verdict, strict=True))
    return {}


def _read(path: Path) -> pd.DataFrame:
    """One claims.csv with its folder's names; without ledger ids, the columns of `Claim`."""
    profile, run, notebook = path.parts[-4:-1]
    try:
        frame = pd.read_csv(path, keep_default_na=False, dtype=str)
        whole = list(frame) in ([f.name for f in fields(Claim)], list(JUDGED))
        whole = whole and frame.verdict.isin(VERDICTS).all()
    except (ValueError, OSError):  # pandas' parser errors are ValueErrors
        whole = False
    if not whole:
        raise InputError(
            f"{path.relative_to(DATA)} is damaged: delete it and run its notebook again."
        )
    if "id" in frame:
        return frame.assign(run=run, notebook=notebook)
    return frame.assign(id="", profile=profile, model=run, run=run, notebook=notebook)


def _by_ledger(found: pd.DataFrame) -> pd.DataFrame:
    """Rows with ids, told in the ledger's present words; the others as they are."""
    rows = ledger().set_index("id", drop=False)
    told = []
    for row in found.to_dict("records"):
        if row["id"] in rows.index:
            now = rows.loc[row["id"]]
            if any(row[c] != now[c] for c in ("rule", "threshold")):
                row |= {"verdict": "not run", "note": "its rule has changed: run it again"}
            told_now = {"claim": now.sentence, "rule": threshold_in_words(now)}
            row |= {**now.drop("notebook"), **told_now}
        elif row["id"]:
            row |= {"claim": row["sentence"], "note": "no longer in the ledger"}
        told.append(row)
    return pd.DataFrame(told, columns=found.columns)


def count_findings(judged: pd.DataFrame) -> pd.DataFrame:
    """How many findings had which verdict, [importance, verdict], from rows with columns kind,
    importance and verdict; identities and settings are not counted."""
    findings = judged[judged.kind == "finding"]
    counts = pd.crosstab(findings.importance, findings.verdict)
    return counts.reindex(index=IMPORTANCE, columns=VERDICTS, fill_value=0)
