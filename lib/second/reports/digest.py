"""What a report depends on, as digests: light, for every job of a series reads this file."""

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from lib.second.base import ROOT, whole

INJECTED = "# Parameters"
"""what the cell begins with that papermill adds"""


def source_of(cell: Mapping) -> str:
    """The text of a cell, which a file may hold as a list of lines."""
    return "".join(cell["source"])


def code_digest(notebook: Mapping) -> str:
    """Digest of what the code cells do, in order, without papermill's injected one.

    Imports, comments and layout are left out: a file of lib that moves, or a line that is set anew,
    asks for no new execution.
    """
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    injected = lambda cell: "injected-parameters" in cell["metadata"].get("tags", [])
    return cells_digest(source_of(cell) for cell in code if not injected(cell))


def cells_digest(cells: Iterable[str]) -> str:
    """The same of the source of cells in the order in which a kernel executed them: the digest of
    their notebook where that was from top to bottom."""
    state = hashlib.sha256()
    for source in cells:
        if source.startswith(INJECTED):
            continue
        try:
            steps = ast.parse(source).body
        except SyntaxError:  # a cell that did nothing
            continue
        steps = [s for s in steps if not isinstance(s, ast.Import | ast.ImportFrom)]
        state.update("".join(map(ast.dump, steps)).encode())
    return state.hexdigest()


def note_sources(folder: Path, notebooks: list[str]) -> None:
    """Write <notebook>.json with the digests of its code, of its prose and of lib into `folder`,
    only where one changed: a report is out of date when its file here is newer than itself, so a
    `touch`, a fresh checkout or new outputs of a notebook run nothing again."""
    lib = hashlib.sha256()
    for path in sorted((ROOT / "lib").rglob("*.py")):
        lib.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    for name in notebooks:
        notebook = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text())
        prose = [source_of(c) for c in notebook["cells"] if c["cell_type"] == "markdown"]
        digests = {
            "code": code_digest(notebook),
            "prose": hashlib.sha256("\0".join(prose).encode()).hexdigest(),
            "lib": lib.hexdigest(),
        }
        text = json.dumps(digests, indent=1) + "\n"
        target = folder / f"{name}.json"
        if not target.exists() or target.read_text() != text:
            with whole(target) as part:
                part.write_text(text)
