"""A cached step: a function's result, kept as npz under how it was made.

The key is (name, version, arguments), where an argument that is no plain value stands for itself by
its `recipe`: a short string that says how it was made, never the bytes of what an earlier step
gave. Where a recipe is None (a model in memory) the function runs and nothing is kept. Who changes
the arithmetic of a step raises its version; tests/golden.json notices when that was forgotten.
"""

import contextlib
import functools
import hashlib
import inspect
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from platformdirs import user_cache_path

from lib.errors import InputError


def cache_folder() -> Path:
    """$NONLINEARITY_CACHE, or the user's cache folder."""
    named = os.environ.get("NONLINEARITY_CACHE")
    return Path(named or user_cache_path("nonlinearity-budget", appauthor=False)) / "third"


@contextlib.contextmanager
def whole(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target` (a file or folder), which takes the final name only if
    the body ends without an error. Raises InputError where nothing can be written."""
    part = target.parent / f".{secrets.token_hex(4)}.part"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield part
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(part, target)
    except OSError as error:
        raise InputError(
            f"{target.name} could not be written into {target.parent} ({error.strerror or error}): "
            "make room there, or set $NONLINEARITY_CACHE to a folder of your own."
        ) from None
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)


def step(version: int, ignore: tuple[str, ...] = ()) -> Callable[[Callable], Callable]:
    """Decorate a function whose result, a dict of arrays or a DataFrame, is to be kept.

    Arguments named in `ignore` only help to compute (a residual stream that is at hand) and do not
    enter the key. `.recipe(...)` of the decorated function is the key of a call, for what is made
    of its result.
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
            if name is None:
                return _unpack(_pack(function(*args, **kwargs)))
            path = cache_folder() / function.__name__ / f"{name}.npz"
            if path.exists():
                try:
                    with np.load(path, allow_pickle=False) as stored:
                        return _unpack(dict(stored))
                except Exception:  # zipfile and numpy raise a dozen kinds for a damaged entry
                    path.unlink(missing_ok=True)
            arrays = _pack(function(*args, **kwargs))
            with whole(path) as part, open(part, "wb") as file:
                np.savez(file, **arrays)
            return _unpack(arrays)

        kept.recipe = recipe
        return kept

    return decorate


def _recipe(value) -> str | None:
    """How an argument was made, in words; None where that cannot be said."""
    if isinstance(value, str | int | float | bool | type(None) | np.integer | np.floating):
        return repr(value)
    if isinstance(value, Mapping):
        value = [(k, v) for k, v in value.items()]
    if isinstance(value, list | tuple | range):
        parts = [_recipe(v) for v in value]
        return None if None in parts else f"({', '.join(parts)})"
    return getattr(value, "recipe", None)


FRAME = "column:"


def _pack(result: Mapping | pd.DataFrame) -> dict[str, np.ndarray]:
    """Arrays by name; tensors as arrays, a DataFrame as its columns."""
    if isinstance(result, pd.DataFrame):
        columns = {f"{FRAME}{c}": result[c].to_numpy() for c in result}
        return {k: v.astype(str) if v.dtype == object else v for k, v in columns.items()}
    named = {str(k): v for k, v in result.items()}
    return {
        k: v.detach().cpu().numpy() if isinstance(v, torch.Tensor) else np.asarray(v)
        for k, v in named.items()
    }


def _unpack(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray] | pd.DataFrame:
    if arrays and all(k.startswith(FRAME) for k in arrays):
        return pd.DataFrame({k.removeprefix(FRAME): v for k, v in arrays.items()})
    return arrays
