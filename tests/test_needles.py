"""Needles stand in a text once and nowhere else, and what finds them is told from what does not."""

import re

import numpy as np
import pytest
import torch

from lib.errors import InputError
from lib.models.loading import load_subject
from lib.text.needles import PAIRS, Needle, hide, key_value_pairs, sentences, with_needles
from lib.text.windows import Windows

VOCAB, KEYS, VALUES = 20, 8, 5


@pytest.fixture(scope="module")
def windows():
    tokens = torch.randint(VOCAB, (40, 32), generator=torch.Generator().manual_seed(0))
    return Windows(tokens, np.arange(40), "a text")


def times(row, part) -> int:
    """How often a list of tokens stands in another."""
    row = row.tolist()
    return sum(row[k : k + len(part)] == part for k in range(len(row)))


@pytest.mark.parametrize(("length", "queries"), [(1, 1), (4, 1), (8, 1), (2, 3)])
def test_a_needle_stands_in_the_text_once_and_nowhere_else(windows, length, queries):
    needles = key_value_pairs(len(windows), VOCAB, KEYS, VALUES, length, queries)
    hidden, withheld = (hide(windows, needles, withheld=w) for w in (False, True))
    for row, without, before, of_window, answers in zip(
        hidden.windows.tokens, withheld.windows.tokens, windows.tokens, needles, hidden.answer_at
    ):
        for needle, at in zip(of_window, answers, strict=True):
            assert times(row, needle.hidden) == 1 and times(without, needle.hidden) == 0
            assert times(row, needle.question) == times(without, needle.question) == 1
            assert row[at].tolist() == needle.answer
        # All else is the text, in its place.
        asked = queries * (2 + length)
        assert (row[:-asked] != before[:-asked]).sum() == queries * (2 + length)
        assert torch.equal(without[:-asked], before[:-asked])
        assert torch.equal(row[-asked:], without[-asked:])
    assert len({tuple(n.hidden) for of_window in needles for n in of_window}) > KEYS
    assert [n.question for n in needles[0]] != [n.question for n in needles[1]]


def test_places_cover_the_text(windows):
    needles = key_value_pairs(len(windows), VOCAB, KEYS, VALUES, 1, 1)
    rows = hide(windows, needles).windows.tokens
    places = [row.tolist().index(VOCAB) for row in rows]  # of the mark
    assert min(places) < 6 and max(places) > 20


def test_an_answer_is_retrieved_where_all_of_it_is_most_likely(windows):
    needles = key_value_pairs(len(windows), VOCAB, KEYS, VALUES, 2, 3)
    haystacks = hide(windows, needles)
    known = torch.nn.functional.one_hot(haystacks.windows.tokens, 40).float()
    logits = torch.cat([known[:, 1:], known[:, :1]], dim=1)  # each says the next token
    assert haystacks.retrieved(logits).all() and haystacks.retrieved(logits).shape == (40, 3)
    wrong = logits.clone()
    second = haystacks.answer_at[7, 1, 1]
    wrong[7, second - 1] = 0.0
    found = haystacks.retrieved(wrong)
    assert not found[7, 1] and found.sum() == found.size - 1


def test_what_does_not_fit_is_refused(windows):
    long = [[Needle([1] * 30, [2, 3], [4])]] * len(windows)
    with pytest.raises(InputError, match=r"needles of 30 tokens .* longer than a window of 32"):
        hide(windows, long)
    with pytest.raises(InputError, match="9 queries need as many keys, and there are 8"):
        key_value_pairs(1, VOCAB, KEYS, VALUES, 1, 9)


def test_a_training_text_hides_pairs_as_often_as_it_asks_for_them():
    tokens = torch.randint(VOCAB, (60, 128), generator=torch.Generator().manual_seed(0))
    plain = Windows(tokens, np.arange(60), "a text")
    found = with_needles(plain, 0.5, VOCAB, KEYS, VALUES).tokens
    changed = (found != tokens).any(1)
    assert changed.sum() == 30 and torch.equal(plain.tokens, tokens)
    kinds = []
    for row in found[changed]:
        hidden, asked = ((row == VOCAB + mark).nonzero()[:, 0] for mark in (0, 1))
        assert len(hidden) == len(asked) and hidden.max() < asked.min()
        # Before the next question stand a mark, a key and the value, as it was hidden.
        symbols = int(asked[1] - asked[0]) - 2
        values = {int(row[at + 1]): row[at + 2 : at + 2 + symbols].tolist() for at in hidden}
        assert all(
            row[at + 2 : at + 2 + symbols].tolist() == values[int(row[at + 1])] for at in asked
        )
        assert len(values) == PAIRS[symbols]
        kinds.append((symbols, len(hidden)))
    assert sorted({*kinds}) == [(1, 20), (4, 10)]
    assert all(kinds.count(kind) == 15 for kind in kinds)
    short = Windows(tokens[:, :16], np.arange(60), "a text")
    with pytest.raises(InputError, match="longer than a window of 16"):
        with_needles(short, 0.5, VOCAB, KEYS, VALUES)
    assert torch.equal(with_needles(plain, 0.0, VOCAB, KEYS, VALUES).tokens, tokens)
    with pytest.raises(InputError, match="hidden 0 times: give 1 or more"):
        with_needles(plain, 0.5, VOCAB, KEYS, VALUES, most=0)


def test_sentences_are_asked_as_they_are_hidden(windows):
    tokenizer = load_subject("tiny-llama").tokenizer
    needles = [of_window[0] for of_window in sentences(tokenizer, 30)]
    for needle in needles:
        assert needle.hidden[:-1] == needle.question + needle.answer
        said = tokenizer.decode(needle.hidden)
        assert re.fullmatch(r" ?The secret number of [A-Z][a-z]+ is( \d){4}\.", said)
    assert len({tokenizer.decode(needle.answer) for needle in needles}) > 25
    assert len({tokenizer.decode(needle.question) for needle in needles}) > 3
