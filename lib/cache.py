"""The user's cache: a function's result, kept as npz under what it was computed from.

The key is a name, a version and the arguments in words (lib.keys). Where an argument has no words
(a model in memory) the function runs and nothing is kept. Who changes the arithmetic of a function,
or an argument's default, raises its version; tests/golden.json notices when that was forgotten.
"""

import ast
import contextlib
import functools
import inspect
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.errors import InputError
from lib.files import atomic_write, cache_folder
from lib.keys import PLAIN, describe, digest, seal

OUTLINE = "outline"
"""name of the array that says how the others fit together"""


USED = "used"
"""name of the array that says in JSON how many core-seconds the step and those below it took"""


class Cost:
    """Core-seconds by step, of all that was used, whether computed now or earlier."""

    def __init__(self):
        self.used: dict[str, float] = {}
        self._open: list[tuple[dict[str, float], list[float]]] = [(self.used, [])]

    @property
    def seconds(self) -> float:
        return sum(self.used.values())

    def loaded(self, used: dict[str, float]) -> None:
        """Count a step that was found in the cache, with those below it."""
        self._open[-1][0].update(used)

    @contextlib.contextmanager
    def computing(self, name: str | None) -> Iterator[dict[str, float]]:
        """Count what is computed while open to `name`, but for what steps below it count."""
        used: dict[str, float] = {}
        inner: list[float] = []
        self._open.append((used, inner))
        began = time.process_time()
        try:
            yield used
        finally:
            taken = time.process_time() - began
            self._open.pop()
            used[name or f"unnamed {len(self.used)}"] = taken - sum(inner)
            outer_used, outer_inner = self._open[-1]
            outer_used.update(used)
            outer_inner.append(taken)


COST = Cost()


class Key(NamedTuple):
    """What a call is kept under."""

    name: str
    version: int
    words: dict[str, str]
    """{what an input is called: the input in words}"""

    def __str__(self) -> str:
        said = [f"{name}: {words}" for name, words in self.words.items()]
        return "\n".join([f"{self.name} {self.version}", *said])

    @property
    def digest(self) -> str:
        return digest(str(self))


def keyed(
    function: Callable, name: str, version: int, helpers: Sequence[str], names: Mapping[str, str]
) -> Callable[..., Key | None]:
    """The key of a call of `function`, as a function of its arguments; None where one of them has
    no words. An argument at its default is left out, so that a new one changes no key."""
    parameters = inspect.signature(function).parameters
    if {*parameters} != {*names, *helpers}:
        raise TypeError(f"{name}: say for each of {[*parameters]} how it enters the key, or helps.")

    def key(*args, **kwargs) -> Key | None:
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
        words: dict[str, str] = {}
        for argument, called in names.items():
            if argument not in bound or bound[argument] is parameters[argument].default:
                continue
            value, usual = bound[argument], parameters[argument].default
            if isinstance(value, PLAIN) and type(value) is type(usual) and value == usual:
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


def cached(name: str, version: int, helpers: Sequence[str] = (), **names: str) -> Callable:
    """Decorate a function whose result is to be kept in the user's cache.

    `names` says what each argument is called in the key (see lib.keys for its words); `helpers` are
    arguments that only help to compute (a residual stream that is already there). A result is built
    of arrays, tensors, DataFrames and plain values, in dicts, lists, tuples, and dataclasses or
    modules of `lib` whose constructor takes what they hold by name. What comes back is of the same
    kind, on the CPU. `.key(...)` of the decorated function is the key of a call.
    """

    def decorate(function: Callable) -> Callable:
        key_of = keyed(function, name, version, helpers, names)

        @functools.wraps(function)
        def call(*args, **kwargs):
            with _unchanging(*args, *kwargs.values()):
                key = key_of(*args, **kwargs)
                if (found := load(key)) is not None:
                    return found
                return store(key, name, functools.partial(function, *args, **kwargs))

        call.__dict__.update(key=key_of, version=f"{name} {version}")
        return call

    return decorate


@contextlib.contextmanager
def _unchanging(*arguments) -> Iterator[None]:
    """While open, models among the arguments are not looked at again (see Subject)."""
    with contextlib.ExitStack() as stack:
        for argument in arguments:
            if hasattr(argument, "unchanging"):
                stack.enter_context(argument.unchanging())
        yield


def _path(key: Key) -> Path:
    return cache_folder() / re.sub(r"\W+", "-", key.name) / f"{key.version}-{key.digest}.npz"


def load(key: Key | None):
    """What the user's cache has under a key, else None; a damaged entry is removed."""
    if key is None or not (path := _path(key)).exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as stored:
            result = unpack(dict(stored))
            COST.loaded(json.loads(str(stored[USED])))
        return sealed(result, f"{key.name} {key.digest}")
    except PermissionError:
        raise InputError(
            f"{path} may not be read by this user: change its owner, or set $NONLINEARITY_CACHE to "
            "a folder of your own."
        ) from None
    except Exception:  # zipfile and numpy raise a dozen kinds for a damaged entry
        path.unlink(missing_ok=True)
        return None


def store(key: Key | None, name: str, compute: Callable[[], object]):
    """Compute a result, and leave it in the user's cache if it has a key."""
    with COST.computing(name) as used:
        arrays = pack(compute())
    if key is not None:
        arrays[USED] = np.array(json.dumps(used))
        with atomic_write(_path(key)) as part, open(part, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
    return sealed(unpack(arrays), key and f"{key.name} {key.digest}")


def sealed(result, words: str | None):
    """A result whose modules, in dicts and lists of any depth, stand for how they were made."""
    if words is None:
        return result
    if isinstance(result, nn.Module):
        seal(result, words)
    elif isinstance(result, Mapping):
        for name, part in result.items():
            sealed(part, f"{words} {name}")
    elif isinstance(result, list | tuple):
        for k, part in enumerate(result):
            sealed(part, f"{words} {k}")
    return result


def pack(result) -> dict[str, np.ndarray]:
    """A result as named arrays; one more, the outline, says in JSON how they fit together."""
    arrays: dict[str, np.ndarray] = {}
    outline = _outline(result, "", arrays)
    return arrays | {OUTLINE: np.array(json.dumps(outline))}


def _outline(value, path: str, arrays: dict[str, np.ndarray]):
    """What stands at `path` of a result, as JSON; its arrays are added to `arrays`."""
    inside = f"{path}." if path else ""
    if isinstance(value, torch.Tensor | np.ndarray | pd.Series):
        name = path or "result"
        if name in arrays or name in (OUTLINE, USED):
            raise ValueError(f"a result has two arrays of the name {name}")
        if isinstance(value, torch.Tensor):
            arrays[name] = value.detach().cpu().numpy()
            return {"tensor": name}
        array = np.asarray(value)
        arrays[name] = array.astype(str) if array.dtype == object else array
        return {"array": name}
    if isinstance(value, pd.DataFrame):
        columns = {str(c): _outline(value[c], f"{inside}{c}", arrays) for c in value}
        return {"frame": columns}
    if isinstance(value, Mapping):
        pairs = [[repr(k), _outline(v, f"{inside}{k}", arrays)] for k, v in value.items()]
        return {"dict": pairs}
    if isinstance(value, nn.Module) or is_dataclass(value):
        names = [*inspect.signature(type(value)).parameters]
        held = {n: _outline(getattr(value, n), f"{inside}{n}", arrays) for n in names}
        return {"class": type(value).__qualname__, "holds": held}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_outline(v, f"{inside}{k}", arrays) for k, v in enumerate(value)]}
    return {"value": value.item() if isinstance(value, np.generic) else value}


def _class_named(name: str) -> type:
    """A class of this library, in whichever of its files it stands now; whoever asks for an entry
    has loaded that file."""
    for module in list(sys.modules):
        found = vars(sys.modules[module]).get(name) if module.startswith("lib.") else None
        if isinstance(found, type) and found.__module__.startswith("lib."):
            return found
    raise ValueError(f"{name} is no class of lib")  # an entry names nothing else


def unpack(arrays: Mapping[str, np.ndarray]):
    """The result that `pack` took apart."""
    return _rebuild(json.loads(str(arrays[OUTLINE])), arrays)


def _rebuild(outline: dict, arrays: Mapping[str, np.ndarray]):
    """What one entry of the outline stands for."""
    [kind] = outline.keys() - {"holds"}
    inner = outline[kind]

    def part(entry: dict) -> object:
        return _rebuild(entry, arrays)

    if kind == "tensor":
        return torch.from_numpy(np.array(arrays[inner]))
    if kind == "array":
        return arrays[inner]
    if kind == "frame":
        return pd.DataFrame({name: part(entry) for name, entry in inner.items()})
    if kind == "dict":
        return {ast.literal_eval(name): part(entry) for name, entry in inner}
    if kind == "list":
        return [part(entry) for entry in inner]
    if kind == "tuple":
        return tuple(part(entry) for entry in inner)
    if kind == "class":
        made = _class_named(inner.rpartition(":")[2])
        return made(**{name: part(entry) for name, entry in outline["holds"].items()})
    return inner
