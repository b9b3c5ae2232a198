"""The ledger of claims, data/published/claims.csv: every claim, with its rule, registered before
it is judged."""

import difflib
import re

import pandas as pd

from lib.base.errors import InputError
from lib.base.paths import DATA

LEDGER = DATA / "published" / "claims.csv"
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
    "rank_positive": 0,
    "rank_negative": 0,
    "rank_none": 1,
    "equal": 1,
}
"""how many numbers the threshold of a rule has"""
WORDS = {
    "above": "above {}",
    "below": "below {}",
    "within": "from {} to {}",
    "any_above": "some above {}",
    "any_below": "some below {}",
    "all_above": "all above {}",
    "all_below": "all below {}",
    "all_within": "all from {} to {}",
    "rank_positive": "rank correlation above 0",
    "rank_negative": "rank correlation below 0",
    "rank_none": "rank correlation within ±{}",
    "equal": "the printed number ±{}",
}
CORPORA = {
    "whipp": ("wikitext-2", "moby-dick", "amusements-in-mathematics"),
    "balogh": ("wikitext-103", "lambada"),
    "ikeda": ("fineweb-edu",),
    "tapered": ("fineweb-edu", "wikitext-2"),
    "badger": ("tinystories",),
}
"""the corpora of each paper, by the names they load under"""


def ledger() -> pd.DataFrame:
    """All rows of the ledger, as text, in its order. Raises InputError for the first row that is
    not whole: a second row of its id, a rule or a threshold that cannot be read."""
    if not LEDGER.exists():
        raise InputError(f"there is no ledger of claims: {LEDGER.name} lies in data/published.")
    rows = pd.read_csv(LEDGER, dtype=str, keep_default_na=False)
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
    """The numbers of a row's threshold: none for the rules that test against 0, the reference and
    the tolerance for `equal`.

    The reference of `equal` is the row's `published` where that is one plain number; else it is 0,
    and the statistic is the difference from what is printed.
    """
    found = tuple(float(part) for part in row.threshold.split(";") if part.strip())
    if row.rule != "equal":
        return found[: RULES[row.rule]]
    return (_number(row.published) or 0.0, *found)


def threshold_in_words(row: pd.Series) -> str:
    """ "above 0.5 (ours: half of the paper's)": the rule, its threshold, and whose that is."""
    if not row.rule:
        return ""
    words = WORDS[row.rule].format(*row.threshold.replace("-", "−").split(";"))
    whose = f"{row.whose}: {row.why}" if row.why else row.whose
    return f"{words} ({whose})" if whose else words


def same_setting(row: pd.Series, model: str, corpus: str) -> bool:
    """Whether model and corpus are the paper's, so that printed numbers can be compared.

    Where the row's own words name some of the paper's models (GPT-2, llama-160m, Pythia), it must
    be one of these.
    """
    path = LEDGER.parent / f"{row.paper}.csv"
    if corpus not in CORPORA.get(row.paper, ()) or not path.exists():
        return False
    subjects = set(pd.read_csv(path, keep_default_na=False).subject)
    return model in (_named(subjects, f"{row.sentence} {row.published} {row.statistic}"))


def _named(subjects: set[str], text: str) -> set[str]:
    """Those of the models that the text names, whole or by family; all of them if it names none."""
    text = re.sub(r"gpt-2", "gpt2", text.lower()).replace(" ", "-")
    whole = set()
    for name in sorted(subjects, key=len, reverse=True):  # gpt2-medium before gpt2
        if re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9.])", text):
            whole.add(name)
            text = text.replace(name, "")
    family = {n for n in subjects if re.search(rf"(?<![a-z0-9]){n.split('-')[0]}\b", text)}
    return whole or family or subjects


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
        if row.reason:
            return  # a claim that this repository does not test
        raise wrong("it has neither a rule nor a reason why it is not tested; give one")
    if row.rule not in RULES:
        raise wrong(f"rule {row.rule!r} is none of {', '.join(RULES)}")
    parts = [_number(part) for part in row.threshold.split(";")] if row.threshold else []
    wanted = RULES[row.rule]
    if None in parts or (len(parts) != wanted and parts != [0.0]) or (wanted and not parts):
        count = f"{wanted} number{'s' * (wanted != 1)}"
        raise wrong(f"threshold {row.threshold!r} cannot be read: {row.rule} wants {count}")
    if len(parts) == 2 and not parts[0] < parts[1]:
        raise wrong(f"threshold {row.threshold!r} is no range: give low;high")
    if row.rule in ("rank_none", "equal") and not parts[0] >= 0:
        raise wrong(f"threshold {row.threshold!r} is below 0, and {row.rule} wants a margin")
    if parts and row.whose not in ("paper", "ours"):
        raise wrong(f"the threshold is {row.whose!r}; say whose it is, paper or ours")
    if parts and row.whose == "ours" and not row.why:
        raise wrong("the threshold is ours without a why; say why")


def _number(text: str) -> float | None:
    """A finite number, or None."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if abs(found) < float("inf") else None
