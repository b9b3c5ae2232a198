"""Run a series of reports and follow it: what `make report` does.

    PROFILE=laptop MODEL=gpt2 N=01-03 python -m lib.second.reports.series

Parameters come from the environment, so that no shell reads them. Snakemake does the work (see
Snakefile); here it is only started, followed, and ended when this process ends.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import joblib

from lib.second.base import DATA, ROOT, InputError, whole
from lib.second.reports import live
from lib.second.reports.follow import Follower, bar, estimate
from lib.second.reports.lock import only_one, sweep
from lib.second.reports.one import DRIVEN, end_with_driver, execute
from lib.second.reports.plan import NOTEBOOKS, Plan, Task, asked, check_names, plan


def engine(arguments: list[str]) -> None:
    """Be Snakemake, and end when the process that started this one ends."""
    from snakemake.cli import main as snakemake

    end_with_driver()
    snakemake(arguments)


def command(chosen: Plan, given: dict[str, str]) -> list[str]:
    """Arguments for Snakemake; the parameters go through a file, which keeps them text."""
    config = ROOT / chosen.home / ".status" / "config.json"
    with whole(config) as part:
        part.write_text(json.dumps(given))
    threads = max(1, joblib.cpu_count() // chosen.at_once)
    return [
        *("--cores", str(threads * chosen.at_once), "--configfile", str(config)),
        *("--nolock", "--rerun-incomplete", "--keep-going"),
        *("--rerun-triggers", "mtime", "params", "--directory", str(ROOT)),
    ]


def outdated(chosen: Plan, arguments: list[str]) -> set[Task]:
    """The reports that Snakemake would make now. Raises InputError with its word if it cannot."""
    made = subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments, "--summary", "--quiet"],
        cwd=ROOT,
        env=os.environ | {DRIVEN: "1"},
        capture_output=True,
        text=True,
    )
    if made.returncode:
        last = (made.stderr.strip() or "it gave no reason").splitlines()[-1]
        raise InputError(f"Snakemake cannot plan this series: {last}")
    rows = [line.split("\t") for line in made.stdout.splitlines()]
    pending = {Path(row[0]) for row in rows if row[-1] == "update pending"}
    return {t for t in chosen.tasks if chosen.home / t.run / f"{t.notebook}.ipynb" in pending}


def drive(chosen: Plan, arguments: list[str], lock: int, follower: Follower) -> int:
    """Run Snakemake to its end and follow it; its exit status."""
    log = ROOT / chosen.home / "snakemake.log"
    with open(log, "w") as file:
        running = subprocess.Popen(
            [sys.executable, "-m", "lib.second.reports.series", "engine", *arguments],
            cwd=ROOT,
            env=os.environ | {DRIVEN: "1"},
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            pass_fds=[lock],
            start_new_session=True,
        )
    try:
        while running.poll() is None:
            follower.look()
            time.sleep(0.3)
        follower.look(ended=True)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    return running.returncode


def series(given: dict[str, str]) -> int:
    """Run the series that these parameters ask for; 0 if every report is there, else 1."""
    chosen = plan(given)
    check_names(chosen)
    home = ROOT / chosen.home
    with only_one(home) as lock:
        sweep(home, DATA / "results" / chosen.profile.name)
        arguments = command(chosen, given)
        wanted = outdated(chosen, arguments)
        live.begin(chosen, wanted)
        print(estimate(chosen, wanted), flush=True)
        started = time.time()
        with Follower(chosen, wanted) as follower:
            try:
                code = drive(chosen, arguments, lock, follower)
                tour = [n for n in chosen.notebooks if n.startswith("00")]
                if code and tour and follower.failed and len(tour) < len(chosen.notebooks):
                    # Snakemake leaves out what needs a failed report; the tour can do without.
                    alone = replace(chosen, notebooks=tuple(tour))
                    arguments = command(alone, given | {"number": "00"})
                    drive(chosen, arguments, lock, follower)
            finally:
                live.end(chosen)
        if not code:
            site(chosen)
        print(follower.summary(time.time() - started))
        return 0 if follower.complete else 1


def site(chosen: Plan) -> None:
    """Make a site of the reports that are there, beside their index page, and link it there. The
    reports stand without it, so what stops it is only said."""
    if not (NOTEBOOKS / "index.md").exists():  # a checkout that holds notebooks alone
        return
    from lib.second.reports.site import build_site  # loads the whole library

    home = ROOT / chosen.home
    reports = [home / t.run / f"{t.notebook}.ipynb" for t in chosen.tasks]
    results = DATA / "results" / chosen.profile.name
    try:
        build_site([path for path in reports if path.exists()], home / "site", results)
    except Exception as error:  # Sphinx raises a dozen kinds
        print(f"no site was made of the reports ({type(error).__name__}: {error})")
    live.index(home)


def notebooks(given: dict[str, str]) -> int:
    """Run the notebooks with these numbers one by one into runs/single, without Snakemake."""
    if "number" not in given:
        raise InputError("no notebook is named: give its number, for example N=01.")
    chosen = plan(given)
    check_names(chosen)
    for task in chosen.tasks:
        model, seed = chosen.runs[task.run]
        parameters = {"model": model, "corpus": chosen.corpus, "seed": seed}
        target = Path("runs") / "single" / task.run / f"{task.notebook}.ipynb"
        cells = bar(task)

        def on_cell(done: int, total: int, cells=cells) -> None:
            cells.total, cells.n = total, done
            cells.refresh()

        try:
            source = NOTEBOOKS / f"{task.notebook}.ipynb"
            profile = {"profile": chosen.profile.name}
            execute(source, ROOT / target, profile | parameters, on_cell)
        except InputError as error:
            so_far = f"Its cells so far: {target.with_suffix('.part.ipynb')}"
            raise InputError(f"{task.notebook} stopped: {error}\n{so_far}") from None
        finally:
            cells.close()
        print(f"read {target.with_suffix('.html')}")
    return 0


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["engine"]:
        return engine(arguments[1:])
    # A terminated series tidies up as an interrupted one does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run = notebooks if arguments == ["notebook"] else series
        return run(asked(dict(os.environ)))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
