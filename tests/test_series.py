"""The runner: nothing that was finished is lost, what changed is made again, a kill leaves nothing.

A small repository of its own with one quick notebook stands in for the real one.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = "words and more words.\n\n" * 2_000
CELLS = """profile = "study"
model = None
corpus = None
seed = 42
###
import os
import time
from pathlib import Path

from IPython.display import Markdown, display

length = len(Path(corpus).read_text()) if corpus else 0
time.sleep(float(os.environ.get("SLOW", 0)))
display(Markdown(f"> **The answer.** There are {length} characters."))
"""


@pytest.fixture
def repository(tmp_path):
    """lib, Snakefile and a notebook that says how long its text is."""
    shutil.copytree(ROOT / "lib", tmp_path / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", tmp_path)
    (tmp_path / "data").symlink_to(ROOT / "data")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    notebook.cells = [nbformat.v4.new_markdown_cell("# How long is the text?")]
    notebook.cells += [nbformat.v4.new_code_cell(c.strip()) for c in CELLS.split("###")]
    notebook.cells[1].metadata["tags"] = ["parameters"]
    (tmp_path / "notebooks").mkdir()
    nbformat.write(notebook, tmp_path / "notebooks" / "01_mini.ipynb")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "my text.txt").write_text(TEXT)
    return tmp_path


def started(repository: Path, **settings) -> subprocess.Popen:
    usual = {"N": "01", "PROFILE": "smoke", "JOBS": "1", "CORPUS": "a/my text.txt"}
    environment = {k: v for k, v in os.environ.items() if k not in ("MODEL", "SEED", "PAPER")}
    return subprocess.Popen(
        [sys.executable, "-m", "lib.cli", "notebook"],
        cwd=repository,
        env=environment | usual | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(repository: Path, **settings) -> str:
    """What the command says; it must succeed."""
    process = started(repository, **settings)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return said


def report(repository: Path) -> Path:
    [found] = repository.glob("runs/*/01_mini.ipynb")
    return found


def test_what_changed_is_made_again_and_nothing_is_lost(repository):
    run(repository)
    first = report(repository)
    assert str(len(TEXT)) in first.read_text()
    other = first.with_name("02_gone.html")
    other.write_text("a page whose notebook is being made")
    # A change of lib and of the text: the report is renewed, its page and the index with it.
    before = first.stat().st_mtime_ns
    os.utime(repository / "lib" / "errors.py")
    (repository / "a" / "my text.txt").write_text(TEXT + "the end")
    run(repository)
    assert first.stat().st_mtime_ns > before and first.with_suffix(".html").exists()
    assert str(len(TEXT) + 7) in first.read_text()
    index = (first.parent / "index.html").read_text()
    assert "How long is the text?" in index and "02_gone" not in index
    assert not list(first.parent.glob(".*part*"))
    # Another text of the same name is another report.
    run(repository, CORPUS="b/my text.txt")
    assert len(list(repository.glob("runs/*/01_mini.ipynb"))) == 2


def test_two_runs_of_one_folder_do_not_meet(repository):
    first = started(repository, SLOW="8")
    wait_for(repository, "started")
    second = started(repository)
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 1 and "another run is writing" in said and "\n" not in said.strip()
    said, _ = first.communicate(timeout=120)
    assert first.returncode == 0 and report(repository).exists(), said


def wait_for(repository: Path, what: str) -> None:
    """Until a kernel of this repository runs the notebook."""
    for _ in range(600):
        if what == "started" and kernels(repository):
            return
        time.sleep(0.1)
    raise AssertionError(f"nothing {what} in a minute")


def processes(repository: Path) -> dict[int, str]:
    """{pid: command} of what works in this repository."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(folder / "cwd") == str(repository):
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found


def kernels(repository: Path) -> list[int]:
    return [pid for pid, command in processes(repository).items() if "ipykernel" in command]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_kill_leaves_nothing_and_the_same_command_goes_on(repository):
    places = (
        ("lib.cli notebook", signal.SIGINT),
        ("lib.cli notebook", signal.SIGKILL),
        ("snakemake", signal.SIGKILL),
        ("lib.cli one", signal.SIGKILL),
    )
    for place, number in places:
        process = started(repository, SLOW="60")
        wait_for(repository, "started")
        [pid, *_] = [p for p, command in processes(repository).items() if place in command]
        os.kill(pid, number)
        process.communicate(timeout=60)
        for _ in range(150):
            if not processes(repository):
                break
            time.sleep(0.2)
        assert not processes(repository), (place, number)
        assert not list(repository.glob("runs/*/01_mini.ipynb"))
    run(repository)
    assert "characters" in report(repository).read_text()
    assert not list(repository.glob("runs/*/.*part*"))


@pytest.mark.parametrize("name", ["2024_01", "chapter #1.txt", "a'b, c.txt"])
def test_settings_reach_the_notebook_as_they_were_given(repository, name):
    """Not read as YAML or as a shell's words on the way."""
    (repository / name).write_text(TEXT, encoding="utf-8")
    run(repository, CORPUS=f"./{name}")
    parameters = nbformat.read(report(repository), 4).metadata["papermill"]["parameters"]
    assert parameters["corpus"] == f"./{name}"
    assert str(len(TEXT)) in report(repository).read_text(encoding="utf-8")


@pytest.mark.skipif(not sys.prefix.isascii(), reason="Python itself does not start there")
def test_a_run_under_a_locale_without_umlauts_is_kept(repository):
    (repository / "Ärger.txt").write_text(TEXT, encoding="utf-8")
    assert "export PYTHONUTF8 = 1" in (ROOT / "Makefile").read_text(encoding="utf-8")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "1", "PYTHONCOERCECLOCALE": "0"}
    run(repository, CORPUS="./Ärger.txt", **locale)
    assert str(len(TEXT)) in report(repository).read_text(encoding="utf-8")
    assert "How long" in (report(repository).parent / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("what", ["a dangling link", "a file", "a folder's file"])
def test_a_place_that_cannot_be_written_is_told_at_once(repository, what):
    runs = repository / "runs"
    if what == "a dangling link":
        runs.symlink_to(repository / "nowhere" / "at" / "all")
    elif what == "a file":
        runs.write_text("")
    else:
        runs.mkdir()
        (runs / "smoke-my_text").write_text("")
        for path in runs.iterdir():
            path.unlink()
        from lib.models.names import label

        (runs / f"smoke-{label(str(repository / 'a' / 'my text.txt'))}").write_text("")
    process = started(repository)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "cannot be made" in said, said
    assert len(said.strip().splitlines()) == 1
