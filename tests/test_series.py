"""A series of reports: parameters, order, what the index says, kills, locks and hostile names,
tried in copies of the repository whose notebooks only sleep."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import nbformat
import pytest
from arms import cache_of, differences, half_written, kill, start, tables
from cluster import printed

from lib.base import ROOT, InputError, get_profile, label, slugify
from lib.reports import live, lock
from lib.reports.digest import note_sources
from lib.reports.one import execute, sentence
from lib.reports.plan import VARIABLES, asked, check_names, chosen, papers_of, plan

HOSTILE = ["`touch pwned`", "$(touch pwned)", "$(shell touch pwned)", "a;touch pwned", "a b"]
HOSTILE += ['";touch pwned;"', "'; touch pwned; '", "$HOME", "--help", "{output}", "a\\n/b"]
HOSTILE += ["a\nb;touch pwned", "-rf", '"', "'", "\\", "a\tb", "%s", "\u00e4 \u202e", "../x"]


def notebook(number: str, *steps: str) -> nbformat.NotebookNode:
    """A notebook with the parameters of a real one, which leaves a line with its model."""
    ran = "open('ran', 'a').write(f'{number} {model!r}\\n')"
    cells = [
        nbformat.v4.new_markdown_cell(f"# {number} · Sleeping & waking"),
        nbformat.v4.new_code_cell(
            'profile = "laptop"\nmodel = None\ncorpus = None\nseed = 42',
            metadata={"tags": ["parameters"]},
        ),
        *map(nbformat.v4.new_code_cell, [f"number = '{number}'\n{ran}", *steps]),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


@pytest.fixture
def tree(tmp_path):
    """A copy of the repository, in a folder with a space, with two notebooks that sleep and the
    tour, and a .venv that sees this one's packages."""
    root = tmp_path / "a b"
    for name in ("lib", "data/published", "Snakefile", "Makefile"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, root / name)
    (root / "notebooks").mkdir()
    for number in ("00", "01", "02"):
        steps = ["import time\ntime.sleep(0.2)"] * 2
        nbformat.write(notebook(number, *steps), root / "notebooks" / f"{number}_asleep.ipynb")
    venv.create(root / ".venv", symlinks=True)
    packages = sysconfig.get_path("purelib", vars={"base": str(root / ".venv")})
    Path(packages, "there.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (root / ".venv/share").mkdir(exist_ok=True)
    (root / ".venv/share/jupyter").symlink_to(Path(sys.prefix) / "share/jupyter")
    for name in ("pyproject.toml", "constraints.txt"):
        (root / name).touch()
    (root / ".venv" / ".ready").touch()
    return root


def make(tree: Path, target: str = "report", **variables: str) -> subprocess.CompletedProcess:
    names = [f"{name}={value}" for name, value in {"PROFILE": "smoke", **variables}.items()]
    return subprocess.run(
        ["make", "--no-print-directory", "-s", target, *names],
        cwd=tree,
        capture_output=True,
        text=True,
    )


def driver(tree: Path, **variables: str) -> subprocess.Popen:
    return start(tree, str(tree / ".venv/bin/python"), PROFILE="smoke", **variables)


def ran(tree: Path) -> list[str]:
    return [line.split()[0] for line in (tree / "ran").read_text().splitlines()]


def states(tree: Path) -> dict[str, str]:
    files = (tree / "runs/smoke/.status").glob("*/*.json")
    return {f.name[:2]: json.loads(f.read_text())["state"] for f in sorted(files)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"profile": "lptop"}, "unknown profile 'lptop': did you mean 'laptop'"),
        ({"modle": "gpt2"}, "unknown parameter 'modle': did you mean 'model'"),
        ({"model": None}, "model is empty"),
        ({"model": "gpt2,,x"}, "an empty or a repeated part"),
        ({"model": "gpt2,gpt2"}, "an empty or a repeated part"),
        ({"model": "gpt2,GPT2"}, "models 'gpt2' and 'GPT2' would share the folder 'GPT2'"),
        ({"model": "data/models/tiny-neox, ./data/models/tiny-neox"}, "would share the folder"),
        ({"model": "gpt2 pythia-160m"}, "unknown model 'gpt2 pythia-160m'"),
        ({"model": "gpt-2"}, "unknown model 'gpt-2': did you mean 'gpt2'"),
        ({"corpus": "wikitext"}, "unknown corpus 'wikitext'"),
        ({"paper": "wipp"}, "unknown paper 'wipp': did you mean 'whipp'"),
        ({"number": "88"}, "unknown notebook number '88'"),
        ({"number": "first"}, "notebook numbers 'first' cannot be read"),
        ({"number": "00", "paper": "whipp"}, "no notebook among 00 reproduces paper 'whipp'"),
        ({"seed": "abc"}, "seed 'abc' is no whole number from 0"),
        ({"seed": 1e3}, "seed '1000.0' is no whole number from 0"),
        ({"seed": "42,-1"}, "seed '-1' is no whole number from 0"),
        ({"seed": str(2**32)}, "is no whole number from 0 to 4,294,967,295"),
        ({"at_once": "0"}, "at_once (JOBS) '0' is no whole number from 1"),
        ({"at_once": "two"}, "at_once (JOBS) 'two' is no whole number from 1"),
        ({"gpus": "all"}, "gpus 'all' is no whole number from 0"),
    ],
)
def test_a_wrong_parameter_is_one_sentence(given, words):
    with pytest.raises(InputError) as error:
        check_names(plan(given))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_what_runs_in_which_order():
    every = chosen()
    assert every[0].startswith("01") and every[-1].startswith("00")
    assert every[:-1] == sorted(every[:-1])
    assert [n[:2] for n in chosen("03-04,0,1")] == ["01", "03", "04", "00"]
    whipp = chosen(paper="Whipp")
    assert whipp and all(papers_of(n) == {"whipp"} for n in whipp)
    assert not any(n.startswith("00") for n in whipp)
    several = plan({"model": "gpt2, pythia-160m", "number": "02,01"})
    assert [(t.notebook[:2], t.run) for t in several.tasks] == [
        ("01", "gpt2"),
        ("01", "pythia-160m"),
        ("02", "gpt2"),
        ("02", "pythia-160m"),
    ]


def test_an_environment_gives_parameters():
    given = asked({"MODEL": "a b", "N": "01", "JOBS": "2", "SEED": "", "HOME": "/"})
    assert given == {"model": "a b", "number": "01", "at_once": "2"}
    with pytest.raises(InputError, match="unknown option 'modle': did you mean 'MODEL'"):
        asked({"NONLINEARITY_OPTIONS": "N modle"})
    with pytest.raises(InputError, match="model is empty"):
        plan(asked({"NONLINEARITY_OPTIONS": "MODEL VENV", "MODEL": ""}))


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("variable", VARIABLES)
def test_every_parameter_refuses_what_is_hostile(variable, name):
    if variable in ("MODEL", "CORPUS"):
        name = name.replace("/", "-")  # owner/name may be anything on the hub
    with pytest.raises(InputError) as error:
        check_names(plan(asked({"PROFILE": "smoke", variable: name})))
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_different_runs_never_share_a_folder(tmp_path):
    names = ["a/b-c", "a-b/c", "a--b-c", "a-b--c", "a b", "a-b", "a/b", "a//b", "a---b", "a/-b"]
    names += ["a-/b", "ä", "ö", "", ".", "..", "-", "x" * 300, "x" * 301, "a@b", "a+seed=43", "a~b"]
    slugs = [slugify(name) for name in names]
    assert len(set(slugs)) == len(names)
    assert not any("/" in slug or slug[0] in ".-" or len(slug) > 120 for slug in slugs)
    assert slugify("owner/name-1.5b") == "owner--name-1.5b"
    smoke = get_profile("smoke")
    assert label(smoke, "m-seed43", "wikipedia-sample", 42) != label(
        smoke, "m", "wikipedia-sample", 43
    )


def test_the_plan_is_light():
    """Snakemake reads it in every job."""
    code = "import sys, lib.reports.plan, lib.reports.live, lib.reports.digest; "
    code += "print([m for m in ('torch', 'pandas', 'transformers', 'numpy') if m in sys.modules])"
    out = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert out.strip() == "[]"


def test_only_what_changed_is_out_of_date(tmp_path):
    name = chosen()[0]
    note_sources(tmp_path, [name])
    before = (tmp_path / f"{name}.json").stat()
    note_sources(tmp_path, [name])
    after = (tmp_path / f"{name}.json").stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


def test_the_index_is_true_in_every_state(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "ROOT", tmp_path)
    monkeypatch.setattr(live, "DATA", tmp_path / "data")
    series = plan({"profile": "smoke", "number": "01-03"})
    home, (one, two, three) = tmp_path / series.home, series.tasks
    page = lambda: (home / "index.html").read_text()
    row = lambda task: next(r for r in page().split("<tr") if task.notebook[:2] + " ·" in r)

    live.begin(series)
    assert "0 done, 0 running, 3 waiting, 0 failed of 3" in page()
    assert 'http-equiv="refresh"' in page() and "<a href" not in page()
    started = time.time()
    live.tell(home, one, state="running", started=started - 70, cells=9, cells_done=4, pid=1)
    live.index(home)
    assert "running, 4 of 9 cells" in row(one) and "1 min 10 s" in row(one)

    claims = tmp_path / "data/results/smoke" / one.run / one.notebook / "claims.csv"
    claims.parent.mkdir(parents=True)
    claims.write_text("claim,verdict\nx,not run\ny,reproduced\nz,reproduced\n")
    assert live.verdicts("smoke", one, started) == "2 reproduced, 1 not run"
    assert live.verdicts("smoke", one, started + 3600) is None, "left by an earlier run"
    (home / one.run).mkdir()
    for kind in ("ipynb", "html", "thumb.png"):
        (home / one.run / f"{one.notebook}.{kind}").touch()
    live.tell(home, one, state="done", seconds=185.2, verdicts="2 reproduced, 1 not run")
    live.tell(home, two, state="failed", seconds=1, reason="model '<b>' is unknown.")
    live.tell(home, three, state="running", started=started, cells=9, cells_done=0, pid=1)
    live.index(home)
    assert "1 done, 1 running, 0 waiting, 1 failed of 3" in page()
    assert "3 min 5 s" in row(one) and "2 reproduced, 1 not run" in row(one)
    assert f'href="{one.run}/{one.notebook}.html"' in row(one) and ".thumb.png" in row(one)
    assert "failed: model &#x27;&lt;b&gt;&#x27; is unknown." in row(two)

    live.end(series)
    assert "1 done, 0 running, 1 waiting, 1 failed of 3" in page(), "nothing runs any more"
    assert 'http-equiv="refresh"' not in page()
    live.begin(plan({"profile": "smoke", "number": "04"}))
    assert "0 done, 0 running, 1 waiting, 0 failed of 1" in page()
    assert "01 ·" in page() and "02 ·" not in page(), "earlier reports stay listed"


def test_a_lock_is_held_by_one_and_says_by_whom(tmp_path):
    with lock.only_one(tmp_path / "smoke"):
        with pytest.raises(InputError, match=f"smoke since .*, process {os.getpid()}") as error:
            lock.only_one(tmp_path / "smoke").__enter__()
        assert "\n" not in str(error.value)
    with lock.only_one(tmp_path / "smoke"):
        pass


def test_what_a_killed_run_left_is_swept(tmp_path):
    for name in ("runs/x/.01_a.html.k2j", "results/m/.old.csv.abc", "results/m/.new.csv.abc"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("runs/x/01_a.part.ipynb", "runs/x/01_a.ipynb", "runs/.lock", "results/m/a.csv"):
        (tmp_path / name).touch()
    os.utime(tmp_path / "results/m/.old.csv.abc", (0, 0))
    lock.sweep(tmp_path / "runs", tmp_path / "results")
    left = {p.name for p in tmp_path.rglob("*") if not (p.is_dir() and "." not in p.name)}
    assert left == {"01_a.ipynb", ".lock", "a.csv", ".new.csv.abc"}


def test_why_a_notebook_stopped_is_one_sentence():
    assert sentence("InputError", "corpus 'x' is unknown.\nmore") == "corpus 'x' is unknown."
    assert sentence("KeyError", "'x'\n") == "KeyError: 'x'"


SEALED = """
from lib.base import DATA
from lib.base.results import finish
folder = DATA / "results" / profile / model / "02_asleep"
folder.mkdir(parents=True, exist_ok=True)
(folder / "drawn.csv").write_text("1\\n")
finish(folder, ["drawn.csv"], "code")
"""


def test_a_series_from_start_to_end(tree):
    """In a folder with a space; one report fails, the others and the tour go on; a second run
    makes what is missing and nothing else; a `touch` makes nothing; damaged results are made
    again."""
    nbformat.write(notebook("02", SEALED), tree / "notebooks" / "02_asleep.ipynb")
    broken = notebook("01", "raise ValueError('no such thing\\nat all')")
    nbformat.write(broken, tree / "notebooks" / "01_asleep.ipynb")
    first = make(tree)
    lines = first.stdout.splitlines()
    assert first.returncode == 2 and not first.stderr.replace("make: ", "").startswith("Trace")
    assert lines[0].startswith("3 reports with the profile smoke; about")
    assert "01 · Sleeping & waking: ValueError: no such thing" in lines
    assert any(x.startswith("2 of 3  02 · Sleeping & waking: done in") for x in lines)
    assert any(x.startswith("2 of 3 made in") and "1 failed" in x for x in lines)
    assert sorted(ran(tree)) == ["00", "01", "02"] and ran(tree)[-1] == "00"
    index = (tree / "runs/smoke/index.html").read_text()
    assert "2 done, 0 running, 0 waiting, 1 failed of 3" in index
    assert 'href="tiny-gpt2/02_asleep.html"' in index
    assert (tree / "runs/smoke/tiny-gpt2/02_asleep.html").exists()

    nbformat.write(notebook("01"), tree / "notebooks" / "01_asleep.ipynb")
    second = make(tree)
    assert second.returncode == 0, second.stdout + second.stderr
    assert ran(tree)[3:] == ["01", "00"], "the tour collates 01 anew; 02 is up to date"
    for path in [*(tree / "lib").rglob("*.py"), *(tree / "notebooks").iterdir()]:
        path.touch()
    third = make(tree)
    assert third.returncode == 0 and len(ran(tree)) == 5
    assert third.stdout.startswith("3 reports with the profile smoke, 3 of them up to date")

    sealed = tables(tree)
    (table,) = (tree / "data/results").rglob("drawn.csv")
    table.write_text("3\n")
    fourth = make(tree)
    assert fourth.returncode == 0 and ran(tree)[5:] == ["02", "00"], "and the tour collates it"
    assert len(sealed) == 2 and not differences(tables(tree), sealed)


def test_the_first_report_has_the_machine_to_itself(tree):
    """Two reports run at once at laptop, but not beside the first: a reader waits for it."""
    end = "import time\ntime.sleep(1)\nopen('ran', 'a').write(f'{number}-end\\n')"
    for number in ("01", "02", "03"):
        nbformat.write(notebook(number, end), tree / "notebooks" / f"{number}_asleep.ipynb")
    done = make(tree, PROFILE="laptop", MODEL="tiny-gpt2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ran(tree)[:2] == ["01", "01-end"] and len(ran(tree)) == 7


@pytest.mark.parametrize(
    ("target", "name"), [(("report", "notebook")[k % 2], name) for k, name in enumerate(HOSTILE)]
)
def test_a_hostile_value_is_refused_unread(tree, target, name):
    """Whichever parameter holds it: make and the shell hand it on as it stands."""
    refused = make(tree, target, **dict.fromkeys(VARIABLES, name))
    assert refused.returncode == 2 and f"unknown profile {name!r}" in refused.stderr, refused
    assert not list(tree.rglob("pwned"))


def test_bad_input_is_found_before_the_first_job(tree):
    for name, value, word in [
        ("SEED", "abc", "seed 'abc'"),
        ("SEED", "-1", "seed '-1'"),
        ("JOBS", "0", "at_once (JOBS) '0'"),
        ("MODEL", "nope", "unknown model 'nope'"),
        ("MODEL", "", "model is empty"),
        ("MODLE", "gpt2", "unknown option 'MODLE': did you mean 'MODEL'?"),
    ]:
        refused = make(tree, **{name: value})
        said = [ln for ln in refused.stderr.splitlines() if not re.match(r"make.*: \*\*\*", ln)]
        assert refused.returncode == 2 and len(said) == 1 and said[0].startswith(word), refused
    assert not (tree / "runs").exists() and not (tree / "ran").exists()


def test_a_notebook_shows_one_line_of_bad_input(tmp_path):
    """In itself and in the terminal; another error keeps its traceback."""
    for stop, lines in (("InputError('corpus x is unknown.')", 1), ("ValueError('x')", 5)):
        step = f"from lib.base import InputError\nraise {stop}"
        stops = notebook("01", step)
        del stops.cells[2]  # it would leave its line in this checkout
        nbformat.write(stops, tmp_path / "01_stops.ipynb")
        target = tmp_path / "out" / "01_stops.ipynb"
        with pytest.raises(InputError) as error:
            execute(tmp_path / "01_stops.ipynb", target, {"model": "m"}, lambda *_: None)
        cells = nbformat.read(target.with_suffix(".part.ipynb"), as_version=4).cells
        (shown,) = [o for c in cells for o in c.get("outputs", []) if o.output_type == "error"]
        told = "\n".join(shown.traceback).splitlines()
        assert (len(told) == 1) == (lines == 1) and "\n" not in str(error.value)
    assert str(error.value) == "ValueError: x"


def test_a_hostile_name_reaches_the_notebook_whole(tree):
    """A folder may have any name; what is in it is known only when the notebook reads it."""
    name = "a b/`touch pwned`$(touch pwned);'\"{x}$HOME"
    (tree / name).mkdir(parents=True)
    done = make(tree, MODEL=name, N="01")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tree / "ran").read_text() == f"01 {name!r}\n"
    assert not list(tree.rglob("pwned"))


MEASURE = """
import time
import numpy as np
from lib.base import DATA, cache, whole
@cache.cached
def draw(k):
    time.sleep(0.3)
    return np.random.default_rng(k).normal(size=3)
target = DATA / "results" / profile / model / f"{number}_asleep" / "drawn.csv"
with whole(target) as part:
    np.savetxt(part, [draw({"k": k}, k) for k in range(5)])
"""


def test_a_killed_series_goes_on_by_itself(tree):
    """SIGKILL of the driver alone, then of it and all it started, at random moments: nothing
    lives on, nothing half-written has a final name, the same command finishes, and the tables are
    byte for byte those of a run that nobody killed."""
    for number in ("01", "02"):
        nbformat.write(notebook(number, MEASURE), tree / "notebooks" / f"{number}_asleep.ipynb")
    chance = random.Random(0)
    for kill_all in (False, True):
        killed = driver(tree)
        while killed.poll() is None and "running" not in states(tree).values():
            time.sleep(0.1)
        time.sleep(chance.uniform(0, 4))
        kill(killed, kill_all)
        assert not half_written(tree / "runs")
    done = driver(tree)
    out = done.communicate()[0]
    assert done.returncode == 0, out
    assert states(tree) == {"00": "done", "01": "done", "02": "done"}
    assert not list((tree / "runs").rglob("*.part.*")) + list((tree / "runs").rglob(".*.*"))
    resumed = tables(tree)
    for path in (tree / "runs", cache_of(tree), tree / "data/results"):
        shutil.rmtree(path)
    assert driver(tree).wait() == 0
    assert len(resumed) == 2 and not differences(tables(tree), resumed)


def test_a_second_series_beside_a_live_one_is_refused(tree):
    still_on = notebook("01", "import time\ntime.sleep(100)")
    nbformat.write(still_on, tree / "notebooks" / "01_asleep.ipynb")
    first = driver(tree, N="01")
    try:
        assert "1 report" in first.stdout.readline()
        second = make(tree, N="02")
        assert second.returncode == 2
        assert "a series is already on here (smoke since" in second.stderr
        assert f"process {first.pid}" in second.stderr
    finally:
        first.send_signal(signal.SIGINT)
    assert "goes on from here" in first.communicate()[0] and first.returncode == 130
    assert 'http-equiv="refresh"' not in (tree / "runs/smoke/index.html").read_text()


def test_snakemake_alone_runs_the_same_file(tree):
    command = [str(tree / ".venv/bin/python"), "-m", "snakemake", "--cores", "2", "--config"]
    done = subprocess.run(
        [*command, "profile=smoke", "number=1", "seed=7"], cwd=tree, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    assert (tree / "ran").read_text() == "01 'tiny-gpt2'\n"
    index = (tree / "runs/smoke/index.html").read_text()
    assert "1 done" in index and "no run is on" in index
    wrong = subprocess.run([*command, "modle=x"], cwd=tree, capture_output=True, text=True)
    assert wrong.returncode and "unknown parameter 'modle'" in wrong.stderr.splitlines()[-1]


def test_what_the_readme_gives_snakemake_is_a_series():
    text = (ROOT / "README.md").read_text() + (ROOT / "Snakefile").read_text()
    lines = re.findall(r"^[ #]+snakemake .* --config ((?:\w+=\S+ ?)+)", text, re.M)
    series = [plan(dict(pair.split("=") for pair in line.split())) for line in lines]
    assert {len(one.runs) for one in series} == {1, 2, 4, 9}
    assert {one.gpus for one in series} == {0, 1}
    assert printed()[3:5] == ["--executor", "slurm"]
