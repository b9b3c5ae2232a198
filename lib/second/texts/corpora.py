"""Text by name.

Every corpus has two disjoint parts, cut between documents before any tokenizer sees them: `fit`
(activations, training) and `eval` (perplexity). Where a dataset has its own train and test splits
these are the parts; else the last fifteen percent of the characters are `eval`.
"""

import json
import os
import re
import sqlite3
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lib.second.base.errors import InputError, unknown
from lib.second.base.kept import committed
from lib.second.base.paths import DATA
from lib.second.texts.assets import fetch
from lib.second.texts.documents import bounded, chunks, cut
from lib.second.texts.hub import gutenberg, hub

SHORTEST_SOURCE = 200  # characters; a shorter file of the standard library is a stub


@dataclass(frozen=True)
class Corpus:
    """Documents of one corpus in two disjoint parts, in the order of their source."""

    name: str
    fit: list[str]
    eval: list[str]

    def __repr__(self) -> str:
        sizes = ", ".join(
            f"{p}: {len(d)} documents, {sum(map(len, d)):,} characters"
            for p, d in (("fit", self.fit), ("eval", self.eval))
        )
        return f"Corpus({self.name}; {sizes})"


def _wikipedia() -> list[str]:
    """About a hundred whole articles of English Wikipedia, a document an article."""
    from lib.second.texts.wikipedia import articles

    return [text for _, text in articles()]


def _king_james() -> list[str]:
    """The King James Bible, a document a chapter, without verse numbers."""
    with sqlite3.connect(f"file:{fetch('kjv.db')}?mode=ro", uri=True) as db:
        # Books are numbered from 1 in each testament, and a row may hold several verses, each with
        # its number.
        rows = db.execute(
            "SELECT TestamentID, BookID, ChapterID, Passage1 FROM Bible ORDER BY "
            "TestamentID, BookID, ChapterID, VerseID"
        )
        chapters: dict[tuple, list[str]] = {}
        for *chapter, verse in rows:
            chapters.setdefault(tuple(chapter), []).append(re.sub(r"\d+:\d+\s*", "", verse).strip())
    return [" ".join(verses) for verses in chapters.values()]


def _python_stdlib() -> list[str]:
    """Source files of this interpreter's standard library, a document a file."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    sources = [p.read_text(errors="replace") for p in sorted(folder.glob("*.py"))]
    return [source for source in sources if len(source) >= SHORTEST_SOURCE]


def _sample() -> tuple[list[str], list[str]]:
    """A committed excerpt of the Wikipedia corpus' `eval` part, which the tiny models never saw
    (see `lib.second.texts.sample`)."""
    file = committed(DATA / "corpora") / "wikipedia-sample.json"
    parts = json.loads(file.read_text(encoding="utf-8"))
    return parts["fit"], parts["eval"]


EMBEDDED = {
    "wikipedia": _wikipedia,
    "king-james": _king_james,
    "python-stdlib": _python_stdlib,
    "wikipedia-sample": _sample,
}
PRESETS = {
    "wikitext-2": hub("Salesforce/wikitext", "wikitext-2-raw-v1", lines=True),
    "wikitext-103": hub("Salesforce/wikitext", "wikitext-103-raw-v1", lines=True),
    "lambada": hub("cimec/lambada"),
    "moby-dick": gutenberg("2701"),
    "amusements-in-mathematics": gutenberg("16713"),
    "tinystories": hub("roneneldan/TinyStories", test="validation"),
    "fineweb-edu": hub("HuggingFaceFW/fineweb-edu", "sample-10BT", test=""),
}


def check_corpus(name: str) -> None:
    """Raise InputError unless `name` is a known corpus or the path of a text file; loads
    nothing."""
    if not isinstance(name, str):
        raise InputError(f"corpus {name!r} is no text: give a name or the path of a text file.")
    if os.path.isdir(name):
        raise InputError(f"corpus {name!r} is a folder: give the path of one text file.")
    if name not in {**EMBEDDED, **PRESETS} and not os.path.isfile(name):
        raise unknown("corpus", name, [*EMBEDDED, *PRESETS, "or the path of a text file"])


def load_corpus(name: str) -> Corpus:
    """The corpus of that name, or of the text file at that path.

    A text file is cut at paragraph ends into pieces of about 10,000 characters, and these pieces
    are treated as its documents. Raises InputError if the corpus cannot be had, holds no word, is
    no text, or is too short to be cut in two.
    """
    check_corpus(name)
    if name in {**EMBEDDED, **PRESETS}:
        return _named(name)
    try:
        text = Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(
            f"corpus {name!r} could not be read ({error.strerror}): give a file that you may read."
        ) from None
    if "\0" in text or text.count("\ufffd") > len(text) / 100:
        raise InputError(f"corpus {name!r} is not a text file: give one in UTF-8.")
    return _parts(name, chunks(text))


@cache
def _named(name: str) -> Corpus:
    return _parts(name, {**EMBEDDED, **PRESETS}[name]())


def _parts(name: str, loaded: list[str] | tuple[list[str], list[str]]) -> Corpus:
    """A corpus of documents that hold a word, with the parts they came in or else cut in two."""
    parts = [bounded(part) for part in (loaded if isinstance(loaded, tuple) else (loaded,))]
    if not all(parts):
        raise InputError(f"corpus {name!r} holds no word: give a text of at least 20,000 letters.")
    if len(parts) == 1 and len(parts[0]) == 1:
        raise InputError(
            f"corpus {name!r} is one document of {len(parts[0][0]):,} characters and cannot be "
            "split into a fit and an eval part: give a text of at least 20,000 characters."
        )
    return Corpus(Path(name).stem, *(parts if len(parts) == 2 else cut(*parts)))
