"""What stands where in a series, and its index page, true at every moment.

In runs/<profile>/.status lies one small file for each report, written by the process that makes it,
and series.json, the reports in order. The page is made from these alone, by whoever changed
something, whole or not at all.
"""

import csv
import html
import json
import os
import time
from collections import Counter
from pathlib import Path

from lib.second.base import DATA, ROOT, whole
from lib.second.base.results import fault, is_sealed
from lib.second.reports.plan import Plan, Task, title

SILENCE = 60
"""seconds after which a page that nobody wrote anew says so: its run was killed"""
STYLE = """body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}
table{border-collapse:collapse;width:100%}td,th{padding:.4em .6em;text-align:left;
border-bottom:1px solid #ccc;vertical-align:middle}img{max-width:9em;max-height:6em}
progress{width:100%}.failed{color:#a30000}.waiting{color:#666}small{color:#666}"""
# The page of a killed run cannot be corrected by anybody: it notices by itself.
SCRIPT = """const e=document.getElementById("now"),t=1000*e.dataset.written;
if(Date.now()-t>1000*SILENCE)e.textContent="Nothing has run here since "+
new Date(t).toLocaleString()+": the run was stopped; make report goes on from here.";"""


def status(home: Path, task: Task) -> dict:
    """What is known of a report: state (waiting, running, done or failed), title, cells_done,
    cells, started and pid, reason, verdicts, seconds; took, the seconds of the last time it was
    done; sealed, whether it left results with a manifest then. {} if nothing is."""
    return _known(_file(home, task))


def tell(home: Path, task: Task, **facts) -> None:
    """Note `facts` about a report beside what is known of it."""
    known = status(home, task) | facts
    with whole(_file(home, task)) as part:
        part.write_text(json.dumps(known, indent=1) + "\n")


def take_back(plan: Plan) -> None:
    """Take their names from reports whose results are not as they left them, so that Snakemake
    makes them again: it goes by more than times, so an older date would not do."""
    home = ROOT / plan.home
    for task in plan.tasks:
        report = home / task.run / f"{task.notebook}.ipynb"
        folder = results_of(plan.profile.name, task)
        lost = not is_sealed(folder) and status(home, task).get("sealed")
        if report.exists() and (lost or fault(folder)):
            os.replace(report, report.with_suffix(".part.ipynb"))


def begin(plan: Plan, outdated: set[Task] | None = None) -> None:
    """Note a series at its start: those that are to be made (None: those that are not there)
    wait, and reports of earlier series stay listed."""
    home = ROOT / plan.home
    there = lambda task: (home / task.run / f"{task.notebook}.ipynb").exists()
    earlier = [t for t in listed(home) if there(t) and t not in plan.tasks]
    for task in plan.tasks:
        wait = not there(task) or task in (outdated or ())
        state = "waiting" if wait else "done"
        tell(home, task, state=state, title=title(task.notebook), reason=None)
    _series(home, [*plan.tasks, *earlier], on=True, wanted=len(plan.tasks))
    index(home)


def end(plan: Plan) -> None:
    """Note that a series is over: what still ran was stopped, and waits for the next."""
    home = ROOT / plan.home
    for task in plan.tasks:
        if status(home, task).get("state") == "running":
            tell(home, task, state="waiting")
    _series(home, listed(home), on=False, wanted=len(plan.tasks))
    index(home)


def listed(home: Path) -> list[Task]:
    """The reports that the index page of `home` shows, in order."""
    return [Task(*t) for t in _known(home / ".status" / "series.json").get("tasks", [])]


def verdicts(profile: str, task: Task, since: float) -> str | None:
    """Verdict counts of a report in words, from the claims.csv it wrote after `since` (seconds
    of the epoch); None if it wrote none."""
    path = results_of(profile, task) / "claims.csv"
    if not path.exists() or path.stat().st_mtime < since - 2:
        return None
    with open(path, newline="") as file:
        counts = Counter(row.get("verdict") for row in csv.DictReader(file))
    order = ("reproduced", "contradicted", "inconclusive", "not run")
    return ", ".join(f"{counts[v]} {v}" for v in order if counts[v])


def results_of(profile: str, task: Task) -> Path:
    """The folder in which a report leaves its results."""
    return DATA / "results" / profile / task.run / task.notebook


def clock(seconds: float) -> str:
    """A duration as it is read: "40 s", "3 min 5 s", "2 h 10 min"."""
    whole_s = round(seconds)
    if whole_s < 60:
        return f"{whole_s} s"
    if whole_s < 3600:
        return f"{whole_s // 60} min {whole_s % 60} s"
    return f"{whole_s // 3600} h {whole_s % 3600 // 60} min"


def index(home: Path) -> None:
    """Write index.html of runs/<profile>: a row a report with its state, time, verdicts, first
    figure and a link; it loads itself again every five seconds while a series is on."""
    if not listed(home):  # a report that was made outside a series
        return
    series = _known(home / ".status" / "series.json")
    tasks = listed(home)
    known = {task: status(home, task) for task in tasks}
    wanted = [known[t].get("state") for t in tasks[: series["wanted"]]]
    count = Counter(wanted)
    words = ", ".join(f"{count[s]} {s}" for s in ("done", "running", "waiting", "failed"))
    several = len({t.run for t in tasks}) > 1
    rows = "".join(_row(home, task, known[task], several) for task in tasks)
    refresh = '<meta http-equiv="refresh" content="5">' if series["on"] else ""
    script = SCRIPT.replace("SILENCE", str(SILENCE)) if series["on"] else ""
    over = "a run is on" if series["on"] else "no run is on"
    site = home / "site" / "index.html"
    link = '<p><a href="site/index.html">The same as a site</a>, to search and sort.</p>'
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8">{refresh}'
        f"<title>The Nonlinearity Budget: {home.name}</title><style>{STYLE}</style>"
        f"<h1>The Nonlinearity Budget</h1><p>Profile {home.name}: {words} of {len(wanted)}.</p>"
        f'<progress value="{count["done"] + count["failed"]}" max="{len(wanted)}"></progress>'
        f'<p id="now" data-written="{time.time():.0f}"><small>'
        f"{time.strftime('%Y-%m-%d %H:%M:%S')}, {over}.</small></p>"
        f"<table><tr><th></th><th>report</th><th>state</th><th>time</th><th>verdicts</th></tr>"
        f"{rows}</table>{link if site.exists() and not series['on'] else ''}"
        f"<script>{script}</script></html>\n"
    )
    with whole(home / "index.html") as part:
        part.write_text(page)


def _row(home: Path, task: Task, known: dict, several: bool) -> str:
    state = known.get("state", "waiting")
    name = html.escape(known.get("title", task.notebook))
    if (home / task.run / f"{task.notebook}.html").exists():
        name = f'<a href="{task.run}/{task.notebook}.html">{name}</a>'
    if several:
        name += f"<br><small>{task.run}</small>"
    figure = f"{task.run}/{task.notebook}.thumb.png"
    image = f'<img src="{figure}" alt="">' if (home / figure).exists() else ""
    seconds = known.get("seconds") if state in ("done", "failed") else None
    if state == "running":
        seconds = time.time() - known["started"]
        words = f"running, {known['cells_done']} of {known['cells']} cells"
    elif state == "failed":
        words = f"failed: {html.escape(known.get('reason') or 'no reason is known')}"
    else:
        words = state
    took = "" if seconds is None else clock(seconds)
    return (
        f'<tr class="{state}"><td>{image}</td><td>{name}</td><td>{words}</td>'
        f"<td>{took}</td><td>{html.escape(known.get('verdicts') or '')}</td></tr>"
    )


def _series(home: Path, tasks: list[Task], on: bool, wanted: int) -> None:
    facts = {"on": on, "wanted": wanted, "tasks": [[t.run, t.notebook] for t in tasks]}
    with whole(home / ".status" / "series.json") as part:
        part.write_text(json.dumps(facts, indent=1) + "\n")


def _known(file: Path) -> dict:
    """What a file of facts says; {} where there is none, or a damaged one, which the next facts
    replace."""
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _file(home: Path, task: Task) -> Path:
    return home / ".status" / task.run / f"{task.notebook}.json"
