"""Measurements that end in a small table, kept in the repository (data/measured, a CSV a family).

What takes hours is measured once, so that a page is rendered from a fresh clone in minutes. Looked
up in this order: the user's cache, the repository, a new measurement. Only `make render` and `make
train` add to the repository. A row has the digest of its key, the inputs in words, the version of
the measurement, what was measured, and on which device, with which torch, in how many core-seconds.
"""

import functools
import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import version as version_of
from io import StringIO
from pathlib import Path

import pandas as pd
import torch
from filelock import FileLock

from lib.cache import COST, Key, keyed, load, store
from lib.errors import InputError
from lib.files import DATA, atomic_write

MEASURED = DATA / "measured"
WRITERS = ("NONLINEARITY_TRAIN", "NONLINEARITY_RENDER")
"""set in the environment by make train and make render"""
CHECKED = "NONLINEARITY_CHECK"
"""set by make check-measured: the digest of an entry that is measured again"""
ABOUT = ("device", "torch", "seconds", "rows")
"""what an entry says of itself; `rows`: how many it has, so that a file cut short is noticed"""
SAY_FROM = 60
"""core-seconds from which is said beforehand how long such measurements took"""


class Used:
    """The entries that this process asked for, {digest: family}."""

    def __init__(self):
        self.kept: dict[str, str] = {}
        """found in the user's cache or the repository"""
        self.measured: dict[str, str] = {}
        """measured now"""

    @property
    def keys(self) -> pd.DataFrame:
        """family and key of each entry."""
        both = self.kept | self.measured
        rows = sorted((family, key) for key, family in both.items())
        return pd.DataFrame(rows, columns=["family", "key"])


USED = Used()


class Checked(Exception):
    """An entry was measured again and compared: the rest of its page is not needed."""


def kept(family: str, version: int, helpers: Sequence[str] = (), **names: str) -> Callable:
    """Decorate a measurement that gives a small tidy table, whose entries are kept in the file of
    its `family`; see lib.cache.cached for `names` and `helpers`.

    Numbers are rounded to nine digits before their first use too, so that measured and kept ones
    are the same. The decorated function has `key`, `found` (the kept table or None) and `keep` (a
    table that was measured otherwise, and its core-seconds), each with the function's arguments.
    """

    def decorate(function: Callable) -> Callable:
        key_of = keyed(function, family, version, helpers, names)

        def found(*args, **kwargs) -> pd.DataFrame | None:
            key = key_of(*args, **kwargs)
            if key is None or key.digest == os.environ.get(CHECKED):
                return None
            if (of_user := load(key)) is not None:
                table = of_user["table"]
                table.attrs.update(of_user["about"])
                add(key, table)
            elif (table := entry(family, key.digest)) is None:
                return None
            USED.kept[key.digest] = family
            return table

        def keep(table: pd.DataFrame, seconds: float, *args, **kwargs) -> pd.DataFrame:
            key, table = key_of(*args, **kwargs), rounded(table)
            about = {"device": device(), "torch": version_of("torch").split("+")[0]}
            table.attrs.update(about, seconds=round(seconds, 1))
            if key is None:
                return table
            if key.digest == os.environ.get(CHECKED):
                _compare(key, table)
            USED.measured[key.digest] = family
            add(key, table)
            store(key, family, lambda: {"table": table, "about": table.attrs})
            return table

        @functools.wraps(function)
        def call(*args, **kwargs) -> pd.DataFrame:
            if (table := found(*args, **kwargs)) is not None:
                return table
            announce(family, 1)
            began = time.process_time()
            with COST.computing(family):
                table = function(*args, **kwargs)
            return keep(table, time.process_time() - began, *args, **kwargs)

        version_of_it = f"{family} {version}"
        call.__dict__.update(key=key_of, found=found, keep=keep, version=version_of_it)
        return call

    return decorate


def announce(family: str, n: int) -> None:
    """Say how long such measurements took, before `n` of them that may take over a minute."""
    rows = read(family)
    if len(rows):
        seconds = n * float(rows.drop_duplicates("key").seconds.median())
        if seconds > SAY_FROM:
            minutes = round(seconds / 60)
            print(f"measuring {n} × {family}: as many of the kept ones took {minutes} core-minutes")


def rounded(table: pd.DataFrame) -> pd.DataFrame:
    """A table whose numbers have nine digits."""
    table = table.reset_index(drop=True)
    for name in table.select_dtypes(float):
        table[name] = [float(f"{value:.9g}") for value in table[name]]
    return table


def entry(family: str, digest: str) -> pd.DataFrame | None:
    """The table that the repository has under a key, or None; `attrs` say how it was measured."""
    rows = _entries(family, _when(family)).get(digest)
    if rows is None:
        return None
    if len(rows) != rows["rows"].iloc[0]:
        print(f"{family}: rows of {digest} are missing, so it is measured again.")
        return None
    table = rows[_outputs(rows)].reset_index(drop=True)
    table.attrs.update(rows[list(ABOUT[:-1])].iloc[0].to_dict())
    return table


def _inputs(rows: pd.DataFrame) -> list[str]:
    """The inputs in words stand between the key and the version."""
    return [*rows.columns[1 : rows.columns.get_loc("version")]]


def _outputs(rows: pd.DataFrame) -> list[str]:
    """What was measured stands between the version and what an entry says of itself."""
    columns = rows.columns
    return [*columns[columns.get_loc("version") + 1 : columns.get_loc(ABOUT[0])]]


def read(family: str) -> pd.DataFrame:
    """All rows of a family."""
    return _read(family, _when(family))


def families() -> list[str]:
    """Those that the repository has rows of."""
    return sorted(path.stem.replace("-", " ") for path in MEASURED.glob("*.csv"))


def path_of(family: str) -> Path:
    """The file of a family."""
    return MEASURED / f"{family.replace(' ', '-')}.csv"


def _when(family: str) -> int:
    path = path_of(family)
    return path.stat().st_mtime_ns if path.exists() else 0


@lru_cache(maxsize=32)
def _read(family: str, when: int) -> pd.DataFrame:
    """A file of rows, read again only when it was written again. A damaged one is restored from
    git, or set aside, and that is said."""
    path = path_of(family)
    if not when:
        return pd.DataFrame()
    try:
        return parsed(path.read_text(encoding="utf-8"))
    except ValueError:  # what is no text or no table, or lacks a column
        shown = subprocess.run(
            ["git", "show", f"HEAD:./{path.name}"], cwd=path.parent, capture_output=True, text=True
        )
    if shown.returncode == 0:
        print(f"{path.name} is damaged: it is restored from git.")
        with atomic_write(path) as part:
            part.write_text(shown.stdout, encoding="utf-8")
        return parsed(shown.stdout)
    path.replace(path.with_suffix(".damaged"))
    print(f"{path.name} is damaged: it is set aside, and what it held is measured again.")
    return pd.DataFrame()


def parsed(text: str) -> pd.DataFrame:
    """The rows in the text of a family's file. Raises ValueError where a column is missing."""
    header = pd.read_csv(StringIO(text), nrows=0)
    if not {"key", "version", *ABOUT} <= {*header.columns}:
        raise ValueError("a column is missing")
    # Inputs are words, numbers too: a column with blanks would turn 526 into 526.0.
    words = dict.fromkeys(["key", *_inputs(header), "torch"], str)
    rows = pd.read_csv(StringIO(text), dtype=words, low_memory=False)
    text_columns = [n for n in rows.columns if not pd.api.types.is_numeric_dtype(rows[n])]
    return rows.assign(**{n: rows[n].astype(object).fillna("") for n in text_columns})


@lru_cache(maxsize=32)
def _entries(family: str, when: int) -> dict[str, pd.DataFrame]:
    rows = _read(family, when)
    return dict([*rows.groupby("key", sort=False)]) if len(rows) else {}


def add(key: Key, table: pd.DataFrame) -> None:
    """Add an entry to the repository, once, under a lock; only in make render and make train."""
    if not any(name in os.environ for name in WRITERS):
        return
    path = path_of(key.name)
    path.parent.mkdir(exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        before = read(key.name)
        if len(before) and key.digest in _entries(key.name, _when(key.name)):
            return
        write(key.name, joined(before, as_rows(key, table)))


def as_rows(key: Key, table: pd.DataFrame) -> pd.DataFrame:
    """An entry as it stands in the file of its family."""
    if twice := key.words.keys() & {*table.columns}:
        raise TypeError(f"{key.name}: {sorted(twice)} are inputs and measured as well")
    words = {"key": key.digest, **key.words, "version": key.version}
    about = {name: table.attrs[name] for name in ABOUT[:-1]} | {"rows": len(table)}
    return pd.concat([pd.DataFrame(words, index=table.index), table], axis=1).assign(**about)


def joined(before: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Rows of a family and further ones; inputs that only some say are empty in the others."""
    if not len(before):
        return new
    inputs = dict.fromkeys([*_inputs(before), *_inputs(new)])
    outputs = dict.fromkeys([*_outputs(before), *_outputs(new)])
    return pd.concat([before, new])[["key", *inputs, "version", *outputs, *ABOUT]]


def write(family: str, rows: pd.DataFrame) -> None:
    """Write a family's file anew."""
    with atomic_write(path_of(family)) as part:
        rows.to_csv(part, index=False, float_format="%.9g", lineterminator="\n")


def device() -> str:
    """What measures: processor cores, or which GPU."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cores"


def _compare(key: Key, table: pd.DataFrame) -> None:
    """Compare an entry that was measured again with the kept one. Raises Checked."""
    before = entry(key.name, key.digest)
    if before is None:
        raise InputError(f"{key.name} has no entry {key.digest}, so nothing can be compared.")
    numbers = before.select_dtypes("number").columns
    difference = (before[numbers] - table[numbers]).abs()
    # Sums of losses are compared a prediction, other numbers by their size.
    size = before[numbers].abs().clip(lower=1.0)
    if "predictions" in numbers:
        size = size.clip(lower=before.predictions, axis=0)
    largest = float((difference / size).to_numpy().max())
    raise Checked(json.dumps({"family": key.name, "key": key.digest, "difference": largest}))
