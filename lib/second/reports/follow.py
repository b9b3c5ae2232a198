"""What a series says while it runs: a line for each report as it starts and as it ends, and in a
terminal a bar of its cells."""

import contextlib
import os
import sys

from tqdm import tqdm

from lib.second.base import ROOT
from lib.second.reports import live
from lib.second.reports.plan import Plan, Task, title

MINUTES = {"smoke": 0.5, "laptop": 6, "study": 15, "paper": 30}
"""what a report takes about, where no earlier run says it"""


def estimate(plan: Plan, wanted: set[Task]) -> str:
    """The first line: how many reports there are, and about how long they take in all."""
    home = ROOT / plan.home
    usual = 60 * MINUTES[plan.profile.name]
    seconds = sum(live.status(home, task).get("took") or usual for task in wanted)
    n, there = len(plan.tasks), len(plan.tasks) - len(wanted)
    words = f"{n} report{'s' if n > 1 else ''} with the profile {plan.profile.name}"
    if there:
        words += f", {there} of them up to date"
    if wanted:
        words += f"; about {live.clock(max(seconds, 1) / min(plan.at_once, len(wanted)))} in all"
    return f"{words}. Read {plan.home / 'index.html'} meanwhile."


def bar(task: Task) -> tqdm:
    """A bar of a report's cells; none where the output is no terminal."""
    return tqdm(
        desc=task.notebook[:2], unit="cell", leave=False, disable=None, file=sys.stdout, ncols=88
    )


class Follower:
    """Prints what changes in the states of a series' reports."""

    def __init__(self, plan: Plan, wanted: set[Task]):
        self.plan, self.home = plan, ROOT / plan.home
        self.wanted = [task for task in plan.tasks if task in wanted]
        self.shown: dict[Task, str] = {}
        self.bars: dict[Task, tqdm] = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for cells in self.bars.values():
            cells.close()

    @property
    def failed(self) -> int:
        return sum(state == "failed" for state in self.shown.values())

    @property
    def complete(self) -> bool:
        return all(self.shown.get(task) == "done" for task in self.wanted)

    def look(self, ended: bool = False) -> None:
        """Look once at every report that is to be made; `ended`: nothing runs any more."""
        for task in self.wanted:
            known = live.status(self.home, task)
            state = known.get("state", "waiting")
            if state == "running" and (ended or not _alive(known["pid"])):
                known = live.status(self.home, task)  # it may have ended with a word just now
                if known["state"] == "running":
                    reason = "its process was killed: the memory was probably not enough."
                    live.tell(self.home, task, state="failed", reason=reason, seconds=None)
                    live.index(self.home)
                    known = live.status(self.home, task)
                state = known["state"]
            if state != "waiting" and self.shown.get(task) is None:
                self._started(task)
            if state == "running" and task in self.bars:
                self.bars[task].total, self.bars[task].n = known["cells"], known["cells_done"]
                self.bars[task].refresh()
            if state in ("done", "failed") and self.shown[task] == "running":
                self._ended(task, state, known)

    def summary(self, seconds: float) -> str:
        """The last line or lines."""
        made = sum(state == "done" for state in self.shown.values())
        words = f"{made} of {len(self.wanted)} made in {live.clock(seconds)}"
        if self.failed:
            words += f", {self.failed} failed"
        if not self.complete and not self.failed:
            log = self.home / "snakemake.log"
            last = log.read_text(errors="replace").strip().splitlines()[-5:]
            where = f"Snakemake stopped: see {self.plan.home / log.name}."
            words = "\n".join([*last, where, words])
        return f"{words}; read {self.plan.home / 'index.html'}"

    def _name(self, task: Task) -> str:
        tasks = self.plan.tasks
        several = f" ({task.run})" if len(self.plan.runs) > 1 else ""
        return f"{tasks.index(task) + 1} of {len(tasks)}  {title(task.notebook)}{several}"

    def _started(self, task: Task) -> None:
        self.shown[task] = "running"
        tqdm.write(f"{self._name(task)}: starts", file=sys.stdout)
        self.bars[task] = bar(task)
        sys.stdout.flush()

    def _ended(self, task: Task, state: str, known: dict) -> None:
        self.shown[task] = state
        self.bars.pop(task).close()
        if state == "failed":
            line = f"{title(task.notebook)}: {known['reason']}"
        else:
            found = f"; {known['verdicts']}" if known.get("verdicts") else ""
            line = f"{self._name(task)}: done in {live.clock(known['seconds'])}{found}"
        tqdm.write(line, file=sys.stdout)
        sys.stdout.flush()


def _alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
