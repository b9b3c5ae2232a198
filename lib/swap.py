"""What replacing one FFN costs the live model (Whipp §5.6): losses, the swap sweep, healing."""

import contextlib
import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from lib.affine import AffineMap, Handle, RepairedMap
from lib.cache import cached
from lib.errors import InputError
from lib.hooks import (
    capture_residual,
    check_stand_in,
    check_windows,
    for_windows,
    get_block,
    record,
    resume,
    slices,
    swap,
)
from lib.kept import announce, kept
from lib.keys import seal, words_of
from lib.linear import AffineFit
from lib.losses import Losses, of_tables
from lib.model import Subject
from lib.stats import Interval, Statistic, median_ratio, ratio, sums
from lib.text import Windows

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
def losses(subject: Subject, tokens: torch.Tensor) -> torch.Tensor:
    """Losses of the model as it stands in nats, [batch, predictions], from tokens [batch, seq_len].

    There are seq_len - 1 predictions, or one less where windows begin with a start token: what is
    predicted there is not scored.
    """
    tokens = tokens.to(subject.device)
    logits = subject.model(tokens, use_cache=False).logits
    return next_token_losses(logits, tokens)[:, subject.n_start :]


@dataclass(frozen=True, eq=False)
class Sweep:
    """Losses of the whole model, with no swap and with each module in its block's place."""

    base: np.ndarray
    """[n, predictions], nats"""
    swapped: dict
    """{block, or (block, name, …): [n, predictions]}"""
    document: np.ndarray
    """[n]"""

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.base.mean()))

    def added_loss(self, key, against=None) -> np.ndarray:
        """Loss that a swap adds, summed by document, [documents], nats; `against` another swap
        rather than none."""
        other = self.base if against is None else self.swapped[against]
        return sums(self.swapped[key] - other, self.document)

    def median_added(self, keys: Sequence, against: Sequence | None = None) -> Statistic:
        """Loss that a swap adds in the median of several, nats a prediction: a statistic of
        weights [draws, documents]; `against` another swap for each rather than none."""
        others = [None] * len(keys) if against is None else against
        added = np.stack([self.added_loss(*both) for both in zip(keys, others)])
        return median_ratio(added, self.predictions)

    def median_cost(self, keys: Sequence, against: Sequence | None = None) -> Statistic:
        """`median_added` as a relative change of perplexity."""
        added = self.median_added(keys, against)
        return lambda w: np.expm1(added(w))

    @property
    def documents(self) -> np.ndarray:
        """[documents]: their numbers, for statistics of sums by document."""
        return np.unique(self.document)

    @property
    def predictions(self) -> np.ndarray:
        """Predictions of each document, [documents]."""
        return sums(np.ones_like(self.base), self.document)

    def of_windows(self, rows: np.ndarray) -> "Sweep":
        """The losses on some of the windows."""
        swapped = {key: values[rows] for key, values in self.swapped.items()}
        return Sweep(self.base[rows], swapped, self.document[rows])

    def cost(self, key, level: float = 0.95, against=None) -> Interval:
        """Relative change of perplexity by a swap (0.05: +5%), exp of the mean loss difference
        less 1, over documents; `against` another swap rather than none."""
        added = ratio(self.added_loss(key, against), self.predictions, level=level)
        return added.map(np.expm1)

    def costs(self, keys: Sequence | None = None) -> pd.DataFrame:
        """One row a swap: key, cost, low, high, joint over the rows."""
        keys = list(self.swapped if keys is None else keys)
        rows = [self.cost(k, 1 - 0.05 / len(keys)) for k in keys]
        return pd.DataFrame(rows, columns=["cost", "low", "high"]).assign(key=keys)


def sweep(
    subject: Subject, windows: Windows, modules: Mapping[tuple[int, str], nn.Module]
) -> Losses:
    """Losses by document of the model as it is and with each module in its block's place, one at a
    time; `modules` is keyed by (block, what stands there).

    Each is kept (lib.kept), so that only what is new is measured. Raises InputError for a block
    that the model does not have, and for a module that cannot stand in for its FFN.
    """
    check_predictions(subject, windows)
    with subject.unchanging():
        given = {key: (subject, windows, key[0], module) for key, module in modules.items()}
        given |= {None: (subject, windows)}  # the model as it is
        found = {key: document_losses.found(*of_key) for key, of_key in given.items()}
        missing = {key: module for key, module in modules.items() if found[key] is None}
        if missing or found[None] is None:
            announce("losses after a swap", len(missing))
            began = time.process_time()
            swept = token_sweep(subject, windows, missing)
            seconds = (time.process_time() - began) / (len(missing) + 1)
            for key in (None, *missing):
                table = _by_document(swept, key)
                found[key] = document_losses.keep(table, seconds, *given[key])
    return of_tables(found.pop(None), found)


@kept(
    "losses after a swap",
    1,
    subject="model",
    windows="text",
    block="block",
    module="in the FFN's place",
)
def document_losses(
    subject: Subject, windows: Windows, block: int | None = None, module: nn.Module | None = None
) -> pd.DataFrame:
    """Losses with `module` in a block's place, or of the model as it is: document, sum (nats),
    predictions."""
    modules = {} if block is None else {block: module}
    return _by_document(token_sweep(subject, windows, modules), block)


def _by_document(swept: Sweep, key) -> pd.DataFrame:
    """What was measured under a key (None: no swap), summed by document."""
    losses_of_key = swept.base if key is None else swept.swapped[key]
    return pd.DataFrame(
        {
            "document": swept.documents,
            "sum": sums(losses_of_key, swept.document),
            "predictions": swept.predictions.astype(int),
        }
    )


def token_sweep(subject: Subject, windows: Windows, modules: Mapping) -> Sweep:
    """The loss at each position with each module in its block's place, one at a time.

    `modules` is keyed by block, or by (block, name, …) to try several in one place. One plain pass
    a batch records the residual stream; each swapped evaluation resumes there, so the prefix of the
    network is never repeated. Every batch and module is a cached step.
    """
    check_predictions(subject, windows)
    for key, module in modules.items():  # a module that does not fit is refused at once
        check_stand_in(get_block(subject, block_of(key)), module)
    base: list[np.ndarray] = []
    swapped: dict = {key: [] for key in modules}
    blocks = sorted({block_of(key) for key in modules})
    bar = tqdm(total=len(windows) * len(modules), desc="swaps", unit="window", delay=2, leave=False)
    with subject.unchanging():
        for rows in slices(len(windows), batch_size(subject, windows)):
            chunk = windows[rows]
            streams = Streams(subject, chunk, blocks)
            base.append(_base(subject, chunk, streams))
            for key, module in modules.items():
                here = for_windows(module, rows)
                swapped[key].append(_swapped(subject, chunk, block_of(key), here, streams))
                bar.update(len(chunk))
    bar.close()
    joined = {key: np.concatenate(parts) for key, parts in swapped.items()}
    return Sweep(np.concatenate(base), joined, windows.document)


class Streams:
    """The base losses on a batch and the residual stream that enters each of `blocks`, from one
    pass that runs when either is first asked for: both may be in the cache."""

    def __init__(self, subject: Subject, chunk: Windows, blocks: Sequence[int]):
        self.subject, self.chunk, self.blocks = subject, chunk, blocks
        self._losses: torch.Tensor | None = None
        self._entering: dict[int, torch.Tensor] = {}

    def base_losses(self) -> torch.Tensor:
        """[n, predictions], nats."""
        self._run_once()
        return self._losses

    def entering(self, block: int) -> torch.Tensor:
        """[n, position, d_model]."""
        self._run_once()
        return self._entering[block]

    def _run_once(self) -> None:
        if self._losses is not None:
            return

        def keep(block: int, hidden: torch.Tensor) -> None:
            self._entering[block] = hidden

        with record(self.subject, on_residual=keep, blocks=self.blocks):
            self._losses = losses(self.subject, self.chunk.tokens)


def block_of(key) -> int:
    """The block of a key of `modules`: block, or (block, name, …)."""
    return key[0] if isinstance(key, tuple) else key


@cached("token losses", 2, subject="model", chunk="text", helpers=("streams",))
def _base(subject: Subject, chunk: Windows, streams: Streams) -> np.ndarray:
    """Losses with no swap, [n, predictions]."""
    return streams.base_losses().cpu().numpy()


@cached(
    "token losses after a swap",
    2,
    subject="model",
    chunk="text",
    block="block",
    module="in the FFN's place",
    helpers=("streams",),
)
def _swapped(
    subject: Subject, chunk: Windows, block: int, module: nn.Module, streams: Streams
) -> np.ndarray:
    """Losses with `module` in the place of a block's FFN, [n, predictions]."""
    entering = streams.entering(block)
    with resume(subject, block, entering), swap(subject.blocks[block], module):
        return losses(subject, chunk.tokens).cpu().numpy()


@cached("expected costs", 1, subject="model", windows="text", maps="maps")
def expected_added_loss(
    subject: Subject, windows: Windows, maps: Mapping[int, AffineMap]
) -> np.ndarray:
    """What each map would add to the loss, guessed without a swap from one backward pass (ours):
    two terms of each block and window in nats a prediction, [blocks, 2, n].

    With g the gradient of a window's summed loss at the FFN's output, and e the map's error there:
    Σ g·e over positions, and ½ Σ (g·e)², where the squared gradient stands for the curvature.
    """
    check_predictions(subject, windows)
    terms = np.zeros((len(maps), 2, len(windows)))
    bar = tqdm(windows.tokens.split(1), desc="gradients", unit="window", delay=2, leave=False)
    for n, tokens in enumerate(bar):
        with torch.enable_grad(), _output_leaves(subject) as at:
            logits = subject.model(tokens.to(subject.device), use_cache=False).logits
            predicted = logits[0, subject.n_start : -1]
            target = tokens[0, 1 + subject.n_start :].to(subject.device)
            nn.functional.cross_entropy(predicted, target, reduction="sum").backward()
        for k, (b, module) in enumerate(maps.items()):
            x, y, leaf = at[b]  # [1, position, d_model]
            error = (module.to(x.device)(x) - y) * ~module.massive(x)[..., None]
            along = (leaf.grad * error).double().sum(-1)[:, subject.n_start :]  # g·e, [1, position]
            terms[k, 0, n] = float(along.sum()) / len(target)
            terms[k, 1, n] = float(along.square().sum()) / 2 / len(target)
    return terms


@kept("predicted costs", 1, subject="model", windows="text", fit="maps")
def predicted_cost_terms(subject: Subject, windows: Windows, fit: AffineFit) -> pd.DataFrame:
    """The two terms of `expected_added_loss` for each map of a fit, summed by document: block,
    document, first, second (nats), predictions."""
    of_window = expected_added_loss(subject, windows, fit.maps)  # [blocks, 2, n], a prediction
    n_predictions = windows.tokens.shape[1] - 1 - subject.n_start
    documents, n_windows = np.unique(windows.document, return_counts=True)
    rows = []
    for block, (first, second) in zip(fit.maps, of_window):
        rows.append(
            pd.DataFrame(
                {
                    "block": block,
                    "document": documents,
                    "first": n_predictions * sums(first[:, None], windows.document),
                    "second": n_predictions * sums(second[:, None], windows.document),
                    "predictions": n_predictions * n_windows,
                }
            )
        )
    return pd.concat(rows)


def predicted_cost(subject: Subject, windows: Windows, fit: AffineFit) -> pd.DataFrame:
    """What each map of a fit is expected to add to the loss, from one backward pass (ours), a row a
    block, nats a token: first = E[g·e], second = ½ E[(g·e)²], and their sum `predicted`, with g the
    loss's gradient at the FFN's output and e the map's error there."""
    total = predicted_cost_terms(subject, windows, fit).groupby("block").sum()
    terms = total[["first", "second"]].div(total.predictions, axis=0)
    return terms.assign(predicted=terms.sum(axis=1)).reset_index()


@contextlib.contextmanager
def _output_leaves(subject: Subject) -> Iterator[dict]:
    """While open, {block: (x, y, leaf)} of the last forward pass; zeros are added to y, whose
    gradient is the loss's at the FFN's output."""
    at: dict = {}

    def hook_of(index: int) -> Callable:
        def hook(_, args: tuple, y: torch.Tensor) -> torch.Tensor:
            leaf = torch.zeros_like(y, requires_grad=True)
            at[index] = (args[0].detach(), y.detach(), leaf)
            return y + leaf

        return hook

    handles = [b.ffn.register_forward_hook(hook_of(b.index)) for b in subject.blocks]
    try:
        yield at
    finally:
        for handle in handles:
            handle.remove()


def heal(
    subject: Subject,
    windows: Windows,
    modules: Mapping,
    steps: int,
    lr: float = 1e-4,
    batch: int = 8,
    seed: int = 42,
) -> dict:
    """Fine-tune each module alone on the next-token loss, all else frozen (Whipp §3.3, §4: 200
    steps at 1e-4): {(block, …): module} -> the same keys with copies, healed when first used.

    AdamW without weight decay, `batch` windows a step in an order that all modules share; optimizer
    and batch are ours. Every pass resumes at the module's block. A module may be the block's own
    FFN, the heal-original control.
    """
    if subject.model.dtype != torch.float32:
        raise InputError(
            f"healing needs a model in float32, and {subject.name} is in {subject.model.dtype}: "
            "load it with dtype=torch.float32."
        )
    if steps < 1 or not lr > 0:
        raise InputError(f"{steps} steps at rate {lr} heal nothing: give both above 0.")
    blocks = sorted({get_block(subject, key[0]).index for key in modules})
    streams: dict = {}  # filled only if something is not in the cache

    def healed(block: int, module: nn.Module, words: str | None) -> nn.Module:
        layer = seal(trainable(module), words)
        given = (subject, windows, block, layer, steps, lr, batch, seed)
        layer.load_state_dict(_heal(*given, streams=streams, blocks=blocks))
        return layer.requires_grad_(False).eval()

    how = f"{_heal.version}, {steps} steps at {lr!r}, {batch} windows a step in order {seed}, "
    how += f"on {windows.provenance}"
    handles = {}
    for key, module in modules.items():
        words = words_of(module)
        said = words and f"{words}; {how}"
        handles[key] = Handle(said, partial(healed, key[0], module, words))
    return handles


def trainable(module: nn.Module) -> nn.Module:
    """A copy whose parameters can be trained; an AffineMap becomes an nn.Linear. Raises InputError
    for a repaired map, whose FFN on massive positions would be lost."""
    module = module.module if isinstance(module, Handle) else module
    if isinstance(module, RepairedMap):
        raise InputError("a repaired map cannot be healed: give the plain map of its block.")
    if isinstance(module, AffineMap):
        linear = nn.Linear(*module.weight.shape)
        linear.load_state_dict({"weight": module.weight.T.float(), "bias": module.bias.float()})
        return linear
    return copy.deepcopy(module).requires_grad_(True)


@cached(
    "healed layer",
    2,
    subject="model",
    windows="text",
    block="block",
    layer="layer",
    steps="steps",
    lr="rate",
    batch="windows a step",
    seed="seed",
    helpers=("streams", "blocks"),
)
@torch.enable_grad()
def _heal(
    subject: Subject,
    windows: Windows,
    block: int,
    layer: nn.Module,
    steps: int,
    lr: float,
    batch: int,
    seed: int,
    streams: dict,
    blocks: Sequence[int],
) -> dict[str, torch.Tensor]:
    """The state dict of the healed layer."""
    if not streams:
        streams |= capture_residual(subject, windows, blocks)
    layer = copy.deepcopy(layer).to(subject.device)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=lr, weight_decay=0.0)
    # Every window once, then all again in another order, as long as there are steps.
    generator = torch.Generator().manual_seed(seed)
    n_rounds = -(-steps * batch // len(windows))
    order = torch.cat([torch.randperm(len(windows), generator=generator) for _ in range(n_rounds)])
    for chosen in tqdm(order[: steps * batch].split(batch), desc="healing", delay=2, leave=False):
        tokens = windows.tokens[chosen].to(subject.device)
        hidden = streams[block][chosen].to(subject.device)
        with resume(subject, block, hidden), swap(subject.blocks[block], layer):
            logits = subject.model(tokens, use_cache=False).logits[:, subject.n_start : -1]
        target = tokens[:, 1 + subject.n_start :]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if not all(torch.isfinite(p).all() for p in layer.parameters()):
        raise InputError(f"healing block {block} diverged (lr {lr}): use a smaller learning rate.")
    return dict(layer.state_dict())
