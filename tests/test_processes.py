"""Trainings in several processes: none stays behind, none takes more than it is given."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
JOBS = """
import os, sys, time
from lib.training.parallel import in_parallel

def job(seconds):
    os.write(1, f"{os.getpid()}\\n".encode())  # whole, whoever else writes
    time.sleep(seconds)

if __name__ == "__main__":
    in_parallel(job, [float(sys.argv[1])] * 2, brief=False)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "jobs.py"
    path.write_text(JOBS)
    return path


def begun(script: Path, seconds: float, *before: str) -> subprocess.Popen:
    command = [*before, sys.executable, str(script), str(seconds)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TQDM_DISABLE": "1"}
    pipe = subprocess.PIPE
    # A shell's background job ignores Ctrl-C, and so would what it starts.
    return subprocess.Popen(
        command,
        env=environment,
        stdout=pipe,
        stderr=pipe,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@needs_proc
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: no other process")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_worker_stays_behind(script, number):
    parent = begun(script, 300)
    assert parent.stdout.readline().startswith("2 trainings")
    workers = [int(parent.stdout.readline()) for _ in range(2)]
    assert len({parent.pid, *workers}) == 3 and all(map(lives, workers))
    parent.send_signal(number)
    parent.communicate(timeout=30)
    for _ in range(100):
        if not any(map(lives, workers)):
            return
        time.sleep(0.1)
    raise AssertionError("a worker goes on")


@needs_proc
def test_on_one_core_there_is_one_process(script):
    parent = begun(script, 0, "taskset", "-c", str(min(os.sched_getaffinity(0))))
    out, _ = parent.communicate(timeout=60)
    said, *workers = out.splitlines()
    assert said.startswith("2 trainings") and {*map(int, workers)} == {parent.pid}


TWO = """
import sys
import pandas as pd
from lib.models.loading import load_subject
from lib.text.corpora import load_corpus
from lib.text.windows import cut_windows
from lib.studies.finetune import FinetuneConfig, Finetuning, fine_tune

subject = load_subject("tiny-neox", device="cpu")
text = load_corpus("wikipedia-sample")
fit = cut_windows(text.fit, subject.tokenizer, 64).take(2_048)
test = cut_windows(text.test, subject.tokenizer, 64).per_document(1, 6)
arm = FinetuneConfig(steps=(30,))
steps = {"a text": (0, 10, 20, 30)}
found = fine_tune(Finetuning(subject, arm, fit, fit, {"a text": test}, steps))
found.to_csv(sys.argv[1], index=False)
"""


@pytest.mark.slow
def test_two_fine_tunings_at_once_lose_nothing_of_each_other(own_cache, tmp_path):
    (tmp_path / "two.py").write_text(TWO)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TQDM_DISABLE": "1"}
    tables = [tmp_path / "one.csv", tmp_path / "other.csv"]
    both = [
        subprocess.Popen([sys.executable, tmp_path / "two.py", table], env=environment)
        for table in tables
    ]
    assert [process.wait(timeout=240) for process in both] == [0, 0]
    one, other = (table.read_text() for table in tables)
    assert one == other and one.count("\n") == 1 + 4 * 6


@pytest.mark.slow
@pytest.mark.parametrize("what", ["compiles nothing", "no folder", "is not there"])
def test_what_cannot_be_compiled_is_trained_without(tmp_path, what):
    """A compiler that is there and does nothing; no folder for what it compiles."""
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    environment = dict(os.environ)
    if what == "compiles nothing":
        environment |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CXX": "g++"}
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "compiled")
    elif what == "no folder":
        environment["TORCHINDUCTOR_CACHE_DIR"] = "/proc/nothing/can/be/made"
    else:
        environment["PATH"] = "/nowhere"
    code = "from lib.training.loop import worth_compiling as w; print(w(100), w(5_000))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    works = what == "no folder"  # in the usual folder
    assert done.stdout.splitlines()[-1:] == [f"False {works}"], done.stdout + done.stderr
