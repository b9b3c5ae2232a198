"""Needles that trained decoders are asked for (notebook 22)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd
import torch
from torch import nn

from lib.models.blocks import Subject
from lib.store import kept
from lib.studies.decoder_study import DecoderStudy, Training, tables_of_seeds, trained
from lib.studies.study import odd_windows
from lib.text.needles import Haystacks, hide, key_value_pairs, sentences, with_needles
from lib.text.windows import Windows

SYMBOLS = 16
"""how many keys there are, and how many symbols of which values are made"""
N_MARKS = 2
"""one before what is hidden, one before what is asked"""
ASKED = ((1, 1), (4, 1), (8, 1), (1, 4))
"""(symbols a value, needles hidden and asked for in a window)"""
READ = 100
"""windows of each text in which needles are hidden"""
BATCH = 16
"""windows read at once"""


def retrieval_study(
    study: DecoderStudy, share: float = 0.75, most: int | None = None
) -> DecoderStudy:
    """Decoders that read needles in `share` of their training windows, each pair `most` times at
    most; the needles' tokens are numbered after the text's own."""
    n_words = study.shape.vocab
    return replace(
        study,
        fit=with_needles(study.fit, share, n_words, SYMBOLS, SYMBOLS, most),
        shape=replace(study.shape, vocab=n_words + N_MARKS + 2 * SYMBOLS),
    )


def retrieval(
    study: DecoderStudy, widths: Sequence[int], seeds: Sequence[int], texts: Mapping[str, Windows]
) -> pd.DataFrame:
    """Share of needles that trained decoders of a `retrieval_study` retrieve from up to READ odd
    windows of each text: a row a seed and question: seed, symbols (a value), needles (a window),
    hidden, withheld (asked for all the same, but not hidden)."""
    return tables_of_seeds(
        seeds, lambda seed: retrieved(study.training(widths, seed), dict(texts), READ)
    )


@kept("retrieved needles", 1, texts="texts with needles", most="windows of each text at most")
def retrieved(
    training: Training,
    texts: dict[str, Windows],
    most: int,
) -> pd.DataFrame:
    """See `retrieval`: a row a question."""
    model = trained(training)
    first = training.shape.vocab - N_MARKS - 2 * SYMBOLS
    rows = []
    for symbols, needles in ASKED:
        found = {"hidden": 0.0, "withheld": 0.0}
        for windows in texts.values():
            some = odd_windows(windows, most)
            pairs = key_value_pairs(len(some), first, SYMBOLS, SYMBOLS, symbols, needles)
            for kind in found:
                haystacks = hide(some, pairs, withheld=kind == "withheld")
                found[kind] += share_retrieved(model, haystacks) / len(texts)
        rows.append({"symbols": symbols, "needles": needles, **found})
    return pd.DataFrame(rows)


@torch.no_grad()
def share_retrieved(model: nn.Module, haystacks: Haystacks) -> float:
    """The share of answers all of whose tokens are the most likely ones."""
    n_right = 0
    for first in range(0, len(haystacks.windows), BATCH):
        some = slice(first, first + BATCH)
        batch = Haystacks(haystacks.windows[some], haystacks.answer_at[some])
        logits = model(batch.windows.tokens.to(model.device)).logits.cpu()
        n_right += batch.retrieved(logits).sum()
    return float(n_right / haystacks.answer_at[..., 0].size)


@kept("retrieved sentences", 1)
def retrieved_sentences(subject: Subject, windows: Windows) -> pd.DataFrame:
    """Share of needles in words (`sentences`), one a window, that a language model retrieves:
    hidden, withheld."""
    needles = sentences(subject.tokenizer, len(windows))
    hidden, withheld = (
        share_retrieved(subject.model, hide(windows, needles, withheld=w)) for w in (False, True)
    )
    return pd.DataFrame([{"hidden": hidden, "withheld": withheld}])
