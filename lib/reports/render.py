"""Execute notebooks in place: what `make render` does with the committed ones.

Papermill does the work; here are only the rules that a committed notebook keeps: what stands in it
is what was executed, no widgets, no injected cell, one line of each progress bar, and a digest of
the executed code.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
from nbconvert.preprocessors import CoalesceStreamsPreprocessor

from lib.base.errors import InputError, unknown
from lib.base.paths import DATA, ROOT, whole
from lib.reports.digest import code_digest
from lib.reports.report import COMMITTING


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
    CoalesceStreamsPreprocessor().preprocess(notebook, {})
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


def commit(source: Path) -> None:
    """Execute a notebook with its own parameters and put the executed one in its place, whole or
    not at all."""
    scratch = ROOT / "runs" / "render" / source.name
    execute(source, scratch, [], **{COMMITTING: "1"})
    notebook = nbformat.read(scratch, as_version=4)
    tidy(notebook)
    text = nbformat.writes(notebook) + "\n"
    if str(ROOT) in text:
        raise InputError(
            f"{source.name} prints a path of this machine ({ROOT}): print names, not "
            "absolute paths."
        )
    with whole(source) as part:
        part.write_text(text)
    readme = ROOT / "README.md"
    with whole(readme) as part:
        part.write_text(with_scorecard(readme.read_text()))


def with_scorecard(readme: str) -> str:
    """The README with data/results/scorecard.csv as a table between its two markers."""
    begin, end = "<!-- scorecard: written by make render -->\n", "<!-- end of scorecard -->"
    path = DATA / "results" / "scorecard.csv"
    if not path.exists() or readme.count(begin) != 1 or end not in readme.split(begin)[1]:
        return readme
    rows = pd.read_csv(path, keep_default_na=False)[
        ["paper", "section", "claim", "published", "here", "verdict"]
    ]
    lines = [
        "| " + " | ".join(str(c).replace("|", "\\|").replace("\n", " ") for c in row) + " |"
        for row in [rows.columns, ["---"] * rows.shape[1], *rows.to_numpy()]
    ]
    head, rest = readme.split(begin)
    return head + begin + "\n".join(lines) + "\n" + end + rest.split(end, 1)[1]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lib.reports.render", description=__doc__.splitlines()[0]
    )
    parser.add_argument("action", choices=["commit"])
    parser.add_argument("name", nargs="?", default="", help="first digits of a notebook's name")
    for source in find(parser.parse_args(arguments).name):
        commit(source)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(str(error)) from None
