"""Maps refitted for the work they do: on the tokens that a gate serves, and in order, each on the
model as it stands with the earlier ones active (Balogh §3.4 leaves both open)."""

import contextlib
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn

from lib.second.base.cache import as_numpy, cached, digest
from lib.second.base.steps import Item, each
from lib.second.gates.protocol import N_FOLDS, RIDGE
from lib.second.gates.routing import routed
from lib.second.linear.affine import AffineMap
from lib.second.linear.moments import Collector, Moments, total
from lib.second.models.hooks import Replay, find_layers, forward_body, get_block, record, resume
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows

SERVED = 10
"""how often a served token counts where another counts once: a gate that serves fewer tokens than
the map has inputs would leave the map undetermined"""


def refit(
    subject: Subject,
    fit: Windows,
    gates: Mapping[int, nn.Module],
    n_tokens: int,
    *,
    served: bool = False,
    in_order: bool = False,
    batch: int = 16,
) -> dict[int, AffineMap]:
    """Maps of the gated blocks, ridge regression with λ = RIDGE on `n_tokens` of the documents that
    the maps of `protocol` learn from, {block: map, float32}.

    `served`: a token that the gate sends down the linear path counts SERVED times. `in_order`: each
    block's rows are those of the model in which all earlier gated blocks route with their refitted
    maps; else those of the intact model. Without either it is the same fit on fewer tokens, the
    control. Raises InputError for a block that does not exist, or where there are fewer tokens.
    """
    for block in gates:
        get_block(subject, block)
    windows = fit[~fit.held_out(N_FOLDS)].take(n_tokens)
    subject.check(windows, batch)
    blocks = sorted(gates)
    key = {
        "subject": subject.key,
        "windows": windows.key,
        "gates": digest([(i, repr(gates[i]), dict(gates[i].state_dict())) for i in blocks]),
        "served": served,
        "in_order": in_order,
        "batch": batch,
        "device": subject.device.type,
    }
    work = subject, windows, {i: gates[i] for i in blocks}, served, batch
    title = f"maps of {len(blocks)} blocks, {'in order' if in_order else 'refitted'}"
    steps = 2 * len(subject) if in_order else 1
    step = _in_order if in_order else _at_once
    items = [Item(key, work, steps * len(windows))]
    (found,) = each(step, items, total=steps * len(windows), desc=title, unit="window")
    return {
        i: AffineMap(*map(torch.from_numpy, pair)) for i, pair in zip(blocks, found, strict=True)
    }


class _Rows:
    """Moments of all rows of some blocks, and of those that their gates serve."""

    def __init__(self, gates: Mapping[int, nn.Module], served: bool):
        self.gates = gates if served else {}
        self.every, self.served = Collector(), {}

    def add(self, block: int, x: torch.Tensor, y: torch.Tensor) -> None:
        self.every.add(block, x, y)
        if block not in self.gates:
            return
        linear = self.gates[block].to(x.device)(x)
        if linear.any():
            rows = Moments.of(x[linear], y[linear])
            self.served[block] = self.served[block] + rows if block in self.served else rows

    def fit(self, block: int) -> AffineMap:
        more = [self.served[block]] * (SERVED - 1) if block in self.served else []
        found = total([self.every.moments[block], *more]).fit(RIDGE)
        return AffineMap(found.weight.float(), found.bias.float())


def _plain(found: Mapping[int, AffineMap]) -> list[tuple]:
    return [(as_numpy(m.weight), as_numpy(m.bias)) for m in found.values()]


@cached
@torch.no_grad()
def _at_once(work: tuple, tick: Callable[[int], None]) -> list[tuple]:
    subject, windows, gates, served, batch = work
    rows = _Rows(gates, served)
    with record(subject, on_ffn=rows.add, blocks=list(gates)):
        for chunk in windows.tokens.split(batch):
            forward_body(subject, chunk)
            tick(len(chunk))
    return _plain({i: rows.fit(i) for i in gates})


@cached
@torch.no_grad()
def _in_order(work: tuple, tick: Callable[[int], None]) -> list[tuple]:
    """Block by block: the residual stream that enters it is kept for all windows, so no block runs
    more than twice for a window."""
    subject, windows, gates, served, batch = work
    chunks = windows.tokens.split(batch)
    stream: list[torch.Tensor] = []
    with record(subject, on_residual=lambda _, h: stream.append(h.cpu()), blocks=[0]):
        for chunk in chunks:
            with _only(subject, 0, None):
                forward_body(subject, chunk)
    found: dict[int, AffineMap] = {}
    for block in subject.blocks:
        i, rows = block.index, _Rows(gates, served)
        if i in gates:
            with record(subject, on_ffn=rows.add, blocks=[i]):
                for chunk, h in zip(chunks, stream, strict=True):
                    with _only(subject, i, h):
                        forward_body(subject, chunk)
                    tick(len(chunk))
            found[i] = rows.fit(i)
        for k, chunk in enumerate(chunks):
            stream[k] = _after(subject, i, chunk, stream[k], found.get(i), gates.get(i))
            tick(len(chunk))
    return _plain(found)


def _after(subject: Subject, index: int, tokens: torch.Tensor, h, affine, gate) -> torch.Tensor:
    """The residual stream that leaves a block, routed if it has a gate."""
    block, left = subject.blocks[index], []

    def keep(_, args: tuple, out) -> None:
        left.append((out[0] if isinstance(out, tuple) else out).cpu())

    with contextlib.ExitStack() as stack:
        stack.enter_context(_only(subject, index, h))
        if gate is not None:
            place = routed(block, affine.to(subject.device), gate.to(subject.device))
            stack.enter_context(place)
        handle = block.layer.register_forward_hook(keep)
        stack.callback(handle.remove)
        forward_body(subject, tokens)
    return left[0]


@contextlib.contextmanager
def _only(subject: Subject, index: int, hidden: torch.Tensor | None) -> Iterator[None]:
    """While open, a forward pass runs block `index` alone, from the residual stream `hidden` that
    enters it (None: from the embeddings, for block 0)."""
    container = find_layers(subject.model)
    later = subject.blocks[index + 1 :]
    with contextlib.ExitStack() as stack:
        if hidden is not None:
            stack.enter_context(resume(subject, index, hidden.to(subject.device)))
        try:
            for block in later:
                replay = Replay(block.layer, None, subject.layers_return_tuples)
                container[block.index] = replay
            yield
        finally:
            for block in later:
                container[block.index] = block.layer
