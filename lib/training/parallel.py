"""Trainings on several cores."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch
from tqdm import tqdm


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
