"""The runner: nothing that was finished is lost, what changed is made again, a kill leaves nothing.

A small repository of its own with one quick notebook stands in for the real one.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from lib import cli, committed
from lib.errors import InputError
from lib.models import names

ROOT = Path(__file__).resolve().parents[1]
TEXT = "words and more words.\n\n" * 2_000
CELLS = """profile = "study"
model = None
corpus = None
seed = 42
###
import json
import os
import re
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
@pytest.mark.slow
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
    assert process.returncode == 1 and "cannot be made or written" in said, said
    assert len(said.strip().splitlines()) == 1


def refused(repository: Path, **settings) -> str:
    """What a command says that must not succeed: one line."""
    process = started(repository, **settings)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1, said
    return said


@pytest.mark.slow
def test_the_time_of_a_file_decides_nothing(repository):
    """Neither one in the future (another server's clock) nor an older one (cp -p, rsync, mv)."""
    run(repository)
    made = report(repository).stat().st_mtime_ns
    names = ("lib/errors.py", "a/my text.txt", "notebooks/01_mini.ipynb")
    for when in (time.time() + 86_400, 1e9):
        for name in names:
            os.utime(repository / name, (when, when))
        run(repository)
        assert report(repository).stat().st_mtime_ns == made
    for name in names:
        path = repository / name
        path.write_text(path.read_text() + "\n" * 3)
        os.utime(path, (1e9, 1e9))
        run(repository)
        made, before = report(repository).stat().st_mtime_ns, made
        assert made > before


@pytest.mark.slow
def test_what_is_edited_while_its_report_runs_is_made_again(repository):
    process = started(repository, SLOW="4")
    wait_for(repository, "started")
    (repository / "a" / "my text.txt").write_text("other words. " * 1_000)
    process.communicate(timeout=120)
    run(repository)
    assert str(len("other words. " * 1_000)) in report(repository).read_text()


def test_a_pipe_that_is_closed_costs_no_report(repository):
    """make report | head"""
    process = started(repository)
    process.stdout.close()
    assert process.wait(timeout=120) == 0 and report(repository).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_a_window_that_is_closed_ends_nothing(repository):
    process = started(repository, SLOW="4")
    wait_for(repository, "started")
    os.kill(process.pid, signal.SIGHUP)
    os.kill(process.pid, signal.SIGTERM)  # as Linux sends it when `make` has ended with its window
    assert process.wait(timeout=120) == 0 and report(repository).exists()


@pytest.mark.slow
def test_two_commands_at_once_do_what_each_was_asked_for(repository):
    """Another one's settings were read; two wrote into one folder."""
    shutil.copy(repository / "notebooks/01_mini.ipynb", repository / "notebooks/02_more.ipynb")
    first = started(repository, SLOW="6", SEED="1,2")
    wait_for(repository, "started")
    said = refused(repository, SEED="2")
    assert "another run is writing" in said and "seed2" in said
    run(repository, SEED="3", N="02")
    assert first.wait(timeout=120) == 0
    made = {f"{p.parent.name[-5:]}/{p.name}" for p in repository.glob("runs/*/0*.ipynb")}
    assert made == {"seed1/01_mini.ipynb", "seed2/01_mini.ipynb", "seed3/02_more.ipynb"}


FAILURES = {
    "an error": ("raise ValueError('a\\nb')", "ValueError: a b; "),
    "no memory": ("raise MemoryError", "had no memory"),
    "killed": ("os.kill(os.getpid(), 9)", "kernel was killed"),
    "ours": (
        "from lib.errors import InputError\nraise InputError('one thing: do this.')",
        "one thing: do this.",
    ),
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_failure_ends_in_a_sentence_and_leaves_what_was_executed(repository, what):
    code, why = FAILURES[what]
    path = repository / "notebooks" / "01_mini.ipynb"
    notebook = nbformat.read(path, 4)
    notebook.cells.append(nbformat.v4.new_code_cell(code))
    nbformat.write(notebook, path)
    said = [line for line in refused(repository).splitlines() if " cell " not in line]
    assert len(said) <= 4 and why in said[-1] and "01_mini" in said[-1]
    [left] = repository.glob("runs/*/01_mini.failed.ipynb")
    assert "The answer" in left.read_text() and not list(repository.glob("runs/*/.*part*"))


@pytest.mark.slow
@pytest.mark.parametrize("number, why", [(9, "its process was killed"), (15, "it was stopped")])
def test_a_report_that_is_killed_is_told(repository, number, why):
    path = repository / "notebooks" / "01_mini.ipynb"
    notebook = nbformat.read(path, 4)
    code = "if not os.path.exists('killed'):\n    open('killed', 'w').close()"
    notebook.cells.append(nbformat.v4.new_code_cell(f"{code}\n    os.kill(os.getppid(), {number})"))
    nbformat.write(notebook, path)
    said = [line for line in refused(repository).splitlines() if " cell " not in line]
    assert why in said[-1] and "01_mini" in said[-1] and len(said) <= 4
    run(repository)  # the same command goes on
    assert report(repository).exists() and not list(repository.glob("runs/*/.*part*"))


NAMED = {
    "N=01-3000000": "no list of notebooks",
    "N=1-": "no list of notebooks",
    "N=07": "unknown notebook",
    "SEED=-1": "no whole number",
    "JOBS=0": "no number of jobs",
    "PROFILE=labtop": "did you mean 'laptop'",
}


@pytest.mark.parametrize("settings", NAMED)
def test_a_setting_that_names_nothing_is_refused_at_once(repository, settings):
    began = time.time()
    said = refused(repository, **dict(part.split("=") for part in settings.split()))
    assert NAMED[settings] in said and len(said.splitlines()) == 1 and time.time() - began < 10


def test_a_range_may_have_gaps_and_a_seed_is_a_number():
    assert names.notebooks("20-28")[-1].startswith("28") and len(names.notebooks("23-25")) == 2
    assert names.notebooks("01", "whipp") == names.notebooks("1")
    with pytest.raises(InputError, match="notebook 08 is not of PAPER=whipp"):
        names.notebooks("08", "whipp")
    assert len(names.plan({"seed": "042,42", "number": "01"})) == 1
    assert len(names.plan({"seed": "7,42", "number": "01"})) == 2
    for seed in (0, "0"):  # as Snakemake and as make give it
        ((path, parameters),) = names.plan({"seed": seed, "number": "01"}).items()
        assert "seed0" in path and parameters["seed"] == 0


@pytest.mark.slow
def test_a_relative_text_is_the_readers_own(repository, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "a").mkdir()
    (elsewhere / "a" / "my text.txt").write_text("x" * 321)
    config = {"number": "01", "profile": "smoke", "corpus": "a/my text.txt"}
    (elsewhere / "settings.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "snakemake", "-s", str(repository / "Snakefile")]
    command += ["--cores", "1", "--configfile", "settings.json"]
    done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "There are 321 characters" in report(repository).read_text()


REFUSED = {
    "render": ["PROFILE=smoke", "CORPUS=king-james", "SEED=1", "MODEL=tiny-gpt2,tiny-neox"],
    "train": ["SEED=1", "MODEL=tiny-gpt2,tiny-neox"],
    "check-measured": ["PROFILE=smoke", "MODEL=tiny-gpt2", "SEED=1"],
}


@pytest.mark.parametrize("command, setting", [(c, s) for c, some in REFUSED.items() for s in some])
def test_a_command_refuses_what_it_does_not_read(monkeypatch, command, setting):
    name, value = setting.split("=")
    for other in (*map(str.upper, names.SETTINGS), "N"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["cli", command])
    for name in cli.NOT_READ:
        monkeypatch.setattr(committed, name.replace("-", "_"), lambda _: None, raising=False)
    with pytest.raises(InputError, match=r"does not read|takes one model"):
        cli.main()


def test_words_that_are_saved_while_a_page_is_rendered_stay(tmp_path, monkeypatch):
    """And what was rendered is kept beside them."""
    page = tmp_path / "notebooks" / "06_swapping_and_healing.ipynb"
    page.parent.mkdir()
    shutil.copy(ROOT / "notebooks" / page.name, page)
    monkeypatch.setattr(committed, "NOTEBOOKS", page.parent)

    def execute(source, target, _):
        shutil.copy(source, target)
        page.write_text(page.read_text().replace("# ", "# My own words: ", 1))

    monkeypatch.setattr(committed, "execute", execute)
    with pytest.raises(InputError, match="was saved while it was rendered"):
        committed._render_one(page.stem, tmp_path, {})
    assert "My own words" in page.read_text() and (tmp_path / page.name).exists()
    monkeypatch.setattr(committed, "execute", lambda source, target, _: shutil.copy(source, target))
    committed._render_one(page.stem, tmp_path, {})
    assert "My own words" in page.read_text() and not list(tmp_path.glob(".*part*"))


@pytest.mark.slow
def test_a_report_reads_nothing_from_the_network(repository):
    path = repository / "notebooks" / "01_mini.ipynb"
    notebook = nbformat.read(path, 4)
    notebook.cells[
        0
    ].source += "\n\nWith $R^2 = 1 - x_{i}$, `a $b$ c` and\n\n$$ y = \\frac{a}{b} $$"
    nbformat.write(notebook, path)
    run(repository)
    page = report(repository).with_suffix(".html").read_text()
    assert page.count("<math") == 2 and "a $b$ c" in page
    assert not re.search(r"(?:src|href)=.(?:https?:)?//(?!www\.w3)", page.split("<body")[0])
