"""Text by name, verified once and kept, and the token windows it is cut into."""

from lib.second.texts.assets import ASSETS, Asset, fetch
from lib.second.texts.bpe import byte_bpe, token_bytes
from lib.second.texts.corpora import Corpus, check_corpus, load_corpus
from lib.second.texts.documents import joined
from lib.second.texts.ngram import NGram, count_ngrams
from lib.second.texts.windows import Windows, cut_windows

__all__ = [
    "ASSETS",
    "Asset",
    "Corpus",
    "NGram",
    "Windows",
    "byte_bpe",
    "check_corpus",
    "count_ngrams",
    "cut_windows",
    "fetch",
    "joined",
    "load_corpus",
    "token_bytes",
]
