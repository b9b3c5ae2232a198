"""Checks of arguments. They refuse and compute nothing, so no stored result depends on them."""

from collections.abc import Collection

import numpy as np

from lib.second.base.errors import InputError


def check_fits(steps: int, seeds: Collection[int], blocks: Collection[int] = ()) -> None:
    """Raise InputError unless `steps` is at least 1, `seeds` are distinct and from 0 to 2³²-1,
    and no block is named twice."""
    if not _whole(steps) or steps < 1:
        raise InputError(f"{steps!r} steps are not possible: use a whole number from 1 up.")
    if (
        not isinstance(seeds, Collection)
        or not seeds
        or not all(_whole(s) and 0 <= s < 2**32 for s in seeds)
        or len(set(seeds)) < len(seeds)
    ):
        raise InputError(
            f"seeds {seeds!r} are not distinct whole numbers from 0 to 2³²-1: give at least "
            "one, each once."
        )
    twice = next((b for b in blocks if list(blocks).count(b) > 1), None)
    if twice is not None:
        raise InputError(f"block {twice} is named twice: name each once.")


def check_count(value: object, of: str, least: int = 1) -> None:
    """Raise InputError unless `value`, a number `of` something, is whole and at least `least`."""
    if not _whole(value) or value < least:
        raise InputError(f"{value!r} {of} are not possible: use a whole number from {least} up.")


def check_texts(documents: object, name: str) -> None:
    """Raise InputError unless `documents` are texts: one, or a list of them."""
    if isinstance(documents, str):
        return
    if isinstance(documents, (bytes, dict)) or not hasattr(documents, "__iter__"):
        raise InputError(
            f"{name} is a {type(documents).__name__}, which is no text: give a str or a list of "
            "them (bytes: decode them first)."
        )
    # A generator would be used up by looking.
    odd = [d for d in documents if not isinstance(d, str)] if hasattr(documents, "__len__") else ()
    if odd:
        raise InputError(
            f"{name} holds a {type(odd[0]).__name__}, which is no text: give a str for every "
            "document (bytes: decode them first)."
        )


def _whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
