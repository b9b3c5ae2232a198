"""How Sphinx makes a site of the committed reports: make site, or sphinx-build notebooks site."""

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
FIGURES = HERE.parent / "figures"
sys.path.insert(0, str(HERE.parent))
from lib.page import answer_of as answer_in  # noqa: E402

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
    Paper("25", "27", "Badger, Linear Language Models", "https://blbadger.github.io"),
    Paper("28", "28", "Balogh, what §5.7 proposes", "https://arxiv.org/abs/2603.03459"),
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
    return answer_in(json.loads(notebook.read_text(encoding="utf-8")))


def first_sentence(text: str) -> str:
    """The first sentence of a text; the dot of an abbreviation does not end one."""
    return re.split(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<!al\.)\s+", text, maxsplit=1)[0]


def main_figure_of(notebook: Path) -> Path | None:
    """The main figure, by its name, else the first of the report."""
    if (FIGURES / f"{notebook.name[:2]}_main.png").exists():
        return FIGURES / f"{notebook.name[:2]}_main.png"
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


# The scorecard: the tables of all tops, one under the other.

ABOUT_SCORECARD = """# Scorecard

What the papers say, what they print for it, and what was found here: the table at the top of each
report whose words rest on a summary of its numbers, in the order of the reports.
"""


def table_at_the_top(notebook: Path) -> str:
    """The last table of a report's first cell, in Markdown; "" where there is none."""
    cell = json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]
    found = re.findall(r"(?:^\|.*\n?)+", "".join(cell["source"]), re.MULTILINE)
    return found[-1].strip() if found else ""


def write_scorecard(app) -> None:
    """Write scorecard.md."""
    parts = ["---\nhtml_theme.sidebar_secondary.remove: true\n---\n" + ABOUT_SCORECARD]
    for notebook in (path for paper in PAPERS for path in reports_of(paper)):
        if table := table_at_the_top(notebook):
            title = f"## [{notebook.name[:2]}]({notebook.stem}.ipynb) {question_of(notebook)}"
            parts.append(f"{title}\n\n{table}\n")
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
