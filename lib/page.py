"""A report as it is read: what our commands put into its first cell, and what they leave out when
another run than the committed one is shown.

The words of a page were written by a person about the committed run: cells with the tag `answer`
(the first) or `reading`. Nothing here writes a sentence.
"""

import copy
import html
import json
import os
import re
from pathlib import Path

import latex2mathml.converter
import nbformat
from nbconvert import HTMLExporter

from lib.errors import InputError
from lib.models.names import COMMITTED, MODEL_NOTES, PROFILES, label
from lib.store import DATA, atomic_write

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


def found_in(folder: Path) -> dict:
    """{claim: what a run found}, of the run whose results are in a folder."""
    import pandas as pd  # these take seconds to load, and most reports have no claims

    from lib.stats import Contrast, Interval

    path = folder / "claims.csv"
    if not path.exists():
        return {}

    def part(row, name: str):
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
    from lib import paper

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
    import pandas as pd

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


def as_read(done, name: str, parameters: dict, target: Path):
    """A finished report as it is read: what is written about the committed run is left out of
    another one's, which gets a first cell of its own."""
    if not is_new(done):
        return done
    from lib.report import Run  # takes ten seconds to load

    usual = PROFILES[parameters["profile"]]
    chosen = {what: parameters.get(what) or usual[what] for what in ("model", "corpus")}
    run = Run(name, parameters["profile"], chosen["model"], chosen["corpus"], parameters["seed"])
    about = {"folder": run.folder, "profile": run.profile, **chosen}
    cells = of_another_run(done.cells, name, about, target)
    done.cells = [nbformat.from_dict(cell) for cell in cells]
    return done


FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\\$\w])\$([^\s$](?:[^$\n]*[^\s$\\])?)\$(?!\w)", re.DOTALL)
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def html_of(notebook, title: str) -> str:
    """An executed notebook as a page of its own, without scripts from elsewhere: formulas as
    MathML, which browsers draw themselves."""

    def as_mathml(found: re.Match) -> str:
        display = "block" if found[1] else "inline"
        return latex2mathml.converter.convert(found[1] or found[2], display=display)

    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts = CODE.split(cell.source)  # every second one is code
            parts[::2] = [FORMULA.sub(as_mathml, part) for part in parts[::2]]
            cell.source = "".join(parts)
    exporter = HTMLExporter(
        exclude_input_prompt=True, require_js_url="", mermaid_js_url="", mathjax_url=""
    )
    body, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": title}})
    return body


def write_index(folder: Path) -> None:
    """index.html of a series: what is finished, with its answer."""
    rows = []
    for report in sorted(folder.glob("[0-9]*.html")):
        notebook = report.with_suffix(".ipynb")
        if not notebook.exists():  # it is being made anew
            continue
        content = json.loads(notebook.read_text("utf-8"))
        cells = content["cells"]
        title = "".join(cells[0]["source"]).splitlines()[0].lstrip("# ")
        outputs = [o for c in cells[1:3] for o in c.get("outputs", [])]
        texts = ["".join(o.get("data", {}).get("text/markdown", "")) for o in outputs]
        answer = next((t for t in texts if "answer" in t.lower()), "")
        answer = html.escape(re.sub(r"[>*]+|The answer\.", "", answer).strip())
        rows.append(
            f'<li><a href="{report.name}">{report.stem[:2]} {html.escape(title)}</a><br>{answer}'
        )
    page = (
        '<!doctype html><meta charset="utf-8"><title>The Nonlinearity Budget</title>'
        '<body style="font: 16px/1.5 sans-serif; max-width: 48em; margin: 2em auto">'
        f"<h1>The Nonlinearity Budget</h1><p>{folder.name}: {len(rows)} finished</p>"
        f"<ol style='list-style: none'>{''.join(rows)}</ol>"
    )
    with atomic_write(folder / "index.html") as part:
        part.write_text(page, encoding="utf-8")
