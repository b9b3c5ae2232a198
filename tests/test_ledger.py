"""The ledger of claims: every row says what is claimed, what is computed and what decides it."""

import re

import pandas as pd
import pytest

from lib.base import DATA, ROOT
from lib.stats.ledger import LEDGER, ledger, threshold

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
BALOGH = {
    "Title",
    "Abstract",
    *(f"§{k}" for k in (1, 2, 6)),
    *(f"§3.{k}" for k in range(1, 6)),
    *(f"§4.{k}" for k in range(1, 9)),
    *(f"§4.3.{k}" for k in range(1, 5)),
    *(f"§5.{k}" for k in range(1, 9)),
    *(f"§5.7.{k}" for k in range(1, 7)),
    *(f"Contribution {k}" for k in range(1, 7)),
    *(f"Table {k}" for k in range(1, 10)),
    *(f"Figure {k}" for k in range(1, 4)),
}
"""without progressive linearization: §4.9, contribution 7, Tables 10 and 11"""
PAPERS = {"whipp": WHIPP, "balogh": BALOGH, "badger": BADGER}
SECTIONS = PAPERS | {"ours": set.union(*PAPERS.values())}
"""where a paper has text of its own (Whipp's §3 and §5 are headings); a row of ours names the
section that it extends"""
WAITS = re.compile(r"its notebook (\w+) is not written yet")
"""the reason of a row whose notebook is still to come"""


ROWS = list(ledger().itertuples(index=False))


def test_columns_and_unique_rows():
    """Reading the ledger has checked ids, rules, thresholds and whose they are."""
    rows = ledger()
    assert list(pd.read_csv(LEDGER, nrows=0)) == list(rows) and rows.sentence.is_unique
    assert rows.map(str.strip).equals(rows), "a cell with space around it"


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.id)
def test_every_row_is_whole(row):
    assert re.fullmatch(r"[a-z0-9]+(?:[-.][a-z0-9]+)+", row.id) and row.id.startswith(row.paper)
    assert set(row.section.split("; ")) <= SECTIONS[row.paper]
    assert row.sentence.endswith(".") and row.statistic.endswith(".") and row.published
    # One sentence: a full stop followed by a capital would begin a second one.
    assert not re.search(r"(?<!\bvs)\. [A-Z]", row.sentence)
    assert bool(row.notebook) != bool(row.reason), "a notebook, or why there is none"
    assert not row.notebook or (ROOT / "notebooks" / f"{row.notebook}.ipynb").exists()
    assert re.fullmatch(r"[a-z0-9-]*", row.question)


def test_every_rule_can_decide():
    """Settings decide nothing; a finding without a notebook may have no rule."""
    for row in ROWS:
        if row.kind == "setting" or not row.rule:
            assert not (row.rule or row.threshold or row.whose or row.why), row.id
        elif row.rule == "rank_none":
            assert 0 < threshold(row)[0] < 1, row.id
        assert row.paper != "ours" or row.whose in ("ours", ""), row.id


@pytest.mark.parametrize(("paper", "fewest"), [("whipp", 51), ("balogh", 39), ("badger", 18)])
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
        if threshold(row)[0] not in printed
        and "deviation" not in row.statistic
        and not row.statistic.startswith(("Largest absolute", "Largest relative", "log10"))
    ]
    assert not strange


@pytest.mark.parametrize("paper", PAPERS)
def test_every_section_table_and_figure_has_a_row(paper):
    rows = ledger()
    named = rows.section[rows.paper == paper]
    covered = {part for section in named for part in section.split("; ")}
    assert PAPERS[paper] - covered == set()


def test_no_row_waits_for_a_notebook_that_is_there():
    """Once a notebook exists its rows name it as theirs and are judged there."""
    written = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    waiting = {row.id: WAITS.fullmatch(row.reason) for row in ROWS if "not written" in row.reason}
    assert all(waiting.values()), "a reason that names no notebook"
    assert not [id for id, found in waiting.items() if found[1] in written]


def test_every_reference_to_another_row_exists():
    rows = ledger()
    text = " ".join(rows[["statistic", "why", "reason"]].to_numpy().ravel())
    named = re.findall(rf"\b(?:{'|'.join(SECTIONS)})-[a-z0-9.-]*[a-z0-9]", text)
    assert set(named) <= set(rows.id)
