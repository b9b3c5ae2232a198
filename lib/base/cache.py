"""One on-disk cache for the expensive steps: joblib.Memory, plus what it leaves open.

joblib keys an entry on the arguments and on the source of the cached function alone. Here the key
also holds the source of
every module of this package that the function's module imports, and each entry carries a digest of
its value, so changed
code misses and a damaged entry is removed and computed again.
"""

import ast
import functools
import hashlib
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path

import joblib
import numpy as np
import torch

from lib.base.paths import CACHE

# A damaged entry is handled below; joblib's own warning would only repeat that with a traceback.
logging.getLogger("joblib").setLevel(logging.ERROR)


@functools.cache
def code_digest(module: str) -> str:
    """Digest of the source of `module` and of all modules of its package that it imports,
    directly or not."""
    package = module.partition(".")[0]
    seen: dict[str, bytes] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        spec = importlib.util.find_spec(name)
        if name in seen or spec is None or spec.origin is None:
            continue
        seen[name] = Path(spec.origin).read_bytes()
        for node in ast.walk(ast.parse(seen[name])):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
            todo += [n for n in names if n.startswith(package + ".") and _is_module(n)]
    return hashlib.sha256(b"".join(seen[k] for k in sorted(seen))).hexdigest()


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def digest(value: object) -> str:
    """A stable digest of arrays, tensors, dataclasses and plain values."""
    return joblib.hash(_plain(value))


def _plain(value: object) -> object:
    """`value` with tensors as arrays: joblib hashes arrays by content, but tensors by an
    unstable pickle."""
    if isinstance(value, torch.nn.Module):
        return _plain(dict(value.state_dict()))
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(
        value, np.ndarray
    ):  # joblib's digest also sees strides, which do not survive storing
        return np.ascontiguousarray(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def cached(function: Callable) -> Callable:
    """Cache `function(key, work)` on disk under `key` (plain values only); `work` is what cannot be
    hashed.

    The function must return arrays, numbers, strings, or dicts and lists of them.
    """

    def compute(key, code, work):
        value = _plain(function(work))
        return {"value": value, "digest": digest(value)}

    compute.__name__ = compute.__qualname__ = function.__qualname__.replace(".", "_")
    compute.__module__ = function.__module__

    @functools.wraps(function)
    def call(key: dict, work: object):
        # The store is opened at each call, so that tests can point CACHE elsewhere; joblib makes
        # that cheap.
        memory = joblib.Memory(CACHE / "results", verbose=0)
        store = memory.cache(compute, ignore=["work"])
        code = code_digest(function.__module__)
        entry = store(_plain(key), code, work)
        if not isinstance(entry, dict) or digest(entry.get("value")) != entry.get("digest"):
            store.call_and_shelve(_plain(key), code, work).clear()
            entry = store(_plain(key), code, work)
        return entry["value"]

    return call


def cold_seconds() -> dict[str, float]:
    """Seconds that each cached step of this process took when it was computed, by the step's
    name."""
    return {}


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A tensor as an array, for storing."""
    return tensor.detach().cpu().numpy()
