"""The whole protocol on one model: what Balogh's Table 8 has of it, and the same at equal shares
and with random routers."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from lib.gates.delta import deltas
from lib.gates.fitted import Fitted, best_gates, choose_gates, fitted_gates
from lib.gates.gate import GATES
from lib.gates.inputs import Inputs
from lib.gates.protocol import Protocol
from lib.gates.routing import Routed, random_mask, routed_losses
from lib.gates.speed import with_share
from lib.models.subjects import Subject
from lib.swaps.losses import perplexity

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
    gated: dict[int, np.ndarray]
    """by block, the gate that was chosen on other documents"""
    kind: dict[int, str]
    """its kind"""
    share: dict[int, np.ndarray]
    """what it sends down the linear path, of each window [n]"""
    random: dict[tuple[int, int], np.ndarray]
    """by draw and block, a random router of the same share"""
    equal: dict[tuple[str, int], np.ndarray]
    """by kind and block, gates cut at the share EQUAL on other documents"""
    equal_share: dict[tuple[str, int], float]
    fitted: Fitted

    def rise(self, what: str, part: Hashable = None) -> np.ndarray:
        """Mean loss difference of each window by block, [blocks, n]: of "linear", "gated", one draw
        of "random" or one kind of "equal" gates."""
        losses: Mapping = getattr(self, what)
        if part is not None:
            losses = {b: v for (p, b), v in losses.items() if p == part}
        return np.stack([(losses[b] - self.base).mean(1) for b in sorted(losses)])


def survey(
    subject: Subject,
    parts: Protocol,
    blocks: Sequence[int],
    draws: Sequence[int] = (42,),
    kinds: Sequence[str] = GATES,
    equal: Sequence[str] = ("linear",),
    seed: int = 42,
) -> Survey:
    """Maps, gates and routes of `blocks`, measured on parts.report; `draws` are the seeds of the
    random routers, `kinds` the gates that are fitted (the best of the paper's four is chosen), and
    `equal` those that are cut at the share EQUAL."""
    maps = {b: parts.maps[b] for b in blocks}
    taught, shown = (deltas(subject, w, maps) for w in (parts.train, parts.report))
    fitted = fitted_gates(Inputs(subject, parts.train, blocks), taught, kinds, seed)
    chosen = choose_gates(subject, parts, fitted, GATES)
    best = best_gates(fitted, chosen)
    gated = _alone(subject, parts, {b: (maps[b], best[b]) for b in blocks})
    share = {b: gated.linear[b][b].mean(1) for b in blocks}
    drawn = {}
    for draw, b in [(draw, b) for draw in draws for b in blocks]:
        drawn[draw, b] = maps[b], random_mask(parts.report, share[b].mean(), draw + b)
    random = _alone(subject, parts, drawn) if drawn else None
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
        gated.losses,
        chosen.kind,
        share,
        random.losses if random else {},
        level.losses,
        {key: level.share(key) for key in cut},
        fitted,
    )


def _alone(subject: Subject, parts: Protocol, pairs: Mapping) -> Routed:
    """Each (map, gate) in its block alone; keys are a block, or (anything, block)."""
    where = lambda key: key[1] if isinstance(key, tuple) else key
    return routed_losses(subject, parts.report, {k: {where(k): p} for k, p in pairs.items()})


def table8(surveys: Sequence[Survey]) -> pd.DataFrame:
    """Balogh's Table 8 and the columns it lacks, a row a model; costs in percent of the base.

    blocks_are: parallel or sequential. linear_percent: average over blocks. below_base: blocks
    whose chosen gate costs less than nothing; random_below_base: the same of random routers, mean
    over draws. median_…: over blocks, all linear, gated, random, and the linear gate cut at the
    share EQUAL."""
    rows = []
    for s in surveys:
        cost = {what: 100 * np.expm1(s.rise(what).mean(1)) for what in ("linear", "gated")}
        draws = dict.fromkeys(draw for draw, _ in s.random)
        random = [100 * np.expm1(s.rise("random", draw).mean(1)) for draw in draws]
        equal = 100 * np.expm1(s.rise("equal", "linear").mean(1))
        best = sorted(s.gated)[int(cost["gated"].argmin())]
        rows.append(
            {
                "model": s.model,
                "blocks_are": "parallel" if s.parallel else "sequential",
                "params_millions": s.n_params / 1e6,
                "base_ppl": perplexity(s.base),
                "blocks": len(s.gated),
                "best_block": best,
                "best_cost": cost["gated"].min(),
                "its_gate": s.kind[best],
                "linear_percent": 100 * np.mean(list(s.share.values())),
                "below_base": int((cost["gated"] < 0).sum()),
                "random_below_base": np.mean([(r < 0).sum() for r in random]) if random else np.nan,
                "median_linear": np.median(cost["linear"]),
                "median_gated": np.median(cost["gated"]),
                "median_random": np.median(np.mean(random, axis=0)) if random else np.nan,
                "median_at_40": np.median(equal),
            }
        )
    return pd.DataFrame(rows)
