"""The loop that runs a cached step over many items under one progress bar."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import joblib

from lib.second.base import cache
from lib.second.base.bars import progress


@dataclass(frozen=True)
class Item:
    """One piece of a long step."""

    key: dict
    """what its value depends on, as in `cached`"""
    work: object
    size: int = 1
    """how far it moves the bar"""
    keep: bool = True
    """whether `key` says all, so that the value can be stored"""


def each(
    step: Callable, items: Iterable[Item], *, total: int, desc: str, unit: str, workers: int = 1
) -> Iterator:
    """The value of each item, in order, under one bar of `total`. Each is stored when it is done,
    so a killed run resumes.

    `step` is a cached function of (work, tick): `tick(n)` moves the bar while an item is computed;
    one from the cache moves it by its size at once. Several `workers` are processes of one thread
    each, which cannot move the bar.
    """
    with progress(total=total, desc=desc, unit=unit) as bar:
        done = 0
        for value, size in _values(step, items, bar.update, workers):
            done += size
            bar.update(done - bar.n)  # an item from the cache moved no bar
            yield value


def _values(
    step: Callable, items: Iterable[Item], tick: Callable, workers: int
) -> Iterator[tuple[object, int]]:
    items = items if workers == 1 else list(items)
    if workers == 1 or all(i.keep and step.is_kept(i.key, i.work) for i in items):
        for item in items:
            yield step(item.key, item.work, tick, keep=item.keep), item.size
        return
    jobs = [joblib.delayed(_in_worker)(cache.CACHE, step, item) for item in items]
    with joblib.parallel_config("loky", n_jobs=workers, inner_max_num_threads=1):
        results = joblib.Parallel(return_as="generator")(jobs)
    for item, (value, seconds, unkept) in zip(items, results, strict=True):
        cache.note(seconds)
        for reason in unkept:
            cache.tell_unkept(reason)
        yield value, item.size


def _in_worker(folder: Path, step: Callable, item: Item) -> tuple[object, dict, list[str]]:
    """The value of an item, the seconds it took, and why it could not be stored."""
    cache.CACHE = folder  # a worker is a fresh process: it would fall back on the default place
    with cache.within() as run:
        value = step(item.key, item.work, lambda n=1: None, keep=item.keep)
    return value, run.seconds, cache.unkept
