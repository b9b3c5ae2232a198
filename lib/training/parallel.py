"""Trainings on several cores, and what is read off one of them."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import numpy as np
import torch
from tqdm import tqdm

from lib.text.windows import Windows


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
