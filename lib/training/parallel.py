"""Trainings on several cores."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch
from joblib import cpu_count
from tqdm import tqdm


def in_parallel(train: Callable, jobs: Sequence, brief: bool) -> None:
    """Call a function of a module on each job, a process for each core that this one may use; what
    is done stays when it is stopped, and no process stays behind. Jobs that are `brief` stay in
    this process, for another takes seconds to start."""
    n_processes = min(cpu_count(), len(jobs))
    if jobs and not brief:
        print(f"{len(jobs)} trainings that are not kept; what is done stays", flush=True)
    if brief or n_processes < 2:
        for job in jobs:
            train(job)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_processes, context, _begin) as pool:
        running = [pool.submit(train, job) for job in jobs]
        try:
            for done in tqdm(
                as_completed(running), "trainings", len(running), delay=2, leave=False
            ):
                done.result()
        except BaseException:  # Ctrl-C too: a training takes minutes, and nobody waits for it
            for process in multiprocessing.active_children():
                process.kill()
            raise


def _begin() -> None:
    """In a worker: one thread, and an end when the process that started it ends, however."""
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
