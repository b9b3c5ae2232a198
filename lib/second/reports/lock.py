"""One series at a time in a folder, and a clean start after one that was killed."""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from lib.second.base import InputError


@contextlib.contextmanager
def only_one(home: Path) -> Iterator[int]:
    """Hold the lock of a runs/<profile> folder; yields its descriptor, for a child that is to
    hold it too. The system frees it when they end, however they end. Raises InputError if another
    process holds it."""
    home.mkdir(parents=True, exist_ok=True)
    with open(home / ".lock", "a+") as file:
        for attempt in range(10):  # what a killed series left behind needs a moment to end
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == 9:
                    file.seek(0)
                    raise InputError(
                        f"a series is already on here ({file.read().strip()}): wait until it is "
                        "done, or stop it with Ctrl-C."
                    ) from None
                time.sleep(0.2)
        file.truncate(0)
        file.write(f"{home.name} since {time.strftime('%H:%M:%S')}, process {os.getpid()}\n")
        file.flush()
        yield file.fileno()


def sweep(home: Path, results: Path) -> None:
    """Remove what a killed series left half-written in its folders."""
    for path in [*home.rglob("*.part.*"), *home.rglob(".*.*")]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif ".part." in path.name:
            path.unlink(missing_ok=True)
    hour_ago = time.time() - 3600  # another notebook may be writing there now
    for path in results.rglob(".*.*"):
        if path.is_dir() and path.stat().st_mtime < hour_ago:
            shutil.rmtree(path, ignore_errors=True)
