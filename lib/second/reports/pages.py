"""The pages of the site that are no notebook: start page, contents, claims, the library.

Each is a short text in MyST or reStructuredText for Sphinx; nothing here is executed or measured.
"""

import re
from pathlib import Path

import pandas as pd

import lib
from lib.second.base.paths import ROOT
from lib.second.base.results import fault
from lib.second.reports.page import Page, plain
from lib.second.reports.papers import PAPERS
from lib.second.reports.scorecard import claim_rows, counts, paper, scorecard, with_pages
from lib.second.stats import claims

MAIN_FIGURE = "01_linear_recoverability_profile.png"


def start(pages: list[Page], rows: pd.DataFrame, missing: list[str]) -> str:
    """What the start page shows of these notebooks: the main figure, and a table of verdicts."""
    text = [
        f"![Linear recoverability and swap cost of every FFN, beside the paper's three models]"
        f"(pages/{MAIN_FIGURE})",
        "",
        "## Reports",
        "",
    ]
    for run in dict.fromkeys(p.run for p in pages):
        text += [f"### {plain(run)}", ""] if run else []
        text += ["| report | " + " | ".join(claims.VERDICTS) + " |", "|---" + "|--:" * 4 + "|"]
        for page in (p for p in pages if p.run == run):
            found = rows[rows.page == page.docname].verdict.value_counts()
            stopped = f" (stopped: {plain(page.error)})" if page.error else ""
            cells = [str(found.get(verdict, "")) for verdict in claims.VERDICTS]
            link = f"[{plain(page.title)}]({page.docname}.ipynb){stopped}"
            text += ["| " + " | ".join([link, *cells]) + " |"]
        text += [""]
    if missing:
        text += [f"Not here yet: {plain(', '.join(missing))}.", ""]
    text += [f"All claims: {counts(rows)}. [The scorecard](pages/scorecard.md) has each of them."]
    return "\n".join(text) + "\n"


def contents(pages: list[Page]) -> str:
    """The site's table of contents."""

    def part(caption: str, entries: list[str]) -> list[str]:
        return ["```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```", ""]

    text = []
    for run in dict.fromkeys(p.run for p in pages):
        entries = [f"{p.short} </{p.docname}>" for p in pages if p.run == run]
        text += part(f"Reports on {run}" if run else "Reports", entries)
    papers = [f"{p.name} </pages/{p.name.lower()}>" for p in PAPERS]
    text += part("Claims", ["Scorecard </pages/scorecard>", *papers])
    return "\n".join(text + part("Library", ["/pages/api"]))


def rooms() -> list[str]:
    """The rooms of `lib`, from the ground up."""
    (chain,) = re.findall(r"^    (base -> .*)$", lib.__doc__, re.M)
    return chain.split(" -> ")


def api() -> dict[str, str]:
    """File name → text: a page a room, and one that lists them."""
    text = ["Library", "=======", "", "The public names of each room, from their docstrings.", ""]
    pages = {"api.rst": text + [".. toctree::", "   :maxdepth: 1", ""]}
    for room in rooms():
        name = f"lib.{room}"
        pages["api.rst"] += [f"   {name}"]
        pages[f"{name}.rst"] = [name, "=" * len(name), "", f".. automodule:: {name}"]
    return {name: "\n".join(lines) + "\n" for name, lines in pages.items()}


def write(source: Path, results: Path | None = None, missing: list[str] | None = None) -> None:
    """Write the generated pages to <source>/pages for the notebooks that lie under `source`."""
    found = [*source.glob("*.ipynb"), *source.glob("*/*.ipynb")]
    pages = [Page.of(path, source) for path in sorted(found)]
    rows = with_pages(claim_rows(results), pages)
    files = {
        "start.md": start(pages, rows, missing or []),
        "contents.md": contents(pages),
        "scorecard.md": scorecard(rows),
        **{f"{p.name.lower()}.md": paper(p, rows) for p in PAPERS},
        **api(),
    }
    figures = [ROOT / "figures" / MAIN_FIGURE]
    if results is not None:
        found = sorted(Path(results).glob(f"*/01_*/{MAIN_FIGURE}"))
        figures = [*(path for path in found if not fault(path.parent)), *figures]
    (source / "pages").mkdir(exist_ok=True)
    changed = {name: text.encode() for name, text in files.items()}
    changed[MAIN_FIGURE] = figures[0].read_bytes()
    for name, content in changed.items():
        path = source / "pages" / name
        # an untouched file is not read again by Sphinx
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
