"""Routers that a gate is compared with: random ones, and the oracle by δ (the controls that Balogh
§4.2 leaves out)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lib.second.base.errors import InputError
from lib.second.gates.delta import Deltas
from lib.second.gates.fitted import Chosen, Fitted, Unit
from lib.second.gates.gate import GATES
from lib.second.gates.routing import padded, random_mask, routed_losses
from lib.second.linear.affine import AffineMap
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows

HALF = 0.5
"""share at which a random router is measured"""
LARGER, ORACLE, LABELS, RANDOM = "larger", "oracle", "labels", "random"
"""the cheapest larger gate, the positions of lowest δ (both at the linear gate's share), the
positions that labels call fit, and random ones"""


def at_share(score: np.ndarray, share: float) -> np.ndarray:
    """The `share` of the positions with the highest score, bool of its shape; of equal ones the
    first."""
    if not 0 <= share <= 1:
        raise InputError(f"share {share} is no share of positions: use one between 0 and 1.")
    flat = np.zeros(score.size, dtype=bool)
    flat[np.argsort(-score.ravel(), kind="stable")[: round(share * score.size)]] = True
    return flat.reshape(score.shape)


@dataclass(frozen=True, eq=False)
class RandomRouter:
    """What it costs to send random positions of a block to its map, by their share.

    The loss of independent draws is a polynomial in the share; with what two positions do together
    it is of the second degree: through 0 at none, the measured loss at HALF, and δ at all.
    """

    half: np.ndarray
    """[n]: mean loss difference of each window at HALF, in the mean over draws"""
    whole: np.ndarray
    """[n]: that with the map at all positions"""
    delta: np.ndarray
    """[n, t]: δ by position"""

    @classmethod
    def measured(cls, base, losses, mask, delta) -> "RandomRouter":
        """From the losses [n, t] under one draw `mask` [n, t] of share HALF.

        What the draw's own choice adds to first order, Σ (mask - HALF) δ, has mean 0 over draws and
        is taken off: one draw then says nearly as much as many (a control variate).
        """
        half = (losses - base - (mask - HALF) * delta).mean(1)
        return cls(half, delta.mean(1), delta)

    def rise(self, share: float) -> np.ndarray:
        """Mean loss difference of each window at that share, [n], in the mean over draws."""
        first = (self.half - HALF**2 * self.whole) / (HALF - HALF**2)
        return first * share + (self.whole - first) * share**2

    def draws(self, share: float, n: int, seed: int) -> np.ndarray:
        """Mean loss difference of each window under `n` draws of that share, [n, windows]: the mean
        over draws, and each draw's own choice to first order."""
        rng = np.random.default_rng(seed)
        masks = rng.random((n, *self.delta.shape)) < share
        return self.rise(share) + ((masks - share) * self.delta).mean(2)


@dataclass(frozen=True, eq=False)
class Gated:
    """Losses of one block at a time under its gates and under the routers beside them."""

    base: np.ndarray
    """[n, t], nats"""
    losses: dict[Unit, np.ndarray]
    """{(block, router): [n, t]}: the kinds of GATES by their own thresholds, LARGER, ORACLE, and on
    some blocks LABELS"""
    masks: dict[Unit, np.ndarray]
    """{(block, router): bool [n, t]}: where each was linear"""
    random: dict[int, RandomRouter]
    delta: dict[int, np.ndarray]
    """{block: [n, t]}: δ with the map at all positions"""
    document: np.ndarray
    """[n]"""

    @property
    def blocks(self) -> list[int]:
        return list(self.delta)

    def rise(self, router: str | Mapping[int, str]) -> np.ndarray:
        """Mean loss difference of each window under a router (or one by block), [n_blocks, n]."""
        name = router if isinstance(router, Mapping) else dict.fromkeys(self.blocks, router)
        return np.stack([(self.losses[b, name[b]] - self.base).mean(1) for b in self.blocks])

    def shares(self, router: str | Mapping[int, str]) -> np.ndarray:
        """Share of each window that is linear, [n_blocks, n]."""
        name = router if isinstance(router, Mapping) else dict.fromkeys(self.blocks, router)
        return np.stack([self.masks[b, name[b]].mean(1) for b in self.blocks])

    def by_chance(self, router: str | Mapping[int, str]) -> np.ndarray:
        """Mean loss difference of each window under random routers of the same shares, [n_blocks,
        n]."""
        shares = self.shares(router).mean(1)
        return np.stack([self.random[b].rise(s) for b, s in zip(self.blocks, shares, strict=True)])

    def whole(self) -> np.ndarray:
        """Mean loss difference of each window with the map at all positions, [n_blocks, n]."""
        return np.stack([self.delta[b].mean(1) for b in self.blocks])


def first_kept(
    subject: Subject,
    windows: Windows,
    maps: Mapping[int, AffineMap],
    found: Gated,
    router: str | Mapping[int, str],
    seed: int = 42,
) -> np.ndarray:
    """Mean loss difference of each window under random routers of a router's shares that leave the
    first position of every window on its FFN, [n_blocks, n]: how much of a gate's skill is to know
    that position, where massive tokens often stand.

    One draw a block, in one pass of `routed_losses`; what its own choice adds to first order is
    taken off, as in `RandomRouter.measured`. `windows` are those of `found`.
    """
    t = found.base.shape[1]
    chance = {  # of the positions that are left, so that the share of all is the router's
        b: min(1.0, share * t / (t - 1))
        for b, share in zip(found.blocks, found.shares(router).mean(1), strict=True)
    }
    masks = {b: random_mask(windows, p, seed + 2000 + b)[:, :-1] for b, p in chance.items()}
    for mask in masks.values():
        mask[:, 0] = False
    routes = {b: {b: (maps[b], padded(mask))} for b, mask in masks.items()}
    losses = routed_losses(subject, windows, routes).losses
    own = {b: ((mask - chance[b]) * found.delta[b])[:, 1:].sum(1) / t for b, mask in masks.items()}
    return np.stack([(losses[b] - found.base).mean(1) - own[b] for b in masks])


def larger_gates(chosen: Chosen) -> dict[int, str]:
    """The kind of each block that is cheapest on the documents for choosing among those larger than
    the linear gate."""
    table = chosen.table[chosen.table.kind != GATES[0]]
    best = table.loc[table.groupby("block").cost.idxmin()]
    return dict(zip(best.block.tolist(), best.kind, strict=True))


def gated(
    subject: Subject,
    windows: Windows,
    maps: Mapping[int, AffineMap],
    found: Deltas,
    scores: Mapping[Unit, np.ndarray],
    fitted: Fitted,
    larger: Mapping[int, str],
    labelled: Sequence[int] = (),
    seed: int = 42,
) -> Gated:
    """Price every gate of GATES and the routers beside them, one block at a time, in one call.

    found and scores are of `windows`; `labelled`: the blocks whose labels are also used as a
    router. A gate sees the intact model's input, so its decisions are a mask made beforehand.
    """
    masks: dict[Unit, np.ndarray] = {}
    for block, delta in found.by_block.items():
        masks |= {(block, kind): scores[block, kind] > 0 for kind in GATES}
        share = masks[block, GATES[0]].mean()
        masks[block, LARGER] = at_share(scores[block, larger[block]], share)
        masks[block, ORACLE] = at_share(-delta, share)
        masks[block, RANDOM] = random_mask(windows, HALF, seed + block)[:, :-1]
        if block in labelled:
            masks[block, LABELS] = fitted.labels[block].of(delta)
    routes = {unit: {unit[0]: (maps[unit[0]], padded(mask))} for unit, mask in masks.items()}
    losses = routed_losses(subject, windows, routes).losses
    random = {
        block: RandomRouter.measured(
            found.base, losses[block, RANDOM], masks[block, RANDOM], found.by_block[block]
        )
        for block in found.by_block
    }
    document = windows.document.numpy()
    return Gated(found.base, losses, masks, random, dict(found.by_block), document)
