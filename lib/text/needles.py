"""Needles in a haystack (Tapered App. A): a pair of a key and a value stands somewhere in a text,
and the text ends in a question for it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from lib.errors import InputError
from lib.text.windows import Windows


class Needle(NamedTuple):
    """What is hidden and asked for, as tokens."""

    hidden: list[int]
    """as it stands in the text"""
    question: list[int]
    answer: list[int]


@dataclass(frozen=True, eq=False)
class Haystacks:
    """Windows that end in one or more questions, and where their answers stand."""

    windows: Windows
    answer_at: np.ndarray
    """[n, queries, length]: positions of the answers' tokens, as many of each"""

    def retrieved(self, logits: torch.Tensor) -> np.ndarray:
        """Whether all tokens of each answer are the most likely ones, [n, queries] bool, from the
        model's logits [n, seq_len, vocabulary]."""
        predicted = logits.argmax(-1).numpy()
        tokens = self.windows.tokens.numpy()
        row = np.arange(len(tokens))[:, None, None]
        return (predicted[row, self.answer_at - 1] == tokens[row, self.answer_at]).all(-1)


def key_value_pairs(
    n: int, first: int, n_keys: int, n_values: int, length: int, queries: int, seed: int = 42
) -> list[list[Needle]]:
    """`queries` needles for each of n windows, of tokens that no text has: a mark, a key, `length`
    values; the question has a mark of its own. Tokens are numbered from `first`: two marks, keys,
    values. Keys of a window differ. Raises InputError for more queries than keys."""
    if queries > n_keys:
        raise InputError(
            f"{queries} queries need as many keys, and there are {n_keys}: ask for fewer."
        )
    draw = np.random.default_rng(seed)
    needle_mark, query_mark, first_key = first, first + 1, first + 2
    found = []
    for _ in range(n):
        keys = first_key + draw.permutation(n_keys)[:queries]
        values = first_key + n_keys + draw.integers(n_values, size=(queries, length))
        found.append(
            [
                Needle([needle_mark, key, *value], [query_mark, key], value)
                for key, value in zip(keys.tolist(), values.tolist())
            ]
        )
    return found


def hide(
    windows: Windows, needles: Sequence[Sequence[Needle]], seed: int = 42, withheld: bool = False
) -> Haystacks:
    """Windows whose end asks for the needles of each, one after the other, and whose text hides
    these at random places, each once, in the place of as many tokens; `withheld`: asked for all the
    same, but not hidden. Raises InputError where they do not fit."""
    draw = np.random.default_rng(seed)
    tokens = windows.tokens.clone()
    seq_len = tokens.shape[1]
    answer_at = []
    for row, of_window in zip(tokens, needles, strict=True):
        asked = [token for needle in of_window for token in needle.question + needle.answer]
        text = seq_len - len(asked)
        spare = text - sum(len(needle.hidden) for needle in of_window)
        if spare < 0:
            raise InputError(
                f"needles of {text - spare} tokens and their questions, {len(asked)}, are longer "
                f"than a window of {seq_len}: give shorter ones, or longer windows."
            )
        row[text:] = torch.tensor(asked)
        # In random order, with random gaps of text before each.
        gaps = np.diff(np.sort(draw.integers(spare + 1, size=len(of_window))), prepend=0)
        order = draw.permutation(len(of_window))
        start = 0
        for k, gap in zip(order if not withheld else (), gaps):
            hidden = of_window[k].hidden
            start += int(gap)
            row[start : start + len(hidden)] = torch.tensor(hidden)
            start += len(hidden)
        at, end = [], text
        for needle in of_window:
            end += len(needle.question)
            at.append(np.arange(end, end + len(needle.answer)))
            end += len(needle.answer)
        answer_at.append(np.stack(at))
    name = f"{windows.name}, needles {'withheld' if withheld else 'hidden'}"
    return Haystacks(replace(windows, tokens=tokens, name=name), np.stack(answer_at))


PAIRS = {1: 4, 4: 2}
"""in a training window: {symbols a value: how many pairs are hidden}"""


def with_needles(
    windows: Windows,
    share: float,
    first: int,
    n_keys: int,
    n_values: int,
    most: int | None = None,
    seed: int = 42,
) -> Windows:
    """A training text: in `share` of the windows, as many for each length of PAIRS, its
    pairs are hidden as often as they fit, or `most` times, and asked for as often. Tokens are
    numbered as in `key_value_pairs`. Raises InputError for windows too short to hide them once, and
    for a `most` below 1."""
    if most is not None and most < 1:
        raise InputError(f"pairs cannot be hidden {most} times: give 1 or more.")
    tokens = windows.tokens.clone()
    chosen = np.random.default_rng(seed).permutation(len(windows))[: round(share * len(windows))]
    for k, (length, n_pairs) in enumerate(PAIRS.items()):
        some = np.sort(chosen[k :: len(PAIRS)])
        if not len(some):
            continue
        # A pair takes a mark, a key and a value, where it is hidden and where it is asked for.
        times = max(1, tokens.shape[1] // (n_pairs * (4 + 2 * length)))
        times = times if most is None else min(times, most)
        pairs = key_value_pairs(len(some), first, n_keys, n_values, length, n_pairs, seed + k)
        repeated = [of_window * times for of_window in pairs]
        tokens[some] = hide(windows[some], repeated, seed + k).windows.tokens
    return replace(windows, tokens=tokens, name=f"{windows.name}, needles in {share:g} of it")


CITIES = (
    "Athens",
    "Berlin",
    "Cairo",
    "Dublin",
    "Geneva",
    "Lima",
    "Madrid",
    "Oslo",
    "Paris",
    "Rome",
)


def sentences(tokenizer, n: int, seed: int = 42) -> list[list[Needle]]:
    """A needle in words for each of n windows, for language models that no one taught our tokens: a
    city and four digits."""
    draw = np.random.default_rng(seed)

    def tokens(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    found = []
    for _ in range(n):
        question = tokens(f" The secret number of {draw.choice(CITIES)} is")
        answer = [token for digit in draw.integers(10, size=4) for token in tokens(f" {digit}")]
        found.append([Needle(question + answer + tokens("."), question, answer)])
    return found
