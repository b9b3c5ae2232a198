"""Where things lie, whole-or-nothing writing, and digests of files."""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from platformdirs import user_cache_path

from lib.second.base.errors import InputError

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "data"
# Caches can be large; a cluster user points this at scratch space.
CACHE = Path(
    os.environ.get("NONLINEARITY_CACHE") or user_cache_path("nonlinearity-budget", appauthor=False)
)
OLD = 3600
"""seconds after which what a writer left unfinished may be swept, if nobody is at it any more"""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_SCRATCH = re.compile(r"\.[0-9a-f]{8}\.(\d+)@(.+)\.part")


@contextlib.contextmanager
def whole(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; it takes the final name only if the body ends without
    an error.

    Works for files and for folders, so nothing half-written ever stands under a final name. The
    result may be read by whom the umask allows, whatever mode the body gave its files. What killed
    writers left beside `target` is swept first. Raises InputError where nothing can be written.
    """
    owner = f"{os.getpid()}@{socket.gethostname()}"
    scratch = target.parent / f".{secrets.token_hex(4)}.{owner}.part"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target.parent)
        scratch.mkdir()
    except OSError as error:
        raise unwritable(target, error) from None
    part = scratch / target.name
    try:
        yield part
        mode = stat.S_IMODE(scratch.stat().st_mode)  # the umask's, or that of the folder's ACL
        for path in (part, *part.rglob("*")):
            path.chmod(mode if path.is_dir() else mode & 0o666)
        if target.is_dir():
            os.replace(target, scratch / ".before")
        os.replace(part, target)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise unwritable(target, error) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def unwritable(target: Path, error: BaseException) -> InputError:
    """The error for a file or folder that could not be written."""
    reason = getattr(error, "strerror", None) or str(error)
    elsewhere = ", or set $NONLINEARITY_CACHE to a folder of your own"
    return InputError(
        f"{target.name} could not be written into {target.parent} ({reason}): make room or give "
        f"yourself the right to write there{elsewhere if CACHE in target.parents else ''}."
    )


def is_old(path: Path) -> bool:
    """Whether a path was not written to for so long that no writer is still at it."""
    return time.time() - path.stat().st_mtime > OLD


def _sweep(folder: Path) -> None:
    """Remove the old temporary folders of writers that were killed.

    Only those of this machine: whether a process runs elsewhere cannot be seen from here.
    """
    for path in folder.glob(".*.part"):
        found = _SCRATCH.fullmatch(path.name)
        if found and found[2] == socket.gethostname() and not _runs(int(found[1])):
            with contextlib.suppress(OSError):  # another sweeper was faster
                if is_old(path):
                    shutil.rmtree(path, ignore_errors=True)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
