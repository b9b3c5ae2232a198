"""A run's folder of results: sealed when the run ends, and held against that by whoever reads it.

data/results/<profile>/<run>/<notebook> holds tables, figures and the run's provenance. Until its
end a run leaves the manifest of the one before, so a folder is what one run left, or is told apart.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Collection
from pathlib import Path

from tqdm import tqdm

from lib.second.base.kept import MANIFEST, seal, sealed, unlike

COLD = "cold time"
PROVENANCE = "provenance.json"
CLOCK = re.compile(rf"{COLD}|\w+_(per_second|microseconds)")
"""facts of a provenance that no second run repeats"""
WRITTEN = (".csv", ".png", ".svg")
"""endings of what a run writes beside its provenance and its manifest"""


def timeless(facts: dict) -> dict:
    """The facts of a provenance without what a clock said."""
    return {name: fact for name, fact in facts.items() if not CLOCK.fullmatch(name)}


def finish(folder: Path, written: Collection[str], code: str) -> None:
    """End a run: what an earlier one left in its folder and it did not write goes, and the
    manifest, written last and whole, says what is there and which code made it.

    `written` are names of files; `code` is the digest of the code cells. Two equal runs write the
    same bytes, for what a clock said is not part of it.
    """
    for path in folder.iterdir():
        if path.suffix in WRITTEN and path.name not in written and not path.name.startswith("."):
            path.unlink()
    seal(folder, {"code": code}, digest=_content)


def is_sealed(folder: Path) -> bool:
    """Whether a folder of results has a manifest, which may be damaged."""
    return (folder / MANIFEST).exists()


def fault(folder: Path) -> str | None:
    """What is not as its run left it in a sealed folder of results, in words; None where all is,
    and where there is no manifest to tell by."""
    if not is_sealed(folder) or not (name := unlike(folder, digest=_content)):
        return None
    if name == MANIFEST:
        return "its manifest is damaged"
    if not (folder / name).exists():
        return f"{name} is missing"
    return f"{name} is {'changed' if name in (sealed(folder) or ()) else 'not of its run'}"


def usable(folder: Path) -> bool:
    """Whether results may be read: they are as their run left them. If not, one sentence says why
    not, and the way out.

    A folder without a manifest is read, and said to be unsealed: an earlier version made it, whose
    results are worth having, or its run did not end.
    """
    profile, run, notebook = folder.parts[-3:]
    name = f"{profile}/{run}/{notebook}"
    again = f"`make notebook N={notebook[:2]} PROFILE={profile}` with its model, corpus and seed"
    if not is_sealed(folder):
        tqdm.write(
            f"{name} has no manifest, for its run did not end or an earlier version made it: it is "
            f"read as it stands; {again} seals it."
        )
        return True
    if why := fault(folder):
        tqdm.write(
            f"{name} is left out, for {why}: run it again ({again}), or, if it came with the "
            f"checkout, restore it with `git checkout -- data/results/{name}`"
            f"{' and take that file away' if why.endswith('not of its run') else ''}."
        )
        return False
    return True


def _content(path: Path) -> str:
    """SHA-256 of a file; of a provenance, that of its timeless facts."""
    content = path.read_bytes()
    if path.name == PROVENANCE:
        with contextlib.suppress(ValueError, AttributeError, RecursionError):  # damaged
            content = json.dumps(timeless(json.loads(content)), sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()
