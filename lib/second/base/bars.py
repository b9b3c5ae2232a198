"""One progress bar for notebooks and terminals, which leaves one line behind."""

import sys

from tqdm import tqdm


def progress(iterable=None, **options) -> tqdm:
    """tqdm on standard output: as text, because widgets break the rendering of a committed
    notebook."""
    return tqdm(iterable, file=sys.stdout, mininterval=0.5, ncols=88, **options)
