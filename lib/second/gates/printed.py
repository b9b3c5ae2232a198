"""What Balogh prints of a gated model beside what is found here."""

from collections.abc import Sequence

import numpy as np

from lib.second.gates.protocol import Protocol
from lib.second.gates.routing import routed_losses
from lib.second.gates.survey import Survey
from lib.second.models.subjects import Subject
from lib.second.stats.intervals import Interval
from lib.second.stats.joint import largest
from lib.second.stats.published import published
from lib.second.stats.ratios import absolute
from lib.second.stats.resampled import over_documents, weighted_mean
from lib.second.swaps.costs import joint_costs

SIX = ("gpt2-medium", "gpt2-large", "pythia-160m", "pythia-410m", "pythia-1b", "pythia-2.8b")
"""the paper's models"""
BLOCKS = {
    "gpt2-medium": range(1, 24),
    "gpt2-large": range(36),
    "pythia-160m": (0, 2, 5, 8, 11),
    "pythia-410m": (0, 2, 6, 12, 18, 23),
    "pythia-1b": (0, 2, 6, 8, 10, 15),
    "pythia-2.8b": range(32),
}
"""those that it gates (Table 2)"""
TIERS = {"expensive": (1, 31), "moderate": (2, *range(4, 7), *range(16, 31))}
TIERS["sweet"] = (3, *range(7, 16))
"""blocks of Pythia-2.8B by gated cost (§5.5); block 0 is a tier of its own"""
PAIRS = {
    "balogh-5.5-not-size": ("gpt2-large", "pythia-160m"),
    "balogh-5.5-gap-persists": ("pythia-2.8b", "gpt2-large"),
}
"""claims that compare two of the models"""
GATE = {"linear": "linear", "b1": "b=1", "b3": "b=3", "b6": "b=6"}


def printed_blocks(s: Survey) -> list[int]:
    """The gated blocks of a survey that the paper gates too; all, for another model."""
    return [b for b in sorted(s.gated) if b in BLOCKS.get(s.model, s.gated)]


def gated_costs(s: Survey, blocks=None) -> dict[int, Interval] | None:
    """Gated cost of each of the blocks, jointly over them, as fractions of the base; None where one
    was not gated."""
    blocks = sorted(s.gated) if blocks is None else blocks
    if not set(blocks) <= set(s.gated):
        return None
    return joint_costs(s.base, {b: s.gated[b] for b in blocks}, s.document)


def wins(s: Survey) -> Interval:
    """Number of the paper's blocks (all, for another model) whose gated cost is below 0."""
    mine = [b in printed_blocks(s) for b in sorted(s.gated)]
    rise = s.rise("gated")[mine]
    return over_documents(lambda w: float((weighted_mean(rise, w) < 0).sum()), s.document)


def base_miss(s: Survey) -> Interval | None:
    """Relative difference of the base perplexity from Table 8's; None for another model."""
    if s.model not in SIX:
        return None
    (printed,) = published("balogh", table="Table 8", metric="ppl", subject=s.model).value
    loss = s.base.mean(1)
    return over_documents(lambda w: abs(np.exp(weighted_mean(loss, w)) / printed - 1), s.document)


def table_miss(
    subject: Subject, parts: Protocol, s: Survey, table: str
) -> tuple[Interval | None, Interval | None]:
    """Absolute differences from what Table 8 or 9 prints of the model: of the cost at the printed
    block and gate, and of the share (Table 8: the average over the paper's blocks); None where
    nothing is printed or the block was not gated."""
    if s.model not in SIX:
        return None, None
    rows = published("balogh", table=table, subject=s.model)
    if "gate" not in rows:
        return None, None
    rows = rows[rows.gate.notna()]
    costs = rows[(rows.metric == "delta_ppl_relative") & rows.gate.isin(GATE)]
    shares = rows[rows.metric == "linear_share"]
    if not len(costs) or (int(costs.block.iloc[0]), "linear") not in s.fitted.gates:
        return None, None
    block, kind = int(costs.block.iloc[0]), GATE[costs.gate.iloc[0]]
    route = {block: (parts.maps[block], s.fitted.gates[block, kind])}
    found = routed_losses(subject, parts.report, {"printed": route})
    rise, value = (found.losses["printed"] - found.base).mean(1), float(costs.value.iloc[0])
    miss = over_documents(lambda w: abs(np.expm1(weighted_mean(rise, w)) - value), s.document)
    share, at = float(shares.value.iloc[0]), found.linear["printed"][block].mean(1)
    if table == "Table 8":
        at = np.mean([v for b, v in s.share.items() if b in BLOCKS[s.model]], axis=0)
    return miss, over_documents(lambda w: abs(weighted_mean(at, w) - share), s.document)


def off_by(found: Sequence[Interval], printed: Sequence[float], relative: bool = False) -> Interval:
    """Largest absolute difference of intervals that hold jointly from the printed numbers, or
    relative to them; numbers without a partner on the other side are left out."""
    apart = {}
    for k, (i, number) in enumerate(zip(found, printed)):
        unit = number if relative else 1.0
        apart[k] = Interval(*((v - number) / unit for v in (i.value, i.low, i.high)))
    return largest(absolute(apart))
