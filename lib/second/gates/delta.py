"""δ: what the linear map costs at a position, in nats (Balogh §3.2)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from lib.second.base.cache import as_numpy, cached, digest
from lib.second.base.checks import check_count
from lib.second.base.steps import Item, each
from lib.second.gates.routing import routed
from lib.second.linear.affine import AffineMap
from lib.second.models.hooks import get_block, record, resume
from lib.second.models.subjects import Subject
from lib.second.swaps.losses import next_token_losses
from lib.second.swaps.sweep import swap_sweep
from lib.second.texts.windows import Windows

TAILS = (1, 5, 25, 50, 75, 95, 99)
"""percentiles of δ that tables print"""


@dataclass(frozen=True, eq=False)
class Deltas:
    """δ of every block and position, and the losses it comes from."""

    base: np.ndarray
    """L_full [n, seq_len-1], nats: the loss of the token after each position"""
    by_block: dict[int, np.ndarray]
    """{block: L_lin - L_full [n, seq_len-1]}"""


def deltas(subject: Subject, windows: Windows, maps: Mapping[int, AffineMap]) -> Deltas:
    """δ with the map at all positions of a window at once, the paper's reading: what it does at
    one position reaches later ones through attention, and counts there too.

    Position t has the loss of token t+1; the last position of a window has none.
    """
    base, losses = swap_sweep(subject, windows, maps)
    return Deltas(base, {block: swapped - base for block, swapped in losses.items()})


def single_deltas(
    subject: Subject,
    windows: Windows,
    maps: Mapping[int, AffineMap],
    n_positions: int = 4,
    seed: int = 42,
    batch: int = 4,
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """δ with the map at one position alone: (positions [n, n_positions], {block: δ [n,
    n_positions]}).

    The positions of each window are drawn at random without replacement; each is an evaluation of
    the rest of the network, so a few stand for all.
    """
    subject.check(windows, batch)
    check_count(n_positions, "positions")
    chance = np.random.default_rng(seed)
    order = chance.random((len(windows), windows.seq_len - 1)).argsort(1)
    positions = order[:, :n_positions]
    items, blocks = [], sorted(maps)
    weights = digest([dict(maps[i].state_dict()) for i in blocks])
    for rows in torch.arange(len(windows)).split(batch):
        chunk, at = windows.tokens[rows], positions[rows.numpy()]
        key = {
            "subject": subject.key,
            "windows": digest(chunk),
            "positions": at,
            "blocks": blocks,
            "maps": weights,
            "device": subject.device.type,
        }
        size = len(chunk) * len(blocks)
        items.append(Item(key, (subject, chunk, at, {i: maps[i] for i in blocks}), size))
    n = len(windows) * len(blocks)
    title = f"δ of {n_positions} positions, one at a time"
    found = list(each(_single_batch, items, total=n, desc=title, unit="window"))
    joined = {i: np.concatenate([part[k] for part in found]) for k, i in enumerate(blocks)}
    return positions, joined


@cached
@torch.no_grad()
def _single_batch(work: tuple, tick: Callable[[int], None]) -> list[np.ndarray]:
    subject, tokens, positions, maps = work
    residual: dict[int, torch.Tensor] = {}
    with record(subject, on_residual=residual.__setitem__, blocks=list(maps)):
        base = _losses_of(subject, tokens)
    n, k = positions.shape
    copies = tokens.repeat_interleave(k, 0)
    at = torch.from_numpy(positions.ravel()).to(subject.device)
    here = torch.arange(tokens.shape[1], device=subject.device)[None] == at[:, None]
    before = base.repeat_interleave(k, 0)
    found = []
    for index, affine in maps.items():
        block, stream = get_block(subject, index), residual[index].repeat_interleave(k, 0)
        place = routed(block, affine.to(subject.device), lambda x: here)
        with resume(subject, index, stream), place:
            difference = _losses_of(subject, copies) - before
        found.append(as_numpy(difference.gather(1, at.cpu()[:, None]).view(n, k)))
        tick(n)
    return found


def _losses_of(subject: Subject, tokens: torch.Tensor) -> torch.Tensor:
    tokens = tokens.to(subject.device)
    return next_token_losses(subject.model(tokens, use_cache=False).logits, tokens).cpu()


def tails(by_block: Mapping[int, np.ndarray], percentiles: Sequence[int] = TAILS) -> pd.DataFrame:
    """The distribution of δ, a row a block: mean, sd, percentiles p1 … p99, the shares of positions
    with δ < 0 and with |δ| < 0.05, and what the largest and the smallest twentieth add to the mean
    (top_twentieth, bottom_twentieth), all in nats."""
    rows = []
    for block, delta in by_block.items():
        flat = np.sort(delta.ravel())
        twentieth = max(1, len(flat) // 20)
        rows.append(
            {
                "block": block,
                "mean": flat.mean(),
                "sd": flat.std(ddof=1),
                **{f"p{p}": np.percentile(flat, p) for p in percentiles},
                "negative": (flat < 0).mean(),
                "near_zero": (np.abs(flat) < 0.05).mean(),
                "top_twentieth": flat[-twentieth:].sum() / len(flat),
                "bottom_twentieth": flat[:twentieth].sum() / len(flat),
            }
        )
    return pd.DataFrame(rows)
