"""The Sphinx extension behind notebooks/conf.py: notebooks as pages to read, docstrings as plain
text, generated pages."""

import re
from pathlib import Path

import nbformat

from lib.second.reports import pages
from lib.second.reports.keep import drop_bars
from lib.second.reports.page import Page

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([\w./@+-]+\.(?:ipynb|md|csv|py))(#[^)\s]*)?\)")


def readable(notebook, title: str, folder: Path) -> bool:
    """Make an executed notebook a page, in place: code folded but for parameters, no progress
    bars, an alternative text on every figure, and words instead of links to files that
    are not in `folder`, where it lies. Return whether there was such a link."""
    drop_bars(notebook)
    before = [text for text, _ in _prose(notebook)]
    for text, place in _prose(notebook):
        place[0][place[1]] = LINK.sub(lambda m: m[0 if (folder / m[2]).exists() else 1], text)
    cells = notebook.cells
    for cell, after in zip(cells, [*cells[1:], None], strict=True):
        if cell.cell_type != "code":
            continue
        tags = cell.metadata.setdefault("tags", [])
        if not {"parameters", "injected-parameters"} & set(tags):
            tags.append("hide-input")
        caption = after.source if after and after.cell_type == "markdown" else ""
        shown = cell.metadata.setdefault("mystnb", {}).setdefault("image", {})
        if not shown.get("alt"):
            shown["alt"] = _alt(cell.outputs) or _fallback(title, caption)
    return before != [text for text, _ in _prose(notebook)]


def _prose(notebook) -> list[tuple[str, tuple[dict, str]]]:
    """Every Markdown text, with the mapping and the key it stands under."""
    places = [(c, "source") for c in notebook.cells if c.cell_type == "markdown"]
    for cell in notebook.cells:
        data = [o.get("data", {}) for o in cell.get("outputs", [])]
        places += [(d, "text/markdown") for d in data if "text/markdown" in d]
    return [(holder[key], (holder, key)) for holder, key in places]


def _alt(outputs: list[dict]) -> str:
    """The alternative text that a figure's own metadata carries."""
    for output in outputs:
        told = output.get("metadata", {})
        for holder in (told, *(v for v in told.values() if isinstance(v, dict))):
            if holder.get("alt"):
                return str(holder["alt"])
    return ""


def _fallback(title: str, caption: str) -> str:
    """The title, and the caption below the figure where there is one (italic), without markup."""
    shown = re.match(r"\*([^*].*?)\*(?:\n|$)", caption.strip(), re.S)
    told = re.sub(r"\\mathrm|\\text|[\\${}*]", "", shown[1]) if shown else ""
    return " ".join(f"{title}. {told}".split())


def on_source_read(app, docname: str, source: list[str]) -> None:
    """Sphinx hands over every file as text before it is parsed."""
    path = Path(app.env.doc2path(docname))
    if path.suffix == ".ipynb":
        notebook = nbformat.reads(source[0], as_version=4)
        title = Page.of(path, Path(app.srcdir)).title
        if readable(notebook, title, path.parent):
            app.env.note_reread()  # what it links to may be there next time
        source[0] = nbformat.writes(notebook)


def literal(app, what, name, obj, options, lines: list[str]) -> None:
    """Docstrings are plain text: prose is shown as it stands, what is indented as literal text."""
    shown: list[str] = []
    for line in lines:
        if line.startswith("    "):
            if not shown or not shown[-1].startswith("    "):
                shown += ["", "::", ""]
            shown.append(line)
        else:
            # every other part stands between backticks
            parts = line.split("`") if line.count("`") % 2 == 0 else [line.replace("`", "'")]
            words = [re.sub(r"([\\*|_])", r"\\\1", part) for part in parts]
            words[1::2] = [f"``{part}``" for part in parts[1::2]]
            shown.append("".join(words))
    if what == "module":
        named = getattr(obj, "__all__", [])
        rest = [n for n in named if not callable(getattr(obj, n))]
        shown += ["", "Constants: " + ", ".join(f"``{n}``" for n in rest) + "."] if rest else []
    lines[:] = [*shown, ""]


def on_builder_inited(app) -> None:
    """Write the generated pages, and the scorecard's script beside them."""
    from itables import javascript
    from itables.options import dt_bundle

    told = app.config.nonlinearity_results
    pages.write(Path(app.srcdir), Path(told) if told else None, app.config.nonlinearity_missing)
    page = javascript.generate_init_offline_itables_html(dt_bundle)
    static = Path(app.outdir) / "_static"
    static.mkdir(parents=True, exist_ok=True)
    (static / "itables.js").write_text(re.search(r"<script>(.*?)</script>", page, re.S)[1])
    # myst-nb would keep the figures beside the site, in a folder of its own
    figures = Path(app.doctreedir) / "figures"
    app.env.mystnb_config = app.env.mystnb_config.copy(output_folder=str(figures))


def setup(app) -> dict:
    """Sphinx calls this for every extension that conf.py names."""
    app.add_config_value("nonlinearity_results", None, "")
    app.add_config_value("nonlinearity_missing", [], "")
    app.connect("builder-inited", on_builder_inited, priority=900)
    app.connect("source-read", on_source_read)
    app.connect("autodoc-process-docstring", literal)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
