"""The ledger of claims, data/published/claims.csv: every claim, with its rule, registered before
it is judged."""

import difflib
import functools
import io
import re

import pandas as pd

from lib.second.base.errors import InputError
from lib.second.base.paths import DATA

LEDGER = DATA / "published" / "second.csv"
COLUMNS = (
    "id",
    "paper",
    "section",
    "importance",
    "sentence",
    "published",
    "kind",
    "statistic",
    "rule",
    "threshold",
    "whose",
    "why",
    "notebook",
    "reason",
    "question",
    "amended",
)
VERDICTS = ("reproduced", "contradicted", "inconclusive", "not run")
IMPORTANCE = ("headline", "main", "detail")
KINDS = ("finding", "identity", "setting")
RULES = {
    "above": 1,
    "below": 1,
    "within": 2,
    "any_above": 1,
    "any_below": 1,
    "all_above": 1,
    "all_below": 1,
    "all_within": 2,
    "rank_positive": 1,
    "rank_negative": 1,
    "rank_none": 1,
    "equal": 2,
}
"""how many numbers the threshold of a rule has: low;high of a range, value;tolerance of `equal`,
0 of `rank_positive` and `rank_negative`"""
WORDS = {
    "above": "above {}",
    "below": "below {}",
    "within": "from {} to {}",
    "any_above": "some above {}",
    "any_below": "some below {}",
    "all_above": "all above {}",
    "all_below": "all below {}",
    "all_within": "all from {} to {}",
    "rank_positive": "rank correlation above {}",
    "rank_negative": "rank correlation below {}",
    "rank_none": "rank correlation within ±{}",
    "equal": "{} ± {}",
}
SETTING = re.compile(
    r"Judged only for (?P<models>.+?)(?: on (?P<corpora>[^.]+?))?(?:, blocks? .*)?\.$"
)
"""how the column `statistic` ends where a claim is about the paper's own models and texts"""


def ledger() -> pd.DataFrame:
    """All rows of the ledger, as text, in its order. Raises InputError for the first row that is
    not whole: a second row of its id, a rule or a threshold that cannot be read."""
    if not LEDGER.exists():
        raise InputError(f"there is no ledger of claims: {LEDGER.name} lies in data/published.")
    return _read(LEDGER.read_bytes()).copy()


@functools.lru_cache(maxsize=1)  # a notebook asks for its rows claim by claim
def _read(text: bytes) -> pd.DataFrame:
    rows = pd.read_csv(io.BytesIO(text), dtype=str, keep_default_na=False)
    missing = [c for c in COLUMNS if c not in rows]
    if missing:
        raise InputError(f"the ledger of claims has no column {missing[0]!r}: add it.")
    for row in rows[rows.id.duplicated()].itertuples():
        raise InputError(f"claim {row.id!r} is in the ledger twice: give each claim one row.")
    for row in rows.itertuples():
        _check(row)
    return rows[list(COLUMNS)]


def claim_row(id: str) -> pd.Series:
    """The row of one claim. Raises InputError for an id that is not in the ledger."""
    rows = ledger().set_index("id", drop=False)
    if id not in rows.index:
        near = difflib.get_close_matches(str(id), rows.index, n=1)
        way = f"did you mean {near[0]!r}?" if near else "register it there first."
        raise InputError(f"claim {id!r} is not in the ledger: {way}")
    return rows.loc[id]


def rows_of(notebook: str) -> pd.DataFrame:
    """The ledger's rows of a notebook, named whole (01_linear_recoverability) or by its number."""
    rows = ledger()
    return rows[rows.notebook.isin([notebook, notebook.partition("_")[0]])]


def threshold(row: pd.Series) -> tuple[float, ...]:
    """The numbers of a row's threshold, as its rule takes them."""
    return tuple(float(part) for part in row.threshold.split(";"))


def threshold_in_words(row: pd.Series) -> str:
    """ "above 0.5 (ours: half of the paper's)": the rule, its threshold, and whose that is."""
    if not row.rule:
        return ""
    words = WORDS[row.rule].format(*row.threshold.replace("-", "−").split(";"))
    whose = f"{row.whose}: {row.why}" if row.why else row.whose
    return f"{words} ({whose})" if whose else words


def same_setting(row: pd.Series, model: str, corpus: str) -> bool:
    """Whether a claim can be judged on this model and corpus: where the row's statistic ends with
    "Judged only for gpt2 on wikitext-2.", both must be among those named; any if it does not."""
    named = SETTING.search(row.statistic)
    if named is None:
        return True
    corpora = named["corpora"] or "one corpus"
    return model in _names(named["models"]) and (
        corpora == "one corpus" or corpus in _names(corpora)
    )


def _names(text: str) -> list[str]:
    """The names under which models and corpora load, of "gpt2, pythia-160m and Moby-Dick"."""
    names = re.split(r", | and ", text.removesuffix(" together").lower())
    return [name.replace(" ", "-") for name in names]


def _check(row) -> None:
    """Raise InputError with what is wrong with one row of the ledger."""

    def wrong(reason: str) -> InputError:
        return InputError(f"claim {row.id!r} of the ledger: {reason}.")

    if not row.id.strip() or not row.sentence.strip():
        raise wrong("id or sentence is empty, and both are needed")
    for column, known in (("importance", IMPORTANCE), ("kind", KINDS)):
        if getattr(row, column) not in known:
            raise wrong(f"{column} {getattr(row, column)!r} is none of {', '.join(known)}")
    if not row.rule:
        if row.reason or row.kind == "setting":
            return  # not tested here, or a fact of the paper's protocol
        raise wrong("it has neither a rule nor a reason why it is not tested; give one")
    if row.rule not in RULES:
        raise wrong(f"rule {row.rule!r} is none of {', '.join(RULES)}")
    parts, wanted = [_number(part) for part in row.threshold.split(";")], RULES[row.rule]
    if None in parts or len(parts) != wanted:
        count = f"{wanted} number{'s' * (wanted != 1)}"
        raise wrong(f"threshold {row.threshold!r} cannot be read: {row.rule} wants {count}")
    if row.rule.endswith("within") and not parts[0] < parts[1]:
        raise wrong(f"threshold {row.threshold!r} is no range: give low;high")
    if row.rule in ("rank_none", "equal") and not parts[-1] >= 0:
        raise wrong(f"threshold {row.threshold!r} is below 0, and {row.rule} wants a margin")
    if row.rule in ("rank_positive", "rank_negative") and parts != [0]:
        raise wrong(f"threshold {row.threshold!r} is not 0, and {row.rule} tests against 0")
    if row.rule == "equal" and row.kind == "finding" and not SETTING.search(row.statistic):
        raise wrong("it compares a printed number, so its statistic ends with 'Judged only for …'")
    if row.whose not in ("paper", "ours"):
        raise wrong(f"the threshold is {row.whose!r}; say whose it is, paper or ours")
    if row.whose == "ours" and not row.why:
        raise wrong("the threshold is ours without a why; say why")


def _number(text: str) -> float | None:
    """A finite number, or None."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if abs(found) < float("inf") else None
