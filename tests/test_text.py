"""Corpora and token windows."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lib.errors import InputError
from lib.text.corpora import (
    CORPORA,
    Corpus,
    articles_of_lines,
    distinct,
    load_corpus,
    measured_sample,
    pieces,
)
from lib.text.ngram import KneserNey
from lib.text.windows import cut_windows, start_tokens

ROOT = Path(__file__).parents[1]


def letters(text, add_special_tokens=True, verbose=True):
    """A tokenizer of one token a letter."""
    return {"input_ids": [ord(c) - 97 for c in text]}


@pytest.fixture
def windows():
    """Documents of 5, 1 and 3 windows of four letters; each window's first letter is its own."""
    texts = ["abcdefghijklmnopqrstuvw", "wxyz", "zyxwvutsrqpon"]
    return cut_windows(texts, letters, 4)


def test_windows_hold_every_whole_window_once(windows):
    assert windows.tokens.shape == (9, 4) and np.bincount(windows.document).tolist() == [5, 1, 3]
    found = {(d, *w.tolist()) for d, w in zip(windows.document, windows.tokens)}
    assert {(0, 4, 5, 6, 7), (1, 22, 23, 24, 25), (2, 25, 24, 23, 22)} < found and len(found) == 9
    assert repr(windows) == "this corpus: 9 windows of 4 tokens from 3 documents"


def test_budgets_are_nested_and_seeded(windows):
    assert torch.equal(windows.take(16).tokens, windows.take(35).tokens[:4])
    texts = ["abcdefghijklmnopqrstuvw", "wxyz", "zyxwvutsrqpon"]
    again, other = (cut_windows(texts, letters, 4, seed) for seed in (42, 43))
    assert again.provenance == windows.provenance != other.provenance
    assert windows[[0]].provenance != windows[[1]].provenance


def test_evenly_takes_from_every_document_in_turn(windows):
    taken = windows.take(6 * 4, evenly=True)
    assert np.bincount(taken.document).tolist() == [3, 1, 2]
    assert sorted(taken[:3].document) == [0, 1, 2]


def test_folds_go_by_document(windows):
    fold = windows.folds(2)
    assert np.bincount(fold).tolist() == [5, 4]
    assert all(len({*fold[windows.document == d]}) == 1 for d in range(3))


def test_the_sample_is_in_two_parts_of_different_documents(text):
    assert len(text.test) == 6 and not {*text.fit} & {*text.test}
    assert text is load_corpus("wikipedia-sample")


@pytest.mark.parametrize("name", ["wikipedia", "king-james", "python-docs"])
def test_embedded_corpora_load(name):
    found = load_corpus(name)
    assert len(found.fit) > 20 and len(found.test) >= 6 and not {*found.fit} & {*found.test}


def test_a_text_file_is_a_corpus(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("".join(f"Paragraph {i} has words in it.\n\n" for i in range(3000)))
    found = load_corpus(str(path))
    assert found.name == "notes.txt" and "".join(found.fit + found.test) == path.read_text()
    assert len(found.test) == pytest.approx(len(found.fit) / 3, abs=1)


def test_articles_of_lines():
    lines = ["", " = One = \n", " text\n", " = = Section = = \n", " = Two = \n", " more\n"]
    one, two = [a for a in articles_of_lines(lines) if a.strip()]
    assert "Section" in one and two == " = Two = \n more\n"


def test_pieces_lose_nothing():
    text = "A line.\n" * 1000
    assert "".join(pieces(text, 500)) == text
    assert {len(p) for p in pieces(text, 500)} == {504, len(text) % 504}


def brute_force(rows, vocabulary, order, history, word):
    """Interpolated modified Kneser-Ney of one word, from dictionaries."""

    def level(k):
        seen = [tuple(r[i : i + k]) for r in rows for i in range(len(r) - k + 1)]
        if k == order:
            return {g: seen.count(g) for g in set(seen)}
        longer = {tuple(r[i : i + k + 1]) for r in rows for i in range(len(r) - k)}
        counts = {}
        for gram in longer if k == order - 1 else level(k + 1):
            counts[gram[1:]] = counts.get(gram[1:], 0) + 1
        return counts

    def p(k, history):
        if k == 0:
            return 1 / vocabulary
        counts, lower = level(k), p(k - 1, history[1:])
        n = [sum(v == i for v in counts.values()) for i in range(5)]
        y = n[1] / (n[1] + 2 * n[2]) if n[1] + n[2] else 0.5
        d = [0, *(i - (i + 1) * y * n[i + 1] / n[i] if n[i] else 0.5 for i in (1, 2, 3))]
        d = [min(max(v, 0), i) for i, v in enumerate(d)]
        inside = {g: v for g, v in counts.items() if g[:-1] == tuple(history)}
        if not inside:
            return lower
        total, left = sum(inside.values()), sum(d[min(v, 3)] for v in inside.values())
        own = inside.get((*history, word), 0)
        return (own - d[min(own, 3)] + left * lower) / total

    return p(order, list(history))


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_kneser_ney_against_a_brute_force_count(order):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 5, (6, 12)) * rng.integers(0, 2, (6, 12))
    model, unseen = KneserNey(rows, 6, order), rng.integers(0, 6, (2, 9))
    found = np.exp(-model.losses(unseen))
    for r, row in enumerate(unseen.tolist()):
        for t in range(order - 2 if order > 1 else 0, 8):
            history = row[t + 2 - order : t + 1] if order > 1 else []
            expected = brute_force(rows.tolist(), 6, order, history, row[t + 1])
            assert found[r, t] == pytest.approx(expected)


def test_kneser_ney_is_a_distribution_and_beats_lower_orders(subject, fit, test):
    tokens, size = fit.tokens.numpy(), len(subject.tokenizer)
    losses = [KneserNey(tokens, size, k).losses(test.tokens.numpy()).mean() for k in (1, 2, 3)]
    assert losses[0] > losses[1] > losses[2] - 0.2
    model = KneserNey(tokens % 7, 7, 3)
    every = np.stack([[tokens[0, 0] % 7, tokens[0, 1] % 7, w] for w in range(7)])
    assert np.exp(-model.losses(every)[:, 1]).sum() == pytest.approx(1)
    with pytest.raises(InputError, match="6-grams are not counted"):
        KneserNey(tokens, 7, 6)


def with_start(text, add_special_tokens=True, verbose=True):
    """The same tokenizer with token 99 in front of a text, as Gemma's and Llama's do."""
    ids = letters(text)["input_ids"]
    return {"input_ids": [99, *ids] if add_special_tokens else ids}


def between(text, add_special_tokens=True, verbose=True):
    """A tokenizer with a token on either side."""
    ids = letters(text)["input_ids"]
    return {"input_ids": [98, *ids, 97] if add_special_tokens else ids}


def after(text, add_special_tokens=True, verbose=True):
    """A tokenizer that puts a token at the end alone."""
    ids = letters(text)["input_ids"]
    return {"input_ids": [*ids, 97] if add_special_tokens else ids}


def test_start_tokens_are_found_by_tokenizing_a_text_that_is_known():
    found = [start_tokens(t) for t in (letters, with_start, between, after)]
    assert found == [(), (99,), (98,), ()]


def test_every_window_begins_with_the_start_token(windows):
    cut = cut_windows(["abcdefghijkl", "wxyz"], with_start, 4)
    assert cut.tokens.shape == (5, 4) and (cut.tokens[:, 0] == 99).all()
    texts = sorted(cut.tokens[:, 1:].tolist())
    assert texts[:2] == [[0, 1, 2], [3, 4, 5]] and cut.document.tolist().count(1) == 1
    # Without one nothing changes: the windows of the fixture hold text alone.
    assert int(windows.tokens.max()) < 26


def test_windows_of_the_start_token_alone_are_refused():
    with pytest.raises(InputError, match="hold no text"):
        cut_windows(["abc"], with_start, 1)


def test_the_sample_of_measured_subjects():
    texts = [f"document {k}" for k in range(14)]
    maps, gates, test = measured_sample(Corpus("mine", texts[:9], texts[9:]))
    assert test == texts[1::2] and sorted(maps + gates) == sorted(texts[::2])
    assert len(maps) == 5 and len(gates) == 2
    with pytest.raises(InputError, match="mine"):
        measured_sample(Corpus("mine", texts[:2], texts[2:4]))


def test_a_model_trained_here_is_tested_on_what_it_has_not_read():
    unread = load_corpus("wikipedia-sample").documents
    for name in ("wikipedia", "wikipedia-sample"):
        sample = measured_sample(load_corpus(name), read_before=True)
        assert sample.test == unread and len(unread) == 11
        assert not {*unread} & {*sample.maps, *sample.gates}


def test_fewer_documents_are_among_more(windows):
    few, many = windows.per_document(2, 2), windows.per_document(2, 3)
    assert {*few.document.tolist()} < {*many.document.tolist()}
    assert np.bincount(many.document).tolist() == [2, 1, 2]
    whole = windows.tokens.tolist()
    assert all(row in whole for row in many.tokens.tolist())


def test_frozen_and_installed_docstrings_are_there():
    frozen = "".join(load_corpus("python-docs").documents).encode()
    assert hashlib.sha256(frozen).hexdigest().startswith("27f96ec552a3fae8")
    assert sum(map(len, load_corpus("scipy-docs").documents)) > 2_000_000


def test_a_text_is_read_as_it_is_now(tmp_path, monkeypatch):
    """Edited, or of the same name in another folder; a known name is one text."""
    for name, words in (("a", "one "), ("b", "two ")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text(words + a_text(3))
        monkeypatch.chdir(tmp_path / name)
        assert load_corpus("text.txt").fit[0].startswith(words)
    (tmp_path / "b" / "text.txt").write_text("three " + a_text(4))
    assert load_corpus("text.txt").fit[0].startswith("three")
    assert load_corpus("wikipedia") is load_corpus("wikipedia")


def test_a_text_of_any_name_is_itself(tmp_path, monkeypatch):
    """On a model that was trained here too, for which the repository's own texts are replaced."""
    monkeypatch.chdir(tmp_path)
    for name in ("wikipedia.txt", "wikipedia-sample.txt", "wikipedia_of_mine.txt"):
        (tmp_path / name).write_text(a_text(5).replace("a", "mine"))
        for path in (f"./{name}", str(tmp_path / name)):
            sample = measured_sample(load_corpus(path), read_before=True)
            assert all("mine" in document for document in sample.test + sample.maps)


def a_text(seed: int, n_words: int = 30_000) -> str:
    """Words of a made-up language, no stretch of which repeats."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice([*"abcdefgh"], 5)) for _ in range(400)]
    return " ".join(rng.choice(words, n_words)) + "\n\n"


@pytest.mark.parametrize("name", ["king-james", "python-docs", "wikipedia", "2024", "001", "NA"])
@pytest.mark.parametrize("ending", [".txt", ""])
def test_a_text_is_told_by_what_it_is_not_by_its_name(tmp_path, name, ending):
    path = tmp_path / f"{name}{ending}"
    path.write_text(a_text(1))
    found = load_corpus(str(path))
    assert found.name not in CORPORA and found.name.startswith(name)
    assert "".join(found.documents).split() == a_text(1).split()


def repeated_pieces(text):
    return text * 60


def repeated_with_a_shift(text):
    return "".join(f"{'x' * k} {text}" for k in range(60))


def repeated_in_one_line(text):
    return text.replace("\n", " ") * 60


@pytest.mark.parametrize("repeat", [repeated_pieces, repeated_with_a_shift, repeated_in_one_line])
def test_what_is_fitted_and_what_is_tested_share_no_text(tmp_path, capsys, repeat):
    """A document that stood sixty times had an R² of 0.631 on itself, called unseen."""
    path = tmp_path / "text.txt"
    path.write_text(a_text(1, 25_000) + repeat(a_text(2, 5_000)))
    parts = measured_sample(load_corpus(str(path)))
    assert "repeat earlier text" in capsys.readouterr().out
    fitted = " ".join([*parts.maps, *parts.gates])
    for document in parts.test:
        words = document.split()
        stretches = [" ".join(words[i : i + 8]) for i in range(0, len(words) - 8, 50)]
        assert np.mean([stretch in fitted for stretch in stretches]) <= 0.5


def test_what_is_left_out_is_the_same_in_every_process(tmp_path):
    """It went by hash(), which is salted: documents near the limit came and went."""
    halves = [a_text(k, 900) for k in range(13)]
    documents = [halves[0] + halves[k] for k in range(1, 13)]
    (tmp_path / "documents.json").write_text(json.dumps(documents))
    code = "import json, sys; from lib.text.corpora import distinct\n"
    code += "d = json.load(open(sys.argv[1])); print([d.index(x) for x in distinct(d)])"
    command = [sys.executable, "-c", code, str(tmp_path / "documents.json")]
    said = {
        subprocess.run(
            command,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "0123"
    }
    assert len(said) == 1


def test_a_text_that_only_repeats_is_told_in_a_sentence(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(a_text(1, 2_000) * 100)
    with pytest.raises(InputError, match="is too short to be cut"):
        load_corpus(str(path))


@pytest.mark.parametrize("name", ["wikipedia", "king-james", "python-docs", "scipy-docs"])
def test_our_own_texts_repeat_nothing_that_matters(name):
    documents = load_corpus(name).documents
    assert len(distinct(documents)) > 0.95 * len(documents)


def test_a_byte_order_mark_is_no_sign_of_the_text(tmp_path):
    for name, encoding in (("with.txt", "utf-8-sig"), ("without.txt", "utf-8")):
        (tmp_path / name).write_text(a_text(1), encoding=encoding)
    one, other = (load_corpus(str(tmp_path / name)) for name in ("with.txt", "without.txt"))
    assert one.fit == other.fit
