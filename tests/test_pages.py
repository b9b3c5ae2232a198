"""Every committed page in the new form: rendered from what is kept, with measuring forbidden; and
at smoke, each cell run twice."""

import itertools
import re
from pathlib import Path

import nbformat
import pytest

from lib import committed, files, tables

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))


def is_clock(cell) -> bool:
    """Whether it shows times, which differ from one run to the next."""
    return "clock" in cell.metadata.get("tags", [])


def tables_of(notebook) -> list[str]:
    """What its cells show, in text; what a run says of itself differs from one to the next."""
    shown = []
    for cell in notebook.cells:
        for output in [] if is_clock(cell) else cell.get("outputs", []):
            text = output.get("data", {}).get("text/plain", "")
            shown.append("" if "Markdown object" in text or "Styler" in text else text)
    return [text for text in shown if text and "core-minutes" not in text]


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_measures_nothing_and_shows_the_same(path, monkeypatch, tmp_path):
    """In an empty cache but for the files of models: a miss is an error."""
    models = files.cache_folder() / "models"
    monkeypatch.setattr(tables, "MEASURED", ROOT / "data/measured")
    monkeypatch.setenv("NONLINEARITY_CACHE", str(tmp_path))
    monkeypatch.setenv("NONLINEARITY_CHECK", "none")
    files.cache_folder().mkdir(parents=True)
    models.mkdir(parents=True, exist_ok=True)
    (files.cache_folder() / "models").symlink_to(models)
    committed.execute(path, tmp_path / path.name, {})
    again = nbformat.read(tmp_path / path.name, 4)
    assert tables_of(again) == tables_of(nbformat.read(path, 4))


def shown_by(cell) -> list[str]:
    """What a cell displays, without the names that styled tables get anew each time."""
    found = []
    for output in cell.outputs:
        if output.output_type in ("display_data", "execute_result"):
            data = output.data
            text = data.get("text/html") or data.get("text/markdown") or data["text/plain"]
            found.append(re.sub(r"T_[0-9a-f]{5}|0x[0-9a-f]+|seconds of this run \d+", "", text))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_cell_that_is_run_twice_shows_the_same(path, tmp_path, own_cache):
    """No cell changes what it reads, and none adds its rows to those of its first run."""
    notebook = nbformat.read(path, 4)
    doubled = []
    for cell in notebook.cells:
        doubled.append(cell)
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code" and not {"parameters", "clock"} & {*tags}:
            again = nbformat.v4.new_code_cell(cell.source)
            doubled.append(again)
    notebook.cells = doubled
    nbformat.write(notebook, tmp_path / path.name)
    committed.execute(tmp_path / path.name, tmp_path / "twice.ipynb", {"profile": "smoke"})
    cells = [c for c in nbformat.read(tmp_path / "twice.ipynb", 4).cells if c.cell_type == "code"]
    pairs = [(a, b) for a, b in itertools.pairwise(cells) if a.source == b.source]
    assert len(pairs) > 5
    for first, second in pairs:
        assert shown_by(first) == shown_by(second), first.source
