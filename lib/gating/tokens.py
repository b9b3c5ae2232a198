"""What a token brings and what its context adds (Balogh §3.3): the split of an FFN's input, kinds
of tokens, features of a position, and look-up tables by token."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from torch import nn

from lib.errors import InputError
from lib.hooks import capture_residual, get_block, record
from lib.models.blocks import Subject
from lib.models.trial import trial_tokens
from lib.store import cached
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


@torch.no_grad()
def token_and_context(
    subject: Subject, windows: Windows, blocks: Sequence[int], batch: int = 16
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """x of each block's FFN and the part e of it that the token brings, {block: (x, e)}, each
    [n, seq_len, d]; the context is x - e.

    e is the embedding (with GPT-2's position, as the paper has it) as it passes the norm before the
    FFN with the statistics of the whole stream, so that x - e is what the rest of the stream gives.
    This is ours: the author's code subtracts the raw embedding from the normed x (`raw_embedding`).
    Raises InputError where that norm is not found, or does not scale each position by one number.
    """
    norms = {find_norm(subject, b): b for b in blocks}
    embedded = raw_embedding(subject, windows)
    found: dict = {b: ([], []) for b in blocks}
    seen: dict = {}

    def keep(norm: nn.Module, args: tuple, x: torch.Tensor) -> None:
        seen[norms[norm]] = (norm, args[0], x)

    handles = [norm.register_forward_hook(keep) for norm in norms]
    try:
        for start in range(0, len(windows), batch):
            part = slice(start, start + batch)
            subject.model.base_model(windows.tokens[part].to(subject.device), use_cache=False)
            for b, (norm, stream, x) in seen.items():
                e = _through(norm, stream, x, embedded[part].to(stream))
                for side, value in zip(found[b], (x, e)):
                    side.append(value.float().cpu().numpy())
    finally:
        for handle in handles:
            handle.remove()
    return {b: (np.concatenate(x), np.concatenate(e)) for b, (x, e) in found.items()}


def raw_embedding(subject: Subject, windows: Windows) -> torch.Tensor:
    """What the embedding puts into the stream, [n, seq_len, d]: the token's row of the table, with
    the position's where positions are embedded too (§3.3), times the model's factor if it has one
    (Gemma)."""
    return capture_residual(subject, windows, [0])[0].float()


def _through(
    norm: nn.Module, stream: torch.Tensor, x: torch.Tensor, part: torch.Tensor
) -> torch.Tensor:
    """What `part` of the stream becomes in x = norm(stream), the norm's statistics held fixed. What
    the norm does is seen by what it makes of other streams: of zeros, its shift; of twice the
    stream, the same but for one number a position (of a small stream more, by the norm's epsilon);
    of the stream and a constant, whether it takes the mean away."""
    shift = norm.forward(torch.zeros_like(stream))  # the hooks on it are for the model's own pass
    once, twice = x - shift, norm.forward(2 * stream) - shift
    size = once.square().sum(-1, keepdim=True)
    ratio = (twice * once).sum(-1, keepdim=True) / size.clamp_min(torch.finfo(size.dtype).tiny)
    mixes = any(p.dim() > 1 for p in norm.parameters())  # features, as a linear layer does
    if mixes or not torch.allclose(twice, ratio * once, rtol=1e-2, atol=1e-2 * float(x.std())):
        raise InputError(
            f"{type(norm).__name__} does not scale each position of the stream by one number, so "
            "token and context cannot be separated: choose another model."
        )
    raised = norm.forward(stream + stream.std())
    if torch.allclose(raised, x, rtol=1e-3, atol=1e-3 * float(x.std())):
        stream = stream - stream.mean(-1, keepdim=True)
        part = part - part.mean(-1, keepdim=True)
    return ((x - shift) / stream).nan_to_num(0.0, 0.0, 0.0) * part


def find_norm(subject: Subject, block: int) -> nn.Module:
    """The module of a block whose output is its FFN's input, found in a tiny pass."""
    outputs: dict[nn.Module, Any] = {}
    read: list[int] = []  # where the FFN's input lies in memory
    layer = get_block(subject, block).layer

    def keep(module: nn.Module, _, output) -> None:
        outputs[module] = output

    leaves = [module for module in layer.modules() if not [*module.children()]]
    handles = [module.register_forward_hook(keep) for module in leaves]
    try:
        with record(subject, lambda _, x, y: read.append(x.data_ptr()), blocks=[block]):
            subject.model(trial_tokens(subject.model), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    for module, output in outputs.items():
        is_stream = isinstance(output, torch.Tensor) and output.dim() == 3
        if is_stream and output.data_ptr() == read[0]:
            return module
    raise InputError(
        f"block {block} of {subject.name}: no norm hands its output to the FFN, so token and "
        "context cannot be separated; choose another model."
    )


FEATURES = (
    "log frequency", "punctuation", "number", "function word", "subword", "length", "capitalised",
    "position", "first position", "seen before", "sentence start", "own loss", "next-token entropy",
)  # fmt: skip


def features(subject: Subject, windows: Windows, counts: np.ndarray) -> np.ndarray:
    """Thirteen features of every position, [n, seq_len, 13] in the order of FEATURES.

    The paper names log frequency, part of speech, subword status, position and next-token entropy,
    "and others"; kinds of tokens stand for the part of speech, and the others are ours. `counts`
    [vocabulary] of each token in other text. Own loss is that of predicting the token itself.
    """
    tokenizer, ids = subject.tokenizer, windows.tokens.numpy()
    words, _ = spelled(tokenizer)
    kind = token_kinds(tokenizer)
    # Features of the token, by its number: [vocabulary].
    of_token = {
        "log frequency": np.log(counts[: len(words)] + 1.0),
        "length": np.array([len(word) for word in words]),
        "capitalised": np.array([word[:1].isupper() for word in words]),
    }
    for name in ("punctuation", "number", "function word", "subword"):
        of_token[name] = kind == name  # a content word is none of these
    columns = {name: values[ids] for name, values in of_token.items()}
    # Features of the position: [n, seq_len].
    position = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    columns["position"] = np.log1p(position)
    columns["first position"] = position == 0
    columns["seen before"] = _seen_before(ids)
    # A sentence starts after the end of one, and at the start of a window.
    ends_sentence = np.array([word[-1:] in (".", "!", "?") for word in words])[ids]
    one_in_front = ((0, 0), (1, 0))
    columns["sentence start"] = np.pad(ends_sentence[:, :-1], one_in_front, constant_values=True)
    # Features of what the model predicts.
    predictions = _predictions(subject, windows)
    columns["own loss"] = np.pad(predictions["loss"], one_in_front)
    columns["next-token entropy"] = predictions["entropy"]
    return np.stack([columns[name].astype(float) for name in FEATURES], -1)


def _seen_before(ids: np.ndarray) -> np.ndarray:
    """Whether a token stands earlier in its window too, bool like ids [n, seq_len]."""
    repeated = np.zeros(ids.shape, bool)
    for n, row in enumerate(ids.tolist()):
        seen: set[int] = set()
        for t, token in enumerate(row):
            repeated[n, t] = token in seen
            seen.add(token)
    return repeated


FEATURES_OF_AUTHOR = (
    "log frequency", "log rank", "subword", "length", "function word", "position",
    "unigram surprise", "next-token entropy", "alphabetic", "starts a word",
)  # fmt: skip


def features_of_author(subject: Subject, windows: Windows, counts: np.ndarray) -> np.ndarray:
    """The ten features of the author's code, [n, predictions, 10] in the order of
    FEATURES_OF_AUTHOR: all of the token to be predicted but the entropy, which is that of its
    prediction. `counts` [vocabulary] of each token in other text.

    As in his code function words include punctuation, the position is that in the whole slice over
    512, and unigram surprise is the log frequency with the other sign.
    """
    tokenizer, first = subject.tokenizer, subject.n_start
    ids = windows.tokens.numpy()[:, first + 1 :]
    words, starts = spelled(tokenizer)
    kind = token_kinds(tokenizer)
    frequency = np.log(counts[: len(words)] + 1.0)
    rank = np.empty(len(words))
    rank[np.argsort(-frequency, kind="stable")] = np.arange(1, len(words) + 1)
    of_token = {
        "log frequency": frequency,
        "log rank": np.log(rank),
        "subword": kind == "subword",
        "length": np.array([len(w) for w in words]),
        "function word": np.isin(kind, ("function word", "punctuation")),
        "unigram surprise": -frequency,
        "alphabetic": np.array([w.isalpha() for w in words]),
        "starts a word": starts,
    }
    columns = {name: values[ids] for name, values in of_token.items()}
    columns["position"] = np.arange(ids.size).reshape(ids.shape) / 512
    columns["next-token entropy"] = _predictions(subject, windows)["entropy"][:, first:-1]
    return np.stack([columns[name].astype(float) for name in FEATURES_OF_AUTHOR], -1)


@cached("entropy and loss", 1)
@torch.no_grad()
def _predictions(subject: Subject, windows: Windows) -> dict:
    """Entropy of the next-token distribution [n, seq_len] and loss of each next token, nats."""
    entropy, loss = [], []
    for tokens in windows.tokens.split(8):
        logits = subject.model(tokens.to(subject.device), use_cache=False).logits
        for row, own in zip(logits.float(), tokens):
            p = row.log_softmax(-1)
            entropy.append(-(p.exp() * p).sum(-1).cpu())
            loss.append(-p[:-1].gather(1, own[1:, None].to(p.device))[:, 0].cpu())
    return {"entropy": torch.stack(entropy).numpy(), "loss": torch.stack(loss).numpy()}
