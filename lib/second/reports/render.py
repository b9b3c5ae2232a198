"""Execute notebooks in place: what `make render` does with the committed ones.

Papermill does the work; here are only the rules that a committed notebook keeps: what stands in it
is what was executed, no widgets, no injected cell, no progress bar, a digest of the executed
code, and not a byte new where nothing new is said.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import nbformat

from lib.second.base.errors import InputError, unknown
from lib.second.base.paths import ROOT, sha256, whole
from lib.second.reports.digest import code_digest
from lib.second.reports.keep import drop_bars, keep
from lib.second.reports.plan import asked
from lib.second.reports.report import COMMITTING


def find(number: str) -> list[Path]:
    """Notebooks whose name begins with `number`; all, tour last, if it is empty. Raises
    InputError if there is none."""
    every = sorted(
        (ROOT / "notebooks").glob("*.ipynb"), key=lambda p: (p.name.startswith("00"), p.name)
    )
    found = [p for p in every if p.name.startswith(number)]
    if not found:
        raise unknown("notebook number", number, [p.name[:2] for p in sorted(every)])
    return found


def execute(source: Path, target: Path, options: list[str], **environment: str) -> None:
    """Run one notebook with papermill, headless, from the repository's root."""
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "papermill",
        "--log-level",
        "WARNING",
        *options,
        str(source),
        str(target),
    ]
    if subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}).returncode:
        raise SystemExit(
            f"{source.name} stopped; the executed part is in "
            f"{target.relative_to(ROOT)}.\n{_reason(target)}"
        )


def _reason(executed: Path) -> str:
    """The error a notebook stopped with, without its traceback."""
    outputs = (
        [o for c in nbformat.read(executed, as_version=4).cells for o in c.get("outputs", [])]
        if executed.exists()
        else []
    )
    return next(
        (f"{o.ename}: {o.evalue}" for o in outputs if o.output_type == "error"), "it did not start"
    )


def tidy(notebook) -> None:
    """Make an executed notebook fit to be committed, in place."""
    drop_bars(notebook)
    notebook.metadata.pop("widgets", None)
    notebook.metadata.pop("papermill", None)
    notebook.metadata["executed_code_sha256"] = code_digest(notebook)
    # The exact Python version would change the file on every machine; the provenance line has it.
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        for name in ("papermill", "execution"):
            cell.metadata.pop(name, None)
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = "\n".join(line.rstrip() for line in output.text.splitlines()) + "\n"
            output.get("metadata", {}).pop("papermill", None)
        _describe(cell)


def _describe(cell) -> None:
    """Hand the alternative texts of a cell's pictures to myst-nb, which reads them there alone."""
    if "image" in cell.metadata.get("mystnb", {}):
        cell.metadata["mystnb"]["image"].pop("alt", None)
    found = [o.get("metadata", {}).get("image/png", {}).get("alt") for o in cell.get("outputs", [])]
    alt = " ".join(filter(None, found))
    if alt:
        cell.metadata.setdefault("mystnb", {}).setdefault("image", {})["alt"] = alt


def number(notebook) -> None:
    """Count the executed cells from 1, in place: kept outputs may carry an older count."""
    executed = [c for c in notebook.cells if c.cell_type == "code" and c.execution_count]
    for count, cell in enumerate(executed, start=1):
        cell.execution_count = count
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count


BLEMISH = re.compile(rf"\w*Warning:|{re.escape(str(ROOT))}|(?<![\w.])/(home|root|tmp)/")


def check(notebook, name: str) -> None:
    """Raise InputError if a warning or a path of this machine stands in what the notebook
    prints."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = {k: v for k, v in output.get("data", {}).items() if k != "image/png"}
            printed = json.dumps([output.get("text", ""), data], ensure_ascii=False)
            blemish = BLEMISH.search(printed)
            if blemish:
                raise InputError(
                    f"{name} prints {blemish[0]!r}: print names, not absolute paths, and let no "
                    "warning through."
                )


def commit(source: Path) -> str:
    """Execute a notebook with its own parameters, put the executed one in its place, whole or not
    at all, and say whether that changed anything, with sizes."""
    scratch = ROOT / "runs" / "render" / source.name
    figures = ROOT / "figures"
    before = _digests(figures, source.stem)
    execute(source, scratch, [], **{COMMITTING: "1"})
    notebook, committed = (nbformat.read(path, as_version=4) for path in (scratch, source))
    tidy(notebook)
    check(notebook, source.name)
    keep(notebook, committed)
    number(notebook)
    changed = notebook != committed
    if changed:
        with whole(source) as part:
            part.write_text(nbformat.writes(notebook) + "\n")
    after = _digests(figures, source.stem)
    rewritten = [path for path in after if after[path] != before.get(path)]
    return (
        f"{source.name}: {'rewritten' if changed else 'unchanged'}, {_kb([source])}; "
        f"{len(rewritten)} of {len(after)} figure files rewritten, {_kb(after)}"
    )


def _digests(folder: Path, stem: str) -> dict[Path, str]:
    return {path: sha256(path) for path in sorted(folder.glob(f"{stem}*"))}


def _kb(paths: Iterable[Path]) -> str:
    return f"{sum(path.stat().st_size for path in paths) / 1000:.0f} kB"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lib.second.reports.render", description=__doc__.splitlines()[0]
    )
    parser.add_argument("action", choices=["commit"])
    parser.add_argument("name", nargs="?", default="", help="first digits of a notebook's name")
    asked(os.environ)  # make render n=01 would render them all
    for source in find(parser.parse_args(arguments).name):
        print(commit(source), flush=True)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(str(error)) from None
