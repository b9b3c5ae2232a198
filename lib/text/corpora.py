"""Text by name, and token windows that know their document.

Every corpus has two disjoint parts, cut between documents: `fit` (activations, training) and `test`
(scores, perplexity). A budget is the prefix of a seeded permutation of all windows of a part, so
budgets are nested and each samples every document; splits and folds go by document.
"""

import ast
import json
import lzma
import os
import re
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

import scipy

from lib.errors import InputError, unknown
from lib.files import DATA

TEST_SHARE = 0.25
HUB_CHARACTERS = 20_000_000  # of a streamed dataset; about five million tokens


@dataclass(frozen=True)
class Corpus:
    """Documents in two disjoint parts."""

    name: str
    fit: list[str]
    test: list[str]

    @property
    def documents(self) -> list[str]:
        """All documents, in their order."""
        return self.fit + self.test


class Sample(NamedTuple):
    """Documents for a measured subject: to fit maps on, to fit gates and routers on, to test."""

    maps: list[str]
    gates: list[str]
    test: list[str]


def measured_sample(corpus: Corpus, read_before: bool = False) -> Sample:
    """The one split for measured subjects: odd documents test, the even ones 2:1 maps and gates.

    `read_before`: the subject was trained on `wikipedia` by this repository, all but the articles
    of `wikipedia-sample`; on either of them those are the test documents. Raises InputError where a
    part would be empty.
    """
    even, test = corpus.documents[::2], corpus.documents[1::2]
    of_repository = ("wikipedia", "wikipedia-sample")
    if read_before and any(corpus is load_corpus(name) for name in of_repository):
        unread = load_corpus("wikipedia-sample").documents
        even = [d for d in load_corpus("wikipedia").documents if d not in unread]
        test = unread
    if len(even) < 3 or not test:
        raise InputError(
            f"corpus {corpus.name!r} has {len(corpus.documents)} documents, but maps, gates and "
            "tests need some each: give a longer text (a piece has about 10,000 characters)."
        )
    maps = [d for i, d in enumerate(even) if i % 3 != 2]
    gates = [d for i, d in enumerate(even) if i % 3 == 2]
    return Sample(maps, gates, test)


def _kept(name: str) -> list[str]:
    """A text of data/texts (see make.py there)."""
    return json.loads(lzma.decompress((DATA / "texts" / f"{name}.json.xz").read_bytes()))


def _sample() -> tuple[list[str], list[str]]:
    """The last articles of `wikipedia`, which the tiny models were not trained on."""
    articles = [a for a in _kept("wikipedia")[-13:] if len(a) > 3_000]
    return articles[:-6], articles[-6:]


def docstrings_of(paths: Sequence[Path]) -> list[str]:
    """The docstrings of Python files, a file a document, of those that have over 2,000 characters
    of them."""
    documents = []
    for path in paths:
        nodes = ast.walk(ast.parse(path.read_text("utf-8", errors="replace")))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        texts = [ast.get_docstring(n) for n in nodes if isinstance(n, kinds)]
        documents.append("\n\n".join(t for t in texts if t))
    return [d for d in documents if len(d) > 2_000]


def _scipy() -> list[str]:
    """The docstrings of the installed SciPy, whose version is pinned, but for its tests'."""
    folder = Path(scipy.__file__).parent
    return docstrings_of(sorted(p for p in folder.rglob("*.py") if "tests" not in p.parts))


def _hub(path: str, config: str | None = None, test: str | None = "test", lines: bool = False):
    """A loader of a dataset of the Hugging Face hub, streamed up to HUB_CHARACTERS a split; its
    rows are documents, or lines of articles."""

    def part(split: str) -> list[str]:
        import datasets

        rows = datasets.load_dataset(path, config, split=split, streaming=True)
        texts = (row["text"] for row in rows)
        documents, n_characters = [], 0
        for document in articles_of_lines(texts) if lines else texts:
            documents.append(document)
            n_characters += len(document)
            if n_characters > HUB_CHARACTERS:
                break
        return documents

    def load():
        try:
            return (part("train"), part(test)) if test else part("train")
        except Exception as error:  # the hub's client raises a dozen kinds
            why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise InputError(
                f"corpus {path!r} could not be had from the Hugging Face hub ({why}): check name "
                "and network, or use corpus='wikipedia', 'king-james' or a text file."
            ) from None

    return load


def _gutenberg(book: int) -> Callable[[], list[str]]:
    def load() -> list[str]:
        url = f"https://www.gutenberg.org/cache/epub/{book}/pg{book}.txt"
        try:
            with urllib.request.urlopen(url, timeout=30) as page:
                text = page.read().decode("utf-8", "replace")
        except (OSError, HTTPException) as error:
            raise InputError(
                f"book {book} could not be had from Project Gutenberg ({error}): check the "
                "network, or save it as a text file and give its path as corpus."
            ) from None
        parts = re.split(r"\*\*\* (?:START|END) OF TH[^\n]*\*\*\*", f"{text}\n")
        # The book stands between the two marks; a page without marks is taken whole.
        return pieces(parts[1] if len(parts) > 1 else parts[0])

    return load


CORPORA = {
    "wikipedia": lambda: _kept("wikipedia"),
    "wikipedia-sample": _sample,
    "king-james": lambda: _kept("king-james"),
    "python-docs": lambda: _kept("python-docs"),
    "scipy-docs": _scipy,
    "wikitext-2": _hub("Salesforce/wikitext", "wikitext-2-raw-v1", lines=True),
    "wikitext-103": _hub("Salesforce/wikitext", "wikitext-103-raw-v1", lines=True),
    "lambada": _hub("cimec/lambada"),
    "moby-dick": _gutenberg(2701),
    "amusements-in-mathematics": _gutenberg(16713),
    "tinystories": _hub("roneneldan/TinyStories", test="validation"),
    "fineweb-edu": _hub("HuggingFaceFW/fineweb-edu", "sample-10BT", test=None),
}


def check_corpus(name: str) -> None:
    """Raise InputError unless `name` is a known corpus or a text file; loads nothing."""
    if name not in CORPORA and not os.path.isfile(str(name)):
        raise unknown("corpus", name, [*CORPORA, "or the path of a text file"])


def load_corpus(name: str) -> Corpus:
    """The corpus of that name, or of the text file at that path, in pieces of about 10,000
    characters. Raises InputError if it cannot be had, holds no words or cannot be cut in two."""
    check_corpus(name)
    # A file is read each time: it may have been edited, or the folder changed in which it is.
    return _known(name) if name in CORPORA else _in_two(name, distinct(pieces(_read_text(name))))


@cache
def _known(name: str) -> Corpus:
    """A corpus of CORPORA, which is one object however often it is asked for."""
    return _in_two(name, CORPORA[name]())


def _in_two(name: str, parts: list[str] | tuple[list[str], list[str]]) -> Corpus:
    """A corpus of its fit and test part, or of documents that are cut into these."""
    if isinstance(parts, tuple):
        fit, test = parts
    else:
        n_test = max(1, round(TEST_SHARE * len(parts)))
        fit, test = parts[: len(parts) - n_test], parts[len(parts) - n_test :]
    fit = [document for document in fit if _has_letters(document)]
    test = [document for document in test if _has_letters(document)]
    if not fit or not test:
        raise InputError(
            f"corpus {name!r} is too short to be cut into a fit and a test part: give a text of at "
            "least 20,000 characters."
        )
    if name in CORPORA:
        return Corpus(name, fit, test)
    # A file is called as none of ours: by its ending, or as a file.
    file = Path(name).name
    return Corpus(f"{file} (file)" if file in CORPORA else file, fit, test)


def _read_text(name: str) -> str:
    """A text file. Raises InputError where it is none."""
    try:
        text = Path(name).read_text(encoding="utf-8-sig")  # a byte-order mark is no text
    except UnicodeDecodeError:
        text = None
    if text is None or "\0" in text:
        raise InputError(f"corpus {name!r} is not a text file: give one in UTF-8.")
    return text


def distinct(documents: list[str]) -> list[str]:
    """The documents without those that repeat earlier ones by more than half, which is said: what
    is fitted and what is tested share no text."""
    seen: set[int] = set()
    found = []
    for document in documents:
        # One in sixteen of all stretches of 30 characters, chosen by what they are.
        # Not by hash(), which differs from one process to the next.
        encoded = document.encode("utf-32-le")  # four bytes a character
        starts = range(0, max(1, len(encoded) - 116), 4)
        chosen = {c for i in starts if (c := zlib.crc32(encoded[i : i + 120])) % 16 == 0}
        if len(chosen & seen) <= len(chosen) / 2:
            found.append(document)
        seen |= chosen
    if left_out := len(documents) - len(found):
        print(f"{left_out} of {len(documents)} pieces repeat earlier text and are left out")
    return found


def _has_letters(document: str) -> bool:
    return any(character.isalpha() for character in document)


def articles_of_lines(lines: Iterable[str]) -> Iterator[str]:
    """The articles of WikiText, whose rows are lines: each begins with " = Title = "."""
    article = ""
    for line in lines:
        if re.fullmatch(r" ?= (?!=)(.*[^= ]) = ?\n?", line) and article:
            yield article
            article = ""
        article += line if line.endswith("\n") else line + "\n"
    yield article


def pieces(text: str, size: int = 10_000) -> list[str]:
    """A long text in pieces of about `size` characters, cut after paragraphs where there are any,
    else after lines, pages, sentences, words, or anywhere."""
    parts = [text]
    for end in ("\n\n", "\n", "\f", ". ", " "):
        cut = [re.split(f"(?<={re.escape(end)})", p) if len(p) > size else [p] for p in parts]
        parts = [part for several in cut for part in several]
    parts = [part[i : i + size] for part in parts for i in range(0, len(part), size)]
    found, piece = [], ""
    for part in parts:
        piece += part
        if len(piece) >= size:
            found.append(piece)
            piece = ""
    return [*found, piece] if piece.strip() else found
