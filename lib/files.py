"""A file that is whole or not there, and the folder of the cache."""

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from platformdirs import user_cache_path

from lib.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "data"


@contextlib.contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target` (a file or folder), which takes the final name only if
    the body ends without an error. Raises InputError where nothing can be written."""
    part = target.parent / f".{secrets.token_hex(4)}.part"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_left_over(target.parent)
        yield part
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(part, target)
    except OSError as error:
        if error.errno is None:  # a library's own error in the body, not the system's
            raise
        raise InputError(
            f"{target.name} could not be written into {target.parent} ({error.strerror or error}): "
            "make room there, or set $NONLINEARITY_CACHE to a folder of your own."
        ) from None
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)


def _remove_left_over(folder: Path) -> None:
    """Remove what killed writes left in a folder: parts that nobody has written to for a day."""
    for part in folder.glob(".*.part"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > 86_400:
                shutil.rmtree(part) if part.is_dir() else part.unlink()


def cache_folder() -> Path:
    """$NONLINEARITY_CACHE, or the user's cache folder."""
    named = os.environ.get("NONLINEARITY_CACHE")
    return Path(named or user_cache_path("nonlinearity-budget", appauthor=False)) / "fifth"
