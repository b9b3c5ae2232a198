"""The command line behind `make report`, `notebook`, `render`, `train` and `check-measured`.

    PROFILE=laptop MODEL=gpt2 N=01-03 python -m lib.cli report

Snakemake decides what is out of date and runs it (the Snakefile); here names are checked before
long work starts, one report is run by papermill, and the index page is written.
"""

import ctypes
import functools
import html
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from filelock import FileLock, Timeout

from lib.errors import InputError, unknown
from lib.files import ROOT, atomic_write
from lib.models.names import PROFILES, check_model, label

NOTEBOOKS = ROOT / "notebooks"
PAPERS = {
    "whipp": "01-07",
    "balogh": "08-16,28",
    "ikeda": "17-19",
    "tapered": "20-23",
    "badger": "25-27",
}


def notebooks(n: str = "", paper: str = "") -> list[str]:
    """Names of the notebooks of a paper or of numbers such as "01,03-05"; all without either, 01
    first and the tour 00 last. Raises InputError for one that is not there."""
    if paper and paper not in PAPERS:
        raise unknown("paper", paper, [*PAPERS])
    names = sorted(path.stem for path in NOTEBOOKS.glob("[0-9]*.ipynb"))
    known = [name[:2] for name in names]
    numbers = _numbers(n or PAPERS.get(paper, ""))
    if n and not numbers:
        raise InputError(f"N={n!r} names no notebook: give for example N=01,03-05.")
    missing = sorted(set(numbers) - set(known))
    if missing:
        raise unknown("notebook", missing[0], known)
    chosen = [name for name in names if not numbers or name[:2] in numbers]
    return sorted(chosen, key=lambda name: (name.startswith("00"), name))


def _numbers(n: str) -> list[str]:
    """What a list such as "01,03-05" names, two digits each. Raises InputError for another form."""
    numbers = []
    for part in re.split(r"[,\s]+", n):
        if not part:
            continue
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", part)  # 03, or 03-05
        if span is None or int(span[2] or span[1]) < int(span[1]):
            raise InputError(f"N={n!r} is no list of notebooks: give for example N=01,03-05.")
        first, last = int(span[1]), int(span[2] or span[1])
        numbers += [f"{number:02d}" for number in range(first, last + 1)]
    return numbers


SETTINGS = ("profile", "model", "corpus", "seed", "paper", "number")


def plan(config: dict) -> dict[str, dict]:
    """{path of a report below runs/: parameters} for the settings of a series; MODEL and SEED may
    be lists. Raises InputError for names that are not known."""
    for name in config:
        if name not in SETTINGS:
            raise unknown("setting", name, [*SETTINGS])
    profile = config.get("profile") or "laptop"
    if profile not in PROFILES:
        raise unknown("profile", profile, [*PROFILES])
    corpus = str(config.get("corpus") or "")
    if corpus and not os.path.isfile(corpus):
        from lib.text.corpora import check_corpus  # takes two seconds to load

        check_corpus(corpus)
    for name in ("model", "corpus"):
        value = str(config.get(name) or "")
        if {*"{}"} & {*value}:
            raise InputError(
                f"{name} {value!r} has braces in its name, which Snakemake reads as a pattern: "
                "rename it, or run the notebook with papermill."
            )
    names = notebooks(str(config.get("number", "")), config.get("paper") or "")
    reports = {}
    for model in _listed(config.get("model"), ""):
        for seed in _listed(config.get("seed"), "42"):
            if not seed.isdecimal() or int(seed) >= 2**32:
                raise InputError(f"SEED={seed!r} is no whole number below 2**32: give one like 42.")
            folder = [profile]
            parameters = {"profile": profile, "seed": int(seed)}
            if model:
                check_model(model)
                folder.append(label(model))
                parameters["model"] = model
            if corpus:
                folder.append(label(corpus))
                parameters["corpus"] = corpus
            if seed != "42":
                folder.append(f"seed{seed}")
            for name in names:
                reports[f"{'-'.join(folder)}/{name}"] = parameters
    return reports


def _listed(value, default: str) -> list[str]:
    """The parts of a comma-separated setting; `default` alone where it has none. A folder with a
    comma in its name is one."""
    if value and os.path.isdir(str(value)):
        return [str(value)]
    return [part for part in str(value or "").split(",") if part] or [default]


def inputs_of(parameters: dict) -> list[str]:
    """The reader's own files that a report reads: a text, the files of a model's folder. What is
    newer than a report makes it out of date."""
    paths = [Path(parameters[name]) for name in ("corpus", "model") if name in parameters]
    files = [p for p in paths if p.is_file()]
    files += [p for folder in paths if folder.is_dir() for p in sorted(folder.glob("*.*"))]
    return [str(p) for p in files if p.is_file() and not {*"{}"} & {*str(p)}]


def one(path: str, parameters: dict) -> None:
    """Run one report into runs/<path>.ipynb, whole or not at all, with its page and the index."""
    import nbformat
    import papermill
    from nbconvert import HTMLExporter

    die_with_parent()
    target, name, began = ROOT / "runs" / f"{path}.ipynb", Path(path).name, time.time()
    part = target.with_name(f".{name}.part.ipynb")
    made(target.parent)

    def tell(what: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {path}  {what}", flush=True)

    tell("started")
    try:
        execute(NOTEBOOKS / f"{name}.ipynb", part, parameters)
    except papermill.PapermillExecutionError as error:
        os.replace(part, target.with_suffix(".failed.ipynb"))
        tell(f"failed: {error.evalue}")
        sys.exit(1)
    finally:
        done = nbformat.read(part, 4) if part.exists() else None
        part.unlink(missing_ok=True)
    done = as_page(done, name, parameters, target)
    # A page of its own: titled, and without scripts that it does not need.
    exporter = HTMLExporter(exclude_input_prompt=True, require_js_url="", mermaid_js_url="")
    body, _ = exporter.from_notebook_node(done, {"metadata": {"name": name}})
    with atomic_write(target.with_suffix(".html")) as page:
        page.write_text(body, encoding="utf-8")
    with atomic_write(target) as finished:
        nbformat.write(done, finished)
    target.with_suffix(".failed.ipynb").unlink(missing_ok=True)
    tell(f"done in {time.time() - began:.0f} s")
    write_index(target.parent)


def as_page(done, name: str, parameters: dict, target: Path):
    """A finished report as it is read: what is written about the committed run is left out of
    another one's, which gets a first cell of its own."""
    if "answer" not in done.cells[0].metadata.get("tags", []):  # a page of the old form
        return done
    import nbformat

    from lib import page  # takes seconds to load
    from lib.report import Run

    usual = PROFILES[parameters["profile"]]
    chosen = {what: parameters.get(what) or usual[what] for what in ("model", "corpus")}
    run = Run(name, parameters["profile"], chosen["model"], chosen["corpus"], parameters["seed"])
    about = {"folder": run.folder, "profile": run.profile, **chosen}
    cells = page.of_another_run(done.cells, name, about, target)
    done.cells = [nbformat.from_dict(cell) for cell in cells]
    return done


def execute(source: Path, target: Path, parameters: dict) -> None:
    """papermill, with what the kernel says of its own transport kept off the terminal."""
    import papermill

    os.environ["TQDM_DISABLE"] = "1"  # bars are for who waits, not for who reads
    os.environ["NONLINEARITY_COMMAND"] = "1"
    terminal = os.dup(2)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        papermill.execute_notebook(
            source, target, parameters, kernel_name="python3", progress_bar=False, cwd=ROOT
        )
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def made(folder: Path) -> Path:
    """A folder, made if it is not there. Raises InputError where it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # a file, or a link to nowhere, in its place; no right to write
        raise InputError(
            f"the folder {folder} cannot be made ({error.strerror}): remove what stands in its "
            "place, or give this user the right to write there."
        ) from None
    return folder


def write_index(folder: Path) -> None:
    """index.html of a series: what is finished, with its answer."""
    rows = []
    for report in sorted(folder.glob("[0-9]*.html")):
        notebook = report.with_suffix(".ipynb")
        if not notebook.exists():  # it is being made anew
            continue
        content = json.loads(notebook.read_text("utf-8"))
        cells = content["cells"]
        title = "".join(cells[0]["source"]).splitlines()[0].lstrip("# ")
        outputs = [o for c in cells[1:3] for o in c.get("outputs", [])]
        texts = ["".join(o.get("data", {}).get("text/markdown", "")) for o in outputs]
        answer = next((t for t in texts if "answer" in t.lower()), "")
        answer = html.escape(re.sub(r"[>*]+|The answer\.", "", answer).strip())
        rows.append(
            f'<li><a href="{report.name}">{report.stem[:2]} {html.escape(title)}</a><br>{answer}'
        )
    page = (
        '<!doctype html><meta charset="utf-8"><title>The Nonlinearity Budget</title>'
        '<body style="font: 16px/1.5 sans-serif; max-width: 48em; margin: 2em auto">'
        f"<h1>The Nonlinearity Budget</h1><p>{folder.name}: {len(rows)} finished</p>"
        f"<ol style='list-style: none'>{''.join(rows)}</ol>"
    )
    with atomic_write(folder / "index.html") as part:
        part.write_text(page, encoding="utf-8")


def render(names: list[str], config: dict) -> None:
    """Execute committed notebooks, at their own profile (`study`): the only writer of figures/ and
    data/results. On another model than the default the report goes into runs/ and only its tables
    into data/results; the committed page is then rendered again to show them. Raises InputError for
    a notebook of the old form, which is not rendered any more."""
    import nbformat

    from lib import page

    old = [n for n in names if not page.is_new(nbformat.read(NOTEBOOKS / f"{n}.ipynb", 4))]
    if old and "number" in config:
        raise InputError(
            f"{old[0]} is in the form of the fourth edition, whose marks are withdrawn: it is "
            "rendered when it is in the new form; run it with make report."
        )
    os.environ["NONLINEARITY_RENDER"] = "1"
    names = [name for name in names if name not in old]
    model, profile = config.get("model", ""), config.get("profile", "")
    given = {"profile": profile} if profile else {}
    given |= {"model": model} if model else {}
    elsewhere = bool(model) and model != PROFILES["study"]["model"]
    folder = ROOT / "runs" / (f"render-{label(model)}" if elsewhere else "render")
    made(folder)
    for name in names:
        began, source = time.time(), NOTEBOOKS / f"{name}.ipynb"
        part = folder / f".{name}.part.ipynb"
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
        target = folder / f"{name}.ipynb" if elsewhere else source
        if elsewhere or profile not in ("", "study"):
            parameters = {"seed": 42, "profile": profile or "study"} | given
            notebook = as_page(notebook, name, parameters, target)
        else:
            results = ROOT / "data/results/study" / PROFILES["study"]["model"] / name
            table = page.claims_table(name, PROFILES["study"]["model"], results, is_committed=True)
            first = notebook.cells[0]
            first.source = page.with_table(first.source, table)
        nbformat.write(notebook, part)
        os.replace(part, target)
        print(f"{name}: {time.time() - began:.0f} s", flush=True)


def train(names: list[str], config: dict) -> None:
    """Run the trainings of some notebooks and nothing else: their cells up to the last one with the
    tag `runs`. What is trained is kept in data/measured, so a killed run goes on from there.
    Raises InputError for a notebook without such a cell."""
    import nbformat

    os.environ["NONLINEARITY_TRAIN"] = "1"
    given = {k: config[k] for k in ("profile", "model", "corpus") if k in config}
    for name in names:
        notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)
        tagged = [k for k, c in enumerate(notebook.cells) if "runs" in c.metadata.get("tags", [])]
        if not tagged:
            raise InputError(
                f"notebook {name} trains nothing under `make train`: it has no cell with the tag "
                f"runs; use make render N={name[:2]}."
            )
        notebook.cells = notebook.cells[: tagged[-1] + 1]
        source = ROOT / "runs" / "train" / f"{name}.ipynb"
        made(source.parent)
        nbformat.write(notebook, source)
        execute(source, source, given)
        print(f"{name}: trained", flush=True)


def check_measured(names: list[str], config: dict) -> None:
    """Measure one kept entry of each page again, chosen at random, in an empty cache, and compare:
    they may differ by 10⁻⁴ nats a token, or of their size. Raises InputError where they differ by
    more."""
    import pandas as pd
    import papermill

    from lib.files import cache_folder

    own = ROOT / "runs" / "check" / "cache"
    models = own / cache_folder().name / "models"
    models.parent.mkdir(parents=True, exist_ok=True)
    if not models.exists():
        models.symlink_to(cache_folder() / "models")
    os.environ["NONLINEARITY_CACHE"] = str(own)
    model = PROFILES["study"]["model"]
    for name in names:
        keys = ROOT / "data/results/study" / model / name / "measured.csv"
        if not keys.exists():
            continue
        chosen = pd.read_csv(keys).sample(1).iloc[0]
        os.environ["NONLINEARITY_CHECK"] = chosen.key
        print(f"{name}: measuring {chosen.family} {chosen.key} again", flush=True)
        try:
            execute(NOTEBOOKS / f"{name}.ipynb", ROOT / "runs" / "check" / f"{name}.ipynb", {})
        except papermill.PapermillExecutionError as error:
            if error.ename != "Checked":
                raise
            difference = json.loads(error.evalue)["difference"]
            print(f"{name}: {difference:.1e} from what is kept", flush=True)
            if difference > 1e-4:
                raise InputError(
                    f"{chosen.family} {chosen.key} of {name} is now {difference:.1e} away from "
                    "what is kept: restore data/measured from git, or render the page again."
                ) from None
        else:
            raise InputError(f"{name} asks for {chosen.key} no more: render the page again.")


def prune_measured() -> None:
    """Remove, if the reader says so, kept entries that no page has used."""
    import pandas as pd

    from lib import kept

    used = [pd.read_csv(path) for path in ROOT.glob("data/results/*/*/*/measured.csv")]
    known = set(pd.concat(used).key) if used else set()
    rows = {family: kept.read(family) for family in kept.families()}
    unused = {family: {*of_family.key} - known for family, of_family in rows.items()}
    for family, keys in unused.items():
        print(f"{family}: {len(keys)} of {rows[family].key.nunique()} entries used by no page")
    if any(unused.values()) and input("remove them? [y/N] ").strip().lower() == "y":
        for family, keys in unused.items():
            kept.write(family, rows[family][~rows[family].key.isin(keys)])


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Have Linux end this process when its parent ends, so that a kill leaves nothing running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


def run_snakemake(command: list[str]) -> int:
    """Run Snakemake with all that it starts in a group of its own, which ends when this process
    does: by Ctrl-C, by a kill of it or of `make`. What is half done is done again next time."""
    die_with_parent()
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        start_new_session=True,
        preexec_fn=functools.partial(die_with_parent, signal.SIGKILL),
    )

    def end(number: int, _) -> None:
        os.killpg(child.pid, signal.SIGKILL)
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    return child.wait()


def main() -> None:
    what = sys.argv[1] if len(sys.argv) > 1 else "report"
    sys.stdout.reconfigure(  # type: ignore[union-attr]
        errors="backslashreplace"
    )  # a locale may not have every sign
    if what == "one":
        return one(sys.argv[2], json.loads(sys.argv[3]))
    names = ("profile", "model", "corpus", "seed", "paper")
    config = {k: os.environ[k.upper()] for k in names if os.environ.get(k.upper())}
    config |= {"number": os.environ["N"]} if os.environ.get("N") else {}
    if what == "prune-measured":
        return prune_measured()
    if what == "notebook" and "number" not in config:
        raise InputError("no notebook was named: give for example make notebook N=01.")
    runs = plan(config)
    commands = {"render": render, "train": train, "check-measured": check_measured}
    if what in commands:
        run = commands[what]
        return run(notebooks(config.get("number", ""), config.get("paper", "")), config)
    jobs = os.environ.get("JOBS") or str(os.cpu_count() or 1)
    if not jobs.isdecimal() or int(jobs) < 1:
        raise InputError(f"JOBS={jobs!r} is no number of jobs: give a whole number from 1 up.")
    folder = made(ROOT / "runs" / next(iter(runs)).partition("/")[0])
    # Settings go to Snakemake in a file, for on its command line it would read them as YAML.
    settings = folder / ".settings.json"
    settings.write_text(json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-m", "snakemake", "--cores", jobs, "--quiet", "all", "--nolock"]
    command += ["--keep-going", "--rerun-triggers", "mtime", "--rerun-incomplete"]
    command += ["--configfile", str(settings)]
    # One run of a folder at a time: two would delete each other's reports.
    lock = FileLock(folder / ".lock")
    try:
        with lock.acquire(timeout=0):
            at_once = min(len(runs), int(jobs))
            print(f"{len(runs)} reports, {at_once} at once; read them in {folder / 'index.html'}")
            sys.stdout.flush()
            sys.exit(run_snakemake(command))
    except Timeout:
        raise InputError(
            f"another run is writing {folder}: wait for it, or choose other settings."
        ) from None


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
