"""The cache: an entry's place and health, folders that cannot be written, and the loop over
items."""

import errno
import linecache
import subprocess
import sys

import numpy as np
import pytest
import torch
from joblib import numpy_pickle

from lib.base import ROOT, cache, steps
from lib.base.cache import cached, cold_seconds
from lib.base.steps import Item, each


def test_the_cache_hits_misses_and_heals():
    calls = []

    def work_of(work):
        calls.append(work)
        return {"a": np.arange(1000.0), "n": work}

    step = cached(work_of)
    assert step({"k": 1}, 5)["n"] == 5 and step({"k": 1}, 6)["n"] == 5 and calls == [5]  # a hit
    step({"k": 2}, 7)
    assert calls == [5, 7]  # a changed input misses
    for path in (cache.CACHE / "results").rglob("output.pkl"):
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1  # one flipped bit in the stored array
        path.write_bytes(bytes(raw))
    assert step({"k": 1}, 8)["n"] == 8 and calls == [5, 7, 8]
    assert step({"k": 1}, 9)["n"] == 8
    for path in (cache.CACHE / "results").rglob("output.pkl"):
        path.write_bytes(path.read_bytes()[:40])  # truncated
    assert step({"k": 1}, 10)["n"] == 10


def test_digest_of_tensors_is_by_content():
    assert cache.digest([torch.ones(3), {"a": 1}]) == cache.digest([torch.ones(3), {"a": 1}])
    assert cache.digest(torch.ones(3)) != cache.digest(torch.zeros(3))


def entries():
    return list((cache.CACHE / "results").rglob("output.pkl"))


def test_an_entrys_place_follows_code_and_not_the_module():
    """The same function elsewhere is served; another of its name is not."""

    def module(name, text):
        file = f"/{name}.py"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        space = {"__name__": name}
        exec(compile(text, file, "exec"), space)
        return cached(space["work_of"])

    text = "def work_of(work):\n    return work + 1\n"
    assert module("one", text)({"k": 1}, 5) == 6
    assert module("two", f"# moved\n\n{text}")({"k": 1}, 7) == 6 and len(entries()) == 1
    assert module("three", text.replace("+", "-"))({"k": 1}, 7) == 6 and len(entries()) == 2
    assert module("one", text)({"k": 1}, 8) == 6  # the entries stand side by side


def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch, capsys):
    (tmp_path / "occupied").write_text("a file")
    monkeypatch.setattr(cache, "CACHE", tmp_path / "occupied")
    monkeypatch.setattr(cache, "unkept", [])
    step = cached(lambda work: work * 2)
    assert [step({"k": k}, k) for k in (1, 2)] == [2, 4]
    said = capsys.readouterr().out
    assert said.count("results cannot be kept in occupied (") == 1
    assert "$NONLINEARITY_CACHE" in said and str(tmp_path) not in said


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_folder_that_can_only_be_read_serves_what_it_has(monkeypatch, capsys, number):
    """As root nothing is read-only, so writing fails by hand, in the middle of a file."""

    def work_of(work):
        calls.append(work)
        return np.full(1000, float(work))

    def broken(value, file, **options):
        file.write(b"half of it")
        raise OSError(number, "no more")

    calls, step = [], cached(work_of)
    step({"k": 1}, 1)
    monkeypatch.setattr(cache, "unkept", [])
    monkeypatch.setattr(numpy_pickle, "dump", broken)
    assert step({"k": 1}, 7)[0] == 1 and calls == [1]  # a warm entry
    assert step({"k": 2}, 2)[0] == 2 and step({"k": 2}, 3)[0] == 3  # computed each time
    assert capsys.readouterr().out.count("cannot be kept in cache (no more)") == 1
    files = [p for p in (cache.CACHE / "results").rglob("*") if p.is_file()]
    assert sorted(p.name for p in files) == [".gitignore", "output.pkl"]  # no half entry
    monkeypatch.undo()


def test_errors_of_the_work_itself_pass():
    def fails(work):
        raise OSError(errno.ENOSPC, "the work's own")

    with pytest.raises(OSError, match="own"):
        cached(fails)({}, 1)
    assert not entries()


def test_cold_seconds_are_those_of_the_computation(monkeypatch):
    """Counted once, with the steps inside, whether computed now or before."""
    monkeypatch.setattr(cache, "_seconds", {})
    now = [0.0]
    monkeypatch.setattr(cache.time, "perf_counter", lambda: now[0])

    def inner(work):
        now[0] += 3
        return work

    inner_step = cached(inner)

    def outer(work):
        now[0] += 4
        return inner_step({"k": 1}, work)

    step = cached(outer)
    name = {kind: f"test_cold_seconds_are_those_of_the_computation_locals_{kind}" for kind in
            ("inner", "outer")}  # fmt: skip
    step({}, 1)
    assert cold_seconds() == {name["inner"]: 3, name["outer"]: 4}
    inner_step({"k": 1}, 1)
    step({}, 1)
    assert cold_seconds() == {name["inner"]: 3, name["outer"]: 4}
    monkeypatch.setattr(cache, "_seconds", {})
    step({}, 1)
    assert now[0] == 7 and cold_seconds() == {name["inner"]: 3, name["outer"]: 4}


def squares(work, tick):
    if work < 0:
        raise KeyboardInterrupt
    for _ in range(work):
        tick(1)
    return work**2


SQUARES = cached(squares)


def items(*numbers, keep=True):
    return (Item({"n": n}, n, n, keep) for n in numbers)


def loop(*numbers, total, keep=True, workers=1):
    return list(
        each(SQUARES, items(*numbers, keep=keep), total=total, desc="squares", unit="x",
             workers=workers)
    )  # fmt: skip


def test_each_yields_in_order_and_moves_one_bar(capsys):
    assert loop(3, 1, 2, total=6) == [9, 1, 4] and len(entries()) == 3
    assert "6/6" in capsys.readouterr().out
    assert loop(3, 1, 2, total=6) == [9, 1, 4]  # all warm: the line is there all the same
    assert "squares: 100%" in (line := capsys.readouterr().out) and "6/6" in line


def test_each_keeps_what_a_killed_run_has_done():
    with pytest.raises(KeyboardInterrupt):
        loop(3, 1, -1, 2, total=6)
    assert SQUARES.is_kept({"n": 3}, 3) and SQUARES.is_kept({"n": 1}, 1) and len(entries()) == 2


def test_each_stores_nothing_that_is_not_to_be_kept():
    assert loop(3, 1, total=4, keep=False) == [9, 1] and not entries()


def test_each_in_processes_shares_the_folder_and_the_seconds(monkeypatch):
    monkeypatch.setattr(cache, "_seconds", {})
    assert loop(3, 1, 2, total=6, workers=2) == [9, 1, 4]
    assert len(entries()) == 3 and set(cold_seconds()) == {"squares"}
    assert loop(3, 1, 2, total=6) == [9, 1, 4] and len(entries()) == 3
    monkeypatch.setattr(steps, "_in_worker", None)  # all warm: no process is started
    assert loop(3, 1, 2, total=6, workers=2) == [9, 1, 4]


def test_the_cache_is_light():
    """A plan of runs imports it without a deep-learning library."""
    code = "import sys, lib.base.steps; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
