"""What trainings gave, kept in data/runs so that a page is rendered again without training.

A row is one loss: the digest of the step that trained (its recipe), experiment, setting, seed,
step, text, half of its documents and the mean loss in nats. Only `make train` and `make render`
write.
"""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from filelock import FileLock
from tqdm import tqdm

from lib.errors import unknown
from lib.files import whole
from lib.text import DATA, Windows

FAMILIES = ("finetune", "decoder", "mixer", "attention")
COLUMNS = ("digest", "experiment", "setting", "seed", "step", "text", "half", "loss")
WRITERS = ("NONLINEARITY_TRAIN", "NONLINEARITY_RENDER")
"""set in the environment by make train and make render"""


def kept_rows(family: str, digest: str | None = None) -> pd.DataFrame:
    """The rows of a family of trainings, of one digest or of all. Raises InputError for an unknown
    family."""
    if family not in FAMILIES:
        raise unknown("family of trainings", family, [*FAMILIES])
    path = DATA / "runs" / f"{family}.csv"
    if not path.exists():
        return pd.DataFrame(columns=COLUMNS)
    rows = _as_written(path, path.stat().st_mtime_ns)
    return rows.copy() if digest is None else rows[rows.digest == digest].reset_index(drop=True)


@lru_cache(maxsize=len(FAMILIES))
def _as_written(path: Path, _when: int) -> pd.DataFrame:
    """A file of rows, read again only when it was written again."""
    return pd.read_csv(path)


def keep_rows(family: str, digest: str | None, rows: Sequence[dict]) -> None:
    """Add a training's rows, once, under a lock. Nothing is written for a training in memory
    (digest None) or outside make train and make render."""
    if digest is None or not any(name in os.environ for name in WRITERS):
        return
    path = DATA / "runs" / f"{family}.csv"
    path.parent.mkdir(exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        before = kept_rows(family)
        if digest in set(before.digest):
            return
        new = pd.DataFrame(rows).assign(digest=digest)[list(COLUMNS)]
        both = pd.concat([before, new]) if len(before) else new
        with whole(path) as part:
            both.to_csv(part, index=False, float_format="%.8g", lineterminator="\n")


def losses_by_half(losses: np.ndarray, windows: Windows, **row) -> list[dict]:
    """Two rows, the mean of losses [n, predictions] over the even and the odd documents."""
    odd = windows.document % 2 == 1
    halves = {"even": losses[~odd], "odd": losses[odd]}
    return [
        row | {"text": windows.name, "half": half, "loss": float(part.mean())}
        for half, part in halves.items()
        if len(part)
    ]


def in_parallel(train: Callable, jobs: Sequence, brief: bool) -> None:
    """Call a function of a module on each job, a process for each core; what is done stays when it
    is stopped. Jobs that are `brief` stay in this process, for another takes seconds to start."""
    n_processes = min(os.cpu_count() or 1, len(jobs))
    if brief or n_processes < 2:
        for job in jobs:
            train(job)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processes, context, torch.set_num_threads, (1,)) as pool:
        running = [pool.submit(train, job) for job in jobs]
        for done in tqdm(as_completed(running), "trainings", len(running), delay=2, leave=False):
            done.result()
