"""Text by name, verified once and kept, and the token windows it is cut into."""

from lib.texts.assets import ASSETS, Asset, fetch
from lib.texts.corpora import Corpus, check_corpus, load_corpus
from lib.texts.windows import Windows, cut_windows

__all__ = [
    "ASSETS",
    "Asset",
    "Corpus",
    "Windows",
    "check_corpus",
    "cut_windows",
    "fetch",
    "load_corpus",
]
