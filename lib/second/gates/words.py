"""Tokens as parts of words: what a reader would say of each (Balogh §4.3.1, Figure 2).

Parts of speech come from the lexicon that TextBlob carries (the Brill tagger's: the most frequent
tag of a word, suffix rules for words it lacks), word frequencies from wordfreq; neither downloads.
"""

import re
import string
from dataclasses import dataclass
from functools import cache

import numpy as np

from lib.second.texts.windows import Windows

TYPES = ("function word", "content word", "subword", "number", "punctuation")
"""types of token (the ledger's reading of Figure 2). Subword: a piece of a word after its first;
number: with a digit; punctuation: without letter or digit, line ends among them"""
SPEECH = ("noun", "verb", "adjective", "adverb", "function word", "number", "punctuation")
"""coarse parts of speech"""
_TAGS = {"N": "noun", "V": "verb", "J": "adjective", "R": "adverb", "C": "number", "F": "noun"}
_CLOSED = {
    *("DT", "PDT", "WDT", "PRP", "PRP$", "WP", "WP$", "IN", "TO", "CC", "MD", "EX", "RP", "POS"),
    *("WRB", "PRP-", "UH"),
}
_BE = ("be", "am", "is", "are", "was", "were", "been", "being")
_HAVE_DO = ("have", "has", "had", "having", "do", "does", "did", "not", "n't")
_AUXILIARIES = frozenset((*_BE, *_HAVE_DO))
_WORD_STARTS = ("Ġ", "▁", " ", "Ċ", "ĉ", "\n")
_SENTENCE_END = re.compile(r"[.!?]['\")\]]*$|\n")


@dataclass(frozen=True, eq=False)
class Pieces:
    """Every token of some windows as a piece of text, arrays [n, seq_len]."""

    text: np.ndarray
    """the piece itself, without the space before it, str"""
    starts: np.ndarray
    """bool: it begins a word, a number or a mark"""
    spaced: np.ndarray
    """bool: a space or a line end stands before it"""
    word: np.ndarray
    """int: index of its word within the window"""
    words: list[list[str]]
    """the words of each window"""


def pieces(tokenizer, windows: Windows) -> Pieces:
    """The tokens of `windows` as pieces of words. A window that begins inside a word begins with
    its rest."""
    ids = windows.tokens.numpy()
    known = {i: _piece(tokenizer, i) for i in np.unique(ids).tolist()}
    text = np.array([[known[i][0] for i in row] for row in ids.tolist()], dtype=object)
    spaced = np.array([[known[i][1] for i in row] for row in ids.tolist()])
    kind = np.vectorize(_kind, otypes=[int])(text)
    starts = spaced.copy()
    starts[:, 0] = True
    starts[:, 1:] |= kind[:, 1:] != kind[:, :-1]
    starts |= kind == 0  # every mark stands for itself
    word = starts.cumsum(1) - 1
    words = []
    for row, index in zip(text, word, strict=True):
        found = [""] * (index[-1] + 1)
        for piece, i in zip(row, index, strict=True):
            found[i] += piece
        words.append(found)
    return Pieces(text, starts, spaced, word, words)


def _piece(tokenizer, index: int) -> tuple[str, bool]:
    """A token's text, and whether a space or a line end comes first."""
    raw = tokenizer.convert_ids_to_tokens(index)
    text = tokenizer.convert_tokens_to_string([raw])
    spaced = raw.startswith(_WORD_STARTS) or text[:1].isspace()
    return (text.strip(" ") if text.strip() else text), spaced


def _kind(text: str) -> int:
    """2 with a letter, 1 with a digit alone, 0 with neither."""
    if any(map(str.isalpha, text)):
        return 2
    return int(any(map(str.isdigit, text)))


def sentence_starts(found: Pieces) -> np.ndarray:
    """Whether a piece is the first after a full stop, an exclamation or question mark or a line
    end, bool [n, seq_len]; what a window begins with is not known to be one."""
    ends = np.vectorize(lambda t: bool(_SENTENCE_END.search(t)), otypes=[bool])(found.text)
    first = np.zeros(ends.shape, dtype=bool)
    first[:, 1:] = ends[:, :-1]
    return first


def frequent_words(tokenizer, windows: Windows, n: int = 10) -> np.ndarray:
    """The `n` tokens that stand most often in `windows` among those that begin a word and are
    letters alone, the most frequent first."""
    kinds, counts = np.unique(windows.tokens.numpy(), return_counts=True)
    known = [_piece(tokenizer, int(kind)) for kind in kinds]
    fits = np.array([spaced and text.isalpha() for text, spaced in known])
    order = np.argsort(-counts[fits], kind="stable")
    return kinds[fits][order[:n]]


def parts_of_speech(found: Pieces) -> tuple[np.ndarray, np.ndarray]:
    """(coarse part of speech of each piece's word, index into SPEECH [n, seq_len]; whether it is a
    function word, bool): closed classes and the forms of be, have, do and not."""
    speech = np.empty(found.word.shape, dtype=np.int64)
    for row, words in enumerate(found.words):
        coarse = np.array([SPEECH.index(s) for s in _coarse(words)])
        speech[row] = coarse[found.word[row]]
    return speech, speech == SPEECH.index("function word")


def types_of(found: Pieces, function: np.ndarray) -> np.ndarray:
    """The type of each piece, index into TYPES [n, seq_len]."""
    kind = np.vectorize(_kind, otypes=[int])(found.text)
    digit = np.vectorize(lambda t: any(map(str.isdigit, t)), otypes=[bool])(found.text)
    of = {name: i for i, name in enumerate(TYPES)}
    types = np.where(function, of["function word"], of["content word"])
    types[(kind == 2) & ~found.starts] = of["subword"]
    types[digit] = of["number"]
    types[kind == 0] = of["punctuation"]
    return types


def _coarse(words: list[str]) -> list[str]:
    tagged = _tagger()(words)
    return [_one(word, tag) for word, (_, tag) in zip(words, tagged, strict=True)]


def _one(word: str, tag: str) -> str:
    kind = _kind(word)
    if kind == 0:
        return "punctuation"
    if any(map(str.isdigit, word)):
        return "number"
    if tag in _CLOSED or tag.startswith("W") or word.lower() in _AUXILIARIES:
        return "function word"
    return _TAGS.get(tag[:1], "noun")


@cache
def _tagger():
    """A function from a list of words to [[word, tag]]: the words of one window, marks among them.
    A word at the head of a sentence is looked up in small letters too."""
    from textblob.en import parser

    def tagged(words: list[str]) -> list:
        sentence, found = [], []
        for word in words:
            # The tagger reads a line end or an empty word as no word at all.
            sentence.append(word.strip() or ".")
            if word[-1:] in string.punctuation and _SENTENCE_END.search(word):
                found += parser.find_tags(sentence)
                sentence = []
        return found + (parser.find_tags(sentence) if sentence else [])

    return tagged
