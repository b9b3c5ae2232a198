"""Routing: the linear map where a gate says so, the FFN elsewhere, in the live model (Balogh
Eq. 5)."""

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lib.second.base.cache import as_numpy, cached, digest
from lib.second.base.errors import InputError
from lib.second.base.steps import Item, each
from lib.second.models.blocks import Block
from lib.second.models.hooks import get_block, record, resume
from lib.second.models.subjects import Subject
from lib.second.swaps.losses import _losses
from lib.second.swaps.sweep import code_of, is_known
from lib.second.texts.windows import Windows

Gate = nn.Module | np.ndarray
"""bool [...] from x [..., d_model], true where the map stands in; or a mask [n, seq_len]"""
Route = Mapping[int, tuple[nn.Module, Gate]]
"""{block: (map, gate)}: all that are active at once"""


@dataclass(frozen=True, eq=False)
class Routed:
    """Losses without a route and under each, and where each was linear."""

    base: np.ndarray
    """[n, seq_len-1], nats"""
    losses: dict[Hashable, np.ndarray]
    """{route: [n, seq_len-1]}"""
    linear: dict[Hashable, dict[int, np.ndarray]]
    """{route: {block: bool [n, seq_len-1]}}, at the positions that have a loss"""

    def share(self, route: Hashable) -> float:
        """Share of (block, position) evaluations that were linear, over the route's blocks."""
        return float(np.mean([mask.mean() for mask in self.linear[route].values()]))


@contextlib.contextmanager
def routed(block: Block, affine: nn.Module, gate: Callable) -> Iterator[list[torch.Tensor]]:
    """While open, `affine` gives the block's FFN output wherever `gate(x)` is true.

    Yields the list that the gate's decisions, bool [batch, position], are added to, one each
    forward pass. Both paths are computed; `lib.second.gates.speed` has the one that saves work.
    """
    decisions: list[torch.Tensor] = []

    def choose(_, args: tuple, y: torch.Tensor) -> torch.Tensor:
        x = args[0]
        linear = gate(x)
        decisions.append(linear)
        return torch.where(linear[..., None], affine(x), y)

    handle = block.ffn.register_forward_hook(choose)
    try:
        yield decisions
    finally:
        handle.remove()


def routed_losses(
    subject: Subject, windows: Windows, routes: Mapping[Hashable, Route], batch: int = 8
) -> Routed:
    """Losses under each route in turn.

    One plain pass per batch records the residual stream; each route resumes at its first block.
    Each batch is cached when it is done, so a killed run resumes. Raises InputError for a block
    that does not exist, a route without one, or a mask that does not fit the windows.
    """
    subject.check(windows, batch)
    for name, route in routes.items():
        _check(subject, windows, name, route)
    modules = [part for r in routes.values() for pair in r.values() for part in pair]
    modules = list({id(m): m for m in modules if isinstance(m, nn.Module)}.values())
    weights = {id(m): digest((repr(m), dict(m.state_dict()))) for m in modules}
    keep, code = all(map(is_known, modules)), sorted({d for m in modules for d in code_of(m)})
    items, start = [], 0
    for chunk in windows.tokens.split(batch):
        rows = slice(start, start := start + len(chunk))
        part = {name: _rows(route, rows) for name, route in routes.items()}
        key = {
            "subject": subject.key,
            "windows": digest(chunk),
            "routes": [_content(route, weights) for route in part.values()],
            "code": code,
            "device": subject.device.type,
        }
        items.append(Item(key, (subject, chunk, list(part.values())), len(chunk) * len(part), keep))
    title, n = f"{len(routes)} routes in turn", len(windows) * len(routes)
    found = list(each(_routed_batch, items, total=n, desc=title, unit="window"))
    joined = lambda pick: np.concatenate([pick(batch) for batch in found])
    return Routed(
        joined(lambda b: b["base"]),
        {name: joined(lambda b, k=k: b["losses"][k]) for k, name in enumerate(routes)},
        {
            name: {i: joined(lambda b, k=k, i=i: b["linear"][k][i]) for i in route}
            for k, (name, route) in enumerate(routes.items())
        },
    )


def _check(subject: Subject, windows: Windows, name: Hashable, route: Route) -> None:
    if not route:
        raise InputError(f"route {name!r} has no block: give at least one.")
    for index, (_, gate) in route.items():
        get_block(subject, index)
        if isinstance(gate, nn.Module):
            continue
        if gate.shape != windows.tokens.shape or gate.dtype != bool:
            raise InputError(
                f"the mask of route {name!r} at block {index} is {gate.dtype} {gate.shape}: give "
                f"bool {tuple(windows.tokens.shape)}, one decision a token."
            )


def _rows(route: Route, rows: slice) -> Route:
    """The route of some of the windows."""
    return {
        index: (affine, gate if isinstance(gate, nn.Module) else gate[rows])
        for index, (affine, gate) in sorted(route.items())
    }


def _content(route: Route, weights: Mapping[int, str]) -> str:
    """What a route does, as a digest."""
    of = lambda part: weights[id(part)] if isinstance(part, nn.Module) else np.packbits(part)
    return digest([(index, of(affine), of(gate)) for index, (affine, gate) in route.items()])


@cached
@torch.no_grad()
def _routed_batch(work: tuple, tick: Callable[[int], None]) -> dict:
    subject, tokens, routes = work
    residual: dict[int, torch.Tensor] = {}
    firsts = sorted({min(route) for route in routes})
    with record(subject, on_residual=residual.__setitem__, blocks=firsts):
        base = _losses(subject, tokens)
    found: dict[str, list] = {"losses": [], "linear": []}
    for route in routes:
        first, decisions = min(route), {}
        with contextlib.ExitStack() as stack:
            stack.enter_context(resume(subject, first, residual[first]))
            for index, (affine, gate) in route.items():
                place = routed(subject.blocks[index], *_placed(subject, affine, gate))
                decisions[index] = stack.enter_context(place)
            found["losses"].append(as_numpy(_losses(subject, tokens)))
        taken = {i: as_numpy(made[0][:, :-1]) for i, made in decisions.items()}
        found["linear"].append(taken)
        tick(len(tokens))
    return {"base": as_numpy(base), **found}


def _placed(subject: Subject, affine: nn.Module, gate: Gate) -> tuple[nn.Module, Callable]:
    """Map and gate on the model's device; a mask as a gate that hands it out."""
    affine = affine.to(subject.device)
    if isinstance(gate, nn.Module):
        return affine, gate.to(subject.device)
    mask = torch.from_numpy(gate).to(subject.device)
    return affine, lambda x: mask


def everywhere(windows: Windows) -> np.ndarray:
    """The mask that is linear at every token."""
    return np.ones(tuple(windows.tokens.shape), dtype=bool)


def random_mask(windows: Windows, share: float, seed: int) -> np.ndarray:
    """Linear at a random `share` of the tokens, independently, bool [n, seq_len]."""
    if not 0 <= share <= 1:
        raise InputError(f"share {share} is no share of tokens: use one between 0 and 1.")
    return np.random.default_rng(seed).random(tuple(windows.tokens.shape)) < share


def padded(mask: np.ndarray) -> np.ndarray:
    """A mask of the positions that have a loss, [n, seq_len-1], with the FFN kept at the last
    position, which has none: [n, seq_len]."""
    return np.pad(mask, ((0, 0), (0, 1)))
