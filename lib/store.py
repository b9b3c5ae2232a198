"""What is remembered: large results in the user's cache, small tables in data/measured as well.

Both find a result by its key: a name, a version, and the arguments in words (lib.keys); of a model
in memory nothing is kept. Who changes arithmetic, or a default, raises the version
(tests/golden.json notices). pandas and torch, which take seconds to load, are imported where they
are used.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from lib.errors import InputError
from lib.files import (
    atomic_write,
    cache_folder,
    handed_back_all_the_same,
    read_whole,
    say_once,
    set_aside,
)
from lib.tables import add, entry, read

if TYPE_CHECKING:
    import pandas as pd

CHECKED = "NONLINEARITY_CHECK"
"""in the environment: digests of entries to measure again; "none": a miss is an error"""
CALLED = {"subject": "model", "windows": "text"}
"""what arguments of these names are called in keys; another one by its own name"""


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
    from lib.keys import PLAIN, all_said

    signature = inspect.signature(function)
    parameters = signature.parameters
    if unknown := {*names, *helpers} - {*parameters}:
        raise TypeError(f"{name}: {sorted(unknown)} are no arguments of it.")
    names = {p: names.get(p, CALLED.get(p, p)) for p in parameters if p not in helpers}

    def key(*args, **kwargs) -> Key | None:
        bound = signature.bind(*args, **kwargs).arguments
        given = {}
        for argument, called in names.items():
            usual = parameters[argument].default
            value = bound.get(argument, usual)
            equal = isinstance(value, PLAIN) and type(value) is type(usual) and value == usual
            if value is not usual and not equal:
                given[called] = value
        words = all_said(given)
        return None if words is None else Key(name, version, words)

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
        with handed_back_all_the_same():
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
    with handed_back_all_the_same():
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
            _, measured_now, _ = USED.get(key.digest, (family, False, 0.0))
            checked = os.environ.get(CHECKED, "")
            if (of_user := load(key)) is not None:
                table = of_user["table"]
                table.attrs.update(of_user["about"])
                add(key.name, key.digest, key.version, key.words, table)
            elif key.digest in checked or (table := entry(family, key.digest)) is None:
                if checked == "none":
                    raise InputError(f"{key} ({key.digest}) is not kept: render the page again.")
                USED[key.digest] = family, True, 0.0  # by this process or by one that it starts
                return None
            USED[key.digest] = family, measured_now, table.attrs["seconds"]
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
            add(key.name, key.digest, key.version, key.words, table)
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
