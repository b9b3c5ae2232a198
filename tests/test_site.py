"""The site's front page, its scorecard, and the check of a built site; none is built here."""

import importlib.util
import json
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"


def module(name: str):
    """A Python file of notebooks/, as a module."""
    spec = importlib.util.spec_from_file_location(name, NOTEBOOKS / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


conf = module("conf")
check_site = module("check_site")
REPORTS = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))


def test_every_report_stands_once_and_in_order():
    shown = [path for paper in conf.PAPERS for path in conf.reports_of(paper)]
    assert shown == REPORTS
    assert "<!-- reports -->" in (NOTEBOOKS / "index.md").read_text()


@pytest.mark.parametrize("notebook", REPORTS, ids=[path.stem for path in REPORTS])
def test_every_report_has_a_card(notebook):
    question = conf.question_of(notebook)
    assert question and not question.startswith("#")
    sentence = conf.first_sentence(conf.answer_of(notebook))
    assert sentence.endswith((".", "?", "!"))
    figure = conf.main_figure_of(notebook)
    assert figure.exists() and figure.name.startswith(notebook.name[:2])
    card = conf.card(notebook)
    assert f"{notebook.name[:2]} · {question}" in card
    assert sentence in card and figure.name in card


def test_the_side_bar_has_numbers():
    part = conf.section(conf.PAPERS[0], conf.reports_of(conf.PAPERS[0]))
    question = conf.question_of(REPORTS[1])
    assert f"\n01 {question} <01_linear_recoverability>\n" in part
    assert "](https://arxiv.org/abs/2606.19379)" in part


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("It costs 0.5 nats. More follows.", "It costs 0.5 nats."),
        ("Is it so? Yes.", "Is it so?"),
        ("Ikeda et al. say so. smollm2 does not.", "Ikeda et al. say so."),
        ("One sentence only.", "One sentence only."),
    ],
)
def test_first_sentence(text, sentence):
    assert conf.first_sentence(text) == sentence


def test_the_named_figure_comes_before_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(conf, "FIGURES", tmp_path)
    for name in ("01_a.png", "01_b.png", "02_a.png"):
        (tmp_path / name).touch()
    notebook = Path("01_linear_recoverability.ipynb")
    assert conf.main_figure_of(notebook).name == "01_a.png"
    (tmp_path / "01_main.png").touch()
    assert conf.main_figure_of(notebook).name == "01_main.png"
    assert conf.main_figure_of(Path("03_x.ipynb")) is None


def test_the_scorecard_shows_the_tables_of_the_tops(tmp_path, monkeypatch):
    monkeypatch.setattr(conf, "HERE", tmp_path)
    top = "# Is it so?\nA paper.\n\nIt is.\n\n| says | ours |\n|---|---|\n| a | 1 |\n| b | 2 |\n"
    for name, source in (("06_a", top), ("13_b", "# Old\n\nNo table.")):
        cells = {"cells": [{"source": source, "metadata": {"tags": ["answer"]}}]}
        (tmp_path / f"{name}.ipynb").write_text(json.dumps(cells))
    conf.write_scorecard(None)
    written = (tmp_path / "scorecard.md").read_text()
    assert "## [06](06_a.ipynb) Is it so?\n\n| says | ours |\n" in written
    assert "| b | 2 |\n" in written
    assert "13" not in written


def page(**changes) -> dict:
    """What the browser tells of a page without fault, with some of it changed."""
    good = {"tables": 5, "cards": 5, "formulas": 2}
    return good | {"broken": [], "elsewhere": []} | changes


@pytest.mark.parametrize("name", ["index.html", "scorecard.html", "01_one.html"])
def test_a_page_without_fault_passes(name):
    assert check_site.faults_of_page(name, page()) == []


@pytest.mark.parametrize(
    "name, changes, fault",
    [
        ("scorecard.html", {"tables": 0}, "no table"),
        ("scorecard.html", {"elsewhere": ["https://cdn.org/x.js"]}, "cdn.org"),
        ("index.html", {"broken": ["/_images/x.png"]}, "x.png"),
        ("index.html", {"cards": 0}, "no card"),
        ("01_one.html", {"formulas": 0}, "MathJax"),
    ],
)
def test_a_page_with_a_fault_is_refused(name, changes, fault):
    faults = check_site.faults_of_page(name, page(**changes))
    assert len(faults) == 1 and fault in faults[0]


def test_addresses_elsewhere_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="https://arxiv.org/abs/1">a paper</a> <img src="_images/a.png">'
        '<script defer src="https://cdn.org/a.js"></script><link href="//cdn.org/a.css">'
    )
    first, second = check_site.faults_of_files(tmp_path)
    assert "https://cdn.org/a.js" in first and "//cdn.org/a.css" in second


def test_a_folder_without_a_site_is_refused(tmp_path, capsys):
    assert check_site.main(tmp_path) == 1
    assert "make site" in capsys.readouterr().out


def test_a_table_that_is_not_rendered_is_found(tmp_path):
    (tmp_path / "01.html").write_text("<p>| a | b | | --- | --- | | 1 | 2 |</p>")
    [fault] = check_site.faults_of_files(tmp_path)
    assert "01.html" in fault and "table" in fault
