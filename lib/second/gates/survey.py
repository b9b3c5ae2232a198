"""The whole protocol on one model: what Balogh's Table 8 has of it, the same at equal shares, and
beside them random routers and a constant in the FFN's place."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lib.second.gates.delta import deltas
from lib.second.gates.fitted import Fitted, best_gates, choose_gates, fitted_gates
from lib.second.gates.gate import GATES
from lib.second.gates.inputs import Inputs
from lib.second.gates.protocol import Protocol
from lib.second.gates.replacements import deletions, mean_outputs
from lib.second.gates.routers import HALF, RandomRouter
from lib.second.gates.routers import Gated as Priced
from lib.second.gates.routing import Routed, random_mask, routed_losses
from lib.second.gates.speed import with_share
from lib.second.models.subjects import Subject
from lib.second.swaps.sweep import swap_sweep

EQUAL = 0.4
"""the share at which gates of all blocks and models are compared; the paper's average is 0.399"""


@dataclass(frozen=True, eq=False)
class Survey:
    """Losses of one model, all [n, seq_len-1] on the same windows."""

    model: str
    parallel: bool
    n_params: int
    d_model: int
    n_blocks: int
    """all of the model's, gated or not"""
    document: np.ndarray
    """[n]"""
    base: np.ndarray
    linear: dict[int, np.ndarray]
    """by block, all positions linear"""
    deleted: dict[int, np.ndarray]
    """by block, an FFN that gives nothing"""
    mean_output: dict[int, np.ndarray]
    """by block, one that always gives its mean output over the map documents"""
    gated: dict[int, np.ndarray]
    """by block, the gate that was chosen on other documents"""
    kind: dict[int, str]
    """its kind"""
    choice_cost: dict[int, float]
    """its cost there, a fraction of the base"""
    mask: dict[int, np.ndarray]
    """where it is linear, bool [n, seq_len-1]"""
    random: dict[int, RandomRouter]
    """by block, what random routers cost by their share"""
    equal: dict[tuple[str, int], np.ndarray]
    """by kind and block, gates cut at the share EQUAL on other documents"""
    equal_share: dict[tuple[str, int], float]
    """what they send down the linear path here"""
    fitted: Fitted

    @property
    def share(self) -> dict[int, np.ndarray]:
        """What the chosen gates send down the linear path, of each window [n]."""
        return {b: mask.mean(1) for b, mask in self.mask.items()}

    def rise(self, what: str, part: Hashable = None) -> np.ndarray:
        """Mean loss difference of each window by block, [blocks, n]: of "linear", "deleted",
        "mean_output", "gated" or one kind of "equal" gates."""
        losses: Mapping = getattr(self, what)
        if part is not None:
            losses = {b: v for (p, b), v in losses.items() if p == part}
        return np.stack([(losses[b] - self.base).mean(1) for b in sorted(losses)])

    def by_chance(self, shares: Mapping[int, float]) -> np.ndarray:
        """Mean loss difference of each window under random routers of these shares, in the mean
        over draws, [blocks, n]."""
        return np.stack([self.random[b].rise(shares[b]) for b in sorted(self.random)])

    def priced(self) -> Priced:
        """The chosen gates and the random routers, as `gated_claims` takes them; the router is
        `kind`."""
        named = lambda by_block: {(b, self.kind[b]): v for b, v in sorted(by_block.items())}
        delta = {b: self.random[b].delta for b in sorted(self.random)}
        losses, masks = named(self.gated), named(self.mask)
        return Priced(self.base, losses, masks, self.random, delta, self.document)


def survey(
    subject: Subject,
    parts: Protocol,
    means: torch.Tensor,
    blocks: Sequence[int],
    equal: Sequence[str] = ("linear",),
    seed: int = 42,
) -> Survey:
    """Maps, gates and routes of `blocks`, measured on parts.report: the paper's four gates, of
    which the best is chosen, and those of the kinds `equal` cut at the share EQUAL; means
    [n_blocks, d_model] of FFN outputs, as in `FitFacts`."""
    maps = {b: parts.maps[b] for b in blocks}
    taught, shown = (deltas(subject, w, maps) for w in (parts.train, parts.report))
    fitted = fitted_gates(Inputs(subject, parts.train, blocks), taught, GATES, seed)
    chosen = choose_gates(subject, parts, fitted, GATES)
    best = best_gates(fitted, chosen)
    gated = _alone(subject, parts, {b: (maps[b], best[b]) for b in blocks})
    # In one sweep, and so in the order of notebook 08, whose batches this one finds.
    constants = {"nothing": deletions(subject), "mean output": mean_outputs(means)}
    keyed = {(b, what): part[b] for what, part in constants.items() for b in blocks}
    _, constant = swap_sweep(subject, parts.report, keyed)
    coins = {b: random_mask(parts.report, HALF, seed + b) for b in blocks}
    tossed = _alone(subject, parts, {b: (maps[b], coins[b]) for b in blocks})
    random = {
        b: RandomRouter.measured(shown.base, tossed.losses[b], coins[b][:, :-1], shown.by_block[b])
        for b in blocks
    }
    seen, cut = Inputs(subject, parts.choose, blocks), {}
    for b in blocks:
        x = torch.from_numpy(seen(b))
        for kind in equal:
            cut[kind, b] = maps[b], with_share(fitted.gates[b, kind].cpu(), x, EQUAL)
    level = _alone(subject, parts, cut)
    return Survey(
        subject.name,
        subject.parallel,
        sum(p.numel() for p in subject.model.parameters()),
        subject.d_model,
        len(subject),
        parts.report.document.numpy(),
        shown.base,
        {b: shown.base + d for b, d in shown.by_block.items()},
        {b: constant[b, "nothing"] for b in blocks},
        {b: constant[b, "mean output"] for b in blocks},
        gated.losses,
        chosen.kind,
        chosen.table.groupby("block").cost.min().to_dict(),
        {b: gated.linear[b][b] for b in blocks},
        random,
        level.losses,
        {key: level.share(key) for key in cut},
        fitted,
    )


def _alone(subject: Subject, parts: Protocol, pairs: Mapping) -> Routed:
    """Each (map, gate) in its block alone; keys are a block, or (anything, block)."""
    where = lambda key: key[1] if isinstance(key, tuple) else key
    return routed_losses(subject, parts.report, {k: {where(k): p} for k, p in pairs.items()})
