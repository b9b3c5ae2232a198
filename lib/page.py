"""A report as it is read: what our commands put into its first cell, and what they leave out when
another run than the committed one is shown.

The words of a page were written by a person about the committed run: cells with the tag `answer`
(the first) or `reading`. Nothing here writes a sentence. A number with an interval that they quote
is one of the run's summary, and the words are pinned to the summary that was read: its digest
stands in the first cell's metadata.
"""

import copy
import csv
import hashlib
import html
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from lib.errors import InputError
from lib.files import DATA, atomic_write
from lib.models.names import COMMITTED, MODEL_NOTES, TRAINED_HERE, label

# The summary of a run, and the words that rest on it

QUOTED = re.compile(
    r"(?<![\w.])(?P<value>[−-]?×?\d[\d,.]*(?:e\d+)?)%?(?P<unit>(?: [^\W\d][^\d\[\]|()]{0,40})?)"
    r" \[(?P<low>[−-]?\d[\d,.e]*), (?P<high>[−-]?\d[\d,.e]*)\]"
)
"""a number with its interval: 0.023 nats a token [0.010, 0.035]"""


def summary_in(folder: Path) -> dict[str, tuple[str, str]]:
    """{quantity: (unit, value as shown)} of the run whose results are in a folder; {} without."""
    path = folder / "summary.csv"
    if not path.exists():
        return {}
    with open(path, encoding="utf-8", newline="") as file:
        return {row["quantity"]: (row["unit"], row["shown"]) for row in csv.DictReader(file)}


def committed_summaries(notebook: str) -> dict[str, dict[str, tuple[str, str]]]:
    """{model: its summary} of a page's committed runs; what is trained here has one column, "here".
    Raises InputError for a summary of another profile than `study`."""
    found = {}
    for model in COMMITTED:
        folder = _results(model, notebook)
        run_facts = folder / "provenance.json"
        if (summary := summary_in(folder)) and run_facts.exists():  # else it was stopped
            facts = json.loads(run_facts.read_text("utf-8"))
            if facts["profile"] != "study":
                raise InputError(
                    f"{model}'s summary of {notebook} is of the profile {facts['profile']}, and "
                    f"the words are about study: make render N={notebook[:2]}."
                )
            found["here" if notebook[:2] in TRAINED_HERE else model] = summary
    return found


def side_by_side(summaries: dict[str, dict[str, tuple[str, str]]]) -> list[dict[str, str]]:
    """Rows of the first summary's quantities: quantity, a column a run, unit."""
    first = next(iter(summaries.values()))
    return [
        {"": quantity}
        | {run: summary.get(quantity, ("", ""))[1] for run, summary in summaries.items()}
        | {"unit": "" if unit == "1" else unit}
        for quantity, (unit, _) in first.items()
    ]


def pin_of(notebook: str) -> str:
    """A digest of all that the committed summaries of a page show."""
    shown = [
        f"{model} | {quantity} | {value}"
        for model, summary in committed_summaries(notebook).items()
        for quantity, (_, value) in summary.items()
    ]
    return hashlib.sha256("\n".join(shown).encode()).hexdigest()[:12]


def unread(notebook: dict, name: str) -> str:
    """Why a page has to be read again by a person, or ""."""
    if notebook["cells"][0]["metadata"].get("summary") == pin_of(name):
        return ""
    return (
        f"{name}: numbers of its summary changed since its words were written: read the page, "
        f"mend it, then make read N={name[:2]}"
    )


def unquotable(notebook: dict, name: str) -> list[str]:
    """A sentence for each number with an interval, in the top or a reading, that is not the whole
    of a row of the summary, of the model that its sentence or the head of its column names."""
    known = {
        model: {_as_compared(found) for _, shown in summary.values() if (found := _quoted(shown))}
        for model, summary in committed_summaries(name).items()
    }
    faults = []
    for said, about in _said_in(notebook):
        named = [m for m in known if m.partition("-")[0] in about.lower()]
        of_models = [named[0]] if len(named) == 1 else [*known]
        for found in QUOTED.finditer(said):
            if not any(_as_compared(found) in known[model] for model in of_models):
                faults.append(
                    f"{name}: {found[0]!r} in {said.strip()[:60]!r} is no row of the summary of "
                    f"{' or '.join(of_models)}: take it from there, or add it there."
                )
    return faults


def _quoted(shown: str) -> re.Match | None:
    return QUOTED.search(shown.replace("+", ""))


def _as_compared(found: re.Match) -> tuple[str, ...]:
    return tuple(found[part].replace("-", "−") for part in ("value", "low", "high"))


def _said_in(notebook: dict) -> Iterator[tuple[str, str]]:
    """Sentences and cells of tables in the words about the committed run, each with the text that
    may name its model: the sentence itself, or the head of the column."""
    for cell in notebook["cells"]:
        if not {"answer", "reading"} & {*cell["metadata"].get("tags", [])}:
            continue
        head: list[str] = []
        for line in "".join(cell["source"]).replace("+", "").splitlines():
            if line.startswith("|"):
                parts = [part.strip() for part in line.strip("|").split("|")]
                head = head or parts
                yield from zip(parts, head)
                continue
            head = []
            yield from ((said, said) for said in re.split(r"(?<=[.:;?])\s", line))


def _results(model: str, notebook: str) -> Path:
    return DATA / "results" / "study" / model / notebook


def of_another_run(cells: list[dict], notebook: str, run: dict, page: Path) -> list[dict]:
    """The cells of a page of another model, text or profile than the committed one: the title, this
    run's main figure and its summary in the first cell, and no cell that a person wrote about the
    committed run. `run`: folder, model, profile, corpus."""
    title = "".join(cells[0]["source"]).splitlines()[:2]
    model = MODEL_NOTES.get(run["model"], run["model"])
    here = f"{model}, profile {run['profile']}, {run['corpus']}. The title is of the committed run."
    parts = ["\n".join(title), here]
    figure = Path(run["folder"]) / f"{notebook[:2]}_main.png"
    if figure.exists():
        parts.append(f"![The main figure]({os.path.relpath(figure, page.parent)})")
    name = label(run["model"])
    if own := summary_in(Path(run["folder"])):
        from lib import paper

        columns = {f"{name}, {run['profile']}": own} | committed_summaries(notebook)
        parts.append(paper.markdown_table(side_by_side(columns)))
    first = cells[0] | {"source": "\n\n".join(parts)}
    rest = [c for c in cells[1:] if "reading" not in c["metadata"].get("tags", [])]
    return [first, *rest]


def answer_of(notebook: dict) -> str:
    """The answer of a page in the new form: the first paragraph below the title and the source."""
    return " ".join("".join(notebook["cells"][0]["source"]).split("\n\n")[1].split())


FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\\$\w])\$([^\s$](?:[^$\n]*[^\s$\\])?)\$(?!\w)", re.DOTALL)
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def html_of(notebook, title: str) -> str:
    """An executed notebook as a page of its own, without scripts from elsewhere: formulas as
    MathML, which browsers draw themselves."""
    # Here, for they take seconds to load, and no notebook needs them.
    import latex2mathml.converter
    from nbconvert import HTMLExporter

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
    """index.html of a series: what is finished."""
    rows = []
    for report in sorted(folder.glob("[0-9]*.html")):
        notebook = report.with_suffix(".ipynb")
        if not notebook.exists():  # it is being made anew
            continue
        first = json.loads(notebook.read_text("utf-8"))["cells"][0]
        title = html.escape("".join(first["source"]).splitlines()[0].lstrip("# "))
        rows.append(f'<li><a href="{report.name}">{report.stem[:2]} {title}</a>')
    page = (
        '<!doctype html><meta charset="utf-8"><title>The Nonlinearity Budget</title>'
        '<body style="font: 16px/1.5 sans-serif; max-width: 48em; margin: 2em auto">'
        f"<h1>The Nonlinearity Budget</h1><p>{folder.name}: {len(rows)} finished</p>"
        f"<ol style='list-style: none'>{''.join(rows)}</ol>"
    )
    with atomic_write(folder / "index.html") as part:
        part.write_text(page, encoding="utf-8")
