"""Checks of the arguments that all fits share."""

from collections.abc import Collection

import numpy as np

from lib.base.errors import InputError


def check_fits(steps: int, seeds: Collection[int], blocks: Collection[int] = ()) -> None:
    """Raise InputError unless `steps` is at least 1, `seeds` are distinct and from 0 to 2³²-1,
    and no block is named twice."""
    whole = lambda v: isinstance(v, (int, np.integer)) and not isinstance(v, bool)  # noqa: E731
    if not whole(steps) or steps < 1:
        raise InputError(f"{steps!r} steps are not possible: use a whole number from 1 up.")
    if (
        not isinstance(seeds, Collection)
        or not seeds
        or not all(whole(s) and 0 <= s < 2**32 for s in seeds)
        or len(set(seeds)) < len(seeds)
    ):
        raise InputError(
            f"seeds {seeds!r} are not distinct whole numbers from 0 to 2³²-1: give at least "
            "one, each once."
        )
    twice = next((b for b in blocks if list(blocks).count(b) > 1), None)
    if twice is not None:
        raise InputError(f"block {twice} is named twice: name each once.")
