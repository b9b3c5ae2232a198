"""A run's folder of results: sealed at its end, byte for byte the same for equal runs, and never
read as if nothing had happened when a file of it is damaged, lost or left over."""

import random
import shutil
import subprocess

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from nbformat import v4
from test_kept import damage

from lib.base import DATA, ROOT, InputError, seal
from lib.base.results import COLD, fault
from lib.reports import live, pages, report
from lib.reports.digest import cells_digest, code_digest
from lib.reports.plan import plan
from lib.reports.scorecard import claim_rows
from lib.stats import claims

RUN, NULL = "study/smollm2-135m", "laptop/smollm2-135m~random"
NOTEBOOK = "01_linear_recoverability"
COMMITTED = sorted((DATA / "results").glob("*/*/*/MANIFEST.json"))


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The committed results of notebook 01, to be damaged."""
    for run in (RUN, NULL):
        place = f"results/{run}/{NOTEBOOK}"
        shutil.copytree(DATA / place, tmp_path / place)
    for name in ("scorecard.csv", "MANIFEST.json"):
        shutil.copy(DATA / "results" / name, tmp_path / "results")
    for module in (claims, report, live):
        monkeypatch.setattr(module, "DATA", tmp_path)
    return tmp_path / "results"


def flipped(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def in_the_manifest(folder):
    flip = (folder / "MANIFEST.json").read_text().replace('"blocks.csv": "', '"blocks.csv": "0', 1)
    (folder / "MANIFEST.json").write_text(flip)


DAMAGES = {
    "flipped byte": (lambda f: flipped(f / "blocks.csv"), "blocks.csv is changed"),
    "cut claims": (
        lambda f: (f / "claims.csv").write_bytes((f / "claims.csv").read_bytes()[:2000]),
        "claims.csv is changed",
    ),
    "no claims": (lambda f: (f / "claims.csv").unlink(), "claims.csv is missing"),
    "missing table": (lambda f: (f / "doubling.csv").unlink(), "doubling.csv is missing"),
    "extra table": (lambda f: (f / "old.csv").touch(), "old.csv is not of its run"),
    "folder for a table": (
        lambda f: ((f / "steps.csv").unlink(), (f / "steps.csv").mkdir()),
        "steps.csv is changed",
    ),
    "provenance": (
        lambda f: (f / "provenance.json").write_text("{}"),
        "provenance.json is changed",
    ),
    "manifest cut": (
        lambda f: (f / "MANIFEST.json").write_text('{"files": {'),
        "its manifest is damaged",
    ),
    "manifest empty": (lambda f: (f / "MANIFEST.json").write_text(""), "its manifest is damaged"),
    "manifest of another": (in_the_manifest, "blocks.csv is changed"),
}


@pytest.mark.parametrize(("harm", "why"), DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("run", [RUN, NULL])
def test_what_is_not_as_its_run_left_it_is_left_out(results, capsys, harm, why, run):
    """Of the scorecard, of a site's rows and of the verdicts of random weights; in one sentence."""
    whole = claims.collate()
    null = claims.null_verdicts(NOTEBOOK, "smollm2-135m", "wikipedia", 42)
    assert len(whole) and (whole.null_verdict != "").any() and null
    assert capsys.readouterr().out == ""
    harm(results / run / NOTEBOOK)
    found = claims.collate()
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert said.startswith(f"{run}/{NOTEBOOK} is left out, for {why}: run it again (`make notebook")
    assert f"N=01 PROFILE={run.partition('/')[0]}`" in said
    assert f"git checkout -- data/results/{run}/{NOTEBOOK}" in said
    assert ("take that file away" in said) == (why == "old.csv is not of its run")
    assert claim_rows(results / "study").empty == (run == RUN) == found.empty
    assert (found.null_verdict == "").all() or run == RUN
    left = claims.null_verdicts(NOTEBOOK, "smollm2-135m", "wikipedia", 42)
    assert left == (null if run == RUN else {})


def test_random_accidents_are_all_seen(results):
    """Any bit of any table; of a provenance, all but what a clock said."""
    folder, draw = results / NULL / NOTEBOOK, random.Random(0)
    names = sorted(p.name for p in folder.iterdir() if p.suffix in (".csv", ".png", ".svg"))
    for _ in range(60):
        good = shutil.copytree(folder, results / "good")
        kind = damage(folder / (name := draw.choice(names)), draw)
        assert fault(folder), (name, kind)
        shutil.rmtree(folder)
        good.rename(folder)
    assert not fault(folder)


def test_a_folder_without_a_manifest_is_read_and_said_to_be_unsealed(results, capsys):
    whole = claims.collate()
    (results / RUN / NOTEBOOK / "MANIFEST.json").unlink()
    pd.testing.assert_frame_equal(claims.collate(), whole)
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and f"{RUN}/{NOTEBOOK} has no manifest" in said
    assert "read as it stands" in said and "make notebook N=01 PROFILE=study" in said


def test_a_damaged_scorecard_is_refused_in_one_sentence(results):
    assert len(claim_rows()) and claims.committed_scorecard().equals(claim_rows())
    flipped(results / "scorecard.csv")
    for read in (claim_rows, report.start("00_tiny", "smoke").scorecard):
        with pytest.raises(InputError, match=r"scorecard\.csv is not as it was committed") as error:
            read()
        assert "\n" not in str(error.value) and "git checkout --" in str(error.value)
    claims.commit_scorecard(claims.collate())
    assert claim_rows().id.tolist() == claims.collate().id.tolist()


@pytest.mark.parametrize("path", COMMITTED, ids=lambda p: "/".join(p.parts[-3:-1]))
def test_committed_results_are_as_their_runs_left_them(path):
    assert not fault(path.parent)


def test_every_committed_result_is_sealed():
    folders = {p.parent for p in (DATA / "results").glob("study/*/*/claims.csv")}
    folders |= {p.parent for p in (DATA / "results").glob(f"{NULL}/*/provenance.json")}
    assert len(folders) > 16 and folders <= {p.parent for p in COMMITTED}
    assert claims.committed_scorecard().notebook.nunique() > 8


def test_a_checkout_on_another_system_keeps_the_bytes():
    sealed = [path.parent / "claims.csv" for path in COMMITTED] + [*DATA.glob("models/*/*")]
    told = subprocess.check_output(["git", "check-attr", "text", "--", *sealed], cwd=ROOT)
    assert {line.rpartition(b": ")[2] for line in told.splitlines()} == {b"unset"}


def tables(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "provenance.json"}


def a_run(names, seconds=0):
    """A run with these tables and a figure."""
    run = report.start("99_tiny", "smoke")
    run.started -= seconds
    for k, name in enumerate(names):
        run.save(pd.DataFrame({"x": [k, k + 1]}), name)
    figure, ax = plt.subplots(figsize=(2, 1))
    ax.plot([0, 1])
    run.figure(figure, "line", alt="A line.")
    run.provenance(documents=7, tokens_per_second=seconds, ffn_microseconds=seconds + 1)
    return run.folder


def test_equal_runs_leave_equal_manifests(results):
    first = tables(folder := a_run("ab", 10))
    inode = (folder / "MANIFEST.json").stat().st_ino
    assert not fault(folder) and sorted(first) == sorted(
        ["MANIFEST.json", "a.csv", "b.csv", "99_tiny_line.png", "99_tiny_line.svg"]
    )
    assert tables(a_run("ab", 999)) == first
    assert (folder / "MANIFEST.json").stat().st_ino == inode, "it says the same already"
    assert '_per_second": 10,' in (folder / "provenance.json").read_text()
    shutil.rmtree(folder)
    assert tables(a_run("ab", 999)) == first
    text = (folder / "provenance.json").read_text()
    assert '_per_second": 999,' in text
    (folder / "provenance.json").write_text(text.replace('"documents": 7', '"documents": 8'))
    assert fault(folder) == "provenance.json is changed" and COLD in text


def test_a_run_that_ends_leaves_nothing_of_the_one_before(results):
    folder = a_run("abc")
    (folder / "notes.txt").write_text("mine")
    assert fault(folder) == "notes.txt is not of its run"
    a_run("ab")
    assert not fault(folder) and not (folder / "c.csv").exists()
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_run_that_did_not_end_is_told_apart(results):
    """Half of its tables over those of the last, or on their own."""
    folder = a_run("ab")
    report.start("99_tiny", "smoke").save(pd.DataFrame({"x": ["new"]}), "a")
    assert fault(folder) == "a.csv is changed"
    a_run("ab")
    assert not fault(folder)


def test_a_manifest_names_the_code_that_ran():
    """As the notebook's own digest does, whatever papermill put in between."""
    cells = ['profile = "smoke"', "import os\nx = 1  # one", "y = 2"]
    injected = v4.new_code_cell("# Parameters\nseed = 3")
    injected.metadata["tags"] = ["injected-parameters"]
    notebook = v4.new_notebook(cells=[*map(v4.new_code_cell, cells), v4.new_markdown_cell("z")])
    notebook.cells.insert(1, injected)
    ran = ["", cells[0], injected.source, "import os\n\nx = 1\n", "y = 2", "(no code"]
    assert cells_digest(ran) == code_digest(notebook) != cells_digest([*cells, "y = 3"])


@pytest.mark.parametrize("harm", [harm for harm, _ in DAMAGES.values()], ids=DAMAGES)
def test_a_report_whose_results_are_damaged_is_made_again(results, tmp_path, monkeypatch, harm):
    monkeypatch.setattr(live, "ROOT", tmp_path)
    series = plan({"profile": "study", "number": "01-02"})
    assert [t.run for t in series.tasks] == ["smollm2-135m"] * 2
    reports = [tmp_path / series.home / t.run / f"{t.notebook}.ipynb" for t in series.tasks]
    for task, path in zip(series.tasks, reports):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        live.tell(tmp_path / series.home, task, state="done", sealed=task is series.tasks[0])
    live.take_back(series)  # the second never left any results
    assert [path.exists() for path in reports] == [True, True]
    harm(results / RUN / NOTEBOOK)
    live.take_back(series)
    assert [path.exists() for path in reports] == [False, True]
    assert reports[0].with_suffix(".part.ipynb").exists()


def test_a_report_whose_results_or_manifest_are_gone_is_made_again(results, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "ROOT", tmp_path)
    series = plan({"profile": "study", "number": "01"})
    (task,) = series.tasks
    path = tmp_path / series.home / task.run / f"{task.notebook}.ipynb"
    live.take_back(series)
    path.parent.mkdir(parents=True)
    live.tell(tmp_path / series.home, task, state="done", sealed=True)
    folder = results / RUN / NOTEBOOK
    for lose in ((folder / "MANIFEST.json").unlink, lambda: shutil.rmtree(folder)):
        path.touch()
        live.take_back(series)
        assert path.exists() == folder.joinpath("MANIFEST.json").exists()
        lose()
        path.touch()
        live.take_back(series)
        assert not path.exists()


def test_a_damaged_figure_is_not_shown(results, tmp_path, monkeypatch):
    """The start page of a site takes the committed one instead."""
    folder = results / "laptop" / "mine" / NOTEBOOK
    shutil.copytree(results / NULL / NOTEBOOK, folder)
    shown = lambda: (tmp_path / "pages" / pages.MAIN_FIGURE).read_bytes()
    monkeypatch.setattr(pages, "api", dict)
    shutil.rmtree(results / NULL)
    pages.write(tmp_path, results / "laptop")
    own = (folder / pages.MAIN_FIGURE).read_bytes()
    assert shown() == own
    flipped(folder / pages.MAIN_FIGURE)
    pages.write(tmp_path, results / "laptop")
    assert shown() not in (own, (folder / pages.MAIN_FIGURE).read_bytes())


def test_a_manifest_of_some_files_holds_those_alone(tmp_path):
    (tmp_path / "one.csv").write_text("1")
    (tmp_path / "two.csv").write_text("2")
    seal(tmp_path, {}, only=["one.csv"])
    assert '"one.csv"' in (tmp_path / "MANIFEST.json").read_text()
    assert "two.csv" not in (tmp_path / "MANIFEST.json").read_text()
