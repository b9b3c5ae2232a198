"""The pages of the site that are no notebook: start page, scorecard, one page a paper, the API.

Each is a short text in MyST or reStructuredText for Sphinx; nothing here is executed or measured.
"""

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

import nbformat
import pandas as pd

import lib
from lib.base.errors import InputError
from lib.base.paths import DATA, ROOT
from lib.reports.papers import PAPERS, Paper
from lib.stats import claims

# Pages of tables have no contents on their right.
WIDE = ["---", "html_theme.sidebar_secondary.remove: true", "---"]
WIDTHS = (6, 7, 28, 14, 16, 10, 9, 10)
"""per cent of the scorecard for each column"""
MAIN_FIGURE = "01_linear_recoverability_profile.png"


@dataclass(frozen=True)
class Page:
    """An executed notebook as a page of the site."""

    docname: str
    """its path below the source folder, without suffix: `<notebook>` or `<run>/<notebook>`"""
    title: str
    error: str = ""
    """what it stopped with, if it did"""

    @property
    def notebook(self) -> str:
        return self.docname.rpartition("/")[2]

    @property
    def run(self) -> str:
        """the run's folder, empty for a committed notebook"""
        return self.docname.rpartition("/")[0]

    @property
    def short(self) -> str:
        """the title up to its colon or question mark"""
        return re.split(r": |\?", self.title)[0]

    @classmethod
    def of(cls, path: Path, source: Path) -> "Page":
        """Read title and outcome of a notebook under `source`. Raises InputError if it is none."""
        try:
            cells = nbformat.read(path, as_version=4).cells
        except Exception as error:  # nbformat raises whatever its parts raise
            raise InputError(
                f"{path.name} is not a whole notebook ({type(error).__name__}): run it again."
            ) from error
        prose = "\n".join(c.source for c in cells if c.cell_type == "markdown")
        heading = re.search(r"^# (.+)$", prose, re.M)
        errors = [o for c in cells for o in c.get("outputs", []) if o.output_type == "error"]
        docname = path.relative_to(source).with_suffix("").as_posix()
        return cls(
            docname,
            heading[1].strip() if heading else path.stem,
            errors[0].ename if errors else "",
        )


def claim_rows(results: Path | None = None) -> pd.DataFrame:
    """The judged claims to show: the committed scorecard, or what lies under the folder
    data/results/<profile> now.

    Columns paper, section, claim, published, here, verdict, note, profile, model, notebook.
    """
    if results is not None:
        found = claims.collate()
        return found[found.profile == Path(results).name].reset_index(drop=True)
    path = DATA / "results" / "scorecard.csv"
    return pd.read_csv(path, keep_default_na=False) if path.exists() else claims.collate()[:0]


def with_pages(rows: pd.DataFrame, pages: list[Page]) -> pd.DataFrame:
    """The rows that belong to one of the pages, with its docname and short title as `page` and
    `report`."""
    runs = {(p.run, p.notebook): p for p in pages}
    found = [
        runs.get((model, notebook)) or runs.get(("", notebook))
        for model, notebook in zip(rows.model, rows.notebook, strict=True)
    ]
    found = rows.assign(
        page=[p.docname if p else "" for p in found], report=[p.short if p else "" for p in found]
    )
    return found[found.page != ""]


def plain(text: str) -> str:
    """Text that means itself in MyST, in a table cell too."""
    return re.sub(r"([\\`*_{}\[\]<>()#|!$~^&])", r"\\\1", " ".join(str(text).split()))


def counts(rows: pd.DataFrame) -> str:
    """`31 reproduced · 12 contradicted`: how many rows have which verdict."""
    found = rows.verdict.value_counts()
    return " · ".join(f"{found[v]} {v}" for v in claims.VERDICTS if v in found) or "no claims yet"


def start(pages: list[Page], rows: pd.DataFrame, results: Path | None, missing: list[str]) -> str:
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


def paper(about: Paper, rows: pd.DataFrame) -> str:
    """The page of one paper: what it asks, where it is reproduced, its claims and ours beyond."""
    own = rows[rows.paper == about.name.lower()]
    beyond = rows[(rows.paper == "ours") & rows.notebook.isin(own.notebook)]
    text = [*WIDE, f"# {about.name}: {plain(about.title)}", "", f"*{plain(about.authors)}*", ""]
    text += [plain(about.asks), ""]
    if own.empty:
        return "\n".join([*text, "None of it is reproduced here yet.", ""])
    text += ["## Where it is reproduced", "", "| sections | report | claims |", "|---|---|---|"]
    for page, found in own.groupby("page", sort=False):
        sections = ", ".join(dict.fromkeys(", ".join(found.section).split(", ")))
        text += [f"| {plain(sections)} | {_link(found.iloc[0], page)} | {counts(found)} |"]
    text += ["", "## Its claims", "", f"{counts(own)}.", "", *_table(own)]
    if len(beyond):
        text += ["", "## Beyond the paper", "", f"Claims of ours: {counts(beyond)}.", ""]
        text += _table(beyond)
    return "\n".join(text) + "\n"


def _link(row, page: str) -> str:
    run = page.rpartition("/")[0]
    return f"[{plain(row.report)}](/{page}.ipynb)" + (f" ({plain(run)})" if run else "")


def _table(rows: pd.DataFrame) -> list[str]:
    cells = [
        [plain(r.section), plain(r.claim), plain(r.published), plain(r.here), r.verdict]
        for r in rows.itertuples()
    ]
    head = ["section", "claim", "published", "here", "verdict"]
    return ["| " + " | ".join(c) + " |" for c in [head, ["---"] * 5, *cells]]


def scorecard(rows: pd.DataFrame) -> str:
    """Every claim in one table to filter and sort, its predicate below it."""
    import itables

    table = pd.DataFrame(
        {
            "paper": rows.paper,
            "section": rows.section.map(escape),
            "claim": [
                f"{escape(c)}<div class='predicate'>{escape(n)}</div>"
                for c, n in zip(rows.claim, rows.note, strict=True)
            ],
            "published": rows.published.map(escape),
            "here": rows.here.map(escape),
            "verdict": [f"<span class='{v.replace(' ', '-')}'>{v}</span>" for v in rows.verdict],
            "model": [escape(f"{m}, {p}") for m, p in zip(rows.model, rows.profile, strict=True)],
            "report": [
                f'<a href="../{escape(p)}.html">{escape(r)}</a>'
                for p, r in zip(rows.page, rows.report, strict=True)
            ],
        }
    )
    html = itables.to_html_datatable(
        table,
        connected=False,
        allow_html=True,
        showIndex=False,
        paging=False,
        maxBytes=0,
        table_id="claims",
        classes="display compact",
        style="width:100%; table-layout:fixed",
        autoWidth=False,
        order=[],
        layout={"top1": "searchPanes"},
        searchPanes={
            "columns": [5, 0, 6, 7],
            "layout": "auto",
            "controls": False,
            "viewTotal": True,
            "threshold": 1,
        },
        columnDefs=[{"targets": [i], "width": f"{w}%"} for i, w in enumerate(WIDTHS)],
    )
    return "\n".join(
        [
            *WIDE,
            "# Scorecard",
            "",
            f"{counts(rows)}, of {len(rows)} claims. A verdict is computed by the predicate in "
            "small type; a contradicted claim is a finding, not a failure.",
            "",
            '<script src="../_static/itables.js"></script>',
            "",
            "```{raw} html",
            html,
            "```",
            "",
        ]
    )


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
        "start.md": start(pages, rows, results, missing or []),
        "contents.md": contents(pages),
        "scorecard.md": scorecard(rows),
        **{f"{p.name.lower()}.md": paper(p, rows) for p in PAPERS},
        **api(),
    }
    figures = [ROOT / "figures" / MAIN_FIGURE]
    if results is not None:
        figures = [*sorted(Path(results).glob(f"*/01_*/{MAIN_FIGURE}")), *figures]
    (source / "pages").mkdir(exist_ok=True)
    changed = {name: text.encode() for name, text in files.items()}
    changed[MAIN_FIGURE] = figures[0].read_bytes()
    for name, content in changed.items():
        path = source / "pages" / name
        # an untouched file is not read again by Sphinx
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
