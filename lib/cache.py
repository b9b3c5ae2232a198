"""A cached step: a function's result, kept as npz under how it was made.

The key is (name, version, arguments), where an argument that is no plain value stands for itself by
its `recipe`: a short string that says how it was made, never the bytes of what an earlier step
gave. Where a recipe is None (a model in memory) the function runs and nothing is kept. Who changes
the arithmetic of a step raises its version; tests/golden.json notices when that was forgotten.
"""

import ast
import contextlib
import functools
import hashlib
import importlib
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.errors import InputError
from lib.files import cache_folder, whole

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


def step(version: int, ignore: tuple[str, ...] = ()) -> Callable[[Callable], Callable]:
    """Decorate a function whose result is to be kept.

    A result is built of arrays, tensors, DataFrames and plain values, in dicts, lists, tuples, and
    dataclasses or modules of `lib` whose constructor takes what they hold by name. What comes back
    is of the same kind, on the CPU; a part whose constructor takes a `recipe` is given one.

    Arguments named in `ignore` only help to compute (a residual stream that is already there) and
    do not enter the key. `.recipe(...)` of the decorated function is the key of a call.
    """

    def decorate(function: Callable) -> Callable:
        signature = inspect.signature(function)

        def recipe(*args, **kwargs) -> str | None:
            bound = signature.bind_partial(*args, **kwargs)
            bound.apply_defaults()
            given = {k: _recipe(v) for k, v in bound.arguments.items() if k not in ignore}
            if None in given.values():
                return None
            key = hashlib.sha256(repr(sorted(given.items())).encode()).hexdigest()[:16]
            return f"{function.__name__}-{version}-{key}"

        @functools.wraps(function)
        def kept(*args, **kwargs):
            name = recipe(*args, **kwargs)
            path = cache_folder() / function.__name__ / f"{name}.npz"
            if name is not None and path.exists():
                try:
                    with np.load(path, allow_pickle=False) as stored:
                        result = unpack(dict(stored), name)
                        COST.loaded(json.loads(str(stored[USED])))
                    return result
                except PermissionError:
                    raise InputError(
                        f"{path} may not be read by this user: change its owner, or set "
                        "$NONLINEARITY_CACHE to a folder of your own."
                    ) from None
                except Exception:  # zipfile and numpy raise a dozen kinds for a damaged entry
                    path.unlink(missing_ok=True)
            with COST.computing(name) as used:
                arrays = pack(function(*args, **kwargs))
            if name is not None:
                arrays[USED] = np.array(json.dumps(used))
                with whole(path) as part, open(part, "wb") as file:
                    np.savez(file, **arrays)
            return unpack(arrays, name)

        kept.recipe = recipe
        return kept

    return decorate


def _recipe(value) -> str | None:
    """How an argument was made, in words; None where that cannot be said."""
    if isinstance(value, str | int | float | bool | type(None) | np.integer | np.floating):
        return repr(value)
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, list | tuple | range):
        parts = [_recipe(v) for v in value]
        return None if None in parts else f"({', '.join(parts)})"
    if is_dataclass(value) and not hasattr(value, "recipe"):
        fields = _recipe(vars(value))
        return fields and f"{type(value).__name__}{fields}"
    if hasattr(value, "recipe_now"):  # a model, which may have been changed since it was loaded
        return value.recipe_now
    return getattr(value, "recipe", None)


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
        names = [n for n in inspect.signature(type(value)).parameters if n != "recipe"]
        held = {n: _outline(getattr(value, n), f"{inside}{n}", arrays) for n in names}
        return {"class": f"{type(value).__module__}:{type(value).__qualname__}", "holds": held}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_outline(v, f"{inside}{k}", arrays) for k, v in enumerate(value)]}
    return {"value": value.item() if isinstance(value, np.generic) else value}


def unpack(arrays: Mapping[str, np.ndarray], recipe: str | None):
    """The result that `pack` took apart."""
    return _rebuild(json.loads(str(arrays[OUTLINE])), arrays, recipe)


def _rebuild(outline: dict, arrays: Mapping[str, np.ndarray], recipe: str | None):
    """What one entry of the outline stands for; `recipe` says how it was made."""
    [kind] = outline.keys() - {"holds"}
    inner = outline[kind]

    def part(entry: dict, name) -> object:
        return _rebuild(entry, arrays, recipe and f"{recipe} {name}")

    if kind == "tensor":
        return torch.from_numpy(np.array(arrays[inner]))
    if kind == "array":
        return arrays[inner]
    if kind == "frame":
        return pd.DataFrame({name: part(entry, name) for name, entry in inner.items()})
    if kind == "dict":
        return {ast.literal_eval(name): part(entry, name) for name, entry in inner}
    if kind == "list":
        return [part(entry, k) for k, entry in enumerate(inner)]
    if kind == "tuple":
        return tuple(part(entry, k) for k, entry in enumerate(inner))
    if kind == "class":
        module, _, name = inner.partition(":")
        if not module.startswith("lib."):  # an entry names nothing but what this library defines
            raise ValueError(f"{inner} is no class of lib")
        made = getattr(importlib.import_module(module), name)
        given = {name: part(entry, name) for name, entry in outline["holds"].items()}
        if "recipe" in inspect.signature(made).parameters:
            given["recipe"] = recipe
        return made(**given)
    return inner
