"""One on-disk cache for the expensive steps.

The files are joblib.Memory's. Keys and checks are ours: a key holds the digest of the code that
computes the value (lib.second.base.code) beside the inputs, and an entry the digest of its value, so
changed code misses and a damaged entry is removed and computed again. Entries are pickles, so they
are written for their owner alone to change, and read only where nobody else can have written them
(lib.second.base.trust).
"""

import functools
import itertools
import logging
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import joblib
import numpy as np
from tqdm import tqdm

from lib.second.base.code import code_digest
from lib.second.base.paths import CACHE, is_old
from lib.second.base.trust import OTHERS, doubt

if TYPE_CHECKING:
    import torch

# A damaged entry is handled below; joblib's own warning would only repeat that with a traceback.
logging.getLogger("joblib").setLevel(logging.ERROR)


@dataclass
class Run:
    """One step that is being computed: what the steps inside it cost."""

    wall: float = 0.0
    """seconds spent in them now, whether computed or taken from the cache"""
    seconds: dict[str, float] = field(default_factory=dict)


_running: list[Run] = []  # the innermost last
_seconds: dict[str, float] = {}  # cold seconds of every entry used in this process
unkept: list[str] = []  # why values could not be stored
_count = itertools.count()


def digest(value: object) -> str:
    """A stable digest of arrays, tensors, dataclasses and plain values."""
    return joblib.hash(_plain(value))


def _plain(value: object) -> object:
    """`value` with tensors as arrays: joblib hashes arrays by content, but tensors by an
    unstable pickle."""
    if torch := sys.modules.get("torch"):  # before it is imported there are no tensors
        if isinstance(value, torch.nn.Module):
            return _plain(dict(value.state_dict()))
        if isinstance(value, torch.Tensor):
            value = as_numpy(value)
    if isinstance(value, np.ndarray):
        # joblib's digest also sees strides, which do not survive storing
        return np.ascontiguousarray(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def as_numpy(tensor: "torch.Tensor") -> np.ndarray:
    """A tensor as an array, for storing."""
    return tensor.detach().cpu().numpy()


def cached(function: Callable) -> Callable:
    """Cache `function(work)` on disk: the result is called as `step(key, work)`.

    `key` (plain values) says what the value depends on beside the code; `work` is what cannot be
    hashed, and the code of the objects in it belongs to the key by itself. The function must return
    arrays, numbers, strings, or dicts and lists of them. It may take more arguments that change
    nothing in the value, such as `tick` (see `each`). With keep=False nothing is looked up or
    stored.
    """
    step = re.sub(r"\W+", "_", function.__qualname__)

    def place_of(key: dict, work: object) -> tuple[str, str]:
        # Nothing of a module's name: a file that moves keeps its entries.
        return step, joblib.hash([code_digest(function, work), _plain(key)])

    @functools.wraps(function)
    def call(key: dict, work: object, *more: object, keep: bool = True) -> object:
        begun = time.perf_counter()
        # The store is opened at each call, so that tests can point CACHE elsewhere; joblib makes
        # that cheap.
        place = place_of(key, work) if keep else (step, str(next(_count)))
        store = _store(place) if keep else None
        entry = _load(store, place)
        if entry is None:
            entry = _computed(function, "/".join(place), work, *more)
            _keep(store, place, entry)
        note(entry["seconds"], time.perf_counter() - begun)
        return entry["value"]

    def is_kept(key: dict, work: object) -> bool:
        place = place_of(key, work)
        store = _store(place)
        return store is not None and store.contains_item(place)

    call.is_kept = is_kept
    return call


def cold_seconds() -> dict[str, float]:
    """By step, how long it took to compute all entries used in this process so far, now or when
    they were stored; a step's own time, without that of the steps inside it."""
    total = Counter()
    for name, seconds in _seconds.items():
        total[name.partition("/")[0]] += seconds
    return dict(total)


@contextmanager
def within() -> Iterator[Run]:
    """Notes what the cached steps cost that are called while it is open."""
    run = Run()
    _running.append(run)
    try:
        yield run
    finally:
        _running.pop()


def note(seconds: dict[str, float], wall: float = 0.0) -> None:
    """Add the cold seconds of entries that were used, and the time that took now."""
    _seconds.update(seconds)
    for outer in _running[-1:]:
        outer.wall += wall
        outer.seconds |= seconds


def _computed(function: Callable, name: str, *arguments: object) -> dict:
    """A new entry; its seconds are its own, and those of every entry that it is made of."""
    begun = time.perf_counter()
    with within() as run:
        value = _plain(function(*arguments))
    own = time.perf_counter() - begun - run.wall
    return {"value": value, "digest": digest(value), "seconds": run.seconds | {name: own}}


def _store(place: tuple[str, str]):
    """joblib's store of results; None where there is no such folder and none can be made, or where
    others may have written what is at `place`."""
    folder = CACHE / "results"
    if reason := doubt(folder, *place, "output.pkl"):
        tell_unkept(reason)
        return None
    try:
        with warnings.catch_warnings(), _mine_alone():
            warnings.simplefilter("ignore")  # a folder that can only be read is worth having
            return joblib.Memory(folder, verbose=0).store_backend
    except OSError as error:
        _cannot_keep(error)
        return None


@contextmanager
def _mine_alone() -> Iterator[None]:
    """What is written meanwhile can be changed by its owner alone, and read by whom the umask
    allows."""
    before = os.umask(0o077)
    os.umask(before | OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def _load(store, place: tuple[str, str]) -> dict | None:
    """The entry at `place`; a damaged one is removed."""
    if store is None or not store.contains_item(place):
        return None
    try:
        entry = store.load_item(place, verbose=0)
        if digest(entry["value"]) == entry["digest"] and isinstance(entry["seconds"], dict):
            return entry
    except Exception:  # whatever bytes that are not ours may lead to
        pass
    store.clear_item(place)
    return None


def _keep(store, place: tuple[str, str], entry: dict) -> None:
    """Store an entry whole, or not at all."""
    if store is None:
        return
    for left in Path(store.location, *place).glob("output.pkl.*"):
        with suppress(OSError):
            if is_old(left):  # what a killed run had written of it
                left.unlink()
    try:
        with warnings.catch_warnings(), _mine_alone():
            # joblib only warns when it cannot write.
            warnings.filterwarnings("error", message="Unable to cache to disk")
            store.dump_item(place, entry, verbose=0)
    except Warning as warning:
        if not store.contains_item(place):
            store.clear_item(place)  # what was written before the disk was full
        _cannot_keep(warning.__context__ or warning)


def _cannot_keep(error: BaseException) -> None:
    tell_unkept(getattr(error, "strerror", None) or str(error))


def tell_unkept(reason: str) -> None:
    """Say, once in a process, that results are not kept."""
    if not unkept:
        tqdm.write(
            f"results cannot be kept in {CACHE.name} ({reason}): this run goes on without; set "
            "$NONLINEARITY_CACHE to a folder that you alone can write"
        )
    unkept.append(reason)
