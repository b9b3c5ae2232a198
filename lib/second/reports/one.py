"""Make one report of a series: what Snakemake runs for each, here or on a cluster.

    python -m lib.second.reports.one --profile P --model M --corpus C --seed S --run R NOTEBOOK TARGET

Papermill does the work and writes as it goes; a report takes its name only when it is whole, and
its page and its small figure lie beside it then.
"""

import argparse
import base64
import io
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lib.second.base import ROOT, InputError, whole
from lib.second.base.results import is_sealed
from lib.second.reports import live
from lib.second.reports.keep import drop_bars
from lib.second.reports.plan import Task

DRIVEN = "NONLINEARITY_SERIES"
"""set in the environment of whatever lib.second.reports.series starts"""


def end_with_driver() -> None:
    """Kill this process group as soon as the driver of the series is gone, however it went: it
    holds the other end of standard input, and writes nothing."""

    def watch() -> None:
        os.read(0, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def execute(source: Path, target: Path, parameters: dict, on_cell: Callable[[int, int], None]):
    """Run a notebook with papermill, headless, from the repository's root; `on_cell(done, cells)`
    is called after each code cell. Raises InputError with the one sentence for why it stopped;
    what was executed is in <target>.part.ipynb then."""
    import nbformat
    import papermill
    from nbclient.exceptions import DeadKernelError

    # Idle threads of libgomp that spin long are forty times slower where others want the cores, and
    # those that sleep at once five times slower in products of small matrices: they spin briefly.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    logging.getLogger("papermill").setLevel(logging.WARNING)
    cells = len(nbformat.read(source, as_version=4).cells) + 1  # with papermill's parameters
    part = target.with_suffix(".part.ipynb").resolve()
    part.parent.mkdir(parents=True, exist_ok=True)
    on_cell(0, cells)
    try:
        papermill.execute_notebook(
            str(source.resolve()),
            str(part),
            parameters,
            progress_bar=False,
            cwd=str(ROOT),
            on_cell_executed=lambda cell_index, **_: on_cell(cell_index + 1, cells),
        )
    except papermill.PapermillExecutionError as error:
        raise InputError(sentence(error.ename, error.evalue)) from None
    except DeadKernelError:
        raise InputError("its kernel died: the memory was probably not enough.") from None
    page(part)
    thumbnail(part)
    for kind in ("html", "thumb.png", "ipynb"):  # the notebook last: it says that all is there
        if part.with_suffix(f".{kind}").exists():
            os.replace(part.with_suffix(f".{kind}"), target.with_suffix(f".{kind}"))


def sentence(ename: str, evalue: str) -> str:
    """The one sentence of an error: bad input speaks for itself, others are named."""
    first = (evalue.strip().splitlines() or [""])[0][:400]
    return first if ename == "InputError" and first else f"{ename}: {first}"


def page(notebook: Path) -> Path:
    """Make the page of an executed notebook, beside it."""
    import nbformat
    from nbconvert import HTMLExporter

    executed = nbformat.read(notebook, as_version=4)
    drop_bars(executed)
    name = {"metadata": {"name": notebook.stem.removesuffix(".part")}}
    text, _ = HTMLExporter().from_notebook_node(executed, resources=name)
    with whole(notebook.with_suffix(".html")) as part:
        part.write_text(text)
    return notebook.with_suffix(".html")


def thumbnail(notebook: Path, size: tuple[int, int] = (288, 192)) -> None:
    """Write the first figure of an executed notebook, small, beside it; none if it has none."""
    import nbformat
    from PIL import Image

    cells = nbformat.read(notebook, as_version=4).cells
    outputs = [o.get("data", {}) for cell in cells for o in cell.get("outputs", [])]
    figure = next((data["image/png"] for data in outputs if "image/png" in data), None)
    if figure:
        image = Image.open(io.BytesIO(base64.b64decode(figure))).convert("RGB")
        image.thumbnail(size)
        with whole(notebook.with_suffix(".thumb.png")) as part:
            image.save(part)


def make(source: Path, target: Path, run: str, parameters: dict) -> str | None:
    """Make a report, tell how far it is, and keep the index page true meanwhile. Returns the
    sentence for why it stopped, None if it is done."""
    home, task, started = target.parents[1], Task(run, source.stem), time.time()
    begun = {"state": "running", "started": started, "pid": os.getpid(), "cells": 0}
    live.tell(home, task, **begun, cells_done=0, reason=None, verdicts=None)
    over = threading.Event()

    def renew() -> None:
        while not over.wait(2):
            live.index(home)

    renewing = threading.Thread(target=renew, daemon=True)
    live.index(home)
    renewing.start()
    reason = None
    try:
        execute(
            source,
            target,
            parameters,
            lambda done, cells: live.tell(home, task, cells_done=done, cells=cells),
        )
    except Exception as error:
        reason = (
            str(error)
            if isinstance(error, InputError)
            else sentence(type(error).__name__, str(error))
        )
    over.set()
    renewing.join()
    seconds = time.time() - started
    profile = parameters["profile"]
    live.tell(
        home,
        task,
        state="failed" if reason else "done",
        reason=reason,
        seconds=seconds,
        verdicts=live.verdicts(profile, task, started),
        sealed=is_sealed(live.results_of(profile, task)),
        **({} if reason else {"took": seconds}),
    )
    live.index(home)
    return reason


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lib.second.reports.one", allow_abbrev=False)
    for name in ("profile", "model", "corpus", "run"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args(arguments)
    if DRIVEN in os.environ:
        end_with_driver()
    parameters = {k: getattr(given, k) for k in ("profile", "model", "corpus", "seed")}
    reason = make(given.source, given.target, given.run, parameters)
    if reason:
        raise SystemExit(f"{given.source.name} stopped: {reason}")


if __name__ == "__main__":
    main()
