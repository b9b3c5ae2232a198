"""The printed numbers of the papers, and the scorecard of what every run found for their claims."""

from pathlib import Path

import pandas as pd

from lib.base.errors import InputError
from lib.base.names import RANDOM
from lib.base.paths import DATA
from lib.stats.ledger import COLUMNS, IMPORTANCE, VERDICTS, ledger, threshold_in_words
from lib.stats.published import published as published  # notebooks call claims.published

RUN = ("profile", "model", "corpus", "seed", "options")
JUDGED = ("id", "verdict", "here", "note", *COLUMNS[1:], *RUN)
"""columns of a claims.csv: what was found, the ledger's row as it was then, and the run"""
SCORECARD = (
    *("id", "paper", "section", "importance", "kind", "claim", "published", "here", "verdict"),
    *("null_verdict", "note", "rule", "amended", "question", *RUN, "run", "notebook"),
)
"""columns of the scorecard"""


def collate() -> pd.DataFrame:
    """The scorecard: one row a claim and run, from every claims.csv under data/results; empty if
    there is none.

    Columns id, paper, section, importance, kind, claim (the ledger's sentence), published, here,
    verdict, null_verdict, note, rule (with its threshold, in words), amended, question; then
    profile, model, corpus, seed, options, run (its folder) and notebook. What a run with random
    weights found, in any profile, stands as `null_verdict` beside the run of the trained model, and
    in no row of its own. A claim whose rule in the ledger is no longer the one it was judged by is
    "not run".
    """
    frames = [_read(p) for p in sorted((DATA / "results").glob("*/*/*/claims.csv"))]
    if not frames:
        return pd.DataFrame(columns=[*SCORECARD])
    found = _by_ledger(pd.concat(frames, ignore_index=True))
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
    """One claims.csv, with its run (the model's folder) and its notebook."""
    try:
        frame = pd.read_csv(path, keep_default_na=False, dtype=str)
        whole = list(frame) == list(JUDGED) and frame.verdict.isin(VERDICTS).all()
    except (ValueError, OSError):  # pandas' parser errors are ValueErrors
        whole = False
    if not whole:
        raise InputError(
            f"{path.relative_to(DATA)} is damaged: delete it and run its notebook again."
        )
    return frame.assign(run=path.parts[-3], notebook=path.parts[-2])


def _by_ledger(found: pd.DataFrame) -> pd.DataFrame:
    """Judged rows told in the ledger's present words."""
    rows = ledger().set_index("id", drop=False)
    told = []
    for row in found.to_dict("records"):
        if row["id"] in rows.index:
            now = rows.loc[row["id"]]
            if any(row[c] != now[c] for c in ("rule", "threshold")):
                row |= {"verdict": "not run", "note": "its rule has changed: run it again"}
            told_now = {"claim": now.sentence, "rule": threshold_in_words(now)}
            row |= {**now.drop("notebook"), **told_now}
        else:
            row |= {"claim": row["sentence"], "note": "no longer in the ledger"}
        told.append(row)
    return pd.DataFrame(told, columns=[*found.columns, "claim"])


def count_findings(judged: pd.DataFrame) -> pd.DataFrame:
    """How many findings had which verdict, [importance, verdict], from rows with columns kind,
    importance and verdict; identities and settings are not counted."""
    findings = judged[judged.kind == "finding"]
    counts = pd.crosstab(findings.importance, findings.verdict)
    return counts.reindex(index=IMPORTANCE, columns=VERDICTS, fill_value=0)
