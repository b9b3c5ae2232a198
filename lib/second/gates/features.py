"""Thirteen features of a token (Balogh §4.3.1 names five: log frequency, part of speech, subword
status, position, next-token entropy; the other eight are ours)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from lib.second.base.cache import as_numpy, cached, digest
from lib.second.base.steps import Item, each
from lib.second.gates.words import (
    SPEECH,
    TYPES,
    Pieces,
    parts_of_speech,
    pieces,
    sentence_starts,
    types_of,
)
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows

FEATURES = {
    "log frequency": "of its word in English, Zipf scale (wordfreq)",
    "part of speech": f"of its word: {', '.join(SPEECH)}",
    "subword": "it does not begin its word",
    "position": "in the window, log2(1 + t)",
    "next-token entropy": "of the model's prediction after it, nats",
    "function word": "closed classes and the forms of be, have, do, not",
    "length": "of the token, characters",
    "capital": "it begins with a capital letter",
    "digit": "it has a digit",
    "punctuation": "it has neither letter nor digit",
    "surprisal": "the model's loss on the token itself, nats; the mean at the first position",
    "repeated": "it stood in the window before",
    "sentence start": "it is the first after a sentence's or a line's end",
}
"""what each is; the first five are named by the paper"""
OF_TOKEN = (
    *("log frequency", "part of speech", "subword", "function word"),
    *("length", "capital", "digit", "punctuation"),
)
"""those that the token and its word say; the other five are of what stands around it"""


@dataclass(frozen=True, eq=False)
class Described:
    """What is said of every token of some windows that has a loss."""

    table: pd.DataFrame
    """a row a position, a column a feature; the part of speech as an index into SPEECH"""
    type: np.ndarray
    """[n, seq_len-1], index into TYPES"""
    function: np.ndarray
    """[n, seq_len-1], bool"""


def describe(subject: Subject, windows: Windows, losses: np.ndarray) -> Described:
    """Features of every position of `windows` that has a loss; `losses` [n, seq_len-1] are those
    of the model as it is."""
    said = said_by_text(subject, windows)
    n, length = len(windows), windows.seq_len - 1
    surprisal = np.full((n, length), losses[:, :-1].mean())
    surprisal[:, 1:] = losses[:, :-1]
    columns = said | {
        "position": np.tile(np.log2(1 + np.arange(length)), (n, 1)),
        "next-token entropy": next_token_entropy(subject, windows),
        "surprisal": surprisal,
        "repeated": _repeated(windows.tokens.numpy())[:, :-1],
    }
    table = pd.DataFrame({name: columns[name].ravel().astype(float) for name in FEATURES})
    return Described(table, said["type"], said["function word"].astype(bool))


def said_by_text(subject: Subject, windows: Windows) -> dict[str, np.ndarray]:
    """What the text alone says of each position that has a loss, arrays [n, seq_len-1]: the
    features that need no model, and "type", the index into TYPES."""
    key = {"windows": windows.key, "tokenizer": digest(repr(subject.tokenizer))}
    return _said(key, (subject.tokenizer, windows))


@cached
def _said(work: tuple) -> dict[str, np.ndarray]:
    from wordfreq import zipf_frequency

    tokenizer, windows = work
    found: Pieces = pieces(tokenizer, windows)
    speech, function = parts_of_speech(found)
    each_piece = lambda of, kind: np.vectorize(of, otypes=[kind])(found.text)
    known = {w: zipf_frequency(w, "en") for w in {w for row in found.words for w in row}}
    frequency = np.array(
        [[known[words[i]] for i in row] for words, row in zip(found.words, found.word, strict=True)]
    )
    kinds = types_of(found, function)
    columns = {
        "log frequency": frequency,
        "part of speech": speech,
        "subword": kinds == TYPES.index("subword"),
        "function word": function,
        "length": each_piece(len, int),
        "capital": each_piece(lambda t: t[:1].isupper(), bool),
        "digit": kinds == TYPES.index("number"),
        "punctuation": kinds == TYPES.index("punctuation"),
        "sentence start": sentence_starts(found),
        "type": kinds,
    }
    return {name: np.asarray(values)[:, :-1] for name, values in columns.items()}


def _repeated(tokens: np.ndarray) -> np.ndarray:
    """Whether a token stood in its window before, [n, seq_len]."""
    found = np.ones(tokens.shape, dtype=bool)
    for row, seen in zip(found, tokens, strict=True):
        row[np.unique(seen, return_index=True)[1]] = False
    return found


def next_token_entropy(subject: Subject, windows: Windows, batch: int = 8) -> np.ndarray:
    """Entropy of the model's next-token distribution at each position that has a loss,
    [n, seq_len-1], nats."""
    subject.check(windows, batch)
    items = [
        Item(
            {
                "subject": subject.key,
                "windows": digest(chunk),
                "device": subject.device.type,
            },
            (subject, chunk),
            len(chunk),
        )
        for chunk in windows.tokens.split(batch)
    ]
    title = "next-token entropy"
    return np.concatenate(
        list(each(_entropy, items, total=len(windows), desc=title, unit="window"))
    )


@cached
@torch.no_grad()
def _entropy(work: tuple, tick: Callable[[int], None]) -> np.ndarray:
    subject, tokens = work
    logits = subject.model(tokens.to(subject.device), use_cache=False).logits[:, :-1].flatten(0, 1)
    rows = []
    for part in logits.split(128):  # float64 copies of all logits would be the largest array
        log_p = part.double().log_softmax(-1)
        rows.append(-(log_p.exp() * log_p).sum(-1))
    tick(len(tokens))
    return as_numpy(torch.cat(rows).view(len(tokens), -1))
