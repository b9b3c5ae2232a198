"""The cost of a linear swap across models, at the paper's fixed number of tokens and at one in
proportion to the width (Balogh Figure 3; §3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.second.gates.delta import deltas
from lib.second.gates.replacements import map_documents, maps_of
from lib.second.models.subjects import Subject
from lib.second.stats.published import published
from lib.second.swaps.costs import joint_costs
from lib.second.texts.windows import Windows

FIXED = 10_000
"""tokens that the paper fits every map on, whatever the width"""
LEAST = FIXED / 2_560
"""the fewest of them a feature, those of its widest model, Pythia-2.8B"""


@dataclass(frozen=True, eq=False)
class Priced:
    """All-linear costs of one model with maps from `n_tokens` tokens."""

    model: str
    n_params: int
    d_model: int
    n_tokens: int
    base: np.ndarray
    """[n, seq_len-1], nats"""
    losses: dict[int, np.ndarray]
    document: np.ndarray

    @property
    def costs(self) -> dict:
        """{block: Interval}, fractions of the base, jointly over blocks."""
        return joint_costs(self.base, self.losses, self.document)


def priced(
    subject: Subject,
    fit: Windows,
    unseen: Windows,
    n_tokens: int,
    blocks: Sequence[int] | None = None,
) -> Priced:
    """The blocks of `subject` (default: all), each with a map from the first `n_tokens` of the map
    documents of `fit` (all of them, where these are fewer)."""
    rows = map_documents(fit)
    rows = rows.take(max(rows.seq_len, min(n_tokens, rows.n_tokens)))
    maps = maps_of(subject, rows)
    blocks = list(maps) if blocks is None else blocks
    found = deltas(subject, unseen, {b: maps[b] for b in blocks})
    losses = {block: found.base + delta for block, delta in found.by_block.items()}
    n_params = sum(p.numel() for p in subject.model.parameters())
    document = unseen.document.numpy()
    return Priced(
        subject.name, n_params, subject.d_model, rows.n_tokens, found.base, losses, document
    )


def companions(model: str) -> list[str]:
    """The committed models: one of each of the paper's families and a Llama, without `model`."""
    return [name for name in ("tiny-gpt2", "tiny-neox", "tiny-llama") if name != model]


def size_table(found: list[Priced]) -> pd.DataFrame:
    """A row a model and number of tokens: model, n_params, d_model, tokens, tokens_per_feature, the
    median, the smallest and the largest cost over blocks in percent, the dearest block, and how
    many blocks were priced."""
    rows = []
    for each in found:
        cost = np.array([100 * i.value for i in each.costs.values()])
        rows.append(
            {
                "model": each.model,
                "n_params": each.n_params,
                "d_model": each.d_model,
                "tokens": each.n_tokens,
                "tokens_per_feature": each.n_tokens / each.d_model,
                "median": float(np.median(cost)),
                "cheapest": cost.min(),
                "dearest": cost.max(),
                "dearest_block": list(each.costs)[int(cost.argmax())],
                "blocks": len(cost),
            }
        )
    return pd.DataFrame(rows)


def printed_sizes() -> pd.DataFrame:
    """Balogh's Table 3: columns model, family, n_params, cheapest, dearest (percent)."""
    rows = published("balogh", table="Table 3")
    costs = rows[rows.metric == "delta_ppl_relative"].groupby("subject", sort=False).value
    params = rows[rows.metric == "n_params"].set_index("subject").value
    table = pd.DataFrame({"cheapest": 100 * costs.min(), "dearest": 100 * costs.max()})
    table["n_params"] = params.reindex(table.index)
    table["family"] = ["GPT-2" if name.startswith("gpt2") else "Pythia" for name in table.index]
    return table.rename_axis("model").reset_index()
