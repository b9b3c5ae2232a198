"""Executed notebooks as a static site: `make site` for the committed ones, and the pages of
`make report`.

Sphinx and myst-nb do the work (notebooks/conf.py, lib/reports/extension.py). Nothing is executed.
"""

import argparse
import io
import shutil
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from lib.second.base.errors import InputError
from lib.second.base.paths import ROOT
from lib.second.reports.page import Page

HOME = ROOT / "notebooks"
"""where conf.py and the start page stand"""


def build_site(notebooks: Sequence[Path], target: Path, results: Path | None = None) -> Path:
    """Make the pages of executed `notebooks` in the folder `target`; return its start page.

    `results` is the folder data/results/<profile> whose claims belong to them; None: the committed
    scorecard. Notebooks of runs, <run>/<notebook>.ipynb, become pages in a folder of their run.
    What has not changed since the last call is not read again; several calls may come at once. A
    notebook that is missing or only half written is named on the start page. Raises InputError if
    there is none to show, or for a page that Sphinx cannot make.
    """
    from sphinx.application import Sphinx
    from sphinx.errors import SphinxError
    from sphinx.util.console import strip_escape_sequences

    target = Path(target).resolve()
    work = target / ".build"
    work.mkdir(parents=True, exist_ok=True)
    with FileLock(work / "lock"):
        missing = stage([Path(n) for n in notebooks], work / "source")
        said = io.StringIO()
        settings = {
            "nonlinearity_results": str(Path(results).resolve()) if results else None,
            "nonlinearity_missing": missing,
        }
        try:
            app = Sphinx(
                work / "source",
                HOME,
                target,
                work / "doctrees",
                "html",
                confoverrides=settings,
                status=None,
                warning=said,
            )
            # The contents stand on every page, so every page is written; only changes are read.
            app.build(force_all=True)
        except SphinxError as error:
            raise InputError(f"the site cannot be made: {error}.") from error
    if said.getvalue():
        print(strip_escape_sequences(said.getvalue()).strip())
    return target / "index.html"


def stage(notebooks: Sequence[Path], source: Path) -> list[str]:
    """Lay the start page and the whole ones of `notebooks` out under `source`, changed files only,
    nothing else; return the names of the others."""
    source.mkdir(parents=True, exist_ok=True)
    wanted, missing = {source / "index.md": HOME / "index.md"}, []
    for path in notebooks:
        place = path.name if path.parent.resolve() == HOME else f"{path.parent.name}/{path.name}"
        try:
            Page.of(path, path.parent)
        except InputError:
            missing.append(place.removesuffix(".ipynb"))
        else:
            wanted[source / place] = path
    if len(wanted) == 1:
        raise InputError(
            f"none of {len(notebooks)} notebooks can be shown: run at least one, for example with "
            "make notebook N=01."
        )
    for old in {*source.glob("*.ipynb"), *source.glob("*/*.ipynb")} - set(wanted):
        old.unlink()
    for new, path in wanted.items():
        if not new.exists() or new.stat().st_mtime != path.stat().st_mtime:
            new.parent.mkdir(exist_ok=True)
            shutil.copy2(path, new)
    return missing


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lib.second.reports.site", description=__doc__.splitlines()[0]
    )
    parser.add_argument("notebooks", nargs="*", type=Path, help="none: the committed ones")
    parser.add_argument("--target", type=Path, default=ROOT / "site", help="folder of the pages")
    parser.add_argument("--results", type=Path, help="data/results/<profile> of these notebooks")
    given = parser.parse_args(arguments)
    page = build_site(given.notebooks or sorted(HOME.glob("*.ipynb")), given.target, given.results)
    print(f"read {page.relative_to(Path.cwd()) if page.is_relative_to(Path.cwd()) else page}")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(str(error)) from None
