"""Parameters of a notebook: what they name, and whether they are spelt as it spells them."""

import ast
from collections.abc import Collection

from lib.second.base.errors import InputError, unknown
from lib.second.reports.digest import INJECTED
from lib.second.reports.display import shell
from lib.second.texts.corpora import check_corpus


def blocks_named(blocks: str | int | None, n_blocks: int) -> list[int]:
    """The blocks of a parameter such as "1,10"; None: an early and a deep one, the second and
    the last but one (Whipp §5.5)."""
    if blocks is None or blocks == "":
        return sorted({min(1, n_blocks - 1), max(n_blocks - 2, 0)})
    parts = [part.strip() for part in str(blocks).split(",")]
    if not all(part.isdecimal() and int(part) < n_blocks for part in parts) or len(
        set(parts)
    ) < len(parts):
        raise InputError(
            f"blocks {blocks!r} are not distinct block numbers from 0 to {n_blocks - 1} with "
            f"commas between: give for example '1,{max(n_blocks - 2, 0)}'."
        )
    return [int(part) for part in parts]


def domains_named(domains: str | None, reference: str, usual: Collection[str]) -> list[str]:
    """The corpora of a parameter such as "king-james,python-stdlib", each checked; None: the
    profile's own, without the reference."""
    names = (
        [name.strip() for name in domains.split(",")]
        if domains
        else [name for name in usual if name != reference]
    )
    if reference in names or len(set(names)) < len(names):
        raise InputError(
            f"domains {domains!r} name {reference!r}, the reference, or one corpus twice: "
            "name each other corpus once."
        )
    for name in names:
        check_corpus(name)
    return names


def executed_cells() -> list[str]:
    """Source of the cells that this kernel has executed so far; none outside a notebook."""
    notebook = shell()
    return list(notebook.user_ns.get("In", [])) if notebook else []


def check_parameters(cells: list[str]) -> None:
    """Raise InputError if a cell that papermill injected sets a name that no cell before it set."""
    known: list[str] = []
    for cell in cells:
        try:
            tree = ast.parse(cell)
        except SyntaxError:  # a cell with magics sets no parameters
            continue
        names = [
            t.id
            for node in tree.body
            if isinstance(node, ast.Assign)
            for t in node.targets
            if isinstance(t, ast.Name)
        ]
        if cell.startswith(INJECTED):
            for name in names:
                if name not in known:
                    raise unknown("parameter", name, known)
        known += names
