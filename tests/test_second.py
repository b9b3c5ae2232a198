"""The second edition's library, which serves notebooks 25-27 until they move."""

import importlib
from pathlib import Path

import pytest

import lib.second

ROOT = Path(lib.second.__file__).parent


@pytest.mark.parametrize(
    "room", sorted(p.name for p in ROOT.iterdir() if (p / "__init__.py").exists())
)
def test_room_imports(room):
    assert importlib.import_module(f"lib.second.{room}")
