"""Copies of this repository in which a series runs beside another: notebooks, results and cache of
its own, in a folder with a space."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import psutil

ROOT = Path(__file__).resolve().parents[1]

NAMES = ("PROFILE", "MODEL", "CORPUS", "SEED", "PAPER", "N", "JOBS", "MAKEFLAGS")
"""what a make around this one may have set"""
PARTS = ("lib", "notebooks", "data/published", "data/models", "data/corpora", "Snakefile")


def arm(home: Path, name: str) -> Path:
    """A fresh copy in `home`."""
    root = home / f"arm {name}"
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        (root / part).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / part, root / part)
    (root / "data/results").mkdir()
    for name in ("scorecard.csv", "MANIFEST.json"):  # the tour reads it
        shutil.copy(ROOT / "data/results" / name, root / "data/results")
    return root


def cache_of(root: Path) -> Path:
    """Beside the copy: a cache inside a checkout is refused."""
    return root.parent / f"{root.name} cache"


def environment(root: Path, **variables: str) -> dict[str, str]:
    """Of a process that runs in an arm, with a cache of its own."""
    plain = {k: v for k, v in os.environ.items() if k not in NAMES}
    return plain | {"NONLINEARITY_CACHE": str(cache_of(root))} | variables


def start(root: Path, python: str = sys.executable, **variables: str) -> subprocess.Popen:
    """What `make report` runs, as a process that can be killed."""
    return subprocess.Popen(
        [python, "-m", "lib.reports.series"],
        cwd=root,
        env=environment(root, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # In the background of a script processes ignore what Ctrl-C sends, and hand that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def kill(driver: subprocess.Popen, kill_all: bool) -> None:
    """SIGKILL of a series' driver, or of it and all it started; nothing may live on."""
    children = psutil.Process(driver.pid).children(recursive=True)
    for process in [psutil.Process(driver.pid), *(children if kill_all else [])]:
        if process.is_running():
            process.kill()
    driver.communicate()
    psutil.wait_procs(children, timeout=20)
    left = [p for p in children if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not left, f"{left} lived on"


def half_written(runs: Path) -> list[Path]:
    """Notebooks under a final name that are not executed to their end."""
    final = [path for path in runs.rglob("[0-9]*.ipynb") if ".part." not in path.name]
    read = {path: nbformat.read(path, as_version=4) for path in final}
    return [p for p, executed in read.items() if not executed.metadata.papermill.end_time]


def tables(root: Path) -> dict[str, bytes]:
    """Every table that reports of an arm have written, and their manifests, by place; of claims
    about speed, which are ratios of paired timings, without what they found."""
    results = root / "data/results"
    paths = [*results.glob("*/**/*.csv"), *results.glob("*/**/MANIFEST.json")]
    found = {p.relative_to(results): p for p in sorted(paths)}
    ours = {k: p for k, p in found.items() if not any(part.startswith(".") for part in k.parts)}
    read = {str(name): path.read_bytes() for name, path in ours.items()}
    for name, path in ours.items():
        if path.name == "claims.csv" and (judged := _untimed(path)) is not None:
            read[str(name)] = judged
            read.pop(str(name.with_name("MANIFEST.json")), None)  # it has the digest of the whole
    return read


def _untimed(path: Path) -> bytes | None:
    """A table of claims whose rows that compare speeds have no verdict and no number; None without
    such rows."""
    judged = pd.read_csv(path, dtype=str, keep_default_na=False)
    timed = judged.statistic.str.contains("per second")
    judged.loc[timed, ["verdict", "here", "note"]] = "-"
    return judged.to_csv(index=False).encode() if timed.any() else None


def differences(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    """What two arms' tables differ in, a line a table; empty if they are equal byte for byte."""
    return [
        f"{name}: {_first(one.get(name), other.get(name))}"
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]


def _first(one: bytes | None, other: bytes | None) -> str:
    if one is None or other is None:
        return f"only in {'the second' if one is None else 'the first'}"
    pairs = zip(one.splitlines(), other.splitlines())
    return next((f"{a.decode()} | {b.decode()}" for a, b in pairs if a != b), "another length")
