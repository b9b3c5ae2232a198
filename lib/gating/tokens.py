"""What a token brings and what its context adds (Balogh §3.3): the split of an FFN's input, kinds
of tokens, and look-up tables by token."""

import numpy as np
import pandas as pd
import torch
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from lib.errors import InputError
from lib.hooks import capture_residual
from lib.models.blocks import Subject
from lib.text.windows import Windows

KINDS = ("punctuation", "number", "function word", "subword", "content word")


def spelled(tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """(the text of every token without white space around it, whether it starts a word), each
    [vocabulary]; "" and False for a number that no token has. A token starts a word if white space
    comes in front of it when it is decoded after another one, whatever sign its tokenizer has for
    that."""
    known = sorted({*tokenizer.get_vocab().values()})

    def decoded(ids: list[list[int]]) -> list[str]:
        return tokenizer.batch_decode(ids, clean_up_tokenization_spaces=False)

    alone = decoded([[i] for i in known])
    # A token of letters to stand in front, whose end is therefore no white space.
    before = next((k for k, text in enumerate(alone) if text.isalpha()), 0)
    after = [text[len(alone[before]) :] for text in decoded([[known[before], i] for i in known])]
    texts, starts = np.full(known[-1] + 1, "", object), np.zeros(known[-1] + 1, bool)
    texts[known] = [text.strip() for text in alone]
    starts[known] = [text[:1].isspace() and bool(text.strip()) for text in after]
    return texts.astype(str), starts


def token_kinds(tokenizer) -> np.ndarray:
    """The kind of every token of a vocabulary, [vocabulary] of KINDS; a subword continues a word
    (no space before its letters)."""

    def kind(word: str, starts: bool) -> str:
        if not any(c.isalnum() for c in word):
            return "punctuation"
        if any(c.isdigit() for c in word):
            return "number"
        if not starts:
            return "subword"
        return "function word" if word.lower() in ENGLISH_STOP_WORDS else "content word"

    return np.array([kind(*of_token) for of_token in zip(*spelled(tokenizer))])


def smoothed_token_mean(
    values: np.ndarray, ids: np.ndarray, vocabulary: int, prior: float = 4.0
) -> np.ndarray:
    """Mean of `values` by token, [vocabulary], each drawn to the mean of all by `prior` rows, so a
    token never seen has that. `values` and `ids` are alike in shape."""
    ids, values = ids.ravel(), values.ravel()
    n, total = np.bincount(ids, minlength=vocabulary), np.bincount(ids, values, vocabulary)
    return (total + prior * values.mean()) / (n + prior)


def often(ids: np.ndarray, least: int = 10) -> np.ndarray:
    """Tokens that occur at least so often, sorted. Raises InputError if there are none."""
    found, n = np.unique(ids, return_counts=True)
    if not (n >= least).any():
        raise InputError(
            f"no token occurs {least} times among {ids.size:,} positions: use more text."
        )
    return found[n >= least]


def by_type(increase: np.ndarray, ids: np.ndarray, least: int = 10) -> pd.DataFrame:
    """The loss increase of each token type that occurs at least so often, a row a type by id:
    `token`, `occurrences`, `mean`, share of occurrences where it is `positive`. `increase` and
    `ids` are alike in shape. Raises InputError if there are none."""
    rows = pd.DataFrame({"token": ids.ravel(), "increase": increase.ravel()})
    types = rows.groupby("token").increase.agg(
        occurrences="size", mean="mean", positive=lambda values: (values > 0).mean()
    )
    return types.loc[often(ids, least)].reset_index()


def raw_embedding(subject: Subject, windows: Windows) -> torch.Tensor:
    """What the embedding puts into the stream, [n, seq_len, d]: the token's row of the table, with
    the position's where positions are embedded too (§3.3), times the model's factor if it has one
    (Gemma)."""
    return capture_residual(subject, windows, [0])[0].float()


@torch.no_grad()
def next_token_entropy(subject: Subject, windows: Windows) -> np.ndarray:
    """Entropy of the model's prediction at each position, [n, seq_len], nats."""
    entropy = []
    for tokens in windows.tokens.split(8):
        logits = subject.model(tokens.to(subject.device), use_cache=False).logits
        for row in logits.float():
            p = row.log_softmax(-1)
            entropy.append(-(p.exp() * p).sum(-1).cpu())
    return torch.stack(entropy).numpy()
