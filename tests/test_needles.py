"""Needles stand in a text once and nowhere else, and what finds them is told from what does not."""

import numpy as np
import pytest
import torch

from lib.errors import InputError
from lib.text.needles import Needle, hide, key_value_pairs
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
