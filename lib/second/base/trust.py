"""Who can have written what is about to be unpickled: loading a pickle runs what it says."""

import os
import stat
from pathlib import Path

from lib.second.base.paths import ROOT

OTHERS = stat.S_IWGRP | stat.S_IWOTH


def doubt(store: Path, *place: str) -> str | None:
    """Why an entry at `place` in a store of pickles may be a stranger's; None where it cannot be.

    - The store lies outside the checkout, for nothing that came with that is unpickled.
    - Store, step, entry and its file, as far as they are there, belong to the store's owner, to
      this user or to root, and nobody else may write them; links are not followed.
    - The store is this user's or root's; or it is another user's (a warm cache that is shared, and
      that one points to), and then all folders above it are just as closed. A folder in which
      everyone may make new ones, such as /tmp, does not do: a name that is expected can be taken.
    """
    store = store.resolve()
    if ROOT in store.parents:
        return "it lies inside the checkout, and nothing that came with that is unpickled"
    try:
        owner = store.lstat().st_uid
    except OSError:  # there is no such folder yet
        return None
    trusted = {owner, os.getuid(), 0}
    above = list(store.parents) if owner not in (os.getuid(), 0) else []
    inside = [store.joinpath(*place[:n]) for n in range(len(place) + 1)]
    for path in (*above, *inside):
        try:
            found = path.lstat()
        except OSError:
            continue
        name = str(path.relative_to(store.parent)) if path in inside else "the folders above it"
        if found.st_uid not in trusted:
            return f"{name} belongs to another user than the store"
        if found.st_mode & OTHERS:
            return f"others than the owner may write {name}"
    return None
