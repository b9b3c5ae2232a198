"""What replacing one FFN costs the live model (Whipp §5.6): its losses, and the sweep over many."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from lib.errors import InputError
from lib.hooks import (
    advance,
    capture_residual,
    check_replacement,
    check_windows,
    for_windows,
    get_block,
    resume,
    slices,
    swap,
)
from lib.models.blocks import Subject
from lib.stats import sums
from lib.store import announce, cached, kept
from lib.swap.losses import Losses, of_tables
from lib.text.windows import Windows

LOGITS = 2**27
"""most logits of a batch: half a gigabyte, whatever the vocabulary"""


def batch_size(subject: Subject, windows: Windows) -> int:
    """Windows a batch when logits are wanted: a power of two up to 16, within LOGITS."""
    vocabulary = subject.model.get_output_embeddings().weight.shape[0]
    most = LOGITS // (windows.tokens.shape[1] * vocabulary)
    return 2 ** min(4, max(0, most.bit_length() - 1))


def next_token_losses(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """NLL of each next token in nats, [batch, seq_len - 1], float64.

    logits [batch, seq_len, vocabulary], tokens [batch, seq_len]. Exponentials are taken in the
    logits' own precision and summed in float64: within 2e-7 nats of all in float64, and quicker.
    """
    rows, target = logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    log_sums = []
    # A megabyte at a time stays in a core's cache; more is eight times slower at 262,144 tokens.
    for part in rows.split(max(1, 2**18 // rows.shape[1])):
        largest = part.amax(-1, keepdim=True)
        total = (part - largest).exp().sum(-1, dtype=torch.float64)
        log_sums.append(total.log() + largest[:, 0].double())
    log_sum = torch.cat(log_sums)
    return (log_sum - rows.gather(1, target[:, None])[:, 0].double()).view(len(tokens), -1)


def check_predictions(subject: Subject, windows: Windows) -> None:
    """Raise InputError unless the model can read `windows` and predicts something in them."""
    check_windows(subject, windows)
    n = windows.tokens.shape[1]
    if n < 2 + subject.n_start:
        raise InputError(
            f"{windows.name} is cut into windows of {n} tokens, in which nothing is predicted: cut "
            f"windows of at least {2 + subject.n_start}."
        )


@torch.no_grad()
def token_losses(subject: Subject, tokens: torch.Tensor) -> torch.Tensor:
    """Losses of the model as it stands in nats, [batch, predictions], from tokens [batch, seq_len].

    There are seq_len - 1 predictions, or one less where windows begin with a start token: what is
    predicted there is not scored.
    """
    tokens = tokens.to(subject.device)
    logits = subject.model(tokens, use_cache=False).logits
    return next_token_losses(logits, tokens)[:, subject.n_start :]


@dataclass(frozen=True, eq=False)
class TokenLosses:
    """The loss at each position, with no swap and with each module in its block's place."""

    base: np.ndarray
    """[n, predictions], nats"""
    swapped: dict
    """{block, or (block, name, …): [n, predictions]}"""
    document: np.ndarray
    """[n]"""

    @property
    def documents(self) -> np.ndarray:
        """[documents]: their numbers, for statistics of sums by document."""
        return np.unique(self.document)

    @property
    def predictions(self) -> np.ndarray:
        """Predictions of each document, [documents]."""
        return sums(np.ones_like(self.base), self.document)


def sweep(
    subject: Subject, windows: Windows, modules: Mapping[tuple[int, str], nn.Module]
) -> Losses:
    """Losses by document of the model as it is and with each module in its block's place, one at a
    time; `modules` is keyed by (block, what stands there).

    Each is kept (lib.store), so that only what is new is measured. Raises InputError for a block
    that the model does not have, and for a module that cannot stand in for its FFN.
    """
    check_predictions(subject, windows)
    with subject.unchanging():
        keys: dict = {
            key: document_losses.key(subject, windows, key[0], module)
            for key, module in modules.items()
        }
        keys[None] = document_losses.key(subject, windows)  # the model as it is
        found: dict = {key: document_losses.look_up(of_key) for key, of_key in keys.items()}
        missing = {key: module for key, module in modules.items() if found[key] is None}
        if missing or found[None] is None:
            announce("losses after a swap", len(missing))
            began = time.process_time()
            swept = token_sweep(subject, windows, missing)
            seconds = (time.process_time() - began) / (len(missing) + 1)
            for key in (None, *missing):
                table = _by_document(swept, key)
                found[key] = document_losses.keep(keys[key], table, seconds)
    return of_tables(found.pop(None), found)


@kept("losses after a swap", 1, module="in the FFN's place")
def document_losses(
    subject: Subject, windows: Windows, block: int | None = None, module: nn.Module | None = None
) -> pd.DataFrame:
    """Losses with `module` in a block's place, or of the model as it is: document, sum (nats),
    predictions."""
    modules = {} if block is None else {block: module}
    return _by_document(token_sweep(subject, windows, modules), block)


def _by_document(swept: TokenLosses, key) -> pd.DataFrame:
    """What was measured under a key (None: no swap), summed by document."""
    losses_of_key = swept.base if key is None else swept.swapped[key]
    if not np.isfinite(losses_of_key).all():
        where = "the model as it is" if key is None else f"the module in block {block_of(key)}"
        raise InputError(
            f"{where} gives logits that are infinite or no numbers, so there is no loss: look at "
            "its weights, or load the model in float32."
        )
    return pd.DataFrame(
        {
            "document": swept.documents,
            "sum": sums(losses_of_key, swept.document),
            "predictions": swept.predictions.astype(int),
        }
    )


def token_sweep(subject: Subject, windows: Windows, modules: Mapping) -> TokenLosses:
    """The loss at each position with each module in its block's place, one at a time.

    `modules` is keyed by block, or by (block, name, …) to try several in one place. The residual
    streams of all windows pass the network once, block by block; what stands in a block's place is
    evaluated from there on, so that no part of the network before it runs again. Each module is a
    cached step.
    """
    check_predictions(subject, windows)
    for key, module in modules.items():  # a module that does not fit is refused at once
        check_replacement(get_block(subject, block_of(key)), module)
    streams = Streams(subject, windows)
    by_depth = sorted(modules, key=block_of)
    bar = tqdm(by_depth, desc="swaps", unit="swap", delay=2, leave=False)
    with subject.unchanging():
        swapped = {k: _swapped(subject, windows, block_of(k), modules[k], streams) for k in bar}
        base = _base(subject, windows, streams)
    return TokenLosses(base, {key: swapped[key] for key in modules}, windows.document)


class Streams:
    """The residual streams of all windows on their way through the network."""

    def __init__(self, subject: Subject, windows: Windows):
        self.subject, self.windows = subject, windows
        self.at: int | None = None
        """the block that they enter; None before the first is asked for"""
        self.hidden = torch.empty(0)

    def entering(self, block: int) -> torch.Tensor:
        """[n, position, d_model]; they have passed all blocks before it."""
        if self.at is None or self.at > block:
            streams = capture_residual(self.subject, self.windows, [block])[block]
            self.hidden, self.at = streams.to(self.subject.device), block
        for index in range(self.at, block):
            advance(self.subject, self.windows, index, self.subject.blocks[index].ffn, self.hidden)
        self.at = block
        return self.hidden


def block_of(key) -> int:
    """The block of a key of `modules`: block, or (block, name, …)."""
    return key[0] if isinstance(key, tuple) else key


@cached("token losses", 2, helpers=("streams",))
def _base(subject: Subject, windows: Windows, streams: Streams) -> np.ndarray:
    """Losses with no swap, [n, predictions]: from the block that `streams` enter."""
    block = streams.at or 0
    return _losses_from(subject, windows, block, subject.blocks[block].ffn, streams)


@cached("token losses after a swap", 2, module="in the FFN's place", helpers=("streams",))
def _swapped(
    subject: Subject, windows: Windows, block: int, module: nn.Module, streams: Streams
) -> np.ndarray:
    """Losses with `module` in the place of a block's FFN, [n, predictions]."""
    return _losses_from(subject, windows, block, module, streams)


def _losses_from(
    subject: Subject, windows: Windows, block: int, module: nn.Module, streams: Streams
) -> np.ndarray:
    """Losses from a block on, with `module` in its FFN's place, batch after batch."""
    entering = streams.entering(block)
    losses = []
    for rows in slices(len(windows), batch_size(subject, windows)):
        here = for_windows(module, rows)
        with resume(subject, block, entering[rows]), swap(subject.blocks[block], here):
            losses.append(token_losses(subject, windows.tokens[rows]).cpu().numpy())
    return np.concatenate(losses)
