"""A report as it is read: what our commands put into its first cell, and what they leave out when
another run than the committed one is shown.

The words of a page were written by a person about the committed run: cells with the tag `answer`
(the first) or `reading`. Nothing here writes a sentence.
"""

import os
import re
from pathlib import Path

import pandas as pd

from lib import paper
from lib.errors import InputError
from lib.files import DATA
from lib.models.names import COMMITTED, label
from lib.report import MODEL_NOTES
from lib.stats import Contrast, Interval

MARKERS = ("<!-- claims -->", "<!-- /claims -->")
NUMBER = re.compile(r"(?<![\w.–-])[+−×]?\d[\d,]*(?:\.\d+)?%?(?![\w-]|\.\d)")
NOT_MEASURED = re.compile(
    r"blocks? \d+(?:[–,]? ?(?:and )?\d+)*|§ ?[\d.]+|\]\([^)]*\)|Tables? \d+|Figures? \d+|\d+-bit"
    r"|\bnotebooks? \d+|95%"
)
"""numbers that name something: a block, a section, a link, the level of an interval"""


def is_new(notebook: dict) -> bool:
    """Whether a notebook is in the form of the fifth edition."""
    return "answer" in notebook["cells"][0]["metadata"].get("tags", [])


def found_in(folder: Path) -> dict[str, Contrast]:
    """{claim: what a run found}, of the run whose results are in a folder."""
    path = folder / "claims.csv"
    if not path.exists():
        return {}

    def part(row: pd.Series, name: str) -> Interval | None:
        ends = [row.get(column) for column in (name, f"{name} low", f"{name} high")]
        return None if pd.isna(ends[0]) else Interval(*map(float, ends))

    found = {}
    for _, row in pd.read_csv(path).iterrows():
        value = part(row, "value") or Interval(*[float("nan")] * 3)
        found[row["id"]] = Contrast(value, part(row, "against"), part(row, "difference"))
    return found


def claims_table(notebook: str, model: str, folder: Path, is_committed: bool) -> str:
    """The table of claims of a run in Markdown: the paper, this run, what it is set against, the
    other committed models; readings only where the run is the committed one."""
    own = found_in(folder)
    others = {m: found_in(_results(m, notebook)) for m in COMMITTED if m != model}
    others = {m: theirs for m, theirs in others.items() if theirs}
    column = model if others or model not in COMMITTED else "here"  # of what is trained here
    lines = []
    for id, found in own.items():
        row = paper.claim(id, notebook)
        cells = paper.in_cells(row, found)
        line = {"the paper says": f"{row.claim} ({row.section})" if row.section else row.claim}
        line |= {"paper": row.paper_prints or "–", column: cells["here"]}
        line |= {"against": cells["against"]}
        for other, theirs in others.items():
            line[other] = paper.in_one_cell(row, theirs[id]) if id in theirs else "–"
        if is_committed:
            displayed = cells | {other: line[other] for other in others}
            line["reading"] = paper.reading_of(row, model, displayed, found)
        lines.append(line)
    return paper.markdown_table(lines) if lines else ""


def _results(model: str, notebook: str) -> Path:
    return DATA / "results" / "study" / model / notebook


def with_table(source: str, table: str) -> str:
    """A first cell with this table of claims between its markers. Raises InputError without
    markers."""
    begin, end = MARKERS
    if source.count(begin) != 1 or source.count(end) != 1:
        raise InputError(f"the first cell has no place for its table: put {begin} and {end} there.")
    before, rest = source.split(begin)
    return f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"


def of_another_run(cells: list[dict], notebook: str, run: dict, page: Path) -> list[dict]:
    """The cells of a page of another model, text or profile than the committed one: the title, this
    run's main figure and its claims in the first cell, and no cell that a person wrote about the
    committed run. `run`: folder, model, profile, corpus."""
    title = "".join(cells[0]["source"]).splitlines()[:2]
    model = MODEL_NOTES.get(run["model"], run["model"])
    parts = ["\n".join(title), f"{model}, profile {run['profile']}, {run['corpus']}."]
    figure = Path(run["folder"]) / f"{notebook[:2]}_main.png"
    if figure.exists():
        parts.append(f"![The main figure]({os.path.relpath(figure, page.parent)})")
    name = label(run["model"])
    if table := claims_table(notebook, name, Path(run["folder"]), is_committed=False):
        parts.append("\n".join([MARKERS[0], table, MARKERS[1]]))
    first = cells[0] | {"source": "\n\n".join(parts)}
    rest = [c for c in cells[1:] if "reading" not in c["metadata"].get("tags", [])]
    return [first, *rest]


def answer_of(notebook: dict) -> str:
    """The answer of a page in the new form, without its label."""
    source = "".join(notebook["cells"][0]["source"])
    found = re.search(r"\*\*Answer\.?\*\*(.*?)(?:\n\n|$)", source, re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def numbers_in(text: str) -> list[str]:
    """The numbers that a text states, as written; those that name a block, a section or a model are
    none."""
    return NUMBER.findall(NOT_MEASURED.sub(" ", text))


def unsupported(words: str, *tables: str) -> list[str]:
    """Numbers of `words` that stand, as written, in none of the tables."""
    known = {number for table in tables for number in NUMBER.findall(table)}
    return [number for number in numbers_in(words) if number not in known]


def check_numbers(notebook: dict, folder: Path) -> None:
    """Raise InputError where the answer or a doubt quotes a number that stands neither in the
    page's table of claims nor in its table `quoted`."""
    source = "".join(notebook["cells"][0]["source"])
    begin, end = MARKERS
    words = source.split("**Answer", 1)[1].split("![", 1)[0]
    table = source.split(begin)[1].split(end)[0]
    quoted = folder / "quoted.csv"
    further = "\n".join(pd.read_csv(quoted, dtype=str).value) if quoted.exists() else ""
    if missing := unsupported(words, table, further):
        raise InputError(
            f"{', '.join(missing)} in the answer or its doubts stands in no table of the page: "
            "quote it with run.quote, or leave it out."
        )
