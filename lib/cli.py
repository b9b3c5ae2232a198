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
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from lib.errors import InputError
from lib.models.names import NOTEBOOKS, PROFILES, SETTINGS, label, notebooks, plan
from lib.store import DATA, ROOT, atomic_write, cache_folder, entry, unpack

RUNS = ROOT / "runs"
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


def execute(
    source: Path, target: Path, parameters: dict, on_cell_start: Callable | None = None
) -> None:
    """papermill, with what the kernel says of its own transport kept off the terminal."""
    import papermill

    os.environ["TQDM_DISABLE"] = "1"  # bars are for who waits, not for who reads
    os.environ["NONLINEARITY_COMMAND"] = "1"
    terminal = os.dup(2)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        papermill.execute_notebook(
            source,
            target,
            parameters,
            kernel_name="python3",
            progress_bar=False,
            cwd=ROOT,
            on_cell_start=on_cell_start,
        )
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


# A series


def report(config: dict) -> None:
    """Run a series through Snakemake."""
    from joblib import cpu_count  # of the cores that this process may use

    runs = plan(config)
    jobs = os.environ.get("JOBS") or str(cpu_count())
    if not jobs.isdecimal() or int(jobs) < 1:
        raise InputError(f"JOBS={jobs!r} is no number of jobs: give a whole number from 1 up.")
    folders = sorted({RUNS / path.partition("/")[0] for path in runs})
    with _alone(folders), tempfile.TemporaryDirectory() as own:
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


@contextlib.contextmanager
def _alone(folders: list[Path]) -> Iterator[None]:
    """While open, no other command writes into these folders: two would delete each other's
    reports. Locks are taken in one order, before anything is written."""
    with contextlib.ExitStack() as locks:
        for folder in folders:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                locks.enter_context(FileLock(folder / ".lock").acquire(timeout=0))
            except Timeout:
                raise InputError(
                    f"another run is writing {folder}: wait for it, or choose other settings."
                ) from None
            except OSError as error:
                raise InputError(
                    f"the folder {folder} cannot be made or written ({error.strerror}): remove "
                    "what stands in its place, or give this user the right to write there."
                ) from None
        yield


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


def as_read(done, name: str, parameters: dict, target: Path):
    """A finished report as it is read: what is written about the committed run is left out of
    another one's, which gets a first cell of its own."""
    import nbformat

    from lib import page
    from lib.report import Run  # takes ten seconds to load

    usual = PROFILES[parameters["profile"]]
    chosen = {what: parameters.get(what) or usual[what] for what in ("model", "corpus")}
    run = Run(name, parameters["profile"], chosen["model"], chosen["corpus"], parameters["seed"])
    about = {"folder": run.folder, "profile": run.profile, **chosen}
    cells = page.of_another_run(done.cells, name, about, target)
    done.cells = [nbformat.from_dict(cell) for cell in cells]
    return done


# Committed pages


def render(config: dict) -> None:
    """Execute committed notebooks at `study`: the only writer of figures/ and data/results. On
    another model than the default the report goes into runs/ and only its tables into data/results;
    the committed page is then rendered again to show them."""
    names = notebooks(config.get("number", ""), config.get("paper", ""))
    os.environ["NONLINEARITY_RENDER"] = "1"
    model = config.get("model", "")
    elsewhere = bool(model) and model != PROFILES["study"]["model"]
    folder = RUNS / (f"render-{label(model)}" if elsewhere else "render")
    with _alone([folder]):
        for name in names:
            began = time.time()
            _render_one(name, folder, {"model": model} if elsewhere else {})
            print(f"{name}: {time.time() - began:.0f} s", flush=True)


def _render_one(name: str, folder: Path, given: dict) -> None:
    """Execute a page; it takes the place of the committed one only where that is still the file
    that was executed."""
    import nbformat

    from lib import page

    source, part = NOTEBOOKS / f"{name}.ipynb", folder / f".{name}.part.ipynb"
    before = source.read_bytes()
    execute(source, part, given)
    notebook = nbformat.read(part, 4)
    notebook.metadata.pop("papermill", None)
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        # A warning names the file that it comes from, as seen from the repository.
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = output.text.replace(f"{ROOT}/", "")
    # What papermill injected is no part of the committed notebook.
    notebook.cells = [
        c for c in notebook.cells if "injected-parameters" not in c.metadata.get("tags", [])
    ]
    target = folder / f"{name}.ipynb" if given else source
    if given:
        notebook = as_read(notebook, name, {"seed": 42, "profile": "study"} | given, target)
    nbformat.write(notebook, part)
    if source.read_bytes() != before:
        os.replace(part, folder / f"{name}.ipynb")
        raise InputError(
            f"{source.name} was saved while it was rendered: what was rendered is in "
            f"{folder / source.name}, and your words are where they were; render it again."
        )
    os.replace(part, target)
    if not given:
        for fault in filter(None, [page.unread(notebook, name), *page.unquotable(notebook, name)]):
            print(fault)


def read(config: dict) -> None:
    """Pin the words of pages to the numbers of their summaries, once a person has read them.
    Raises InputError for a page whose words quote an interval that is not there."""
    import nbformat

    from lib import page

    for name in notebooks(config.get("number", ""), config.get("paper", "")):
        path = NOTEBOOKS / f"{name}.ipynb"
        notebook = nbformat.read(path, 4)
        if faults := page.unquotable(notebook, name):
            raise InputError("\n".join(faults))
        notebook.cells[0].metadata["summary"] = page.pin_of(name)
        with atomic_write(path) as part:
            nbformat.write(notebook, part)
        print(f"{name}: its words are pinned to {page.pin_of(name)}")


def train(config: dict) -> None:
    """Run the trainings of some notebooks and nothing else: their cells up to the last one with the
    tag `runs`. What is trained is kept in data/measured, so a killed run goes on from there.
    Raises InputError for a notebook without such a cell."""
    import nbformat

    os.environ["NONLINEARITY_TRAIN"] = "1"
    given = {k: config[k] for k in ("profile", "model", "corpus") if k in config}
    for name in notebooks(config.get("number", ""), config.get("paper", "")):
        notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)
        tagged = [k for k, c in enumerate(notebook.cells) if "runs" in c.metadata.get("tags", [])]
        if not tagged:
            raise InputError(
                f"notebook {name} trains nothing under `make train`: it has no cell with the tag "
                f"runs; use make render N={name[:2]}."
            )
        notebook.cells = notebook.cells[: tagged[-1] + 1]
        with tempfile.TemporaryDirectory() as own:
            source = Path(own) / f"{name}.ipynb"
            nbformat.write(notebook, source)
            execute(source, source, given)
        print(f"{name}: trained", flush=True)


CHECKED_A_PAGE = 4
"""entries that `check_measured` chooses of each page; the maps that they need are made once"""


def check_measured(config: dict) -> None:
    """Measure a few kept entries of each page again, chosen at random, in a cache that is empty but
    for model files, and compare: they may differ by 10⁻⁴ nats a token, or of their size. Raises
    InputError where they differ by more."""
    import pandas as pd

    models = cache_folder() / "models"
    models.mkdir(parents=True, exist_ok=True)
    for name in notebooks(config.get("number", ""), config.get("paper", "")):
        keys = DATA / "results/study" / PROFILES["study"]["model"] / name / "measured.csv"
        if not keys.exists():
            continue
        used = pd.read_csv(keys, dtype=str)
        family_of = dict(used.sample(min(CHECKED_A_PAGE, len(used)))[["key", "family"]].to_numpy())
        for digest, family in family_of.items():
            print(f"{name}: measuring {family} {digest} again", flush=True)
        with tempfile.TemporaryDirectory() as own:
            os.environ |= {"NONLINEARITY_CACHE": own, "NONLINEARITY_CHECK": " ".join(family_of)}
            cache_folder().mkdir()
            (cache_folder() / "models").symlink_to(models)
            execute(NOTEBOOKS / f"{name}.ipynb", Path(own) / f"{name}.ipynb", {})
            again = {
                digest: unpack(path.read_bytes())["table"]
                for digest in family_of
                for path in cache_folder().glob(f"*/*-{digest}.*")
            }
        for digest, family in family_of.items():
            if digest not in again:
                raise InputError(f"{name} asks for {digest} no more: render the page again.")
            difference = difference_of(entry(family, digest), again[digest])
            print(f"{name}: {family} {digest}: {difference:.1e} from what is kept", flush=True)
            if not difference <= 1e-4:
                raise InputError(
                    f"{family} {digest} of {name} is now {difference:.1e} away from what is kept: "
                    "restore data/measured from git, or render the page again."
                )


def difference_of(before, after) -> float:
    """The largest difference of two tables' numbers: of sums of losses a prediction, of others by
    their size; infinite where texts or shapes differ. Missing numbers are equal."""
    numbers = before.select_dtypes("number").columns
    texts = before.columns.difference(numbers)
    if before.shape != after.shape or not before[texts].equals(after[texts]):
        return float("inf")
    size = before[numbers].abs().clip(lower=1.0)
    if "predictions" in numbers:
        size = size.clip(lower=before.predictions, axis=0)
    same = (before[numbers] == after[numbers]) | (before[numbers].isna() & after[numbers].isna())
    relative = (before[numbers] - after[numbers]).abs() / size
    return float(relative.mask(same, 0.0).fillna(float("inf")).to_numpy().max(initial=0.0))


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
    commands = {"render": render, "read": read, "train": train, "check-measured": check_measured}
    commands.get(what, report)(config)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
