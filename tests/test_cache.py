"""The user's cache: what it keeps and when it computes again; a file is whole or not there."""

import numpy as np
import pandas as pd
import pytest
import torch

from lib.cache import cached
from lib.files import atomic_write, cache_folder


@pytest.fixture
def counted(own_cache):
    """A cached function and the list of its calls."""
    calls = []

    @cached("doubles", 1, x="of", by="factor", helpers=("help",))
    def double(x, by=2.0, help=None):
        calls.append(x)
        return {"y": torch.tensor([by * getattr(x, "value", x)]), "n": 3}

    return double, calls


class Made:
    def __init__(self, value, provenance):
        self.value, self.provenance = value, provenance


def entries() -> list:
    return [p for p in cache_folder().rglob("*") if p.is_file()]


def test_a_function_runs_once_for_each_argument(counted):
    double, calls = counted
    first, again = double(4), double(x=4, by=2.0, help="ignored")
    assert calls == [4] and first["y"] == again["y"] == 8 and again["n"] == 3
    assert double(5)["y"] == 10 and double(4, by=3.0)["y"] == 12 and calls == [4, 5, 4]
    assert len(entries()) == 3


def test_a_function_goes_by_words(counted):
    double, calls = counted
    double(Made(1, "one")), double(Made(1, "one")), double(Made(1, "another"))
    assert len(calls) == 2
    double(Made(7, None)), double(Made(7, None))  # made in memory: nothing is kept
    assert len(calls) == 4 and len(entries()) == 2
    assert double.key(Made(7, None)) is None
    assert str(double.key(Made(1, "one"))) == "doubles 1\nof: one"
    assert double.key([Made(1, "a"), 2]) != double.key([Made(1, "b"), 2])
    assert double.key({"k": Made(1, "a")}) != double.key({"k": Made(1, "b")})


def test_a_new_version_is_a_new_entry(own_cache):
    run = [cached("same", v, x="x")(lambda x: {"y": x}) for v in (1, 2)]
    assert [f(1)["y"] for f in run] == [1, 1] and len(entries()) == 2


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\0" * 99]
)
def test_a_damaged_entry_is_removed_and_made_again(counted, damage):
    double, calls = counted
    double(4)
    (entry,) = entries()
    kept = entry.read_bytes()
    entry.write_bytes(damage(kept))
    assert double(4)["y"] == 8 and len(calls) == 2
    assert np.load(entry)["y"] == 8 and entries() == [entry]


def test_tables_are_kept_with_their_types(own_cache):
    table = pd.DataFrame({"a": [1, 2], "b": [0.5, np.nan], "c": ["x", "y"], "d": [True, False]})
    made = cached("table", 1)(lambda: table)
    pd.testing.assert_frame_equal(made(), made(), check_dtype=True)
    pd.testing.assert_frame_equal(made(), table, check_dtype=False)


def test_a_write_that_fails_leaves_nothing(tmp_path):
    target = tmp_path / "kept.txt"
    target.write_text("old")
    with pytest.raises(KeyError), atomic_write(target) as part:
        part.write_text("half")
        raise KeyError
    assert [*tmp_path.iterdir()] == [target] and target.read_text() == "old"
    with atomic_write(target) as part:
        part.write_text("new")
    assert [*tmp_path.iterdir()] == [target] and target.read_text() == "new"


def test_a_folder_is_whole_too(tmp_path):
    for text in ("one", "two"):
        with atomic_write(tmp_path / "model") as part:
            part.mkdir()
            (part / "config.json").write_text(text)
    assert (tmp_path / "model" / "config.json").read_text() == "two"
    with pytest.raises(KeyError), atomic_write(tmp_path / "other") as part:
        part.mkdir()
        raise KeyError
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
