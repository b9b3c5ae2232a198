"""What goes wrong, tried at length: what `make faults` does.

    python tests/faults.py [N]

A smoke series (or its part N) is killed with SIGKILL at seeded random moments of every stage, and
in the end its tables must be byte for byte those of a run that nobody killed; the tests of bad
input and of damaged files are counted beside it. Prints a table: group, tried, answered well,
failed.
"""

import random
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path

from arms import ROOT, arm, differences, half_written, kill, start, tables

from lib.base import InputError
from lib.reports import live
from lib.reports.plan import Plan, Task, asked, plan

TESTED = {
    "bad input": ("series", "inputs", "model_inputs", "fit_inputs", "windows", "sentences"),
    "damaged files": ("cache", "assets", "corpora", "kept", "results", "trust"),
    "hub": ("hub",),
    "changed models": ("keys",),
}
"""the test files of each group"""
KILLS = 12
Reached = Callable[[float], bool]
PATIENCE = 3600
"""seconds after which a stage that does not come is a failure"""


def kills(home: Path, numbers: str) -> Iterator[str | None]:
    """Kill a series before, in the middle of and after its reports, each time going on where the
    last was killed: None for each that leaves nothing alive and nothing half-written, else what
    was wrong. The last is for the tables."""
    given = {"PROFILE": "smoke", "JOBS": "1"} | ({"N": numbers} if numbers else {})
    plain, killed = arm(home, "undisturbed"), arm(home, "killed")
    series = plan(asked(given))
    moments = list(stages(killed, series, random.Random(0)))
    for k, (stage, reached) in enumerate(moments):
        driver = start(killed, **given)
        wrong = wait(driver, reached)
        if not wrong:
            try:
                kill(driver, kill_all=k % 2 == 0)
                found = half_written(killed / "runs")
                wrong = f"half-written: {found}" if found else None
            except AssertionError as error:
                wrong = str(error)
        print(f"  killed {stage}: {wrong or 'nothing left over'}", flush=True)
        yield wrong and f"{stage}: {wrong}"
    for root in (killed, plain):
        driver = start(root, **given)
        said = driver.communicate()[0]
        if driver.returncode:
            yield f"{root.name} ended with {driver.returncode}: {said[-1000:]}"
            return
    wrong = differences(tables(plain), tables(killed))
    yield "; ".join(wrong) or (None if tables(plain) else "no tables")


def stages(root: Path, series: Plan, chance: random.Random) -> Iterator[tuple[str, Reached]]:
    """Moments of a series that starts at `since`: a name, and what is true from then on."""
    home, tasks = root / series.home, series.tasks

    def inside(task: Task, share: float) -> Reached:
        def reached(since: float) -> bool:
            known = live.status(home, task)
            if known.get("state") != "running" or known["started"] < since:  # of a killed one
                return False
            return 0 < known["cells"] * share <= known["cells_done"]

        return reached

    for _ in range(2):
        seconds = chance.uniform(0, 8)
        yield f"{seconds:.1f} s after the start", lambda since, s=seconds: time.time() > since + s
    within = max(len(tasks), KILLS - 3)
    for k in range(within):
        task, share = tasks[k * len(tasks) // within], chance.uniform(0, 0.9)
        yield f"in {task.notebook[:2]} after {share:.0%} of its cells", inside(task, share)
    yield "while its site is made", lambda since: (home / "site" / ".build").exists()


def wait(driver: subprocess.Popen, reached: Reached) -> str | None:
    """Wait until a series has reached a stage; None, or why it did not."""
    since = time.time()
    while not reached(since):
        if driver.poll() is not None:
            return f"the series ended before, with {driver.returncode}: {driver.communicate()[0]}"
        if time.time() > since + PATIENCE:
            driver.kill()
            return "this stage never came"
        time.sleep(0.05)
    return None


def tested(names: tuple[str, ...], report: Path) -> list[str | None]:
    """The cases of test files: None for each that passed, else its name."""
    files = [str(ROOT / "tests" / f"test_{name}.py") for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    subprocess.run([*command, f"--junitxml={report}"], cwd=ROOT, capture_output=True)
    cases = list(ET.parse(report).iter("testcase"))
    failed = lambda case: case.find("failure") is not None or case.find("error") is not None
    return [
        f"{case.get('classname')}::{case.get('name')}" if failed(case) else None
        for case in cases
        if case.find("skipped") is None
    ]


def main(numbers: str) -> int:
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        home = Path(folder)
        found = {"kills": list(kills(home, numbers))}
        for group, names in TESTED.items():
            found[group] = tested(names, home / "tests.xml")
    failures = [why for cases in found.values() for why in cases if why]
    print(*failures, sep="\n")
    print(f"{'group':<16}{'tried':>8}{'answered well':>16}{'failed':>8}")
    for group, cases in found.items():
        print(f"{group:<16}{len(cases):>8}{cases.count(None):>16}{sum(map(bool, cases)):>8}")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
    except InputError as error:
        sys.exit(str(error))
