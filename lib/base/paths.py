"""Where things lie, whole-or-nothing writing, and digests of files."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from platformdirs import user_cache_path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data"
# Caches can be large; a cluster user points this at scratch space.
CACHE = Path(
    os.environ.get("NONLINEARITY_CACHE") or user_cache_path("nonlinearity-budget", appauthor=False)
)


@contextlib.contextmanager
def whole(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; it takes the final name only if the body ends without
    an error.

    Works for files and for folders, so nothing half-written ever stands under a final name.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield scratch / target.name
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(scratch / target.name, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
