"""What is made once and kept: sealed by a manifest, served while it is what it was, else made
again."""

import json
from collections.abc import Callable, Collection
from pathlib import Path

from filelock import FileLock

from lib.second.base.errors import InputError
from lib.second.base.paths import sha256, unwritable, whole

MANIFEST = "MANIFEST.json"


def kept(target: Path, holds: Callable[[Path], bool], make: Callable[[Path], None]) -> Path:
    """`target`, a file or folder, where it `holds`; else `make(part)` writes it anew, whole or not
    at all, one process at a time.

    What holds is only read: a cache that cannot be written serves what it has, to several users.
    Raises InputError where it must be written and cannot be.
    """
    if _holds(target, holds):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not _holds(target, holds):  # another process may have made it meanwhile
                with whole(target) as part:
                    make(part)
    except InputError:
        raise
    except Exception as error:
        # Libraries written in Rust raise kinds of their own, with the system's words in them.
        if not isinstance(error, OSError) and "(os error " not in str(error):
            raise
        raise unwritable(target, error) from None
    return target


def seal(
    folder: Path,
    made_of: dict[str, str],
    only: Collection[str] = (),
    digest: Callable[[Path], str] = sha256,
) -> None:
    """Write the manifest of a folder, whole, unless it says the same already: what it was made of,
    and the `digest` of every file in it, or `only` of these."""
    files = {name: digest(folder / name) for name in only or _names(folder)}
    text = json.dumps({"made_of": made_of, "files": files}, indent=1, sort_keys=True) + "\n"
    target = folder / MANIFEST
    if not target.is_file() or target.read_bytes() != text.encode():
        with whole(target) as part:
            part.write_bytes(text.encode())


def committed(folder: Path) -> Path:
    """A sealed folder that came with the checkout. Raises InputError unless it is as it came."""
    if name := unlike(folder):
        raise InputError(
            f"{folder.name}/{name} is not as it was committed: restore it with "
            f"`git checkout -- {folder}`, or copy what you changed and give the path of the copy."
        )
    return folder


def unlike(
    folder: Path,
    made_of: dict[str, str] | None = None,
    only: Collection[str] = (),
    digest: Callable[[Path], str] = sha256,
) -> str | None:
    """The first file of a sealed folder that is not as it was sealed, or not there, or not in its
    manifest; None when all is as it was, and made of `made_of` where that is given. `only` and
    `digest` are those of `seal`."""
    files = sealed(folder, made_of)
    if files is None:
        return MANIFEST
    for name in sorted({*files, *(only or _names(folder))}):
        try:
            if files.get(name) != digest(folder / name):
                return name
        except (OSError, ValueError):
            return name
    return None


def sealed(folder: Path, made_of: dict[str, str] | None = None) -> dict[str, str] | None:
    """The digests in a folder's manifest, by file; None where there is no manifest, or a damaged
    one, or one of something else than `made_of`."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = dict(manifest["files"])
        return files if made_of is None or manifest["made_of"] == made_of else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _names(folder: Path) -> list[str]:
    """The files of a folder, at any depth, without the manifest and what file managers leave."""
    files = (p.relative_to(folder) for p in folder.rglob("*") if not p.is_dir())
    names = {p.as_posix() for p in files if not any(part.startswith(".") for part in p.parts)}
    return sorted(names - {MANIFEST})


def _holds(target: Path, holds: Callable[[Path], bool]) -> bool:
    try:
        return holds(target)
    except OSError:  # it cannot be read
        return False
