"""Tokens really routed: gathered, sent down one path, scattered back; and what that saves in time
(Balogh §5.8 measures none)."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.second.base.checks import check_count
from lib.second.base.errors import InputError
from lib.second.gates.gate import Layered
from lib.second.stats.intervals import Interval, bootstrap


class Gated(nn.Module):
    """An FFN that computes only the path its gate chooses (Balogh Eq. 5)."""

    def __init__(self, ffn: nn.Module, affine: nn.Module, gate: nn.Module):
        super().__init__()
        self.ffn, self.affine, self.gate = ffn, affine, gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, -2)  # [tokens, d_model]
        linear = self.gate(flat)
        # Indices, not masks: a mask would be turned into them twice.
        cheap, dear = linear.nonzero()[:, 0], (~linear).nonzero()[:, 0]
        out = torch.empty_like(flat)
        out[cheap] = self.affine(flat[cheap])
        out[dear] = self.ffn(flat[dear][None])[0]
        return out.view(x.shape)


def with_share(gate: Layered, x: torch.Tensor, share: float) -> Layered:
    """The gate with its cut moved so that it sends `share` of the rows x [..., d_model] down the
    linear path. Raises InputError for a share that is none."""
    if not 0 <= share <= 1:
        raise InputError(f"share {share} is no share of tokens: use one between 0 and 1.")
    with torch.no_grad():
        score = gate.score(x).flatten().sort(descending=True).values
    n = round(share * len(score))
    ends = torch.cat([score[:1] + 1, (score[1:] + score[:-1]) / 2, score[-1:] - 1])
    parts = {name: b.clone() for name, b in gate.named_buffers()}
    return Layered(**parts | {"c": parts["c"] - ends[n]}, relu=gate.relu)


@torch.no_grad()
def paired_seconds(
    modules: Mapping[object, nn.Module], x: torch.Tensor, repetitions: int
) -> pd.DataFrame:
    """Seconds of a forward pass of x, a row a repetition, a column a module. Each repetition runs
    all modules in turn, in an order that moves on by one each time, so that a ratio in a row is a
    paired one."""
    check_count(repetitions, "repetitions")
    x = x.contiguous()
    names, rows = list(modules), []
    for name in names:  # the first call of each is slower
        modules[name](x)
    for k in range(repetitions):
        row = {}
        for name in names[k % len(names) :] + names[: k % len(names)]:
            begun = time.perf_counter()
            modules[name](x)
            if x.is_cuda:
                torch.cuda.synchronize()
            row[name] = time.perf_counter() - begun
        rows.append(row)
    return pd.DataFrame(rows, columns=names)


def speed_ratios(seconds: pd.DataFrame, of: object, seed: int = 42) -> dict[object, Interval]:
    """Time of every other module over that of `of`, the median of paired repetitions with its 95%
    bootstrap over them."""
    others = [name for name in seconds.columns if name != of]
    return {name: bootstrap(np.median, seconds[name] / seconds[of], seed=seed) for name in others}


def break_even(
    seconds: pd.DataFrame, of: object, shares: Sequence[float], seed: int = 42
) -> Interval:
    """Linear share from which the gated FFN is faster than the module `of`, with a 95% bootstrap
    over repetitions; read linearly between `shares`, which are columns of `seconds`, ascending, the
    first of them where it is faster at all.

    nan where it is not faster at the largest.
    """
    ratio = (seconds[list(shares)].to_numpy().T / seconds[of].to_numpy()).T  # [repetitions, shares]

    def share(drawn: np.ndarray) -> float:
        over = np.median(ratio[drawn], axis=0)
        slower = np.flatnonzero(over >= 1)
        if not len(slower):
            return float(shares[0])
        k = slower[-1]
        if k == len(shares) - 1:
            return float("nan")
        part = (over[k] - 1) / (over[k] - over[k + 1])
        return float(shares[k] + part * (shares[k + 1] - shares[k]))

    return bootstrap(share, np.arange(len(seconds)), seed=seed)
