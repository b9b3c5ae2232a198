"""What is remembered: found by what it is of, whole or not there, and never lost or overwritten."""

import errno
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from filelock import FileLock

from lib import files, store, tables
from lib.committed import difference_of
from lib.errors import InputError
from lib.files import atomic_write, cache_folder
from lib.hooks import Rows
from lib.lazy import LazyModule
from lib.linear.probes import train_probe
from lib.linear.regression import errors, fit, r2
from lib.stats import ratio, sums
from lib.store import Key, cached, kept
from lib.swap.expected import predicted_cost
from lib.swap.healing import heal
from lib.swap.sweep import document_losses, sweep, token_sweep
from lib.tables import entry, read

LOSSES = "losses after a swap"


def rows_of(family: str) -> list[dict[str, str]]:
    return [row for rows in read(family).entries.values() for row in rows]


def families() -> list[str]:
    return sorted(path.stem.replace("-", " ") for path in tables.MEASURED.glob("*.csv"))


@pytest.fixture
def counted(own_cache):
    """A cached function and the list of its calls."""
    calls = []

    @cached("doubles", 1, helpers=("help",), x="of", by="factor")
    def double(x, by=2.0, help=None):
        calls.append(x)
        return {"y": torch.tensor([by * getattr(x, "value", x)]), "n": 3}

    return double, calls


@pytest.fixture
def written(monkeypatch):
    """What make render sets: measurements are added to the repository's, here to a folder of the
    test's own."""
    monkeypatch.setenv("NONLINEARITY_RENDER", "1")


@pytest.fixture(autouse=True)
def said_again():
    files.say_once.cache_clear()


class Made:
    def __init__(self, value, provenance):
        self.value, self.provenance = value, provenance


def cache_entries() -> list[Path]:
    return [path for path in cache_folder().rglob("*") if path.is_file()]


def forget(monkeypatch, tmp_path):
    """Another machine: the repository is there, the user's cache is empty."""
    monkeypatch.setenv("NONLINEARITY_CACHE", str(tmp_path / "another machine"))


# Found by what it is of


def test_a_function_runs_once_for_each_argument(counted):
    double, calls = counted
    first, again = double(4), double(x=4, by=2.0, help="ignored")
    assert calls == [4] and first["y"] == again["y"] == 8 and again["n"] == 3
    assert double(5)["y"] == 10 and double(4, by=3.0)["y"] == 12 and calls == [4, 5, 4]
    assert len(cache_entries()) == 3


def test_a_function_goes_by_words(counted):
    double, calls = counted
    double(Made(1, "one")), double(Made(1, "one")), double(Made(1, "another"))
    assert len(calls) == 2
    double(Made(7, None)), double(Made(7, None))  # made in memory: nothing is kept
    assert len(calls) == 4 and len(cache_entries()) == 2
    assert double.key(Made(7, None)) is None
    assert str(double.key(Made(1, "one"))) == "doubles 1\nof: one"
    assert double.key([Made(1, "a"), 2]) != double.key([Made(1, "b"), 2])
    assert double.key({"k": Made(1, "a")}) != double.key({"k": Made(1, "b")})


def test_a_new_version_is_a_new_entry(own_cache):
    run = [cached("same", v)(lambda x: {"y": x}) for v in (1, 2)]
    assert [f(1)["y"] for f in run] == [1, 1] and len(cache_entries()) == 2


@pytest.mark.parametrize(
    "result",
    [
        pd.DataFrame({"a": [1, 2], "b": [0.5, np.nan], "c": ["x", "NA"], "d": [True, False]}),
        {12: [np.arange(3), torch.ones(2, 2)], "text": "001", "none": None, "deep": {"x": 1.5}},
        {12: "a", "12": "b", "001": {True: 1, (0, 1): 2, np.int64(7): 3}, "_tensor": "x"},
        [["a", "1"], {"kind": ("poly", 2)}, float("inf"), np.float32(0.5)],
    ],
    ids=["table", "dictionary", "keys", "list"],
)
def test_what_goes_into_the_cache_comes_out(own_cache, result):
    made = cached("result", 1)(lambda: result)
    first, again = made(), made()
    assert store.pack(first) == store.pack(again)
    if isinstance(result, pd.DataFrame):
        pd.testing.assert_frame_equal(again, result, check_dtype=False)
    elif isinstance(result, dict) and "_tensor" in result:
        assert again == result
    elif isinstance(result, dict):
        assert again[12][0].tolist() == [0, 1, 2] and torch.equal(again[12][1], result[12][1])
        assert again["text"] == "001" and again["none"] is None and again["deep"] == {"x": 1.5}
    else:
        assert again[0] == ["a", "1"] and again[1:] == [{"kind": ["poly", 2]}, np.inf, 0.5]


@pytest.mark.parametrize(
    "table",
    [
        {"text": ["2024", "NA", "001", "None", "null", "True", "nan", "1e5", "", '"quoted"']},
        {"text": ["a\rb", "a\nb", "a,b", "a;b"], "n": [1, 2, 3, 4]},
        {"whole": [1, 2], "fraction": [2.0, 3.0], "missing": [1.0, np.nan], "yes": [True, False]},
        {"tiny": [1e-300, -0.0, np.inf], "large": [2**53, 0, -1]},
    ],
    ids=["texts", "lines", "numbers", "ends"],
)
def test_what_goes_into_the_repository_comes_out(own_cache, written, monkeypatch, tmp_path, table):
    table = pd.DataFrame(table)
    measure = kept("a family", 1)(lambda what: table)
    other = kept("a family", 1)(lambda what: pd.DataFrame({"another column": [0.5]}))
    other("before"), measure("1\r2, 001"), other("after")
    forget(monkeypatch, tmp_path)
    found = measure.look_up(measure.key("1\r2, 001"))
    pd.testing.assert_frame_equal(found, table, check_exact=True)
    assert [*other.look_up(other.key("after")).columns] == ["another column"]


@pytest.mark.parametrize("changed, differs", [(None, False), ("n", True), ("text", True)])
def test_an_entry_with_missing_numbers_is_compared(
    own_cache, written, monkeypatch, tmp_path, changed, differs
):
    """nan less nan is nan, so every such entry was called changed; texts were not compared."""
    table = pd.DataFrame({"n": [1.0, np.nan], "text": ["a", "b"]})
    measure = kept("a family", 1)(lambda what: table)
    measure("this")
    forget(monkeypatch, tmp_path)
    if changed:
        table.loc[0, changed] = {"n": 1.5, "text": "c"}[changed]
    digest = measure.key("this").digest
    monkeypatch.setenv("NONLINEARITY_CHECK", digest)
    again = measure("this")
    assert (difference_of(entry("a family", digest), again) > 1e-4) == differs


@pytest.mark.parametrize("column", ["what", "rows", "key", "device"])
def test_no_column_stands_twice_in_a_file(own_cache, written, monkeypatch, tmp_path, column):
    """The name of another entry's input, or of what an entry says of itself, damaged the file."""
    first = kept("a family", 1)(lambda what: pd.DataFrame({"x": [1.0]}))
    second = kept("a family", 1)(lambda other: pd.DataFrame({column: [2.0]}))
    first("this")
    before = tables.path_of("a family").read_bytes()
    with pytest.raises(TypeError, match="would stand twice"):
        second("that")
    assert tables.path_of("a family").read_bytes() == before


@pytest.mark.parametrize("values", [["a", None, "nan"], [True, None, False], [1, None, "b"]])
def test_what_is_missing_stays_missing(own_cache, written, monkeypatch, tmp_path, values):
    """At the first call, from the cache and from the repository; the text nan is a text."""
    measure = kept("a family", 1)(lambda what: pd.DataFrame({"001": values, "1": [1, 2, 3]}))
    found = [measure("this"), measure("this")]
    forget(monkeypatch, tmp_path)
    found.append(measure("this"))
    for table in found:
        assert table["001"].isna().tolist() == [False, True, False]
        assert [table["001"][k] for k in (0, 2)] == [values[0], values[2]]
        assert table["1"].tolist() == [1, 2, 3]


def test_a_result_of_a_strange_kind_is_handed_back(own_cache, capsys):
    strange = cached("strange", 1)(lambda: {"x": object})
    assert strange()["x"] is object and "not kept" in capsys.readouterr().out


def test_an_entry_that_stands_twice_counts_once(own_cache, written, monkeypatch, tmp_path):
    measure = kept("a family", 1)(lambda what: pd.DataFrame({"n": [1, 2]}))
    measure("this")
    path = tables.path_of("a family")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, *lines[1:]]))  # a union merge of two that are alike
    forget(monkeypatch, tmp_path)
    assert measure.look_up(measure.key("this")).n.tolist() == [1, 2]


# Never lost, never overwritten


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\0" * 99, lambda b: b[:-1]]
)
def test_a_damaged_entry_is_set_aside_and_made_again(counted, damage, capsys):
    double, calls = counted
    double(4)
    (path,) = cache_entries()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert double(4)["y"] == 8 and len(calls) == 2
    (aside,) = [p for p in cache_entries() if p.suffix == ".damaged"]
    assert path.read_bytes() == whole and aside.read_bytes() == damage(whole)
    assert "is damaged" in capsys.readouterr().out


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files"),
        MemoryError(),
        OSError(errno.ESTALE, "Stale file handle"),
        PermissionError(errno.EACCES, "Permission denied"),
    ],
    ids=lambda error: str(error) or "no memory",
)
def test_a_reading_that_fails_is_no_damage(counted, error, monkeypatch, capsys):
    double, calls = counted
    double(4)
    (path,) = cache_entries()
    whole = path.read_bytes()

    def fails(self):
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", fails)
        assert double(4)["y"] == 8 and len(calls) == 2
    assert path.read_bytes() == whole and len(cache_entries()) == 1
    assert "it is left as it is" in capsys.readouterr().out


def test_what_was_measured_by_a_run_is_counted_when_it_is_read_again(
    own_cache, written, monkeypatch, tmp_path
):
    measure, _, _ = as_written(monkeypatch, tmp_path)
    store.USED.clear()
    measure("one"), measure("three"), measure("three")
    now = {
        key.words["what"]: store.USED[key.digest][1] for key in map(measure.key, ("one", "three"))
    }
    assert now == {"one": False, "three": True}


def as_written(monkeypatch, tmp_path) -> tuple:
    """Two entries in the repository, measured by a function that counts its calls."""
    calls = []

    @kept("a family", 1)
    def measure(what):
        calls.append(what)
        return pd.DataFrame({"name": ["x", "y"], "n": [len(calls), 7]})

    measure("one"), measure("two")
    forget(monkeypatch, tmp_path)
    return measure, calls, tables.path_of("a family")


def test_a_mark_that_a_spreadsheet_puts_in_front_is_no_damage(
    own_cache, written, monkeypatch, tmp_path
):
    measure, calls, path = as_written(monkeypatch, tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert measure("one").n.tolist() == [1, 7] and len(calls) == 2


MARKERS = {
    "between rows": lambda lines: [*lines[:3], "<<<<<<< ours\n", *lines[3:], ">>>>>>> theirs\n"],
    "in the header": lambda lines: ["<<<<<<< ours\n", lines[0], ">>>>>>> theirs\n", *lines],
    "at the end": lambda lines: [*lines, ">>>>>>> theirs\n"],
}


@pytest.mark.parametrize("where", MARKERS)
def test_conflict_markers_are_said_and_nothing_is_written(
    own_cache, written, monkeypatch, tmp_path, where
):
    measure, calls, path = as_written(monkeypatch, tmp_path)
    path.write_text("".join(MARKERS[where](path.read_text().splitlines(keepends=True))))
    before = path.read_bytes()
    for what in ("one", "three"):
        with pytest.raises(InputError, match="has conflict markers of git: resolve"):
            measure(what)
    assert path.read_bytes() == before and calls == ["one", "two"]


@pytest.mark.parametrize(
    "damage, whole",
    [
        (lambda content: content + b"\xff", ["one", "two"]),
        (lambda content: content + b"x", ["one", "two"]),
        (lambda content: content[:-20], ["one"]),
        (lambda content: content.replace(b"y,7", b"y,7,7", 1), ["two"]),
        (lambda content: content[7:], []),
        (lambda content: content.replace(b",2\n", b",2x\n", 1), ["two"]),
        (lambda content: content.replace(b",2\n", b",\n", 1), ["two"]),
        (lambda content: content.replace(b"x,1,", b'"""x",1,', 1), ["two"]),
        (lambda content: b"", []),
    ],
    ids=[
        "a stray byte",
        "a stray letter",
        "cut short",
        "a cell too many",
        "header",
        "no number of rows",
        "blank",
        "half a quote",
        "empty",
    ],
)
def test_of_a_damaged_file_the_whole_entries_are_read(
    own_cache, written, monkeypatch, tmp_path, capsys, damage, whole
):
    measure, calls, path = as_written(monkeypatch, tmp_path)
    content = damage(path.read_bytes())
    path.write_bytes(content)
    found = {what: measure(what).n.tolist() for what in ("one", "two")}
    assert len(calls) == 4 - len(whole) and all(found[w][0] == 1 + (w == "two") for w in whole)
    # All that was there is still there, in the copy if not in the file.
    (aside,) = path.parent.glob("*.damaged")
    assert aside.read_bytes() == content and "is damaged" in capsys.readouterr().out
    forget(monkeypatch, tmp_path / "once more")
    assert {what: measure(what).n.tolist() for what in ("one", "two")} == found


def test_a_file_that_cannot_be_read_now_is_not_written(
    own_cache, written, monkeypatch, tmp_path, capsys
):
    measure, calls, path = as_written(monkeypatch, tmp_path)
    before = path.read_bytes()

    def fails(self):
        raise OSError(errno.EMFILE, "Too many open files")

    os.utime(path)  # so that it is read again
    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", fails)
        assert measure("one").n.tolist() == [3, 7] and measure("new").n.tolist() == [4, 7]
    assert path.read_bytes() == before and "it is left as it is" in capsys.readouterr().out
    forget(monkeypatch, tmp_path / "once more")
    assert measure("two").n.tolist() == [2, 7] and len(calls) == 4


def a_file(folder):
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("")


def a_full_disk(monkeypatch):
    def write_bytes(self, _):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_bytes)


def a_read_only_folder(monkeypatch):
    def mkdir(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", mkdir)


@pytest.mark.parametrize("what", ["a file in its place", "a full disk", "a read-only folder"])
def test_a_result_is_handed_back_even_if_it_cannot_be_kept(counted, what, monkeypatch, capsys):
    double, calls = counted
    if what == "a file in its place":
        a_file(cache_folder().parent)
    else:
        {"a full disk": a_full_disk, "a read-only folder": a_read_only_folder}[what](monkeypatch)
    assert double(4)["y"] == 8 and double(5)["y"] == 10 and calls == [4, 5]
    said = capsys.readouterr().out.splitlines()
    assert said and all("a result is used and not kept" in line for line in said)


def test_a_lock_that_cannot_be_had_keeps_nobody_from_a_result(
    own_cache, written, monkeypatch, capsys
):
    def acquire(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(FileLock, "acquire", acquire)
    measure = kept("a family", 1)(lambda what: pd.DataFrame({"n": [1]}))
    assert measure("this").n.tolist() == [1] and not families()
    assert "not kept" in capsys.readouterr().out


@pytest.mark.parametrize("named", ["~/mine", "mine", "/elsewhere", ""])
def test_the_cache_is_one_folder_wherever_one_stands(monkeypatch, tmp_path, named):
    monkeypatch.setenv("NONLINEARITY_CACHE", named)
    monkeypatch.setenv("HOME", "/home/somebody")
    found = set()
    for folder in (tmp_path, files.ROOT):
        monkeypatch.chdir(folder)
        found.add(cache_folder())
    (folder,) = found
    assert folder.is_absolute() and "~" not in str(folder)
    assert folder.is_relative_to({"mine": files.ROOT, "~/mine": "/home/somebody"}.get(named, "/"))


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


def _add_twenty(folder: str, name: int) -> None:
    tables.MEASURED = Path(folder)
    os.environ["NONLINEARITY_RENDER"] = "1"
    for k in range(20):
        table = pd.DataFrame({"n": [k]})
        table.attrs.update(device="cores", torch="2", seconds=1.0)
        key = Key("a family", 1, {"what": f"{name} {k}"})
        tables.add(key.name, key.digest, key.version, key.words, table)


def test_two_processes_lose_no_entry_of_each_other(tmp_path, monkeypatch):
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_add_twenty, args=(str(tmp_path), name)) for name in (1, 2)]
    [process.start() for process in both]
    [process.join() for process in both]
    monkeypatch.setattr(tables, "MEASURED", tmp_path)
    assert len(read("a family").entries) == 40


# Measurements


def test_a_kept_page_fits_nothing_and_has_the_same_numbers(
    subject, fit_text, test, own_cache, written, monkeypatch, tmp_path
):
    def page():
        fits = fit(subject, fit_text)
        swaps = {(2, "affine"): fits.maps[2], (3, "mean output"): fits.mean_output[3]}
        losses = sweep(subject, test, swaps).table()
        rows = Rows(subject, fit_text, test, [2])
        probe = train_probe(rows, 2, fits.maps[2], "linear", 5)
        healed = heal(subject, fit_text, {(2, "affine"): fits.maps[2]}, 2)  # when first used
        cost = predicted_cost(subject, test[:4], fits)
        return losses, r2(subject, test, fits), cost, probe.errors, (fits, healed)

    measured = page()
    assert families() == sorted(["facts of fits", LOSSES, "errors of affine maps",
                                 "errors of probes", "predicted costs"])  # fmt: skip
    forget(monkeypatch, tmp_path)

    def never(*_):
        raise AssertionError("fitted again")

    monkeypatch.setattr("lib.linear.regression.collect", never)
    monkeypatch.setattr("lib.swap.sweep.token_sweep", never)
    again = page()
    for one, other in zip(measured[:4], again[:4]):
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    fits, healed = again[4]
    for handle in (*fits.maps.values(), *fits.mean_output.values(), *healed.values()):
        assert isinstance(handle, LazyModule) and "made" not in handle._modules


def test_losses_by_document_are_those_of_each_token(subject, fits, test, own_cache):
    losses = sweep(subject, test, {(2, "plain"): fits.maps[2]})
    exact = token_sweep(subject, test, {(2, "plain"): fits.maps[2]})
    assert losses.perplexity == pytest.approx(np.exp(exact[None].mean()), rel=1e-8)
    added, n = exact[2, "plain"] - exact[None], np.ones_like(exact[None])
    added = ratio(sums(added, test.document), sums(n, test.document))
    assert [*losses.change((2, "plain"))] == pytest.approx([*added.map(np.expm1)], rel=1e-5)


def test_an_entry_is_written_once_and_only_by_make_render(subject, test, own_cache, monkeypatch):
    sweep(subject, test, {})
    assert not families()
    monkeypatch.setenv("NONLINEARITY_RENDER", "1")
    sweep(subject, test, {})  # found in the user's cache, and added
    sweep(subject, test, {})
    rows = pd.DataFrame(rows_of(LOSSES))
    assert len(rows) == test.n_documents and rows.key.nunique() == 1
    assert {"model", "text", "version", "document", "sum", "predictions"} <= {*rows.columns}
    assert rows.device.iloc[0] == "cores" and rows.model.iloc[0] == subject.provenance


def test_nothing_of_a_model_in_memory_is_kept(subject, test, own_cache, written):
    from dataclasses import replace

    sweep(replace(subject, loaded_as=None), test, {})
    assert not families()


def test_a_changed_row_is_found_when_it_is_measured_again(
    subject, test, own_cache, written, monkeypatch, tmp_path
):
    sweep(subject, test, {})
    digest = document_losses.key(subject, test).digest
    path = tables.path_of(LOSSES)

    def measured_again() -> float:
        forget(monkeypatch, tmp_path)
        monkeypatch.setenv("NONLINEARITY_CHECK", digest)
        again = document_losses(subject, test)
        monkeypatch.delenv("NONLINEARITY_CHECK")
        return difference_of(entry(LOSSES, digest), again)

    assert measured_again() < 1e-6
    family = read(LOSSES)
    row = family.entries[digest][3]
    row["sum"] = f"{1.01 * float(row['sum'])}"
    tables.write(LOSSES, family)
    assert path.exists() and measured_again() > 1e-3


def test_inputs_that_only_some_entries_name_are_blank_in_the_others(
    subject, fits, test, own_cache, written
):
    sweep(subject, test, {(2, "plain"): fits.maps[2]})
    rows = pd.DataFrame(rows_of(LOSSES))
    assert {*rows.block} == {"", "2"} and rows.key.nunique() == 2
    key = document_losses.key(subject, test, 2, fits.maps[2])
    table = entry(LOSSES, key.digest)
    assert [*table.columns] == ["document", "sum", "predictions"]


def test_a_model_without_massive_activations_gives_no_rows_and_no_nan(own_cache):
    from lib.models.loading import load_subject
    from lib.text.corpora import load_corpus
    from lib.text.windows import cut_windows

    llama = load_subject("tiny-neox", device="cpu")
    text = load_corpus("wikipedia-sample")
    windows = cut_windows(text.fit, llama.tokenizer, 64).take(2_048)
    few = cut_windows(text.test, llama.tokenizer, 64).per_document(1, 8)
    fits = fit(llama, windows)
    some = {(b, "massive kept"): m for b, m in fits.massive_kept.items()}
    table = sweep(llama, few, {(1, "affine"): fits.maps[1]} | some).table()
    assert len(table) == 1 + len(fits.massive_blocks) and not table.isna().any().any()
    assert not errors(llama, few, fits).isna().any().any()
