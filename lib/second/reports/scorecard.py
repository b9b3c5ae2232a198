"""The pages of claims: the whole scorecard to filter and sort, and one page a paper."""

from html import escape
from pathlib import Path

import pandas as pd

from lib.second.reports.page import Page, plain
from lib.second.reports.papers import Paper
from lib.second.stats import claims

# Pages of tables have no contents on their right.
WIDE = ["---", "html_theme.sidebar_secondary.remove: true", "---"]
WIDTHS = (5, 7, 25, 13, 14, 9, 8, 6, 6, 7)
"""per cent of the scorecard for each column"""


def claim_rows(results: Path | None = None) -> pd.DataFrame:
    """The judged claims to show: the committed scorecard, or what lies under the folder
    data/results/<profile> now.

    Columns as those of lib.second.stats.collate. The committed scorecard holds only what the committed
    reports judged, whatever else was run here since.
    """
    if results is not None:
        found = claims.collate()
        return found[found.profile == Path(results).name].reset_index(drop=True)
    return claims.committed_scorecard()


def with_pages(rows: pd.DataFrame, pages: list[Page]) -> pd.DataFrame:
    """The rows that belong to one of the pages, with its docname and short title as `page` and
    `report`."""
    runs = {(p.run, p.notebook): p for p in pages}
    found = [
        runs.get((model, notebook)) or runs.get(("", notebook))
        for model, notebook in zip(rows.run, rows.notebook, strict=True)
    ]
    found = rows.assign(
        page=[p.docname if p else "" for p in found], report=[p.short if p else "" for p in found]
    )
    return found[found.page != ""]


def counts(rows: pd.DataFrame) -> str:
    """`31 reproduced · 12 contradicted`: how many findings have which verdict; identities and
    settings are checks, not findings."""
    found = rows.verdict[rows.kind == "finding"].value_counts()
    return " · ".join(f"{found[v]} {v}" for v in claims.VERDICTS if v in found) or "no claims yet"


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
        [
            *(plain(r.section), plain(r.claim), plain(r.published), plain(r.here), r.verdict),
            r.null_verdict if r.null_verdict != "not run" else "",
        ]
        for r in rows.itertuples()
    ]
    head = ["section", "claim", "published", "here", "verdict", "random weights"]
    return ["| " + " | ".join(c) + " |" for c in [head, ["---"] * len(head), *cells]]


def scorecard(rows: pd.DataFrame) -> str:
    """Every claim in one table to filter and sort, its predicate below it."""
    import itables

    table = pd.DataFrame(
        {
            "paper": rows.paper,
            "section": rows.section.map(escape),
            "claim": [
                f"{escape(c)}<div class='predicate'>{escape('; '.join(filter(None, said)))}</div>"
                for c, *said in zip(rows.claim, rows.rule, rows.note, strict=True)
            ],
            "published": rows.published.map(escape),
            "here": rows.here.map(escape),
            "verdict": [f"<span class='{v.replace(' ', '-')}'>{v}</span>" for v in rows.verdict],
            "random weights": [v if v != "not run" else "" for v in rows.null_verdict],
            "importance": [
                i if kind == "finding" else kind
                for i, kind in zip(rows.importance, rows.kind, strict=True)
            ],
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
            "columns": [5, 6, 7, 0, 8, 9],
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
            f"Findings: {counts(rows)}; with identities and settings, {len(rows)} rows. A verdict "
            "follows from the rule in small type, which stood in the ledger before the result did; "
            "a contradicted claim is a finding, not a failure. `random weights` is the verdict on "
            "the same architecture untrained: what it reproduces as well is not about learning.",
            "",
            '<script src="../_static/itables.js"></script>',
            "",
            "```{raw} html",
            html,
            "```",
            "",
        ]
    )
