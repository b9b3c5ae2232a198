"""The printed numbers of the papers, and the scorecard of what every run found for their claims."""

from collections.abc import Iterator

import pandas as pd
from tqdm import tqdm

from lib.second.base.errors import InputError
from lib.second.base.kept import MANIFEST, seal, unlike
from lib.second.base.names import RANDOM
from lib.second.base.paths import DATA, whole
from lib.second.base.results import is_sealed, usable
from lib.second.stats.ledger import COLUMNS, IMPORTANCE, VERDICTS, ledger, threshold_in_words
from lib.second.stats.published import published as published  # notebooks call claims.published

RUN = ("profile", "model", "corpus", "seed", "options")
JUDGED = ("id", "verdict", "here", "note", *COLUMNS[1:], *RUN)
"""columns of a claims.csv: what was found, the ledger's row as it was then, and the run"""
SCORECARD = (
    *("id", "paper", "section", "importance", "kind", "claim", "published", "here", "verdict"),
    *("null_verdict", "note", "rule", "amended", "question", *RUN, "run", "notebook"),
)
"""columns of the scorecard"""
KEPT = "scorecard.csv"


def collate() -> pd.DataFrame:
    """The scorecard: one row a claim and run, from every claims.csv under data/results; empty if
    there is none.

    Columns id, paper, section, importance, kind, claim (the ledger's sentence), published, here,
    verdict, null_verdict, note, rule (with its threshold, in words), amended, question; then
    profile, model, corpus, seed, options, run (its folder) and notebook. What a run with random
    weights found, in any profile, stands as `null_verdict` beside the run of the trained model, and
    in no row of its own. A claim whose rule in the ledger is no longer the one it was judged by is
    "not run". A folder that is not as its run left it is left out, which is said.
    """
    frames = [*_read("*/*/*")]
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


def committed_scorecard() -> pd.DataFrame:
    """data/results/scorecard.csv, as text; no rows where there is none. Raises InputError where it
    is not as it was committed."""
    folder = DATA / "results"
    if not (folder / KEPT).exists() and not (folder / MANIFEST).exists():
        return pd.DataFrame(columns=[*SCORECARD])
    if unlike(folder, only=[KEPT]):
        raise InputError(
            f"results/{KEPT} is not as it was committed: restore it with `git checkout -- "
            f"data/results/{KEPT} data/results/{MANIFEST}`, or make it again with make render N=00."
        )
    return pd.read_csv(folder / KEPT, keep_default_na=False, dtype=str)


def commit_scorecard(rows: pd.DataFrame) -> None:
    """Write data/results/scorecard.csv, and its digest beside it."""
    with whole(DATA / "results" / KEPT) as part:
        rows.to_csv(part, index=False, lineterminator="\n")
    seal(DATA / "results", {}, only=[KEPT])


def null_verdicts(
    notebook: str, model: str, corpus: str, seed: int, options: dict | None = None
) -> dict[str, str]:
    """Verdicts by claim of the committed or local run of `notebook` on the null subject of `model`,
    with the same corpus, seed and options: of the first profile by name that has one, as in
    `collate`. {} without such a run that is as it was left, and for a null subject itself."""
    if model.endswith(RANDOM):
        return {}
    told = ";".join(f"{name}={value}" for name, value in (options or {}).items())
    same = {"model": model + RANDOM, "corpus": corpus, "seed": str(seed), "options": told}
    for found in _read(f"*/*~random*/{notebook}"):
        found = found[(found[[*same]] == [*same.values()]).all(axis=1)] if found.id.any() else ()
        if len(found):
            return dict(zip(found.id, found.verdict, strict=True))
    return {}


def _read(folders: str) -> Iterator[pd.DataFrame]:
    """Each claims.csv of these folders of data/results, a pattern, with its run (the model's
    folder) and its notebook; what cannot be used is left out, which is said."""
    for folder in sorted((DATA / "results").glob(folders)):
        path = folder / "claims.csv"
        # Where only a manifest is, claims were lost, or there never were any: the tour judges none.
        if not (path.exists() or is_sealed(folder)) or not usable(folder) or not path.exists():
            continue
        try:
            frame = pd.read_csv(path, keep_default_na=False, dtype=str)
            good = list(frame) == list(JUDGED) and frame.verdict.isin(VERDICTS).all()
        except (ValueError, OSError):  # pandas' parser errors are ValueErrors
            good = False
        if good:
            yield frame.assign(run=folder.parts[-2], notebook=folder.name)
        else:
            tqdm.write(
                f"{path.relative_to(DATA)} is damaged, or of another version, and left out: run "
                "its notebook again, or delete it."
            )


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
