"""What a linear swap costs when the FFN is kept on massive tokens (beyond Whipp §5.6)."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.second.linear.affine import AffineMap
from lib.second.linear.massive import largest_ordinary, output_norms
from lib.second.linear.reweighing import reweighted
from lib.second.probes.rows import BlockRows
from lib.second.swaps.products import ProductCosts
from lib.second.swaps.sweep import delta_ppl, swap_sweep
from lib.second.texts.windows import Windows

KINDS = ("kept", "refitted", "refit_alone")


class KeptOnMassive(nn.Module):
    """`ffn` on massive tokens, those whose output norm ‖ffn(x)‖ exceeds `largest_norm`, and
    `affine` on all others."""

    def __init__(self, ffn: nn.Module, affine: AffineMap, largest_norm: float):
        super().__init__()
        self.ffn, self.affine = ffn, affine
        limit = torch.tensor(float(largest_norm), dtype=torch.float64)
        self.register_buffer("largest_norm", limit)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.ffn(x)  # [..., d_model]
        massive = y.double().norm(dim=-1, keepdim=True) > self.largest_norm
        return torch.where(massive, y, self.affine(x))


@dataclass(frozen=True, eq=False)
class KeptCosts:
    """Every FFN kept on its massive tokens and replaced by a linear map on all others."""

    table: pd.DataFrame
    """one row a block: massive_tokens (of the priced text) and massive_in_fit; r2_ordinary, of the
    map fitted and scored on ordinary tokens; ΔPPL in percent with the map of all tokens (cost_kept)
    and with that of ordinary tokens (cost_refitted), and with the latter on all tokens, nothing
    kept (cost_refit_alone), with intervals (_low, _high)"""
    losses: dict[tuple[int, str], np.ndarray]
    """losses by (block, kind of swap), [n, seq_len-1], nats"""

    @property
    def has_massive(self) -> list[int]:
        """Blocks with a massive token in either text; elsewhere all swaps are the plain one."""
        found = self.table
        return found.block[found.massive_tokens + found.massive_in_fit > 0].tolist()

    def of(self, kind: str) -> dict[int, np.ndarray]:
        """Losses of one kind of swap, "kept", "refitted" or "refit_alone", by block."""
        return {block: found for (block, name), found in self.losses.items() if name == kind}


def kept_costs(priced: ProductCosts, rows: BlockRows, unseen: Windows) -> KeptCosts:
    """Price on `unseen` windows the linear swaps of `priced`, fitted on `rows`, with the FFN kept
    on tokens whose output norm exceeds `lib.second.linear.TIMES` times the block's median in the fit text.

    A block without such tokens in either text needs no sweep: its plain swap is priced already.
    """
    subject, maps, plain = rows.subject, priced.probes.maps, priced.of("linear")
    limits = largest_ordinary(output_norms(subject, rows.windows))
    massive = (output_norms(subject, unseen) > limits[:, None, None]).sum((1, 2))
    train, tail = reweighted(subject, rows.windows, limits)
    refits = {b: train[b].kept.fit() for b in maps}
    table = pd.DataFrame(
        {
            "block": b,
            "massive_tokens": massive[b],
            "massive_in_fit": train[b].outputs.n - train[b].kept.n,
            "r2_ordinary": tail[b].kept.score(refit).r2,
        }
        for b, refit in refits.items()
    )
    losses = {(b, kind): plain[b] for b in maps for kind in KINDS}
    kept, alone = {}, {}
    for b in KeptCosts(table, losses).has_massive:
        refit = refits[b].float()
        for kind, affine in (("kept", maps[b]), ("refitted", refit)):
            kept[b, kind] = KeptOnMassive(subject.blocks[b].ffn, affine, limits[b])
        alone[b, "refit_alone"] = refit
    for swaps in (kept, alone) if kept else ():
        losses |= swap_sweep(subject, unseen, swaps)[1]
    costs = delta_ppl(priced.base, losses, unseen.document, names=["candidate"])
    for kind, part in costs.groupby("candidate", sort=False):
        part = part.set_index("block").loc[table.block]
        for end in ("", "_low", "_high"):
            table[f"cost_{kind}{end}"] = part[f"delta_ppl_percent{end}"].to_numpy()
    return KeptCosts(table, losses)
