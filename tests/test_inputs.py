"""Bad names, parameters, corpora and results: one clear line each."""

import json
import re
import subprocess
import sys

import pandas as pd
import pytest
import torch

from lib.base import ROOT, InputError, get_profile
from lib.models import load_subject
from lib.reports import parameters, report
from lib.stats import claims
from lib.texts import corpora, cut_windows, load_corpus


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
        (lambda: report.start("01_x", "laptop", seed="x"), r"seed 'x' is no whole number"),
        (lambda: report.start("01_x", "smoke", model=""), r"model '' is blank"),
        (lambda: report.start("01_x", "smoke", corpus=""), r"unknown corpus ''"),
    ],
)
def test_unknown_names(call, says):
    with pytest.raises(InputError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_corpus_shorter_than_the_budget_says_both_numbers(tiny_gpt2):
    name = "wikipedia-sample"
    cut = cut_windows(load_corpus(name).fit, tiny_gpt2.tokenizer, 128, 42, name)
    says = (
        r"wikipedia-sample has 3\d,\d{3} tokens in windows of 128 but 10,000,000 were asked for: "
        "choose a smaller profile or a longer corpus"
    )
    with pytest.raises(InputError, match=says):
        cut.take(10_000_000)


def test_windows_do_not_overlap_and_keep_the_text(tiny_gpt2):
    documents = load_corpus("wikipedia-sample").fit
    found = cut_windows(documents, tiny_gpt2.tokenizer, 128, seed=None)
    for number, document in enumerate(documents):
        tokens = found.tokens[found.document == number].flatten()
        text = tiny_gpt2.tokenizer.decode(tokens).rstrip("�")
        assert document.startswith(text) and len(document) - len(text) < 128 * 30
    assert found.document.unique().tolist() == list(range(len(documents)))


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


def test_a_misspelt_papermill_parameter_is_refused():
    parameters.check_parameters(
        ["profile = 'laptop'\nseed = 42", "# Parameters\nprofile = 'smoke'\nseed = 1"]
    )
    with pytest.raises(InputError, match=r"unknown parameter 'sede': did you mean 'seed'\?"):
        parameters.check_parameters(
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
    one, several = (cut_windows(t, tiny_gpt2.tokenizer, 16) for t in ("some " * 50, ["some " * 50]))
    assert torch.equal(one.tokens, several.tokens) and one.key == several.key
    with pytest.raises(InputError, match="100 tokens in windows of 128 make no window"):
        cut_windows(["some " * 200], tiny_gpt2.tokenizer, 128).take(100)
    with pytest.raises(InputError, match="no document of 128 tokens: give longer texts"):
        cut_windows(["text"], tiny_gpt2.tokenizer, 128)


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


def test_a_damaged_claims_file_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(claims, "DATA", tmp_path)
    folder = tmp_path / "results" / "study" / "m" / "01_x"
    folder.mkdir(parents=True)
    row = dict.fromkeys(claims.JUDGED, "") | {"id": "x", "verdict": "reproduced", "model": "m"}
    pd.DataFrame([row]).to_csv(folder / "claims.csv", index=False)
    assert claims.collate().model.tolist() == ["m"]
    (folder / "claims.csv").write_text("paper,section\n1")
    capsys.readouterr()
    assert claims.collate().empty
    _, said = capsys.readouterr().out.splitlines()  # the first: there is no manifest
    assert said.startswith("results/study/m/01_x/claims.csv is damaged, or of another version")
