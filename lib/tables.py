"""The small tables of data/measured: a family is one file of CSV; a row has its key's digest, the
inputs in words, what was measured, and how. pandas, which takes seconds to load, is imported where
it is used.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from filelock import FileLock

from lib.errors import InputError
from lib.files import (
    DATA,
    atomic_write,
    handed_back_all_the_same,
    say_once,
    say_unread,
    set_aside,
)

if TYPE_CHECKING:
    import pandas as pd

MEASURED = DATA / "measured"
WRITERS = ("NONLINEARITY_TRAIN", "NONLINEARITY_RENDER")
"""set in the environment by make train and make render, which alone write to data/measured"""
ABOUT = ("device", "torch", "seconds", "rows")
"""what an entry says of itself; `rows`: how many it has, so that one cut short is noticed"""


class Family(NamedTuple):
    """What the file of a family holds: a row has its key's digest, the inputs in words, a version,
    what was measured, and what its entry says of itself (ABOUT). A blank cell says nothing."""

    inputs: list[str]
    outputs: list[str]
    entries: dict[str, list[dict[str, str]]]
    """{digest: rows}, cells as they are written"""


def path_of(family: str) -> Path:
    return MEASURED / f"{family.replace(' ', '-')}.csv"


def read(family: str) -> Family:
    """All whole rows of a family; none where its file cannot be read now. Raises InputError for
    one with conflict markers of git."""
    try:
        return _as_it_is_now(path_of(family))
    except (OSError, MemoryError) as error:
        say_unread(path_of(family), error)
        return Family([], [], {})


def _as_it_is_now(path: Path) -> Family:
    """A family's file, read again only when it was written again."""
    if not path.exists():
        return Family([], [], {})
    state = path.stat()
    return _read(path, (state.st_mtime_ns, state.st_size, state.st_ino))


@functools.lru_cache(maxsize=32)
def _read(path: Path, state: tuple) -> Family:
    content = path.read_bytes()
    if re.search(rb"^(<<<<<<< |>>>>>>> )", content, re.M):
        raise InputError(
            f"{path} has conflict markers of git: resolve the conflict (the rows of both sides may "
            "stay), then run again."
        )
    family, is_whole = parsed(content.decode("utf-8-sig", "surrogateescape"))
    if not is_whole:
        with handed_back_all_the_same():
            set_aside(path, content)
    return family


def parsed(text: str) -> tuple[Family, bool]:
    """The whole rows in the text of a family's file, and whether there are no others."""
    lines = csv.DictReader(io.StringIO(text, newline=""))
    header = [*(lines.fieldnames or [])]
    if not {"key", "version", *ABOUT} <= {*header} or len({*header}) < len(header):
        return Family([], [], {}), False
    odd = re.compile("[\0\udc80-\udcff]")  # bytes that are no text
    entries: dict[str, list[dict[str, str]]] = {}
    is_whole = True
    for row in lines:
        try:
            written = "".join(row.values())  # with too few cells one is None, with too many a list
            int(row["rows"]), float(row["seconds"])
            [cell_value(cell) for cell in row.values() if cell.startswith('"')]
        except (TypeError, ValueError):
            written = "\0"
        if odd.search(written):
            is_whole = False
            continue
        entries.setdefault(row["key"], []).append(row)
    version, about = header.index("version"), header.index(ABOUT[0])
    return Family(header[1:version], header[version + 1 : about], entries), is_whole


def entry(family: str, digest: str) -> pd.DataFrame | None:
    """The table that the repository has under a key, or None; `attrs` say how it was measured."""
    import pandas as pd

    _, outputs, entries = read(family)
    if (rows := entries.get(digest)) is None:
        return None
    first, n_rows = rows[0], int(rows[0]["rows"])
    if len(rows) < n_rows:
        say_once(f"{family}: rows of {digest} are missing, so it is measured again.")
        return None
    rows = rows[:n_rows]  # after a merge of git an entry may stand there twice
    columns = {name: _typed([row[name] for row in rows]) for name in outputs}
    table = pd.DataFrame({name: values for name, values in columns.items() if values is not None})
    table.attrs |= {n: first[n] for n in ("device", "torch")} | {"seconds": float(first["seconds"])}
    return table


def _typed(cells: Sequence[str]) -> list | None:
    """A column of an entry: text if any cell is, else numbers; None for one that says nothing."""
    values = [cell_value(cell) for cell in cells]
    if any(isinstance(value, str) for value in values):
        return ["" if value is None else value for value in values]
    if None not in values:
        return values
    return [float("nan") if v is None else float(v) for v in values] if any(cells) else None


NUMBER = re.compile(r"-?(?:(?P<whole>0|[1-9]\d*)|\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+|inf|nan)")


def cell_value(cell: str) -> str | int | float | bool | None:
    """What a cell says: a text in double quotes is JSON (see `as_cell`), a blank is None."""
    if cell.startswith('"'):
        return json.loads(cell)
    if cell in ("", "True", "False"):
        return {"": None, "True": True, "False": False}[cell]
    if (number := NUMBER.fullmatch(cell)) is None:
        return cell
    return int(cell) if number["whole"] else float(cell)


def as_cell(value) -> str:
    """A value as it stands in a file, so that it comes back the same: a text that would be read as
    something else (001, True, two lines) as JSON."""
    import pandas as pd

    if isinstance(value, str):
        plain = cell_value(value) == value and not re.search("[\r\n\0]", value)
        return value if plain else json.dumps(value, ensure_ascii=False)
    if pd.isna(value):
        return "nan"
    if isinstance(value, float):  # 2.0 is no whole number
        cell = f"{value:.9g}"
        return f"{cell}.0" if cell.lstrip("-").isdecimal() else cell
    return str(value)


def _word_cell(words: str) -> str:
    """Words as they stand in a file; they are never read as a number, but may have two lines."""
    return words if words and not re.search('^"|[\r\n\0]', words) else json.dumps(words)


def add(
    family: str, digest: str, version: int, said: Mapping[str, str], table: pd.DataFrame
) -> None:
    """Add an entry to the repository, once, under a lock; only in make render and make train.
    `said`: its inputs in words."""
    if not any(name in os.environ for name in WRITERS):
        return
    words = {"key": digest, "version": str(version), "rows": str(len(table))}
    words |= {name: _word_cell(words_of) for name, words_of in said.items()}
    words |= {name: str(table.attrs[name]) for name in ("device", "torch", "seconds")}
    new = [words | {n: as_cell(v) for n, v in row.items()} for row in table.to_dict("records")]
    with handed_back_all_the_same():
        MEASURED.mkdir(exist_ok=True)
        with FileLock(path_of(family).with_suffix(".lock")):
            if entry(family, digest) is not None:
                return
            before = _as_it_is_now(path_of(family))
            inputs = [*dict.fromkeys([*before.inputs, *said])]
            outputs = [*dict.fromkeys([*before.outputs, *map(str, table.columns)])]
            write(family, Family(inputs, outputs, before.entries | {digest: new}))


def write(name: str, family: Family) -> None:
    header = ["key", *family.inputs, "version", *family.outputs, *ABOUT]
    if twice := sorted({column for column in header if header.count(column) > 1}):
        raise TypeError(f"{name}: {twice} would stand twice in its file")
    with atomic_write(path_of(name)) as part, open(part, "w", encoding="utf-8", newline="") as file:
        rows = csv.DictWriter(file, header, restval="", lineterminator="\n")
        rows.writeheader()
        for of_entry in family.entries.values():
            rows.writerows(of_entry)
