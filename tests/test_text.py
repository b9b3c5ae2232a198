"""Corpora and token windows."""

import numpy as np
import pytest
import torch

from lib.text import (
    articles_of_lines,
    cut_windows,
    load_corpus,
    pieces,
)


def letters(text, add_special_tokens, verbose):
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
    assert again.recipe == windows.recipe != other.recipe
    assert windows[[0]].recipe != windows[[1]].recipe


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
    assert found.name == "notes" and "".join(found.fit + found.test) == path.read_text()
    assert len(found.test) == pytest.approx(len(found.fit) / 3, abs=1)


def test_articles_of_lines():
    lines = ["", " = One = \n", " text\n", " = = Section = = \n", " = Two = \n", " more\n"]
    one, two = [a for a in articles_of_lines(lines) if a.strip()]
    assert "Section" in one and two == " = Two = \n more\n"


def test_pieces_lose_nothing():
    text = "A line.\n" * 1000
    assert "".join(pieces(text, 500)) == text
    assert {len(p) for p in pieces(text, 500)} == {504, len(text) % 504}
