"""Which tokens carry an FFN's output variance, and what is left of R²_lin without the few
massive ones (beyond Whipp §5.4)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from lib.second.base.cache import as_numpy, cached, digest
from lib.second.base.steps import Item, each
from lib.second.linear.affine import AffineMap
from lib.second.models.hooks import forward_body, record
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows

TIMES = 10.0
"""A token is massive where its output norm exceeds so many times the block's median: the definition
that notebook 04 chooses by what it leaves."""


@dataclass(frozen=True, eq=False)
class TokenEnergy:
    """Per-token sums over features on held-out windows, each [n_blocks, n_windows, seq_len],
    float64."""

    deviation: np.ndarray
    """‖y - ȳ‖²: this token's part of the output variance"""
    error: np.ndarray
    """‖y - ŷ‖²: this token's part of what the affine map misses"""
    norm: np.ndarray
    """‖y‖: the length of what the FFN adds to the residual stream"""

    def position_share(self, position: int = 0) -> np.ndarray:
        """Share of Σ‖y-ȳ‖² at one position of the window, [n_blocks]; 1/seq_len if positions
        were alike."""
        return self.deviation[:, :, position].sum(1) / self.deviation.sum((1, 2))

    def limits(self, times: float = TIMES) -> np.ndarray:
        """The largest output norm of an ordinary token: `times` the block's median, [n_blocks]."""
        return largest_ordinary(self.norm, times)

    def massive(self, times: float = TIMES) -> np.ndarray:
        """Tokens whose output norm exceeds `times` the block's median: bool [n_blocks,
        n_windows, seq_len]."""
        return self.norm > self.limits(times)[:, None, None]

    def r2(self, keep: np.ndarray | None = None) -> np.ndarray:
        """R²_lin of each block over the kept tokens (bool, same shape; default all), [n_blocks].

        The deviations stay those about the mean of all tokens: dropping rows then drops their terms
        from both sums. nan where nothing is kept.
        """
        keep = np.ones_like(self.norm, bool) if keep is None else keep
        with np.errstate(invalid="ignore", divide="ignore"):
            return 1 - (self.error * keep).sum((1, 2)) / (self.deviation * keep).sum((1, 2))


def token_energy(
    subject: Subject,
    windows: Windows,
    maps: dict[int, AffineMap],
    means: torch.Tensor,
    batch: int = 16,
) -> TokenEnergy:
    """Measure all blocks on `windows` in one pass. means [n_blocks, d]: the mean
    output ȳ of each block."""
    subject.check(windows, batch)
    key = {
        "subject": subject.key,
        "windows": windows.key,
        "maps": digest([dict(m.state_dict()) for m in maps.values()]),
        "means": digest(means),
        "batch": batch,
        "device": subject.device.type,
    }
    items = [Item(key, (subject, windows, maps, means, batch), len(windows))]
    (found,) = each(_energy, items, total=len(windows), desc="token by token", unit="window")
    return TokenEnergy(**found)


def largest_ordinary(norm: np.ndarray, times: float = TIMES) -> np.ndarray:
    """`times` the median of each block's output norms [n_blocks, n_windows, seq_len], [n_blocks]:
    a token above it is massive."""
    return times * np.median(norm, axis=(1, 2))


def output_norms(subject: Subject, windows: Windows, batch: int = 16) -> np.ndarray:
    """‖y‖ of every FFN at every token of `windows`: float64 [n_blocks, n_windows, seq_len]."""
    subject.check(windows, batch)
    key = {
        "subject": subject.key,
        "windows": windows.key,
        "batch": batch,
        "device": subject.device.type,
    }
    items = [Item(key, (subject, windows, batch), len(windows))]
    (found,) = each(_norms, items, total=len(windows), desc="output norms", unit="window")
    return found


@cached
def _norms(work: tuple, tick: Callable[[int], None]) -> np.ndarray:
    subject, windows, batch = work
    chunks: list[list[np.ndarray]] = [[] for _ in subject.blocks]  # [n_blocks][batch, seq_len]

    def measure(block: int, x: torch.Tensor, y: torch.Tensor) -> None:
        chunks[block].append(as_numpy(y.double().norm(dim=-1)))

    with record(subject, on_ffn=measure):
        for chunk in windows.tokens.split(batch):
            forward_body(subject, chunk)
            tick(len(chunk))
    return np.stack([np.concatenate(rows) for rows in chunks])


@cached
def _energy(work: tuple, tick: Callable[[int], None]) -> dict[str, np.ndarray]:
    subject, windows, maps, means, batch = work
    shape = (len(subject), *windows.tokens.shape)
    found = {name: np.empty(shape) for name in ("deviation", "error", "norm")}
    span = slice(0, 0)

    def measure(block: int, x: torch.Tensor, y: torch.Tensor) -> None:
        wide = y.double()
        found["deviation"][block, span] = as_numpy(
            (wide - means[block].to(y.device)).square().sum(-1)
        )
        found["error"][block, span] = as_numpy(
            (wide - maps[block].to(x.device)(x).double()).square().sum(-1)
        )
        found["norm"][block, span] = as_numpy(wide.norm(dim=-1))

    with record(subject, on_ffn=measure):
        for start in range(0, len(windows), batch):
            span = slice(start, min(start + batch, len(windows)))
            forward_body(subject, windows.tokens[span])
            tick(span.stop - span.start)
    return found


def token_shares(
    energy: TokenEnergy, windows: Windows, tokenizer, block: int, top: int = 8
) -> pd.DataFrame:
    """The token types that carry most of one block's output variance: columns token, count,
    variance_share, share_of_tokens."""
    frame = pd.DataFrame(
        {"id": windows.tokens.flatten().numpy(), "energy": energy.deviation[block].ravel()}
    )
    by = frame.groupby("id").energy.agg(["sum", "size"]).nlargest(top, "sum").reset_index()
    return pd.DataFrame(
        {
            "token": [repr(tokenizer.decode([i])) for i in by["id"]],
            "count": by["size"],
            "variance_share": by["sum"] / frame.energy.sum(),
            "share_of_tokens": by["size"] / len(frame),
        }
    )
