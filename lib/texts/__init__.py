"""Text by name, verified once and kept, and the token windows it is cut into."""

from lib.texts.assets import ASSETS, Asset, fetch
from lib.texts.corpora import Corpus, check_corpus, load_corpus, windows

__all__ = ["ASSETS", "Asset", "Corpus", "check_corpus", "fetch", "load_corpus", "windows"]
