"""A pickle runs what it says when it is loaded, so one that others may have written is not."""

import os
import pickle
import shutil
import stat
from pathlib import Path

import joblib
import pytest

from lib.base import ROOT, cache, trust
from lib.base.cache import cached
from lib.base.trust import doubt


class Planted:
    """Creates a file where it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.fixture
def step(monkeypatch):
    monkeypatch.setattr(cache, "unkept", [])
    calls = []

    def work_of(work):
        calls.append(work)
        return work

    call = cached(work_of)
    call.calls = calls
    return call


def results():
    return cache.CACHE / "results"


def entry():
    (path,) = results().rglob("output.pkl")
    return path


@pytest.fixture
def mark(step, tmp_path):
    """An entry that was replaced: where its loading would leave a mark."""
    step({"k": 1}, 1)
    entry().write_bytes(pickle.dumps(Planted(tmp_path / "mark")))
    return tmp_path / "mark"


def test_the_planted_pickle_would_run(mark):
    """Or the other tests would pass whatever the cache did."""
    joblib.load(entry())
    assert mark.exists()


@pytest.mark.parametrize("mode", [0o020, 0o002])
@pytest.mark.parametrize("which", ["store", "step", "entry", "file"])
def test_an_entry_that_others_may_write_is_not_loaded(mark, step, capsys, which, mode):
    file = entry()
    path = {"file": file, "entry": file.parent, "step": file.parent.parent, "store": results()}
    path = path[which]
    path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)
    assert step({"k": 1}, 2) == 2 and step({"k": 1}, 3) == 3 and not step.is_kept({"k": 1}, 1)
    assert not mark.exists()
    said = capsys.readouterr().out
    assert said.count("others than the owner may write results") == 1
    assert "this run goes on without; set $NONLINEARITY_CACHE" in said and said.count("\n") == 1


def test_an_entry_that_is_a_link_is_not_followed(mark, step):
    file = entry()
    shutil.move(file, file.parent / "elsewhere")
    file.symlink_to("elsewhere")
    assert step({"k": 1}, 2) == 2 and not mark.exists()


def test_a_store_inside_the_checkout_is_not_read(mark, step, monkeypatch, capsys):
    monkeypatch.setattr(trust, "ROOT", cache.CACHE.parent)
    assert step({"k": 1}, 2) == 2 and not mark.exists()
    assert "inside the checkout" in capsys.readouterr().out
    monkeypatch.undo()
    assert doubt(ROOT / "cache" / "results") and doubt(ROOT / "lib" / ".." / "results")


def of(path, uid):
    os.chown(path, uid, -1, follow_symlinks=False)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_whose_a_store_may_be(tmp_path, step, monkeypatch):
    """A shared one, all of it one user's and closed up to the root, is read; a stranger's entry in
    one's own store is not, nor one's own in a place where anyone may make folders."""
    step({"k": 1}, 1)
    path = (entry().parent.parent.name, entry().parent.name, "output.pkl")
    assert doubt(results(), *path) is None
    of(entry(), 12345)
    assert "belongs to another user" in doubt(results(), *path)
    for part in (results(), *results().rglob("*")):
        of(part, 12345)
    assert "folders above it" in doubt(results(), *path)  # for /tmp is open to all
    monkeypatch.setattr(Path, "parents", property(lambda self: [cache.CACHE]))
    assert doubt(results(), *path) is None
    cache.CACHE.chmod(0o1777)
    assert "folders above it" in doubt(results(), *path)
    cache.CACHE.chmod(0o755)
    of(cache.CACHE, 54321)
    assert "folders above it belongs to another" in doubt(results(), *path)


@pytest.mark.parametrize("umask", [0o002, 0o000, 0o022, 0o077])
def test_entries_are_served_whatever_the_umask(step, umask):
    """Others may read what the umask lets them, and never write."""
    before = os.umask(umask)
    try:
        assert step({"k": 1}, 1) == step({"k": 1}, 2) == 1 and step.calls == [1]
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    files = [results(), *results().rglob("*")]
    assert {stat.S_IMODE(p.stat().st_mode) & 0o022 for p in files} == {0}
    assert stat.S_IMODE(entry().stat().st_mode) == 0o644 & ~umask


def test_what_a_killed_run_left_of_an_entry_is_swept(step):
    step({"k": 1}, 1)
    old, young = (entry().with_name(f"output.pkl.{name}") for name in ("a-1-2", "b-3-4"))
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    entry().unlink()
    assert step({"k": 1}, 2) == 2 and young.exists() and not old.exists()
