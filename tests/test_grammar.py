"""The writing grammar: its entropy by enumeration, by sampling, and one derivation a sentence."""

from itertools import product

import numpy as np
import pytest

from lib.errors import InputError
from lib.text.grammar import STORIES, entropy, write

TINY = {
    "sentence": [(0.25, ["a", "tail"]), (0.75, ["b"])],
    "tail": [(0.5, ["x"]), (0.5, ["y", "tail"])],
}
"""b; a x; a y x; a y y x; …"""


def strings(grammar, symbol: str, depth: int) -> list[tuple[tuple, float]]:
    """Every string of a symbol by at most `depth` expansions below each other, and its probability
    by one derivation."""
    if symbol not in grammar:
        return [((symbol,), 1.0)]
    if depth == 0:
        return []
    found = []
    for p, symbols in grammar[symbol]:
        for parts in product(*(strings(grammar, s, depth - 1) for s in symbols)):
            words = tuple(word for words, _ in parts for word in words)
            found.append((words, p * float(np.prod([q for _, q in parts]))))
    return found


def test_the_entropy_is_that_of_the_strings():
    found = strings(TINY, "sentence", 40)
    p = np.array([q for _, q in found])
    assert p.sum() == pytest.approx(1.0)
    assert entropy(TINY) == pytest.approx(-(p * np.log2(p)).sum())


def test_every_sentence_has_one_derivation():
    """A few words stand for all of their kind: every string of four expansions is another one."""
    few = {
        name: choices if name not in _WORDS else [(1.0, choices[0][1])]
        for name, choices in STORIES.items()
    }
    found = [words for words, _ in strings(few, "sentence", 7)]
    assert len(found) > 50 and len(set(found)) == len(found)


_WORDS = [
    name for name in STORIES if name.startswith(("noun", "move", "act", "thing", "adjective"))
]
_WORDS = [name for name in _WORDS if name != "adjectives"]


def test_what_is_written_takes_as_many_bits_as_the_entropy_says():
    documents, bits = write(STORIES, 200, 20, seed=1)
    assert len(documents) == 200 and all(text.count(".") == 20 for text in documents)
    of_sentence = bits / 20
    error = of_sentence.std(ddof=1) / np.sqrt(200)
    assert of_sentence.mean() == pytest.approx(entropy(STORIES), abs=4 * error)
    again, _ = write(STORIES, 200, 20, seed=1)
    assert again == documents


def test_choices_that_do_not_add_up_are_refused():
    with pytest.raises(
        InputError, match=r"the choices of 'sentence' have a total probability of 0\.7"
    ):
        write({"sentence": [(0.7, ["a"])]}, 1, 1, 1)
