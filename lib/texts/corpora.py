"""Text by name, and its non-overlapping token windows.

Every corpus has two disjoint parts, cut between documents before any tokenizer sees them: `fit`
(activations, training)
and `eval` (perplexity). Where a dataset has its own train and test splits these are the parts; else
the last
fifteen percent of the characters are `eval`.
"""

import bz2
import contextlib
import json
import re
import sqlite3
import sysconfig
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import torch

from lib.base.errors import InputError, unknown
from lib.base.paths import CACHE, DATA, whole
from lib.texts.assets import fetch

EVAL_SHARE = 0.15


@dataclass(frozen=True)
class Corpus:
    """Documents of one corpus in two disjoint parts."""

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
    """About a hundred whole articles of English Wikipedia, without markup, references and
    tables."""
    import mwparserfromhell

    stored = CACHE / "corpora" / "wikipedia.json"
    if stored.exists():
        return json.loads(stored.read_text())
    root = ET.fromstring(bz2.decompress(fetch("enwiki.xml.bz2").read_bytes()))
    space = root.tag.split("}")[0] + "}"
    texts = [
        page.findtext(f"{space}revision/{space}text") or ""
        for page in root.iter(f"{space}page")
        if page.findtext(f"{space}ns") == "0"
    ]
    articles = [
        _plain_article(mwparserfromhell.parse(t))
        for t in texts
        if not t.lower().startswith("#redirect")
    ]
    with whole(stored) as part:
        part.write_text(json.dumps(articles))
    return articles


def _plain_article(code) -> str:
    """Prose of one parsed article: what a reader of the page would read as running text."""
    for node in [
        *code.ifilter_tags(
            matches=lambda t: str(t.tag).lower() in {"ref", "table", "gallery", "math"}
        )
    ]:
        _remove(code, node)
    for link in [*code.ifilter_wikilinks()]:
        if re.match(r"\s*:?(file|image|category|[a-z-]{2,12}):", str(link.title), re.IGNORECASE):
            _remove(code, link)
    text = code.strip_code()
    # Sections of links and sources are lists, not prose.
    text = re.split(
        r"\n\s*(?:See also|References|Notes|Further reading|External "
        r"links|Bibliography|Footnotes)\s*\n",
        text,
    )[0]
    lines = [line.strip().replace("''", "") for line in text.splitlines()]
    return re.sub(
        r"\n{3,}",
        "\n\n",
        "\n".join(line for line in lines if not line.startswith(("|", "!", "{|", "#"))),
    ).strip()


def _remove(code, node) -> None:
    with contextlib.suppress(ValueError):  # it went with a node around it
        code.remove(node)


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
    """Source files of the Python standard library of this interpreter."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return [p.read_text(errors="replace") for p in sorted(folder.glob("*.py"))]


def _sample() -> list[str]:
    """A committed excerpt of the Wikipedia corpus' `eval` part (which the tiny models never
    saw)."""
    return json.loads((DATA / "corpora" / "wikipedia-sample.json").read_text())


def _hub(
    path: str, config: str | None = None, test: str = "test", column: str = "text"
) -> Callable[[], Corpus]:
    """A dataset of the Hugging Face hub with its own train and test split."""

    def load() -> tuple[list[str], list[str]]:
        import datasets

        try:
            # Streaming splits are read no further than the budget asks for; 200,000 documents bound
            # the rest.
            parts = [
                datasets.load_dataset(path, config, split=split, streaming=True)
                for split in ("train", test)
                if split
            ]
            fit, *rest = ([row[column] for row in islice(part, 200_000)] for part in parts)
            return (fit, *rest) if test else _cut(fit)
        except Exception as error:  # the hub client raises a dozen kinds
            raise InputError(
                f"corpus {path!r} could not be loaded from the Hugging Face hub "
                f"({type(error).__name__}): check the network, "
                f"or use one of {', '.join(EMBEDDED)}, or the path of a text file."
            ) from None

    return load


def _gutenberg(book: str) -> Callable[[], list[str]]:
    """One book of Project Gutenberg, cut into documents of about 10,000 characters at paragraph
    ends."""

    def load() -> list[str]:
        import urllib.request

        url = f"https://www.gutenberg.org/cache/epub/{book}/pg{book}.txt"
        try:
            with urllib.request.urlopen(url, timeout=30) as page:
                text = page.read().decode("utf-8", "replace")
        except OSError as error:
            raise InputError(
                f"book {book} could not be had from Project Gutenberg ({error}): check the "
                "network, save the book as a text file "
                "and give its path as corpus, or use corpus='king-james'."
            ) from None
        return _chunks(re.split(r"\*\*\* (?:START|END) OF TH[^\n]*\*\*\*", text)[1])

    return load


def _chunks(text: str, size: int = 10_000) -> list[str]:
    """Text in pieces of at least `size` characters that end with a paragraph (a line, or
    anywhere, where those are longer)."""
    paragraphs = [
        part for p in text.split("\n\n") for part in (p.split("\n") if len(p) > 2 * size else [p])
    ]
    paragraphs = [
        part[i : i + size] for part in paragraphs for i in range(0, max(1, len(part)), size)
    ]
    pieces, piece = [], ""
    for paragraph in paragraphs:
        piece += paragraph + "\n\n"
        if len(piece) >= size:
            pieces, piece = [*pieces, piece.strip()], ""
    return [*pieces, piece.strip()] if piece.strip() else pieces


EMBEDDED = {
    "wikipedia": _wikipedia,
    "king-james": _king_james,
    "python-stdlib": _python_stdlib,
    "wikipedia-sample": _sample,
}
PRESETS = {
    "wikitext-2": _hub("Salesforce/wikitext", "wikitext-2-raw-v1"),
    "wikitext-103": _hub("Salesforce/wikitext", "wikitext-103-raw-v1"),
    "lambada": _hub("cimec/lambada"),
    "moby-dick": _gutenberg("2701"),
    "amusements-in-mathematics": _gutenberg("16713"),
    "tinystories": _hub("roneneldan/TinyStories", test="validation"),
    "fineweb-edu": _hub("HuggingFaceFW/fineweb-edu", "sample-10BT", test=""),
}


def check_corpus(name: str) -> None:
    """Raise InputError unless `name` is a known corpus or the path of a text file; loads
    nothing."""
    if not isinstance(name, str):
        raise InputError(f"corpus {name!r} is no text: give a name or the path of a text file.")
    if len(name) < 4096 and Path(name).is_dir():
        raise InputError(f"corpus {name!r} is a folder: give the path of one text file.")
    if name not in {**EMBEDDED, **PRESETS} and not (len(name) < 4096 and Path(name).is_file()):
        raise unknown("corpus", name, [*EMBEDDED, *PRESETS, "or the path of a text file"])


def load_corpus(name: str) -> Corpus:
    """The corpus of that name, or of the text file at that path. Raises InputError if it cannot
    be had."""
    check_corpus(name)
    if name in {**EMBEDDED, **PRESETS}:
        return _named(name)
    text = Path(name).read_text(errors="replace")
    if "\0" in text or text.count("\ufffd") > len(text) / 100:
        raise InputError(f"corpus {name!r} is not a text file: give one in UTF-8.")
    return Corpus(Path(name).stem, *_cut(_chunks(text)))


@cache
def _named(name: str) -> Corpus:
    loaded = {**EMBEDDED, **PRESETS}[name]()
    return Corpus(name, *(loaded if isinstance(loaded, tuple) else _cut(loaded)))


def _cut(documents: list[str]) -> tuple[list[str], list[str]]:
    """Documents in two parts: the last one(s) that hold EVAL_SHARE of the characters are `eval`."""
    total, seen = sum(map(len, documents)), 0
    for i, document in enumerate(documents):
        if seen + len(document) > (1 - EVAL_SHARE) * total and i:
            return documents[:i], documents[i:]
        seen += len(document)
    raise InputError(
        f"a corpus of {len(documents)} document(s) cannot be split: give a text of at least "
        "20,000 characters."
    )


def windows(
    documents: Iterable[str], tokenizer, n_tokens: int, seq_len: int, what: str = "this corpus"
) -> torch.Tensor:
    """The first `n_tokens` tokens of the joined documents as non-overlapping windows: LongTensor
    [n_tokens//seq_len, seq_len].

    Documents are tokenized only as far as needed. Raises InputError when there are fewer tokens
    than asked for.
    """
    if seq_len < 2 or n_tokens < seq_len:
        raise InputError(
            f"{n_tokens} tokens in windows of {seq_len} make no window: ask for at least one "
            "window of two tokens."
        )
    documents = [documents] if isinstance(documents, str) else documents
    ids: list[int] = []
    wanted = n_tokens // seq_len * seq_len
    for document in documents:
        if len(ids) >= wanted:
            break
        # Very long texts only warn about the model's context length, which windows never reach.
        ids += tokenizer(document + "\n\n", add_special_tokens=False, verbose=False)["input_ids"]
    if len(ids) < wanted:
        raise InputError(
            f"{what} has {len(ids):,} tokens but {n_tokens:,} were asked for: choose a "
            "smaller profile or a longer corpus."
        )
    return torch.tensor(ids[:wanted]).view(-1, seq_len)
