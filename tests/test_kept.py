"""Everything on disk: sealed, made again when damaged, whole or not at all, for all to read."""

import base64
import errno
import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nbformat import v4
from PIL import Image

from lib.base import (
    DATA,
    ROOT,
    TINY,
    InputError,
    committed,
    kept,
    paths,
    seal,
    unlike,
    whole,
)
from lib.models import embedded, load_subject
from lib.reports import live, pictures, report
from lib.reports.keep import keep
from lib.texts import corpora

FILES = {"config.json": b'{"rope_theta": 10000}', "deep/weights.bin": bytes(range(256)) * 8}
MADE_OF = {"asset": "abc", "code": "def"}


def write(folder):
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    seal(folder, MADE_OF)


def serve(folder):
    return kept(folder, lambda made: unlike(made, MADE_OF) is None, write)


KINDS = ["bit", "bit", "bit", "short", "empty", "more", "gone", "folder"]


def damage(path, draw, kinds=KINDS):
    """One accident of a disk or a hand: a flipped bit, a lost end, a lost or replaced file."""
    raw = bytearray(path.read_bytes())
    kind = draw.choice(kinds)
    if kind == "bit":
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    elif kind == "short":
        raw = raw[: draw.randrange(len(raw))]
    elif kind == "empty":
        raw = b""
    elif kind == "more":
        raw += b" "
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind != "gone":
        path.write_bytes(raw)
    return kind


def contents(folder):
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != "MANIFEST.json")
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def test_a_derived_folder_is_served_as_made_or_made_again(tmp_path):
    folder, draw = tmp_path / "model", random.Random(0)
    for _ in range(120):
        assert contents(serve(folder)) == FILES
        path = folder / draw.choice([*FILES, "MANIFEST.json"])
        kind = damage(path, draw)
        assert contents(serve(folder)) == FILES and unlike(folder) is None, (path.name, kind)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "model.lock"]


@pytest.mark.parametrize("text", ["[]", "{}", '{"files": 3}', '{"files": {}, "made_of": {}}', "\0"])
def test_a_manifest_that_says_nothing_holds_nothing(tmp_path, text):
    write(tmp_path)
    (tmp_path / "MANIFEST.json").write_text(text)
    assert unlike(tmp_path, MADE_OF) == "MANIFEST.json"


def test_a_file_too_many_and_another_origin_are_seen(tmp_path):
    write(tmp_path)
    (tmp_path / ".DS_Store").touch()  # a file manager's, which nobody reads
    (tmp_path / ".0123abcd.1@here.part").mkdir()  # a killed writer's
    (tmp_path / ".0123abcd.1@here.part" / "config.json").touch()
    assert unlike(tmp_path) is None and unlike(tmp_path, MADE_OF | {"code": "new"})
    (tmp_path / "deep" / "added.json").write_text("{}")
    assert unlike(tmp_path) == "deep/added.json"


@pytest.fixture
def converted(tmp_path, monkeypatch):
    """The embedded model, with a committed one in the place of its conversion; what was made."""
    made = []
    monkeypatch.setattr(embedded, "CACHE", tmp_path)
    monkeypatch.setattr(embedded, "fetch", lambda name: tmp_path / name)
    monkeypatch.setattr(embedded, "code_digest", lambda step: "the same")

    def convert(gguf, folder):
        made.append(folder)
        shutil.copytree(DATA / "models" / "tiny-llama", folder)
        (folder / "MANIFEST.json").unlink()

    monkeypatch.setattr(embedded, "_dequantize", convert)
    return made


def test_a_changed_configuration_or_tokenizer_is_made_again(converted):
    folder = embedded.smollm2_folder()
    config = json.loads((folder / "config.json").read_text())
    for change in ({"num_hidden_layers": 3}, {"rope_parameters": {"rope_theta": 5e5}}):
        (folder / "config.json").write_text(json.dumps(config | change))
        assert len(load_subject("smollm2-135m", device="cpu").blocks) == 6
        assert json.loads((folder / "config.json").read_text()) == config
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"Ġthe"', '"Ġtha"', 1))
    assert (embedded.smollm2_folder() / "tokenizer.json").read_text() == text
    (folder / "generation_config.json").unlink()
    embedded.smollm2_folder()
    assert len(converted) == 5
    (folder / "MANIFEST.json").unlink()  # as an earlier version left it
    embedded.smollm2_folder()
    embedded.smollm2_folder()
    assert len(converted) == 6


def test_what_other_code_made_is_left_to_it(converted, monkeypatch):
    first = embedded.smollm2_folder()
    monkeypatch.setattr(embedded, "code_digest", lambda step: "another")
    second = embedded.smollm2_folder()
    assert first != second and first.name == second.name == "smollm2-135m"
    assert len(converted) == 2 and unlike(first) is None


@pytest.mark.parametrize("name", ["corpora", *(f"models/{name}" for name in TINY)])
def test_what_is_committed_is_sealed(name):
    assert committed(DATA / name) == DATA / name


def test_a_damaged_corpus_is_refused_or_reads_the_same(tmp_path, monkeypatch):
    """A flip in a blank of the manifest changes nothing; any in the text is seen."""
    good, draw, refused = corpora._sample(), random.Random(1), 0
    monkeypatch.setattr(corpora, "DATA", tmp_path)
    for name in ["wikipedia-sample.json"] * 20 + ["MANIFEST.json"] * 20:
        shutil.rmtree(tmp_path / "corpora", ignore_errors=True)
        shutil.copytree(DATA / "corpora", tmp_path / "corpora")
        damage(tmp_path / "corpora" / name, draw)
        try:
            assert corpora._sample() == good and name == "MANIFEST.json"
        except InputError as error:
            refused += 1
            assert "is not as it was committed: restore it with `git checkout" in str(error)
    assert refused >= 25


def test_what_cannot_be_written_is_said_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CACHE", tmp_path)

    def full(part):
        part.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full_in_rust(part):
        raise RuntimeError("Error while serializing: I/O error: File too large (os error 27)")

    def nothing(part):
        raise RuntimeError("of the work itself")

    for make, reason in ((full, "No space left on device"), (full_in_rust, "File too large")):
        with pytest.raises(InputError, match=rf"model could not be .*{reason}.*NONLINEARITY_CACHE"):
            kept(tmp_path / "model", Path.exists, make)
    with pytest.raises(RuntimeError, match="itself"):
        kept(tmp_path / "model", Path.exists, nothing)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="could not be written into"):
        kept(tmp_path / "file" / "model", Path.exists, write)
    table = tmp_path / "runs" / "table.csv"
    said = r"table.csv could not be written into .*No space left"
    with pytest.raises(InputError, match=said), whole(table) as part:
        full(part)
    with pytest.raises(FileNotFoundError), whole(table):
        (tmp_path / "the body's own").read_text()
    assert not (tmp_path / "model").exists() and not list((tmp_path / "runs").iterdir())


def as_another_user(work):
    """What `work` returned, a line, in a process without this user's rights."""
    read, told = os.pipe()
    if not (child := os.fork()):
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            os.write(told, str(work()).encode())
        except BaseException as error:
            os.write(told, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(told)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return answer.read()


@pytest.fixture
def shared(tmp_path):
    """A folder that others reach and nobody may write while the test's second part runs."""
    folder = tmp_path / "shared"
    folder.mkdir()
    closed = [p for p in (tmp_path, *tmp_path.parents) if p.stat().st_uid == os.getuid()]
    before = {p: stat.S_IMODE(p.stat().st_mode) for p in closed}
    for path in closed:
        path.chmod(before[path] | 0o011)
    yield folder
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    folder.chmod(0o755)
    for path, mode in before.items():
        path.chmod(mode)


def close(folder):
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)


def test_a_warm_cache_that_can_only_be_read_serves_others(shared):
    serve(shared / "model")
    close(shared)
    assert as_another_user(lambda: serve(shared / "model") and "served") == "served"
    said = as_another_user(lambda: serve(shared / "other"))
    assert said.startswith("InputError: other could not be written into") and "denied" in said
    os.chmod(shared / "model" / "config.json", 0o644)
    (shared / "model" / "config.json").write_text("{}")
    said = as_another_user(lambda: serve(shared / "model"))
    assert said.startswith("InputError: model could not be written into") and "\n" not in said


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_what_is_written_has_the_modes_of_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        with whole(tmp_path / "folder") as part:
            (part / "inner").mkdir(parents=True, mode=0o700)
            (part / "inner" / "weights").touch(mode=0o600)
        with whole(tmp_path / "file") as part:
            part.touch(mode=0o600)
    finally:
        os.umask(before)
    folder = tmp_path / "folder"
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "file", *folder.rglob("*"))}
    assert modes.pop(folder / "inner") == stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~umask
    assert set(modes.values()) == {0o666 & ~umask} and len(modes) == 2


WRITER = """
import sys, time
from pathlib import Path
from lib.base.paths import whole

with whole(Path(sys.argv[1])) as part:
    part.write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def writer(target):
    running = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(target)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert running.stdout.readline() == "writing\n"
    return running


def test_what_a_killed_writer_left_is_swept_and_nothing_else(tmp_path):
    def left():
        return {p.name for p in tmp_path.iterdir() if p.suffix == ".part"}

    def next_write():
        with whole(tmp_path / "other.svg") as part:
            part.write_text("whole")
        return left()

    killed, live = writer(tmp_path / "a.svg"), writer(tmp_path / "b.svg")
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        elsewhere = tmp_path / f".0123abcd.{killed.pid}@another-machine.part"
        mine = tmp_path / ".notes.part"
        elsewhere.mkdir()
        mine.mkdir()
        (litter,) = (n for n in left() if f".{killed.pid}@" in n and n != elsewhere.name)
        assert len(next_write()) == 4  # too young to be sure of
        old = time.time() - paths.OLD - 1
        for path in tmp_path.glob("*.part"):
            os.utime(path, (old, old))
        everything = left()
        assert everything - next_write() == {litter}
        assert not (tmp_path / "a.svg").exists() and live.poll() is None
    finally:
        live.kill()
        live.wait()


def test_a_folder_gives_way_to_its_successor_whole(tmp_path):
    target = tmp_path / "model"
    write(target)
    (target / "stale.json").touch()
    with whole(target) as part:
        write(part)
    assert unlike(target) is None and not (target / "stale.json").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert contents(target) == FILES


@pytest.mark.parametrize("text", ["", "{", "[]", "[1]", "3", "\0\udcff", '{"state": "do'])
def test_damaged_facts_of_a_run_are_written_anew(tmp_path, monkeypatch, text):
    task = live.Task("tiny-gpt2", "99_tiny")
    live.tell(tmp_path, task, state="done", title="Tiny")
    (file,) = tmp_path.rglob("99_tiny.json")
    file.write_bytes(text.encode(errors="surrogateescape"))
    (tmp_path / ".status" / "series.json").write_text(text.replace("\udcff", ""))
    assert live.status(tmp_path, task) == {} and live.listed(tmp_path) == []
    live.index(tmp_path)
    live.tell(tmp_path, task, state="running")
    assert live.status(tmp_path, task) == {"state": "running"}

    monkeypatch.setattr(report, "DATA", tmp_path)
    run = report.start("99_tiny", "smoke")
    run.provenance(documents=1)
    stored = run.folder / "provenance.json"
    stored.write_bytes(text.encode(errors="surrogateescape"))
    run.provenance(documents=1)
    assert json.loads(stored.read_text())["documents"] == 1


def test_damaged_pictures_are_other_pictures(tmp_path):
    """So a file is written again, and a committed notebook's is not kept."""
    path, draw, same = tmp_path / "x.png", random.Random(0), 0
    image = Image.linear_gradient("L").resize((60, 40)).quantize(64)
    image.save(path, optimize=True)
    good = path.read_bytes()
    for _ in range(60):
        path.write_bytes(good)
        damage(path, draw, kinds=["bit", "short", "empty", "more"])
        damaged = path.read_bytes()
        executed, before = map(notebook_showing, (good, damaged))
        keep(executed, before)
        if pictures._same("png", damaged, good):  # a flip in what is not shown
            same += 1
            assert pictures.pixels(damaged) == pictures.pixels(good)
        else:
            assert executed == notebook_showing(good)
    assert same < 30


def notebook_showing(png):
    data = {"image/png": base64.b64encode(png).decode()}
    output = v4.new_output("display_data", data)
    return v4.new_notebook(cells=[v4.new_code_cell("1", id="a", outputs=[output])])
