"""Texts of the papers that come over the network: datasets of the Hugging Face hub, and books."""

import re
from collections.abc import Callable
from http.client import HTTPException

from lib.second.base.errors import InputError, reason
from lib.second.base.hub import asked, limited, refusal
from lib.second.texts.documents import articles_of_lines, bounded, chunks

HUB_CHARACTERS = 20_000_000
"""where the reading of a part ends: more than any profile asks for (about five million tokens)"""
INSTEAD = "or use corpus='wikipedia', 'king-james' or 'python-stdlib', or the path of a text file"


def hub(
    path: str,
    config: str | None = None,
    test: str = "test",
    column: str = "text",
    lines: bool = False,
) -> Callable[[], tuple[list[str], ...] | list[str]]:
    """A loader of a dataset of the Hugging Face hub; its rows are documents, or lines of them.

    Its train split and the split `test` are the parts; without the latter, all is one list. Each
    split is streamed and read no further than HUB_CHARACTERS, and no document is broken off. The
    loader raises InputError when the dataset cannot be had, or a minute passes without a row.
    """

    def part(split: str, heard: Callable[[], None]) -> list[str]:
        import datasets

        # `datasets` runs no code of a dataset any more and has no `trust_remote_code` to refuse.
        rows = datasets.load_dataset(path, config, split=split, streaming=True)
        texts = (row[column] for row in rows if heard() is None)
        return bounded(articles_of_lines(texts) if lines else texts, HUB_CHARACTERS)

    def load() -> tuple[list[str], ...] | list[str]:
        splits = ("train", test) if test else ("train",)
        try:
            asked("dataset", path)
            parts = limited(lambda heard: tuple(part(split, heard) for split in splits))
        except Exception as error:  # the hub client raises a dozen kinds
            raise refusal(f"corpus {path!r}", error, INSTEAD) from None
        return parts if test else parts[0]

    return load


def gutenberg(book: str) -> Callable[[], list[str]]:
    """A loader of one book of Project Gutenberg, cut at paragraph ends into documents of about
    10,000 characters. It raises InputError when the book cannot be had."""

    def load() -> list[str]:
        import urllib.request

        url = f"https://www.gutenberg.org/cache/epub/{book}/pg{book}.txt"
        try:
            with urllib.request.urlopen(url, timeout=30) as page:
                text = page.read().decode("utf-8", "replace")
        except (OSError, HTTPException) as error:
            raise InputError(
                f"book {book} could not be had from Project Gutenberg ({reason(error)}): check the "
                "network, save the book as a text file "
                "and give its path as corpus, or use corpus='king-james'."
            ) from None
        before, *body = re.split(r"\*\*\* (?:START|END) OF TH[^\n]*\*\*\*", text)
        return chunks(body[0] if body else before)

    return load
