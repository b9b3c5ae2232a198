"""What a token brings and what its context adds (Balogh §3.3): the split of an FFN's input, kinds
of tokens, features of a position, and look-up tables by token."""

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from torch import nn

from lib.cache import step
from lib.errors import InputError
from lib.hooks import capture_residual, get_block, record
from lib.model import Subject
from lib.text import Windows

KINDS = ("punctuation", "number", "function word", "subword", "content word")


def token_kinds(tokenizer) -> np.ndarray:
    """The kind of every token of a vocabulary, [vocabulary] of KINDS; a subword continues a word
    (no space before its letters)."""
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    space = ("Ġ", "▁")

    def kind(piece: str) -> str:
        word = piece.lstrip("Ġ▁")
        if not any(c.isalnum() for c in word):
            return "punctuation"
        if any(c.isdigit() for c in word):
            return "number"
        if not piece.startswith(space):
            return "subword"
        return "function word" if word.lower() in ENGLISH_STOP_WORDS else "content word"

    return np.array([kind(str(p)) for p in pieces])


def lookup(values: np.ndarray, ids: np.ndarray, vocabulary: int, prior: float = 4.0) -> np.ndarray:
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


@torch.no_grad()
def token_and_context(
    subject: Subject, windows: Windows, blocks: Sequence[int], batch: int = 16
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """x of each block's FFN and the part e of it that the token brings, {block: (x, e)}, each
    [n, seq_len, d]; the context is x - e.

    e is the embedding (with GPT-2's position, as the paper has it) as it passes the norm before the
    FFN with the statistics of the whole stream, so that x - e is what the rest of the stream gives
    (our reading: the paper subtracts a raw embedding from a normed input). Raises InputError where
    that norm is not found.
    """
    norms = {b: find_norm(subject, b) for b in blocks}
    embedded = capture_residual(subject, windows, [0])[0]
    found: dict = {b: ([], []) for b in blocks}
    seen: dict = {}

    def keep(b):
        return lambda norm, args, x: seen.update({b: (norm, args[0], x)})

    handles = [norm.register_forward_hook(keep(b)) for b, norm in norms.items()]
    try:
        for start in range(0, len(windows), batch):
            part = slice(start, start + batch)
            subject.model.base_model(windows.tokens[part].to(subject.device), use_cache=False)
            for b, (norm, h, x) in seen.items():
                e = _through(norm, h, x, embedded[part].to(h))
                for side, value in zip(found[b], (x, e)):
                    side.append(value.float().cpu().numpy())
    finally:
        for handle in handles:
            handle.remove()
    return {b: (np.concatenate(x), np.concatenate(e)) for b, (x, e) in found.items()}


def _through(norm: nn.Module, h: torch.Tensor, x: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """What `part` of the stream h becomes in x = norm(h), the norm's statistics held fixed."""
    if not isinstance(norm, nn.LayerNorm):
        return (x / h).nan_to_num(0.0, 0.0, 0.0) * part
    shift, middle = (0.0 if norm.bias is None else norm.bias), lambda v: v - v.mean(-1, True)
    return ((x - shift) / middle(h)).nan_to_num(0.0, 0.0, 0.0) * middle(part)


def find_norm(subject: Subject, block: int) -> nn.Module:
    """The module of a block whose output is its FFN's input, found in a tiny pass."""
    made, read = {}, []
    layer = get_block(subject, block).layer
    handles = [
        m.register_forward_hook(lambda m, args, out: made.update({m: out}))
        for m in layer.modules()
        if not [*m.children()]
    ]
    with record(subject, lambda _, x, y: read.append(x.data_ptr()), blocks=[block]):
        subject.model(torch.tensor([[1, 3, 4]], device=subject.device), use_cache=False)
    for handle in handles:
        handle.remove()
    for module, out in made.items():
        if isinstance(out, torch.Tensor) and out.data_ptr() == read[0] and out.dim() == 3:
            return module
    raise InputError(
        f"block {block} of {subject.name}: no norm hands its output to the FFN, so token and "
        "context cannot be told apart; choose another model."
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
    pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    words = [str(p).lstrip("Ġ▁") for p in pieces]
    kind = token_kinds(tokenizer)
    ends = np.array([w[-1:] in (".", "!", "?") for w in words])
    table = {
        "log frequency": np.log(counts[: len(words)] + 1.0),
        **{k: kind == k for k in KINDS[:4]},
        "length": np.array([len(w) for w in words]),
        "capitalised": np.array([w[:1].isupper() for w in words]),
    }
    live = _predictions(subject, windows)
    before = [[len({*row[:t]} & {row[t]}) for t in range(len(row))] for row in ids.tolist()]
    position = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    shifted = np.pad(ends[ids][:, :-1], ((0, 0), (1, 0)), constant_values=True)
    rest = {
        "position": np.log1p(position),
        "first position": position == 0,
        "seen before": np.array(before),
        "sentence start": shifted,
        "own loss": np.pad(live["loss"], ((0, 0), (1, 0))),
        "next-token entropy": live["entropy"],
    }
    columns = {k: v[ids] for k, v in table.items()} | rest
    return np.stack([columns[name].astype(float) for name in FEATURES], -1)


@step(version=1)
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
