"""Byte-level BPE tokenizers trained on the spot, and the bytes of each token (Badger, "Linear Mixer
Scaling")."""

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedTokenizerFast

from lib.second.base.cache import cached, digest
from lib.second.base.errors import InputError

BYTES = 256


def byte_bpe(
    documents: Sequence[str], vocab_size: int, name: str = "this text"
) -> PreTrainedTokenizerFast:
    """A byte-level BPE of `vocab_size` tokens without special ones, trained on `documents`; kept
    in the cache. 256 is plain bytes.

    Raises InputError for a vocabulary that lacks bytes, or one that the text has no merges for.
    """
    from tokenizers import Tokenizer

    if not isinstance(vocab_size, int) or vocab_size < BYTES:
        raise InputError(
            f"a vocabulary of {vocab_size!r} tokens cannot write every text: give a byte-level "
            f"tokenizer at least the {BYTES} bytes."
        )
    documents = list(documents)
    key = {"documents": digest(documents), "vocab_size": vocab_size}
    bpe = Tokenizer.from_str(_trained(key, (documents, vocab_size)))
    if bpe.get_vocab_size() < vocab_size:
        raise InputError(
            f"{name} has merges for {bpe.get_vocab_size():,} tokens but {vocab_size:,} were asked "
            "for: give a longer text, or choose a smaller vocabulary."
        )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, clean_up_tokenization_spaces=False)


@cached
def _trained(work: tuple[list[str], int]) -> str:
    from tokenizers import ByteLevelBPETokenizer

    documents, vocab_size = work
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(documents, vocab_size=vocab_size, min_frequency=2, show_progress=False)
    return bpe._tokenizer.to_str()


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """How many bytes of UTF-8 each token of a byte-level tokenizer writes, [vocab], int64: its
    alphabet has one sign a byte."""
    found = np.zeros(len(tokenizer), dtype=np.int64)
    for token, index in tokenizer.get_vocab().items():
        found[index] = len(token)
    return found
