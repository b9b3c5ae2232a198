"""Every notebook runs from top to bottom at the smoke profile, in a kernel of its own."""

from pathlib import Path

import papermill
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "source", sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")), ids=lambda p: p.stem
)
def test_notebook(source, tmp_path):
    papermill.execute_notebook(
        source,
        tmp_path / source.name,
        {"profile": "smoke"},
        kernel_name="python3",
        progress_bar=False,
        cwd=ROOT,
    )
