"""Bits per byte of linear language models by vocabulary, and what stands beside them (Badger,
"Linear Mixer Scaling")."""

import bz2
import gzip
import itertools
import lzma
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from lib.second.base.errors import InputError
from lib.second.stats.intervals import Interval
from lib.second.stats.joint import jointly, over_seeds
from lib.second.texts.bpe import byte_bpe, token_bytes
from lib.second.texts.ngram import count_ngrams
from lib.second.texts.windows import Windows, cut_windows
from lib.second.training.mixers import Splits, window_losses
from lib.second.training.widths import frequency_loss

COMPRESSORS = {
    "gzip": lambda data: gzip.compress(data, 9, mtime=0),
    "bz2": lambda data: bz2.compress(data, 9),
    "lzma": lambda data: lzma.compress(data, preset=9 | lzma.PRESET_EXTREME),
}


def bits_per_byte(loss: float, tokens: int, n_bytes: int) -> float:
    """(tokens / bytes) · loss / ln 2, the page's formula, of a mean loss in nats per token."""
    return tokens / n_bytes * loss / math.log(2)


def bytes_of(windows: Windows, tokenizer) -> int:
    """Bytes of UTF-8 that the predicted tokens write: all but the first of each window."""
    return int(token_bytes(tokenizer)[windows.tokens[:, 1:].numpy()].sum())


def two_roads(model, windows: Windows, tokenizer) -> tuple[float, float]:
    """Bits per byte by the formula from the mean loss, and from the code lengths -log2 p of the
    tokens one by one, p from the softmax in float64."""
    size, tokens = bytes_of(windows, tokenizer), windows.tokens[:, 1:]
    first = bits_per_byte(float(window_losses(model, windows).mean()), tokens.numel(), size)
    with torch.no_grad():
        p = model(windows.tokens).logits[:, :-1].double().softmax(-1)
    lengths = -p.gather(-1, tokens[..., None]).log2()
    return first, float(lengths.sum()) / size


def as_worded(windows: Windows, tokenizer) -> float:
    """What the formula gives with characters per token, as the page words it, over what it gives
    with tokens per byte; the loss cancels."""
    tokens = windows.tokens[:, 1:]
    characters = sum(len(tokenizer.decode(row)) for row in tokens.tolist())
    return (characters / tokens.numel()) / (tokens.numel() / bytes_of(windows, tokenizer))


def frequency_bits(tokenizer, data: Splits) -> float:
    """Bits per byte by the frequencies of single tokens in the training text."""
    loss = frequency_loss(data.train.tokens.numpy(), data.test.tokens.numpy(), len(tokenizer))
    tokens = data.test.tokens[:, 1:].numel()
    return bits_per_byte(loss, tokens, bytes_of(data.test, tokenizer))


def held_out_documents(documents: Sequence[str], n: int, name: str) -> tuple[list[str], list[str]]:
    """`n` documents to choose a learning rate on and as many others to count bits on, in turn, the
    same for every vocabulary. Raises InputError if there are fewer."""
    if len(documents) < 2 * n:
        raise InputError(
            f"{name} holds back {len(documents)} documents but {2 * n} were asked for: choose a "
            "smaller profile or a longer corpus."
        )
    return list(documents[: 2 * n : 2]), list(documents[1 : 2 * n : 2])


def vocabulary(text, vocab: int, context: int, fixed: str, n: int, seed: int, name: str):
    """Tokenizer and Splits of one vocabulary. `context` is in tokens, or (fixed "bytes") in bytes:
    as many tokens as write about that many."""
    tokenizer = byte_bpe(text.fit, vocab, name)
    if fixed == "bytes":
        ids = tokenizer(text.fit[:32], add_special_tokens=False, verbose=False)["input_ids"]
        size = token_bytes(tokenizer)[np.concatenate(ids)].mean()
        context = max(2, round(context / size))
    parts = (text.fit, *held_out_documents(text.eval, n, name))
    cut = (cut_windows(part, tokenizer, context, seed, name) for part in parts)
    return tokenizer, Splits(*cut)


def with_bits(runs: pd.DataFrame, data: Splits, tokenizer, fixed: str) -> pd.DataFrame:
    """The runs of one vocabulary with their bits per byte: columns fixed, model, kind, width,
    vocab, context, seed, parameters, lr, validation, loss, bits_per_byte."""
    size, n = bytes_of(data.test, tokenizer), data.test.tokens[:, 1:].numel()
    kept = ["model", "kind", "width", "vocab", "context", "seed", "parameters", "lr", "validation"]
    bits = [bits_per_byte(loss, n, size) for loss in runs.loss]
    return runs[[*kept, "loss"]].assign(fixed=fixed, bits_per_byte=bits)


def counted_bits(
    data: Splits, tokenizer, order: int, size: int | None, n_windows: int | None
) -> tuple[float, int]:
    """Bits per byte of an n-gram model, and its stored numbers; counted on the first `n_windows`
    windows of the training text (None: all)."""
    ngram = count_ngrams(data.train.tokens[:n_windows].numpy(), len(tokenizer), order, size)
    losses = ngram.losses(data.test.tokens.numpy())
    bits = bits_per_byte(float(losses.mean()), losses.size, bytes_of(data.test, tokenizer))
    return bits, ngram.size


def ngram_rows(
    data: Splits, tokenizer, fixed: str, size: int, n_windows: int, orders: Sequence[int]
) -> pd.DataFrame:
    """N-gram models of one vocabulary: the bigram and the best of `orders` with at most `size`
    numbers, on as many windows as a model is trained on and on all. The order is chosen on the
    validation documents."""
    rows = []
    swapped = Splits(data.train, data.test, data.validation)
    for words, windows in (("", n_windows), (", all of the text", None)):
        best = min(orders, key=lambda k: counted_bits(swapped, tokenizer, k, size, windows)[0])
        for name, order, most in (("bigram", 2, None), ("n-gram", best, size)):
            bits, stored = counted_bits(data, tokenizer, order, most, windows)
            rows.append((name + words, order, stored, bits))
    table = pd.DataFrame(rows, columns=["model", "order", "parameters", "bits_per_byte"])
    context = data.test.seq_len
    return table.assign(fixed=fixed, vocab=len(tokenizer), context=context, seed=0)


def compressed(documents: Sequence[str], before: Sequence[str]) -> pd.DataFrame:
    """Bits per byte of `documents`, joined, by general compressors: alone, and after the text
    `before`, whose own compressed length is taken off. Columns compressor, given, bits_per_byte."""
    text, first = ("\n\n".join(part).encode() for part in (documents, before))
    rows = []
    for name, compress in COMPRESSORS.items():
        alone = len(compress(text))
        after = len(compress(first + b"\n\n" + text)) - len(compress(first))
        rows += [(name, "nothing", 8 * alone / len(text)), (name, "text", 8 * after / len(text))]
    return pd.DataFrame(rows, columns=["compressor", "given", "bits_per_byte"])


def by_vocabulary(bits: pd.DataFrame, fixed: str, column: str = "bits_per_byte") -> pd.DataFrame:
    """[seed, vocab] of the linear mixers with d_m = |t|."""
    rows = bits[(bits.fixed == fixed) & (bits.kind == "linear")]
    return rows.pivot(index="seed", columns="vocab", values=column)


def successive(table: pd.DataFrame) -> dict[str, Interval]:
    """Differences from each column to the next larger one."""
    columns = sorted(table)
    steps = {f"{a} to {b}": table[b] - table[a] for a, b in itertools.pairwise(columns)}
    return jointly(pd.DataFrame(steps))


def gains(table: pd.DataFrame) -> pd.DataFrame:
    """What each step to the next larger column gains (falls) per doubling, [seed, larger]."""
    columns = sorted(table)
    steps = itertools.pairwise(columns)
    return pd.DataFrame({b: (table[a] - table[b]) / math.log2(b / a) for a, b in steps})


def saturation(table: pd.DataFrame) -> Interval:
    """Gain of the last doubling less half that of the first."""
    found = gains(table)
    return over_seeds(found.iloc[:, -1] - found.iloc[:, 0] / 2)


def saturation_apart(table: pd.DataFrame, other: pd.DataFrame) -> Interval:
    """Gain of the last doubling less that of the last doubling of `other`, paired by seed."""
    return over_seeds(gains(table).iloc[:, -1] - gains(other).iloc[:, -1])


def best_vocabulary(bits: pd.DataFrame) -> int:
    """Vocabulary with the fewest bits per byte on the validation documents, context fixed in
    tokens: the test bits scaled by what the losses of the two parts say."""
    rows = bits[(bits.fixed == "tokens") & (bits.kind == "linear")]
    scaled = rows.bits_per_byte * rows.validation / rows.loss
    return int(scaled.groupby(rows.vocab).mean().idxmin())
