"""What replacing one FFN costs the live model (Whipp §5.6): its losses, and the sweep over many."""

from collections.abc import Iterator, Mapping
from typing import Any

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
from lib.store import cached, kept, kept_of
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


def sweep(
    subject: Subject, windows: Windows, modules: Mapping[tuple[int, str], nn.Module]
) -> Losses:
    """Losses by document of the model as it is and with each module in its block's place, one at a
    time; `modules` is keyed by (block, what stands there).

    Each is kept (lib.store), so that only what is new is measured. Raises InputError for a block
    that the model does not have, and for a module that cannot stand in for its FFN.
    """
    check_predictions(subject, windows)

    def measure(missing: list) -> Iterator[dict]:
        some = {key: modules[key] for key in missing if key is not None}
        for key, losses in swapped_losses(subject, windows, some):
            if key in missing:
                yield {key: by_document(losses, windows, _name_of(key))}

    with subject.unchanging():
        keys: dict = {None: document_losses.key(subject, windows)}  # the model as it is
        for key, module in modules.items():
            keys[key] = document_losses.key(subject, windows, key[0], module)
        found = kept_of(document_losses, keys, measure)
    return of_tables(found.pop(None), found)


@kept("losses after a swap", 1, module="in the FFN's place")
def document_losses(
    subject: Subject, windows: Windows, block: int | None = None, module: nn.Module | None = None
) -> pd.DataFrame:
    """Losses with `module` in a block's place, or of the model as it is: document, sum (nats),
    predictions."""
    modules = {} if block is None else {block: module}
    swept = token_sweep(subject, windows, modules)
    return by_document(swept[block], windows, _name_of(block))


def by_document(losses: np.ndarray, windows: Windows, of: str) -> pd.DataFrame:
    """Losses [n, predictions] summed by document; `of`: whose they are, in words. Raises InputError
    for losses that are infinite or no numbers."""
    if not np.isfinite(losses).all():
        raise InputError(
            f"{of} gives logits that are infinite or no numbers, so there is no loss: look at its "
            "weights, or load the model in float32."
        )
    predictions = sums(np.ones_like(losses), windows.document).astype(int)
    columns = {"document": np.unique(windows.document), "sum": sums(losses, windows.document)}
    return pd.DataFrame({**columns, "predictions": predictions})


def _name_of(key) -> str:
    return "the model as it is" if key is None else f"the module in block {block_of(key)}"


def token_sweep(subject: Subject, windows: Windows, modules: Mapping) -> dict[Any, np.ndarray]:
    """{key: losses [n, predictions], nats} with each module in its block's place, and of the model
    as it is under None; see `swapped_losses`."""
    return dict(swapped_losses(subject, windows, modules))


def swapped_losses(
    subject: Subject, windows: Windows, modules: Mapping
) -> Iterator[tuple[Any, np.ndarray]]:
    """(key, losses [n, predictions]) with each module in its block's place, one at a time, in order
    of depth; last those of the model as it is, under None.

    `modules` is keyed by block, or by (block, name, …) to try several in one place. The residual
    streams of all windows pass the network once, block by block; what stands in a block's place is
    evaluated from there on, so that no part of the network before it runs again. Each module is a
    cached step.
    """
    check_predictions(subject, windows)
    for key, module in modules.items():  # a module that does not fit is refused at once
        check_replacement(get_block(subject, block_of(key)), module)
    streams = Streams(subject, windows)
    with subject.unchanging():
        by_depth = sorted(modules, key=block_of)
        for key in tqdm(by_depth, desc="swaps", unit="swap", delay=2, leave=False):
            yield key, _swapped(subject, windows, block_of(key), modules[key], streams)
        yield None, _base(subject, windows, streams)


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
