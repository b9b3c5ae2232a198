"""How Sphinx makes a site of the committed reports: make site, or sphinx-build notebooks site."""

import html
import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pandas as pd

HERE = Path(__file__).resolve().parent
PUBLISHED = HERE.parent / "data/published"
RESULTS = HERE.parent / "data/results/study"
FIGURES = HERE.parent / "figures"
sys.path.insert(0, str(HERE.parent))
from lib.compare import MARKS  # noqa: E402

project = html_title = "The Nonlinearity Budget"
author = "The Nonlinearity Budget contributors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx-mathjax-offline", "sphinx_design"]
exclude_patterns = ["**.ipynb_checkpoints"]
suppress_warnings = ["mystnb.unknown_mime_type"]
smartquotes = False

# What was executed is shown; nothing is executed here.
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"  # which knows tables
nb_code_prompt_show, nb_code_prompt_hide = "Show code", "Hide code"
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": False}
autodoc_member_order = "bysource"

html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme = "sphinx_book_theme"
html_show_copyright = False
html_theme_options = {
    "home_page_in_toc": True,
    "show_toc_level": 2,
    "navbar_persistent": [],  # the side bar has the search already
}


class Paper(NamedTuple):
    """A paper, the numbers of its first and last report, and where it can be read."""

    first: str
    last: str
    name: str
    address: str


PAPERS = [
    Paper(
        "00", "07", "Whipp, How Linear Is a Transformer Feed-Forward Block?",
        "https://arxiv.org/abs/2606.19379",
    ),
    Paper(
        "08", "16", "Balogh, Half the Nonlinearity Is Wasted",
        "https://arxiv.org/abs/2603.03459",
    ),
    Paper(
        "17", "19", "Ikeda et al., Layerwise Importance Analysis of Feed-Forward Networks",
        "https://arxiv.org/abs/2508.17734",
    ),
    Paper(
        "20", "24", "Bayat et al., Tapered Language Models",
        "https://arxiv.org/abs/2606.23670",
    ),
    Paper("25", "28", "Badger, Linear Language Models", "https://blbadger.github.io"),
    Paper("29", "31", "Questions of our own", ""),
]  # fmt: skip
# The front page: a card for each report, with its question, its answer and its main figure.


def reports_of(paper: Paper) -> list[Path]:
    """The committed notebooks of a paper, in the order of their numbers."""
    notebooks = sorted(HERE.glob("[0-9][0-9]_*.ipynb"))
    return [path for path in notebooks if paper.first <= path.name[:2] <= paper.last]


def question_of(notebook: Path) -> str:
    """The question that a report answers: the title in its first cell."""
    first_cell = json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]
    title = "".join(first_cell["source"]).splitlines()[0]
    return title.removeprefix("# ").strip()


def answer_of(notebook: Path) -> str:
    """The answer that a report shows at its top, or "" where it shows none.

    It is taken from the page itself, for a notebook may have been run on several models.
    """
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            text = "".join(output.get("data", {}).get("text/markdown", ""))
            if text.startswith("> **The answer.** "):
                return text.removeprefix("> **The answer.** ").strip()
    return ""


def first_sentence(text: str) -> str:
    """The first sentence of a text; the dot of an abbreviation does not end one."""
    return re.split(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<!al\.)\s+", text, maxsplit=1)[0]


def main_figure_of(notebook: Path) -> Path | None:
    """The figure that answer.json names, else the first one with the number of the report."""
    for path in sorted(RESULTS.glob(f"*/{notebook.stem}/answer.json")):
        name = json.loads(path.read_text(encoding="utf-8")).get("figure")
        if name and (FIGURES / name).exists():
            return FIGURES / name
    return next(iter(sorted(FIGURES.glob(f"{notebook.name[:2]}_*.png"))), None)


def card(notebook: Path) -> str:
    """The card of a report, in MyST Markdown."""
    lines = [
        f"```{{grid-item-card}} {notebook.name[:2]} · {question_of(notebook)}",
        f":link: {notebook.stem}",
        ":link-type: doc\n",
        first_sentence(answer_of(notebook)) + "\n",
    ]
    figure = main_figure_of(notebook)
    if figure:
        # The figure is small already, and a browser loads it when it comes into view.
        lines += [f":::{{image}} ../figures/{figure.name}", ":loading: lazy"]
        lines += [f":alt: Main figure of report {notebook.name[:2]}", ":::"]
    return "\n".join([*lines, "```"])


def section(paper: Paper, notebooks: list[Path]) -> str:
    """The part of the front page for one paper: heading, cards, and entries of the side bar."""
    heading = f"[{paper.name}]({paper.address})" if paper.address else paper.name
    entries = [f"{path.name[:2]} {question_of(path)} <{path.stem}>" for path in notebooks]
    return "\n".join(
        [
            f"## {heading}\n",
            "````{grid} 1 1 2 2",
            ":gutter: 3\n",
            *[card(path) for path in notebooks],
            "````\n",
            f"```{{toctree}}\n:hidden:\n:caption: {paper.name}\n",
            *entries,
            "```\n",
        ]
    )


def fill_front_page(app, docname: str, source: list[str]) -> None:
    """Put the reports at their place in index.md."""
    if docname == "index":
        sections = [section(paper, found) for paper in PAPERS if (found := reports_of(paper))]
        source[0] = source[0].replace("<!-- reports -->", "\n".join(sections))


def always_read_the_front_page(app, env, added, changed, removed) -> list[str]:
    """The pages to read again even if their own file is unchanged: answers may be new."""
    return ["index"]


# The scorecard: what each comparison came to on each model, to filter and to sort.

ABOUT_COMPARISONS = """What the papers print, and what it came to on each model.
*✔* is reproduced, or found where the question is ours; *✘* is reversed, not found, or beyond the
bound that the paper gives; *?* is undecided; *measured* is compared but not judged. The numbers
are those measured here, with their intervals. An outcome holds for the model of its column only.
"""


def printed(row) -> str:
    """What the paper prints for a row of comparisons.csv, and where; a unit of 1 is not said."""
    low = row.printed_low.replace("-", "−")
    high = row.printed_high.replace("-", "−")
    if not low and not high:
        return row.printed_for or "in words"
    if not low:
        value = f"at most {high}"
    elif not high:
        value = f"at least {low}"
    else:
        value = low if low == high else f"{low} to {high}"
    if row.unit not in ("", "1"):
        value += f" {row.unit}"
    return f"{value}; {row.printed_for}" if row.printed_for else value


def number(value: float) -> str:
    """A number with three significant digits, or all its digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}".replace("-", "−")


def outcome(row) -> str:
    """What a comparison came to on one model: ✔ reproduced, 0.61 [0.57, 0.65]."""
    words = f"{MARKS[row.outcome]} {row.outcome}, {number(row.value)}"
    if pd.isna(row.low) or pd.isna(row.high):
        return words
    return f"{words} [{number(row.low)}, {number(row.high)}]"


def by_model(file: str, in_words) -> pd.DataFrame:
    """What each id came to, a column for each model, from all committed results of that name."""
    results = [pd.DataFrame(columns=["id", "model", "words"])]
    for path in sorted(RESULTS.glob(f"*/*/{file}")):
        rows = pd.read_csv(path)
        words = [in_words(row) for row in rows.itertuples()]
        results.append(pd.DataFrame({"id": rows.id, "model": path.parts[-3], "words": words}))
    return pd.concat(results).pivot(index="id", columns="model", values="words")


def link(notebook: str) -> str:
    """A link to the page of a notebook, or its number alone where there is no page yet."""
    if (HERE / f"{notebook}.ipynb").exists():
        return f'<a href="{notebook}.html">{notebook[:2]}</a>'
    return notebook[:2]


def comparisons() -> pd.DataFrame:
    """The rows of comparisons.csv with what they came to; no rows where the file is missing."""
    path = PUBLISHED / "comparisons.csv"
    if not path.exists():
        return pd.DataFrame(columns=["id", "notebook"])
    ledger = pd.read_csv(path, dtype=str, keep_default_na=False)
    ledger["section"] = ledger.paper.str.title() + " " + ledger.section
    ledger["printed"] = [printed(row) for row in ledger.itertuples()]
    columns = ["id", "notebook", "section", "sentence", "kind", "quantity", "printed", "control"]
    return ledger[columns].merge(by_model("comparisons.csv", outcome), on="id", how="left")


def interactive(table: pd.DataFrame) -> str:
    """A table to filter and to sort, as raw HTML; it says how many rows a browser has to show."""
    import itables

    links = [link(notebook) for notebook in table.notebook]
    # A model without results for these rows has no column.
    shown = table.drop(columns="id").dropna(axis=1, how="all").fillna("")
    # Only the links are HTML: everything else is escaped here.
    escaped = shown.map(html.escape)
    body = itables.to_html_datatable(
        escaped.assign(notebook=links),
        connected=False,
        allow_html=True,
        column_filters="header",
        autoWidth=False,
        maxBytes=0,  # no limit: all rows are shown
        paging=False,
        showIndex=False,
        classes="display compact",
        columnDefs=[{"className": "dt-left", "targets": "_all"}],
    )
    return f'```{{raw}} html\n<div class="scorecard" data-rows="{len(table)}">{body}</div>\n```\n'


def write_scorecard(app) -> None:
    """Write scorecard.md: the table, and the JavaScript that it needs."""
    from itables.javascript import generate_init_offline_itables_html, opt

    new = comparisons()
    parts = ["---\nhtml_theme.sidebar_secondary.remove: true\n---\n", "# Scorecard\n"]
    if len(new):
        parts += [ABOUT_COMPARISONS, interactive(new)]
    # The page stands alone: the JavaScript is written into it, and nothing is fetched.
    parts.append(f"```{{raw}} html\n{generate_init_offline_itables_html(opt.dt_bundle)}\n```\n")
    (HERE / "scorecard.md").write_text("\n".join(parts), encoding="utf-8")


def fold_code(app, docname: str, source: list[str]) -> None:
    """Show every code cell folded."""
    if str(app.env.doc2path(docname)).endswith(".ipynb"):
        source[0] = source[0].replace('"tags": []', '"tags": ["hide-input"]')


def setup(app) -> None:
    """Connect the functions above to the steps of a build."""
    app.connect("builder-inited", write_scorecard)
    app.connect("env-get-outdated", always_read_the_front_page)
    app.connect("source-read", fill_front_page)
    app.connect("source-read", fold_code)
