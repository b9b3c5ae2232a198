"""Words on a page: a person's, pinned to numbers, and left out of another run's page."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from bs4 import BeautifulSoup

from lib import page, paper, report
from lib.errors import InputError
from lib.report import Run
from lib.stats import Interval

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "data/results/study"
PAGES = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


def content(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_make_test_runs_a_notebook_at_smoke(path):
    """Without nbmake's mock a notebook would be run at study, from what is kept."""
    cells = content(path)["cells"]
    (of_parameters,) = (c for c in cells if "parameters" in c["metadata"].get("tags", []))
    assert of_parameters["metadata"]["nbmake"] == {"mock": {"profile": "smoke"}}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_has_the_form_of_the_sixth_edition(path):
    cells = content(path)["cells"]
    top = "".join(cells[0]["source"])
    code = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    doubt = re.search(r"\*\*Doubt\.\*\*(.*?)\n\n", top, re.DOTALL)[1]
    assert len(page.answer_of(content(path)).split()) <= 120
    assert len(re.findall(r"[.?!](?=\s|$)", doubt)) <= 2
    assert 2 < len(re.findall(r"^\|", top, re.MULTILINE)) <= 2 + 5
    assert sum("run.summary(" in source for source in code) == 1
    for model in report.COMMITTED:  # drawing goes over `model`: none is named in a cell
        assert not any(model in source for source in code)
    assert (ROOT / "figures" / f"{path.stem[:2]}_main.png").exists()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_is_executed_in_one_run(path):
    """From the first cell to the last, without an error: a page is a report."""
    code = [c for c in content(path)["cells"] if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in code] == [*range(1, len(code) + 1)]
    outputs = [output for c in code for output in c["outputs"]]
    assert outputs and all(output["output_type"] != "error" for output in outputs)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_words_of_a_page_were_read_beside_its_numbers(path):
    assert not page.unread(content(path), path.stem)
    assert not page.unquotable(content(path), path.stem)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_shows_the_summaries_as_they_are_kept(path):
    """The second model may have been run again after the page was rendered."""
    cells = (c for c in content(path)["cells"] if "run.summary(" in "".join(c["source"]))
    (html,) = ("".join(out["data"]["text/html"]) for c in cells for out in c["outputs"])
    lines = BeautifulSoup(html, "html.parser").find_all("tr")
    shown = [[cell.get_text() for cell in line.find_all(["th", "td"])] for line in lines]
    kept = page.side_by_side(page.committed_summaries(path.stem))
    assert shown == [[*kept[0]], *([*row.values()] for row in kept)]


TOP = """# Title
A paper, §1.

A map costs +5.0% [4, 6] here; the loss is 0.023 nats a token [0.010, 0.035] lower.

| the paper says | first | second model |
|---|---|---|
| a cost | 5.0% [4, 6] | −0.20 [−0.30, −0.10] |
"""


def a_page(top: str, pin: str = "") -> dict:
    metadata = {"tags": ["answer"]} | ({"summary": pin} if pin else {})
    return {"cells": [{"source": top, "metadata": metadata, "cell_type": "markdown"}]}


@pytest.fixture
def summarized(results, monkeypatch):
    """Summaries of two committed models."""
    monkeypatch.setenv("NONLINEARITY_RENDER", "1")
    for model, cost in (("first", Interval(0.05, 0.04, 0.06)), ("second", Interval(0.9, 0.8, 1))):
        run = Run("06_swapping_and_healing", "study", model, "wikipedia", 42)
        rows = [
            ("dearest block", 11, "block"),
            ("its swap", cost, "change of perplexity"),
            ("gain", Interval(0.0231, 0.0101, 0.0349), "nats a token"),
            ("slope", Interval(-0.2, -0.3, -0.1), "1"),
        ]
        run.summary(rows)
        run.end()
    monkeypatch.delenv("NONLINEARITY_RENDER")
    return run


def test_a_summary_shows_this_run_beside_the_committed_ones(summarized):
    own = Run("06_swapping_and_healing", "smoke", "third", "wikipedia-sample", 42)
    shown = own.summary([("its swap", Interval(11.0, 10.0, 12.0), "change of perplexity")])
    table = shown.data.set_index("")
    assert [*table] == ["third, smoke", "first", "second", "unit"]
    assert table.loc["its swap", "first"] == "+5.0% [4.0, 6.0]"
    assert table.loc["its swap", "third, smoke"].startswith("×12 ")


@pytest.mark.parametrize("names, said", [(["", "b"], "named '' 1"), (["a", "a"], "named 'a' 2")])
def test_a_summary_row_has_a_name_of_its_own(results, names, said):
    run = Run("06_swapping_and_healing", "smoke", "third", "wikipedia-sample", 42)
    with pytest.raises(InputError, match=said):
        run.summary([(name, 1, "block") for name in names])


def test_words_are_pinned_to_the_numbers_that_were_read(summarized, monkeypatch):
    name = summarized.notebook
    pinned = a_page(TOP, page.pin_of(name))
    assert not page.unread(pinned, name)
    assert "make read N=06" in page.unread(a_page(TOP), name)
    monkeypatch.setenv("NONLINEARITY_RENDER", "1")
    summarized.summary([("dearest block", 12, "block")])
    assert "changed since its words were written" in page.unread(pinned, name)


@pytest.mark.parametrize(
    "said, fault",
    [
        (TOP.replace("5.0% [4, 6]", "5.0% [4.0, 6.0]"), ""),
        (TOP, "'5.0% \\[4, 6\\]'"),
        ("# T\nA.\n\nIn First it costs +90% [80, 100].", "'90% \\[80, 100\\]'.*summary of first:"),
        ("# T\nA.\n\nIt costs 90% [80, 100].", ""),
        ("# T\nA.\n\nThe slope is 0.20 [−0.30, −0.10].", "0.20 \\[−0.30, −0.10\\]"),
        ("# T\nA.\n\nThe slope is −0.20 [−0.30, −0.10].", ""),
    ],
)  # fmt: skip
def test_a_number_with_an_interval_is_a_row_of_the_summary(summarized, said, fault):
    faults = page.unquotable(a_page(said), summarized.notebook)
    assert bool(faults) == bool(fault)
    assert not fault or re.search(fault, faults[0])


def test_a_summary_of_another_profile_is_refused(summarized):
    facts = page._results("first", summarized.notebook) / "provenance.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"profile": "smoke"}))
    with pytest.raises(InputError, match=r"first's summary of 06.* is of the profile smoke"):
        page.unread(a_page(TOP), summarized.notebook)


def test_another_run_shows_its_summary_in_the_place_of_our_words(summarized, tmp_path):
    own = Run("06_swapping_and_healing", "smoke", "third", "wikipedia-sample", 42)
    own.summary([("dearest block", 3, "block")])
    about = {"folder": own.folder, "model": "third", "profile": "smoke", "corpus": "a text"}
    first, *_ = page.of_another_run(
        a_page(TOP)["cells"], own.notebook, about, tmp_path / "runs" / "06.ipynb"
    )
    assert "A map costs" not in first["source"]
    assert "| dearest block | 3 | 11 | 11 | block |" in first["source"]


@pytest.mark.parametrize(
    "value, unit, shown",
    [
        (Interval(0.21, -0.04, 0.46), "relative change", "+21% [−4, 46]"),
        (9.996, "relative change", "×11"),
        (Interval(1e211, 0, 2e211), "relative change", "×1e211 [1, 2e211]"),
        (1e211, "relative change", "×1e211"),
        (12_345.6, "nats", "12,346"),
        (10.02, "relative change", "×11"),
        (Interval(487, 480, 490), "nats", "487 [480, 490]"),
    ],
)
def test_a_number_is_short_however_large(value, unit, shown):
    assert paper.format_interval(value, unit) == shown


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of the test's own in the place of data/ and its results."""
    monkeypatch.setattr(report, "DATA", tmp_path)
    monkeypatch.setattr(page, "DATA", tmp_path)
    monkeypatch.setattr(report, "ROOT", tmp_path)
    for module in (report, page):
        monkeypatch.setattr(module, "COMMITTED", ("first", "second"))
    return tmp_path


def a_run(model: str, monkeypatch, value: float) -> Run:
    """A run that kept a table among the committed results."""
    monkeypatch.setenv("NONLINEARITY_RENDER", "1")
    run = Run("06_swapping_and_healing", "study", model, "wikipedia", 42)
    run.behind = {"documents": 50, "fitted tokens": 1_000}
    run.keep(pd.DataFrame({"block": [0, 1], "nats": [value, 2 * value]}), "costs")
    run.end()
    monkeypatch.delenv("NONLINEARITY_RENDER")
    return run


def test_three_models_stand_side_by_side_and_none_twice(results, monkeypatch):
    for model, value in (("first", 0.1), ("second", 0.2)):
        a_run(model, monkeypatch, value)
    own = Run("06_swapping_and_healing", "smoke", "third", "wikipedia-sample", 42)
    table = own.keep(pd.DataFrame({"block": [0], "nats": [0.5]}), "costs")
    beside = own.with_committed(table)
    assert beside.model.tolist() == ["third", "first", "first", "second", "second"]
    assert beside.profile.tolist() == ["smoke"] + 4 * ["study"]
    first = Run("06_swapping_and_healing", "study", "first", "wikipedia", 42)
    first.behind = {"documents": 50, "fitted tokens": 1_000}
    beside = first.with_committed(first.keep(table, "costs"))
    assert beside.model.tolist() == ["first", "second", "second"]
    assert beside.documents.tolist() == [50, 50, 50]


def test_plain_papermill_is_told_whom_the_words_are_about(capsys, monkeypatch):
    monkeypatch.delenv("NONLINEARITY_COMMAND", raising=False)
    report.start("06_swapping_and_healing", "smoke", None, None)
    said = capsys.readouterr().out
    assert (
        said.startswith("here: tiny-gpt2 on wikipedia-sample at smoke")
        and "smollm2-135m and gemma-3-270m, at study" in said
    )
    monkeypatch.setenv("NONLINEARITY_COMMAND", "1")
    report.start("06_swapping_and_healing", "smoke", None, None)
    assert not capsys.readouterr().out
