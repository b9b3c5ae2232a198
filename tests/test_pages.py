"""Every committed page in the new form, rendered from what is kept, with measuring forbidden."""

import json
from pathlib import Path

import nbformat
import pytest

from lib import cli, page, store

ROOT = Path(__file__).parents[1]
PAGES = [
    path
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    if page.is_new(json.loads(path.read_text(encoding="utf-8")))
]


def tables_of(notebook) -> list[str]:
    """What its cells show, in text; what a run says of itself differs from one to the next."""
    shown = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            text = output.get("data", {}).get("text/plain", "")
            shown.append("" if "Markdown object" in text or "Styler" in text else text)
    return [text for text in shown if text and "core-minutes" not in text]


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_measures_nothing_and_shows_the_same(path, monkeypatch, tmp_path):
    """In an empty cache but for the files of models: a miss is an error."""
    models = store.cache_folder() / "models"
    monkeypatch.setattr(store, "MEASURED", ROOT / "data/measured")
    monkeypatch.setenv("NONLINEARITY_CACHE", str(tmp_path))
    monkeypatch.setenv("NONLINEARITY_CHECK", "none")
    store.cache_folder().mkdir(parents=True)
    models.mkdir(parents=True, exist_ok=True)
    (store.cache_folder() / "models").symlink_to(models)
    cli.execute(path, tmp_path / path.name, {})
    again = nbformat.read(tmp_path / path.name, 4)
    assert tables_of(again) == tables_of(nbformat.read(path, 4))
