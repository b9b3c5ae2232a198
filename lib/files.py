"""Files that are whole or not there, and the folders of the repository and of the user's cache.

What is written gets its name when it is whole; what cannot be read is left as it is; what is
damaged is set aside; what cannot be kept is handed back.
"""

import contextlib
import functools
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from hashlib import sha256
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
        say_unread(path, error)
        return None


def say_unread(path: Path, error: OSError | MemoryError) -> None:
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
def handed_back_all_the_same() -> Iterator[None]:
    """While open, what cannot be written is said, and nothing else happens."""
    try:
        yield
    except (InputError, OSError, NotImplementedError) as error:  # file systems without locks
        say_once(f"a result is used and not kept: {error}")
