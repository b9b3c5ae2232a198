"""Rows of trainings: written once, by make train and make render alone, and found by digest."""

import pytest

from lib import runs
from lib.errors import InputError
from lib.runs import keep_rows, kept_rows

ROW = dict(experiment="e", setting="s", seed=1, step=2, text="t", half="odd", loss=3.5)


@pytest.fixture
def own_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "DATA", tmp_path)
    return tmp_path / "runs"


def test_rows_are_written_once_and_only_by_make_train(own_runs, monkeypatch):
    keep_rows("decoder", "a", [ROW])
    assert not own_runs.exists()
    monkeypatch.setenv("NONLINEARITY_TRAIN", "1")
    for digest in ("a", "b", "a", None):
        keep_rows("decoder", digest, [ROW, ROW | {"half": "even", "loss": 2.5}])
    assert len(kept_rows("decoder")) == 4
    assert kept_rows("decoder", "b").loss.tolist() == [3.5, 2.5]
    assert not len(kept_rows("decoder", "c")) and not len(kept_rows("mixer"))
    with pytest.raises(InputError, match=r"unknown family of trainings 'deco'.*decoder"):
        kept_rows("deco")
