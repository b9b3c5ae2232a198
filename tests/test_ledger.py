"""The ledger of claims: every row says what is claimed, what is computed and what decides it."""

import re

import pandas as pd
import pytest

from lib.base import DATA, ROOT

COLUMNS = [
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
]
KINDS = {"finding", "identity", "setting"}
IMPORTANCE = {"headline", "main", "detail"}
ONE_NUMBER = {
    "above",
    "below",
    "any_above",
    "any_below",
    "all_above",
    "all_below",
    "rank_positive",
    "rank_negative",
    "rank_none",
}
TWO_NUMBERS = {"within", "all_within", "equal"}
WHIPP = {
    "Title",
    "Abstract",
    *(f"§{k}" for k in (1, 2, 4, 6, 7, 8, 9)),
    *(f"§3.{k}" for k in range(1, 5)),
    *(f"§5.{k}" for k in range(1, 8)),
    *(f"Contribution {k}" for k in range(1, 5)),
    *(f"Table {k}" for k in range(1, 5)),
    *(f"Figure {k}" for k in range(1, 6)),
}
BADGER = {
    "Background",
    "Linear Mixer Architecture",
    "Nearly Linear Models",
    "Linear models inference with O(log n) complexity",
    "Linear Mixer Scaling",
}
SECTIONS = {"whipp": WHIPP, "badger": BADGER, "ours": WHIPP | BADGER}
"""where a paper has text of its own (Whipp's §3 and §5 are headings); a row of ours names the
section that it extends"""


def ledger() -> pd.DataFrame:
    return pd.read_csv(DATA / "published" / "claims.csv", keep_default_na=False, dtype=str)


ROWS = list(ledger().itertuples(index=False))


def numbers(threshold: str) -> list[float]:
    return [float(part) for part in threshold.split(";")]


def test_columns_and_unique_rows():
    rows = ledger()
    assert list(rows) == COLUMNS
    assert rows.id.is_unique and rows.sentence.is_unique
    assert rows.map(str.strip).equals(rows), "a cell with space around it"


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.id)
def test_every_row_is_whole(row):
    assert re.fullmatch(r"[a-z0-9]+(?:[-.][a-z0-9]+)+", row.id) and row.id.startswith(row.paper)
    assert set(row.section.split("; ")) <= SECTIONS[row.paper]
    assert row.kind in KINDS and row.importance in IMPORTANCE
    assert row.sentence.endswith(".") and row.statistic.endswith(".") and row.published
    # One sentence: a full stop followed by a capital would begin a second one.
    assert not re.search(r"(?<!\bvs)\. [A-Z]", row.sentence)
    assert bool(row.notebook) != bool(row.reason), "a notebook, or why there is none"
    assert not row.notebook or (ROOT / "notebooks" / f"{row.notebook}.ipynb").exists()
    assert re.fullmatch(r"[a-z0-9-]*", row.question)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.id)
def test_every_rule_can_decide(row):
    """Settings decide nothing; a finding without a notebook may have no rule."""
    if row.kind == "setting" or (not row.rule and row.reason):
        assert not (row.rule or row.threshold or row.whose or row.why)
        return
    assert row.rule in ONE_NUMBER | TWO_NUMBERS
    found = numbers(row.threshold)
    assert len(found) == 1 + (row.rule in TWO_NUMBERS)
    if row.rule in {"within", "all_within"}:
        assert found[0] < found[1]
    if row.rule == "equal":
        assert found[1] >= 0, "value;tolerance"
    if row.rule == "rank_none":
        assert 0 < found[0] < 1
    if row.rule in {"rank_positive", "rank_negative"}:
        assert found[0] == 0
    assert row.whose in {"paper", "ours"}
    assert row.whose == "paper" or row.why, "our own thresholds are justified"
    assert row.paper != "ours" or row.whose == "ours"


@pytest.mark.parametrize(("paper", "fewest"), [("whipp", 51), ("badger", 18)])
def test_findings_compared_by_number_compare_with_a_printed_number(paper, fewest):
    """The value of an `equal` finding stands in the paper's file; 0 is for the largest deviation
    from several printed numbers."""
    printed = set(pd.read_csv(DATA / "published" / f"{paper}.csv").value)
    rows = ledger()
    rows = rows[(rows.rule == "equal") & (rows.kind == "finding") & (rows.paper == paper)]
    assert len(rows) >= fewest
    strange = [
        row.id
        for row in rows.itertuples()
        if numbers(row.threshold)[0] not in printed
        and "deviation" not in row.statistic
        and not row.statistic.startswith(("Largest absolute", "Largest relative", "log10"))
    ]
    assert not strange


def test_every_section_table_and_figure_has_a_row():
    covered = {part for section in ledger().section for part in section.split("; ")}
    assert (WHIPP | BADGER) - covered == set()


def test_every_reference_to_another_row_exists():
    rows = ledger()
    text = " ".join(rows[["statistic", "why", "reason"]].to_numpy().ravel())
    assert set(re.findall(r"\b(?:whipp|badger|ours)-[a-z0-9.-]*[a-z0-9]", text)) <= set(rows.id)
