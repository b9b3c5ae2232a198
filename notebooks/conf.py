"""How Sphinx makes a site of the committed reports: make site, or sphinx-build notebooks site."""

import sys
from pathlib import Path

import itables
import pandas as pd

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

project = html_title = "The Nonlinearity Budget"
author = "The Nonlinearity Budget contributors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx-mathjax-offline"]
exclude_patterns = ["**.ipynb_checkpoints"]
suppress_warnings = ["mystnb.unknown_mime_type"]
smartquotes = False

# What was executed is shown; nothing is executed here.
nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show, nb_code_prompt_hide = "Show code", "Hide code"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": False}
autodoc_member_order = "bysource"

html_favicon = "_static/icon.svg"
html_theme = "sphinx_book_theme"
html_show_copyright = False
html_theme_options = {"home_page_in_toc": True, "show_toc_level": 2}


def scorecard(app) -> None:
    """Write scorecard.md: every claim with its verdict, a column a model, to filter and sort."""
    ledger = pd.read_csv(HERE.parent / "data/published/claims.csv", keep_default_na=False)
    found = []
    for path in sorted((HERE.parent / "data/results").glob("*/*/*/claims.csv")):
        rows = pd.read_csv(path, keep_default_na=False)
        found.append(rows.assign(model=f"{path.parts[-3]} ({path.parts[-4]})"))
    verdicts = pd.concat(found) if found else pd.DataFrame(columns=["id", "model", "verdict"])
    by_model = verdicts.pivot_table(index="id", columns="model", values="verdict", aggfunc="first")
    table = ledger.merge(by_model, on="id", how="left").fillna("")
    table = table.drop(columns=["id", "paper"])
    body = itables.to_html_datatable(table, connected=False, paging=False, column_filters="header")
    (HERE / "scorecard.md").write_text(
        "# Scorecard\n\nEvery claim with its rule and its null, and what it came to on each model. "
        "*Here* is part of a verdict: a claim about GPT-2 is not contradicted by another model.\n\n"
        f"```{{raw}} html\n{body}\n```\n",
        encoding="utf-8",
    )


def fold_code(app, docname: str, source: list[str]) -> None:
    """Show every code cell folded."""
    if str(app.env.doc2path(docname)).endswith(".ipynb"):
        source[0] = source[0].replace('"tags": []', '"tags": ["hide-input"]')


def setup(app) -> None:
    app.connect("builder-inited", scorecard)
    app.connect("source-read", fold_code)
