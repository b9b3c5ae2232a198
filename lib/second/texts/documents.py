"""Documents from rows, lines and long texts, and the cut of a corpus between documents."""

import re
from collections.abc import Iterable, Iterator

EVAL_SHARE = 0.15

_TITLE = re.compile(r" ?= (?!=)(.*[^= ]) = ?")


def articles_of_lines(lines: Iterable[str]) -> Iterator[str]:
    """The articles of a dataset whose rows are lines, such as WikiText, each as one text.

    An article begins with a line " = Title = " after an empty one; its sections have two signs and
    more (" = = Section = = "). The text is not changed otherwise.
    """
    article, before = "", ""
    for line in lines:
        if not before.strip() and _TITLE.fullmatch(line.rstrip("\n")):
            yield article
            article = ""
        article += line if line.endswith("\n") else line + "\n"
        before = line
    yield article


def bounded(documents: Iterable[str], characters: float = float("inf")) -> list[str]:
    """Whole documents that hold a letter, until they have `characters`; no more are taken then."""
    kept, total = [], 0
    for document in documents:
        if any(map(str.isalpha, document)):
            kept.append(document)
            total += len(document)
        if total >= characters:
            break
    return kept


def chunks(text: str, size: int = 10_000) -> list[str]:
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


def joined(documents: Iterable[str], least: int) -> list[str]:
    """Documents of at least `least` characters: shorter ones are joined with what follows them, a
    blank line between, and a short rest with what stands before it. Passages of a sentence or two
    (LAMBADA's) would make no window of their own."""
    pieces: list[str] = []
    piece = ""
    for document in documents:
        piece = f"{piece}\n\n{document}" if piece else document
        if len(piece) >= least:
            pieces.append(piece)
            piece = ""
    if piece and pieces:
        pieces[-1] += f"\n\n{piece}"
    elif piece:
        pieces.append(piece)
    return pieces


def cut(documents: list[str]) -> tuple[list[str], list[str]]:
    """Two documents or more in two parts: the last ones, which hold EVAL_SHARE of the characters,
    and at least one, are the second."""
    total, seen = sum(map(len, documents)), 0
    for i, document in enumerate(documents):
        if seen + len(document) > (1 - EVAL_SHARE) * total and i:
            return documents[:i], documents[i:]
        seen += len(document)
    raise ValueError(f"{len(documents)} document(s) have no place to be cut at")
