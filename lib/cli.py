"""The command line behind `make report`, `notebook`, `render`, `read`, `train` and
`check-measured`.

Snakemake runs what is out of date (the Snakefile); here names are checked before long work starts,
and one report is run by papermill.
"""

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lib import committed
from lib.committed import RUNS, alone, as_read, execute
from lib.errors import InputError
from lib.files import ROOT, atomic_write
from lib.models.names import NOTEBOOKS, SETTINGS, plan

ALONE = "NONLINEARITY_ALONE"  # in the environment: this report is the only one
NOT_READ = {
    "render": ("profile", "corpus", "seed"),
    "train": ("seed",),
    "read": ("profile", "model", "corpus", "seed"),
    "check-measured": ("profile", "model", "corpus", "seed"),
}
"""settings that a command refuses, for it would not read them"""


def marker(path: str, parameters: dict) -> str:
    """The file whose name says from what a report was made: the digest of the contents of its
    notebook, of lib, and of the reader's own text and model. Snakemake makes a report where that
    file is not there, whatever the times of files are."""
    files = [NOTEBOOKS / f"{Path(path).name}.ipynb", *sorted((ROOT / "lib").rglob("*.py"))]
    for given in (parameters.get("corpus"), parameters.get("model")):
        own = Path(given) if given else None
        if own and own.is_file():
            files.append(own)
        elif own and own.is_dir():
            files += sorted(file for file in own.glob("*.*") if file.is_file())
    digests = [f"{file.name} {_digest(file)}" for file in files]
    digest = hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]
    found = RUNS / Path(path).parent / ".made" / f"{Path(path).name}-{digest}"
    if not (RUNS / f"{path}.ipynb").exists():  # somebody removed it
        found.unlink(missing_ok=True)
    return str(found.relative_to(ROOT))


@functools.cache
def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# One report


def one(path: str, parameters: dict) -> None:
    """Run one report into runs/<path>.ipynb, whole or not at all, with its page and the index."""
    import nbformat

    from lib import page

    die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    target, name, began = RUNS / f"{path}.ipynb", Path(path).name, time.time()
    part, failed = target.with_name(f".{name}.part.ipynb"), target.with_suffix(".failed.ipynb")
    say(path, "started")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        cells = functools.partial(_say_cell, path) if ALONE in os.environ else None
        execute(NOTEBOOKS / f"{name}.ipynb", part, parameters, cells)
        done = as_read(nbformat.read(part, 4), name, parameters, target)
        with atomic_write(target.with_suffix(".html")) as of_html:
            of_html.write_text(page.html_of(done, name), encoding="utf-8")
        with atomic_write(target) as finished:
            nbformat.write(done, finished)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.replace(part, failed)
        say(path, f"failed: {why_it_failed(error, failed)}")
        raise SystemExit(1) from None
    for old in (part, failed, *target.parent.glob(f".made/{name}-*")):
        old.unlink(missing_ok=True)
    say(path, f"done in {time.time() - began:.0f} s")
    page.write_index(target.parent)


def say(path: str, what: str) -> None:
    """A line of progress; it can be lost (a pipe to `head`, a closed window), a report cannot."""
    try:
        print(f"{time.strftime('%H:%M:%S')}  {path}  {what}", flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, it stays to the end


def why_it_failed(error: BaseException, failed: Path) -> str:
    """In a sentence; `failed` is where what was executed lies."""
    name, value = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", error)
    why = " ".join(str(value).split())
    if name == "InputError":
        return why
    if name in ("MemoryError", "DeadKernelError", "OutOfMemoryError"):
        why = "its kernel was killed or had no memory: run fewer at once (JOBS=1), a smaller model"
        return f"{why} or PROFILE=laptop."
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return "it was stopped: the same command goes on."
    return f"{name}: {why or 'no reason was given'}; {failed} shows how far it came."


def _say_cell(path: str, cell, cell_index: int) -> None:
    """Where a report is: the first words of a cell of code that begins."""
    if cell.cell_type == "code" and cell.source.strip():
        say(path, f"cell {cell_index}: {cell.source.strip().splitlines()[0][:60]}")


# A series


def report(config: dict) -> None:
    """Run a series through Snakemake."""
    from joblib import cpu_count  # of the cores that this process may use

    runs = plan(config)
    jobs = os.environ.get("JOBS") or str(cpu_count())
    if not jobs.isdecimal() or int(jobs) < 1:
        raise InputError(f"JOBS={jobs!r} is no number of jobs: give a whole number from 1 up.")
    folders = sorted({RUNS / path.partition("/")[0] for path in runs})
    with alone(folders), tempfile.TemporaryDirectory() as own:
        # Settings go to Snakemake in a file, for on its command line it would read them as YAML.
        settings, log = Path(own, "settings.json"), Path(own, "log")
        settings.write_text(json.dumps(config), encoding="utf-8")
        command = [sys.executable, "-m", "snakemake", "--cores", jobs, "--nolock"]
        command += ["--keep-going", "--rerun-triggers", "mtime", "--rerun-incomplete"]
        command += ["--configfile", str(settings)]
        if len(runs) == 1:  # who waits for one report is told which cell it has reached
            os.environ[ALONE] = "1"
        say(f"{len(runs)} reports", f"at most {min(len(runs), int(jobs))} at once")
        for folder in folders:
            say("read them in", str(folder / "index.html"))
        with open(log, "w", encoding="utf-8") as errors:
            code = run_snakemake(command, errors)
        its_own = log.read_text("utf-8", "replace")
        if code and "Error in rule report_" not in its_own:  # those have said why they failed
            raise InputError(f"Snakemake could not run the series: {its_own.strip()[-1500:]}")
        for path, given in runs.items() if code else ():
            was_said = (RUNS / f"{path}.failed.ipynb").exists()
            if not was_said and not (ROOT / marker(path, given)).exists():
                say(path, "failed: its process was killed, so there may be no memory: try JOBS=1.")
    sys.exit(code)


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Have Linux end this process when its parent ends, so that a kill leaves nothing running; 0:
    let it live on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


def run_snakemake(command: list[str], errors) -> int:
    """Run Snakemake, which ends, with all that it started, when this process does: by Ctrl-C, by a
    kill of it or of `make`. What is half done is done again next time."""

    def window_closed(*_) -> None:
        """`make` ends with its window, which is no wish to end the series."""
        die_with_parent(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    signal.signal(signal.SIGHUP, window_closed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    die_with_parent()
    killed_with_this = functools.partial(die_with_parent, signal.SIGKILL)
    return subprocess.run(command, cwd=ROOT, stderr=errors, preexec_fn=killed_with_this).returncode


def main() -> None:
    what = sys.argv[1] if len(sys.argv) > 1 else "report"
    sys.stdout.reconfigure(  # type: ignore[union-attr]
        errors="backslashreplace"
    )  # a locale may not have every sign
    if what == "one":
        return one(sys.argv[2], json.loads(sys.argv[3]))
    given = {k: os.environ.get("N" if k == "number" else k.upper(), "") for k in SETTINGS}
    config = {name: value for name, value in given.items() if value}
    for name in config:
        if name in NOT_READ.get(what, ()) and (name, config[name]) != ("profile", "study"):
            raise InputError(
                f"make {what} does not read {name.upper()}: leave it out, or use make notebook."
            )
    if what in ("notebook", "read") and "number" not in config:
        raise InputError(f"no notebook was named: give for example make {what} N=01.")
    if what not in ("report", "notebook") and "," in config.get("model", ""):
        raise InputError(f"make {what} takes one model: run it for each of {config['model']}.")
    plan(config)  # names are checked before long work starts
    commands = {
        "render": committed.render,
        "read": committed.read,
        "train": committed.train,
        "check-measured": committed.check_measured,
    }
    commands.get(what, report)(config)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
