"""What is remembered: large results in the user's cache, small tables in data/measured as well.

Both find a result by its key: a name, a version, and the arguments in words (lib.keys); of a model
in memory nothing is kept. Who changes arithmetic, or a default, raises the version
(tests/golden.json notices). Four rules: what is written is whole or not there; what cannot be read
is left as it is; what is damaged is set aside; what cannot be kept is handed back. pandas and
torch, which take seconds to load, are imported where they are used.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import inspect
import io
import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock
from platformdirs import user_cache_path

from lib.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "data"
MEASURED = DATA / "measured"
WRITERS = ("NONLINEARITY_TRAIN", "NONLINEARITY_RENDER")
"""set in the environment by make train and make render, which alone write to data/measured"""
CHECKED = "NONLINEARITY_CHECK"
"""in the environment: digests of entries to measure again; "none": a miss is an error"""
CALLED = {"subject": "model", "windows": "text"}
"""what arguments of these names are called in keys; another one by its own name"""
ABOUT = ("device", "torch", "seconds", "rows")
"""what an entry says of itself; `rows`: how many it has, so that one cut short is noticed"""


# Files


@contextlib.contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target` (a file or folder), which takes the final name only if
    the body ends without an error. Raises InputError where nothing can be written."""
    part = target.parent / f".{secrets.token_hex(4)}.part"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(".*.part"):  # of a killed write: nobody wrote for a day
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > 86_400:
                    _remove(left)
        yield part
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(part, target)
    except OSError as error:
        if error.errno is None:  # a library's own error in the body, not the system's
            raise
        in_cache = target.is_relative_to(cache_folder())
        way_out = "set $NONLINEARITY_CACHE to another folder" if in_cache else "let this user write"
        raise InputError(
            f"{target.name} could not be written into {target.parent} ({error.strerror or error}): "
            f"make room there, or {way_out}."
        ) from None
    finally:
        _remove(part)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def cache_folder() -> Path:
    """$NONLINEARITY_CACHE (a relative one: in the repository), or the user's cache folder."""
    usual = str(user_cache_path("nonlinearity-budget", appauthor=False))
    folder = os.path.expanduser(os.environ.get("NONLINEARITY_CACHE") or usual)
    if folder.startswith("~"):  # a user without a home
        folder = ".cache"
    return ROOT / folder / "sixth"


def read_whole(path: Path) -> bytes | None:
    """All of a file; None where it is not there, and where it cannot be read now (too many open
    files, no memory), which is said and is no damage."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, MemoryError) as error:
        _say_unread(path, error)
        return None


def _say_unread(path: Path, error: OSError | MemoryError) -> None:
    why = getattr(error, "strerror", None) or "no memory"
    say_once(f"{path} cannot be read ({why}): it is left as it is and computed again.")


def set_aside(path: Path, content: bytes) -> None:
    """Copy a damaged file beside itself, under a name made of its content, and say so."""
    aside = path.with_name(f"{path.stem}-{sha256(content).hexdigest()[:8]}.damaged")
    with atomic_write(aside) as part:
        part.write_bytes(content)
    say_once(f"{path.name} is damaged: copied to {aside.name}; what it lost is computed again.")


say_once = functools.cache(functools.partial(print, flush=True))


@contextlib.contextmanager
def _handed_back_all_the_same() -> Iterator[None]:
    """While open, what cannot be written is said, and nothing else happens."""
    try:
        yield
    except (InputError, OSError, NotImplementedError) as error:  # file systems without locks
        say_once(f"a result is used and not kept: {error}")


class Key(NamedTuple):
    """What a call is kept under."""

    name: str
    version: int
    words: dict[str, str]
    """{what an input is called: the input in words}"""

    def __str__(self) -> str:
        said = (f"{name}: {words}" for name, words in self.words.items())
        return "\n".join([f"{self.name} {self.version}", *said])

    @property
    def digest(self) -> str:
        return sha256(str(self).encode()).hexdigest()[:16]

    @property
    def path(self) -> Path:
        folder = cache_folder() / re.sub(r"\W+", "-", self.name)
        return folder / f"{self.version}-{self.digest}.safetensors"


def _keyed(
    function: Callable, name: str, version: int, helpers: Sequence[str], names: Mapping[str, str]
) -> Callable[..., Key | None]:
    """The key of a call of `function`, as a function of its arguments; None where one of them has
    no words. An argument at its default is left out, so that a new one changes no key."""
    from lib.keys import PLAIN, describe

    signature = inspect.signature(function)
    parameters = signature.parameters
    if unknown := {*names, *helpers} - {*parameters}:
        raise TypeError(f"{name}: {sorted(unknown)} are no arguments of it.")
    names = {p: names.get(p, CALLED.get(p, p)) for p in parameters if p not in helpers}

    def key(*args, **kwargs) -> Key | None:
        bound = signature.bind(*args, **kwargs).arguments
        words: dict[str, str] = {}
        for argument, called in names.items():
            usual = parameters[argument].default
            value = bound.get(argument, usual)
            equal = isinstance(value, PLAIN) and type(value) is type(usual) and value == usual
            if value is usual or equal:
                continue
            said = describe(value)
            if said is None:
                return None
            said = said if isinstance(said, Mapping) else {called: said}
            if twice := words.keys() & said.keys():
                raise TypeError(f"{name}: two arguments say {sorted(twice)} in the key")
            words |= said
        return Key(name, version, words)

    return key


@contextlib.contextmanager
def _unchanging(*arguments) -> Iterator[None]:
    """While open, models among the arguments are not looked at again (see Subject)."""
    with contextlib.ExitStack() as stack:
        for argument in arguments:
            if hasattr(type(argument), "unchanging"):  # asked itself, a map would be made
                stack.enter_context(argument.unchanging())
        yield


# Large results


def cached(name: str, version: int, helpers: Sequence[str] = (), **names: str) -> Callable:
    """Decorate a function whose result is to be kept in the user's cache.

    `names` says what an argument is called in the key where that is not its own name; `helpers`
    only help to compute. A result is built of arrays of numbers, tensors, DataFrames and plain
    values, in dicts, lists, and dataclasses or modules of `lib` whose constructor takes what they
    hold by name; it comes back on the CPU. `.key(...)` of the decorated function is the key of a
    call.
    """

    def decorate(function: Callable) -> Callable:
        key_of = _keyed(function, name, version, helpers, names)

        @functools.wraps(function)
        def call(*args, **kwargs):
            with _unchanging(*args, *kwargs.values()):
                key = key_of(*args, **kwargs)
                result = load(key)
                return save(key, function(*args, **kwargs)) if result is None else result

        call.__dict__.update(key=key_of, version=f"{name} {version}")
        return call

    return decorate


def load(key: Key | None):
    """What the user's cache has under a key, else None."""
    if key is None or (content := read_whole(key.path)) is None:
        return None
    try:
        return unpack(content)
    except MemoryError:
        raise
    except Exception:  # what json, safetensors and constructors raise for content that is wrong
        with _handed_back_all_the_same():
            set_aside(key.path, content)
            key.path.unlink()
        return None


def save(key: Key | None, result):
    """The result, left in the user's cache if it has a key; an entry is never overwritten."""
    try:
        content = pack(result)
    except TypeError as error:  # better used than lost
        say_once(f"a result is used and not kept: {error}")
        return result
    with _handed_back_all_the_same():
        if key is not None and not key.path.exists():
            with atomic_write(key.path) as part:
                part.write_bytes(content)
    return unpack(content)


def pack(result) -> bytes:
    """A result in the format of safetensors, whose header says in JSON how the arrays fit."""
    import safetensors.torch

    tensors: dict = {}
    outline = json.dumps(_plain(result), default=functools.partial(_outline, tensors=tensors))
    return safetensors.torch.save(tensors, {"outline": outline})


def _plain(value):
    """A value with its dictionaries as pairs, where JSON would change their keys."""
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if not isinstance(value, Mapping):
        return value
    if all(type(key) is str and not key.startswith("_") for key in value):
        return {key: _plain(part) for key, part in value.items()}
    return {"_items": [[key, _plain(part)] for key, part in value.items()]}


def _outline(value, tensors: dict):
    """What JSON does not know, as what it knows; arrays are added to `tensors`."""
    import numpy as np
    import pandas as pd
    import torch
    from torch import nn

    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, pd.DataFrame):
        return {"_frame": [[name, value[name].tolist()] for name in value]}
    if isinstance(value, np.ndarray | torch.Tensor):
        name, kind = str(len(tensors)), "_array" if isinstance(value, np.ndarray) else "_tensor"
        held = torch.tensor(value) if isinstance(value, np.ndarray) else value.detach().cpu()
        tensors[name] = held.clone(memory_format=torch.contiguous_format)
        return {kind: name}
    if isinstance(value, nn.Module) or is_dataclass(value):
        names = inspect.signature(type(value)).parameters
        held = {name: _plain(getattr(value, name)) for name in names}
        return {"_class": type(value).__qualname__} | held
    raise TypeError(f"a {type(value).__name__} cannot be kept")


def unpack(content: bytes):
    """The result that `pack` took apart; tuples come back as lists."""
    import safetensors.torch

    size = int.from_bytes(content[:8], "little")
    outline = json.loads(content[8 : 8 + size])["__metadata__"]["outline"]
    rebuilt = functools.partial(_rebuilt, tensors=safetensors.torch.load(content))
    return json.loads(outline, object_hook=rebuilt)


def _rebuilt(inner: dict, tensors: Mapping):
    """What an object of the outline stands for."""
    import pandas as pd

    match [*inner.items()]:
        case [("_tensor", name)]:
            return tensors[name]
        case [("_array", name)]:
            return tensors[name].numpy()
        case [("_frame", columns)]:
            return pd.DataFrame(dict(columns))
        case [("_objects" | "_texts", values)]:  # columns, as they were kept before
            return values
        case [("_items", pairs)]:
            return {tuple(key) if isinstance(key, list) else key: part for key, part in pairs}
        case [("_class", name), *held]:
            return _class_named(name)(**dict(held))
    return inner


def _class_named(name: str) -> type:
    """A class of this library, in whichever of its files it stands now; whoever asks for an entry
    has loaded that file."""
    for module in [m for n, m in sys.modules.items() if n.startswith("lib.")]:
        found = vars(module).get(name)
        if isinstance(found, type) and found.__module__.startswith("lib."):
            return found
    raise ValueError(f"{name} is no class of lib")  # an entry names nothing else


# Small tables


USED: dict[str, tuple[str, bool, float]] = {}
"""{digest: family, whether it was measured now, core-seconds} of what this run asked for"""


def kept(family: str, version: int, helpers: Sequence[str] = (), **names: str) -> Callable:
    """Decorate a measurement that gives a small tidy table, whose entries are kept in the file of
    its `family` too; see `cached` for `names` and `helpers`.

    Numbers are rounded to nine digits before their first use too, so that measured and kept ones
    are the same. Beside `key` the decorated function has `look_up(key)`, the kept table or None,
    and `keep(key, table, core_seconds)` for one that was measured otherwise.
    """

    def decorate(function: Callable) -> Callable:
        key_of = _keyed(function, family, version, helpers, names)

        def look_up(key: Key | None) -> pd.DataFrame | None:
            if key is None:
                return None
            checked = os.environ.get(CHECKED, "")
            if (of_user := load(key)) is not None:
                table = of_user["table"]
                table.attrs.update(of_user["about"])
                _add(key, table)
            elif key.digest in checked or (table := entry(family, key.digest)) is None:
                if checked == "none":
                    raise InputError(f"{key} ({key.digest}) is not kept: render the page again.")
                return None
            USED[key.digest] = family, False, table.attrs["seconds"]
            return table

        def keep(key: Key | None, table: pd.DataFrame, seconds: float) -> pd.DataFrame:
            import torch

            table = rounded(table)
            device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cores"
            of_torch = torch.__version__.split("+")[0]
            table.attrs.update(device=device, torch=of_torch, seconds=round(seconds, 1))
            if key is None:
                return table
            USED[key.digest] = family, True, seconds
            _add(key, table)
            save(key, {"table": table, "about": table.attrs})
            return table

        @functools.wraps(function)
        def call(*args, **kwargs) -> pd.DataFrame:
            with _unchanging(*args, *kwargs.values()):
                keys = {"": key_of(*args, **kwargs)}
                return kept_of(call, keys, lambda _: [{"": function(*args, **kwargs)}])[""]

        call.__dict__.update(
            key=key_of, look_up=look_up, keep=keep, family=family, version=f"{family} {version}"
        )
        return call

    return decorate


def kept_of(measurement: Any, keys: Mapping, measure: Callable[[list], Iterable]) -> dict:
    """{name: table} of several calls of a `kept` measurement, from {name: its key}. What is not
    kept is measured in one go: `measure` gives {name: table} after {name: table} of the names that
    it is handed, as they end, and each is kept as it comes."""
    found = {name: measurement.look_up(key) for name, key in keys.items()}
    if missing := [name for name in keys if found[name] is None]:
        announce(measurement.family, len(missing))
        began = time.process_time()
        for tables in measure(missing):
            seconds = (time.process_time() - began) / len(tables)
            for name, table in tables.items():
                found[name] = measurement.keep(keys[name], table, seconds)
            began = time.process_time()
    return found


def announce(family: str, n: int) -> None:
    """Say how long such measurements took, before `n` of them that may take over a minute."""
    core_seconds = [float(first["seconds"]) for first, *_ in read(family).entries.values()]
    core_seconds = [s for s in core_seconds if s > 0]  # what a GPU did is no guide here
    if core_seconds and (usual := n * median(core_seconds)) > 60:
        print(f"measuring {n} × {family}: as many took {usual / 60:.0f} core-minutes")


def rounded(table: pd.DataFrame) -> pd.DataFrame:
    """A table whose numbers have nine digits."""
    table = table.reset_index(drop=True)
    for name in table.select_dtypes("float"):
        table[name] = [float(f"{value:.9g}") for value in table[name]]
    return table


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
        _say_unread(path_of(family), error)
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
        with _handed_back_all_the_same():
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


def _add(key: Key, table: pd.DataFrame) -> None:
    """Add an entry to the repository, once, under a lock; only in make render and make train."""
    if not any(name in os.environ for name in WRITERS):
        return
    words = {"key": key.digest, "version": str(key.version), "rows": str(len(table))}
    words |= {name: _word_cell(said) for name, said in key.words.items()}
    words |= {name: str(table.attrs[name]) for name in ("device", "torch", "seconds")}
    new = [words | {n: as_cell(v) for n, v in row.items()} for row in table.to_dict("records")]
    with _handed_back_all_the_same():
        MEASURED.mkdir(exist_ok=True)
        with FileLock(path_of(key.name).with_suffix(".lock")):
            if entry(key.name, key.digest) is not None:
                return
            before = _as_it_is_now(path_of(key.name))
            inputs = [*dict.fromkeys([*before.inputs, *key.words])]
            outputs = [*dict.fromkeys([*before.outputs, *map(str, table.columns)])]
            write(key.name, Family(inputs, outputs, before.entries | {key.digest: new}))


def write(name: str, family: Family) -> None:
    header = ["key", *family.inputs, "version", *family.outputs, *ABOUT]
    if twice := sorted({column for column in header if header.count(column) > 1}):
        raise TypeError(f"{name}: {twice} would stand twice in its file")
    with atomic_write(path_of(name)) as part, open(part, "w", encoding="utf-8", newline="") as file:
        rows = csv.DictWriter(file, header, restval="", lineterminator="\n")
        rows.writeheader()
        for of_entry in family.entries.values():
            rows.writerows(of_entry)
