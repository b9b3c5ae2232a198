"""The command line behind `make report`, `make notebook`, `make render` and `make train`.

    PROFILE=laptop MODEL=gpt2 N=01-03 python -m lib.series report

Snakemake decides what is out of date and runs it (the Snakefile); here names are checked before
long work starts, one report is run by papermill, and the index page is written.
"""

import ctypes
import html
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

from lib.errors import InputError, unknown

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
PAPERS = {
    "whipp": "01-07",
    "balogh": "08-14",
    "ikeda": "17-19",
    "tapered": "20-21",
    "badger": "25-27",
}


def notebooks(n: str = "", paper: str = "") -> list[str]:
    """Names of the notebooks of a paper or of numbers such as "01,03-05"; all without either, 01
    first and the tour 00 last. Raises InputError for one that is not there."""
    names = sorted(p.stem for p in NOTEBOOKS.glob("[0-9]*.ipynb"))
    if paper and paper not in PAPERS:
        raise unknown("paper", paper, [*PAPERS])
    numbers = []
    for part in filter(None, re.split(r"[,\s]+", n or PAPERS.get(paper, ""))):
        span = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not span:
            raise InputError(f"N={n!r} is no list of notebooks: give for example N=01,03-05.")
        numbers += [f"{k:02d}" for k in range(int(span[1]), int(span[2] or span[1]) + 1)]
    missing = sorted(set(numbers) - {name[:2] for name in names})
    if missing:
        raise unknown("notebook", missing[0], [name[:2] for name in names])
    chosen = [name for name in names if not numbers or name[:2] in numbers]
    return sorted(chosen, key=lambda name: (name.startswith("00"), name))


def plan(config: dict) -> dict[str, dict]:
    """{path of a report below runs/: parameters} for the settings of a series; MODEL and SEED may
    be lists. Raises InputError for names that are not known."""
    from lib.model import check_model
    from lib.report import PROFILES
    from lib.text import check_corpus

    profile = config.get("profile") or "laptop"
    if profile not in PROFILES:
        raise unknown("profile", profile, [*PROFILES])
    corpus = str(config.get("corpus") or "") or None
    if corpus:
        check_corpus(corpus)
    found = {}
    for model in str(config.get("model") or "").split(","):
        for seed in str(config.get("seed") or "42").split(","):
            if not seed.isdecimal():
                raise InputError(f"SEED={seed!r} is no whole number: give one, for example 42.")
            if model:
                check_model(model)
            parts = [profile, Path(model).name.replace(":", "~"), Path(corpus or "").stem]
            parts += [f"seed{seed}"] if seed != "42" else []
            run = "-".join(filter(None, parts))
            for name in notebooks(str(config.get("number", "")), config.get("paper") or ""):
                given = {"profile": profile, "seed": int(seed)}
                given |= {"model": model} if model else {}
                given |= {"corpus": corpus} if corpus else {}
                found[f"{run}/{name}"] = given
    return found


def one(path: str, parameters: dict) -> None:
    """Run one report into runs/<path>.ipynb, whole or not at all, with its page and the index."""
    import nbformat
    import papermill
    from nbconvert import HTMLExporter

    die_with_parent()
    target, name, began = ROOT / "runs" / f"{path}.ipynb", Path(path).name, time.time()
    part = target.with_name(f".{name}.part.ipynb")
    target.parent.mkdir(parents=True, exist_ok=True)

    def tell(what: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {path}  {what}", flush=True)

    tell("started")
    try:
        execute(NOTEBOOKS / f"{name}.ipynb", part, parameters)
    except papermill.PapermillExecutionError as error:
        os.replace(part, target.with_suffix(".failed.ipynb"))
        tell(f"failed: {error.evalue}")
        sys.exit(1)
    body, _ = HTMLExporter(exclude_input_prompt=True).from_notebook_node(nbformat.read(part, 4))
    target.with_suffix(".html").write_text(body, encoding="utf-8")
    os.replace(part, target)
    tell(f"done in {time.time() - began:.0f} s")
    write_index(target.parent)


def execute(source: Path, target: Path, parameters: dict) -> None:
    """papermill, with what the kernel says of its own transport kept off the terminal."""
    import papermill

    os.environ["TQDM_DISABLE"] = "1"  # bars are for who waits, not for who reads
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


def write_index(folder: Path) -> None:
    """index.html of a series: what is finished, with its answer."""
    rows = []
    for report in sorted(folder.glob("[0-9]*.html")):
        cells = json.loads(report.with_suffix(".ipynb").read_text())["cells"]
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
    part = folder / f".index.{os.getpid()}"
    part.write_text(page, encoding="utf-8")
    os.replace(part, folder / "index.html")


def render(names: list[str], config: dict) -> None:
    """Execute committed notebooks, at their own profile (`study`): the only writer of figures/ and
    data/results. On another model than the default the report goes into runs/ and only its tables
    and comparisons into data/results; the committed page is then rendered again to show them."""
    import nbformat

    from lib.report import PROFILES

    os.environ["NONLINEARITY_RENDER"] = "1"
    model, profile = config.get("model", ""), config.get("profile", "")
    given = {"profile": profile} if profile else {}
    given |= {"model": model} if model else {}
    elsewhere = bool(model) and model != PROFILES["study"]["model"]
    folder = ROOT / "runs" / (f"render-{Path(model).name}" if elsewhere else "render")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        began, source = time.time(), NOTEBOOKS / f"{name}.ipynb"
        part = folder / f".{name}.part.ipynb"
        execute(source, part, given)
        notebook = nbformat.read(part, 4)
        notebook.metadata.pop("papermill", None)
        for cell in notebook.cells:
            cell.metadata.pop("papermill", None)
            cell.metadata.pop("execution", None)
        # What papermill injected is no part of the committed notebook.
        notebook.cells = [
            c for c in notebook.cells if "injected-parameters" not in c.metadata.get("tags", [])
        ]
        nbformat.write(notebook, part)
        os.replace(part, folder / f"{name}.ipynb" if elsewhere else source)
        print(f"{name}: {time.time() - began:.0f} s", flush=True)


def train(names: list[str], config: dict) -> None:
    """Run the trainings of some notebooks and nothing else: their cells up to the last one with the
    tag `runs`. What is trained leaves its rows in data/runs, so a killed run goes on from there.
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
        source.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, source)
        execute(source, source, given)
        print(f"{name}: trained", flush=True)


def die_with_parent() -> None:
    """Have Linux end this process when its parent ends, so that a kill leaves nothing running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def main() -> None:
    what = sys.argv[1] if len(sys.argv) > 1 else "report"
    if what == "one":
        return one(sys.argv[2], json.loads(sys.argv[3]))
    names = ("profile", "model", "corpus", "seed", "paper")
    config = {k: os.environ[k.upper()] for k in names if os.environ.get(k.upper())}
    config |= {"number": os.environ["N"]} if os.environ.get("N") else {}
    if what == "notebook" and "number" not in config:
        raise InputError("no notebook was named: give for example make notebook N=01.")
    if what in ("render", "train"):
        from lib.model import check_model

        if "model" in config:
            check_model(config["model"])
        run = {"render": render, "train": train}[what]
        return run(notebooks(config.get("number", ""), config.get("paper", "")), config)
    runs = plan(config)
    folder = ROOT / "runs" / next(iter(runs)).partition("/")[0]
    jobs = os.environ.get("JOBS") or str(os.cpu_count() or 1)
    print(f"{len(runs)} reports, {jobs} at once; read them in {folder / 'index.html'}", flush=True)
    # Snakemake takes this process' place: a kill of it reaches the reports (die_with_parent).
    command = [sys.executable, "-m", "snakemake", "--cores", jobs, "--quiet", "all", "--nolock"]
    command += ["--keep-going", "--rerun-triggers", "mtime", "--rerun-incomplete"]
    command += ["--config", *(f"{k}={json.dumps(v)}" for k, v in config.items())]
    die_with_parent()
    os.chdir(ROOT)
    os.execv(sys.executable, command if config else command[:-1])


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
