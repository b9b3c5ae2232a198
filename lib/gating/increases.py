"""Where a position needs its FFN: what its loss gains when the FFN becomes its map (Balogh §3.2).

The loss increase of position t at a block is what its loss gains when the block's FFN becomes its
map at every position, δ_t = L_lin(t) - L_full(t). Loss t is that of predicting token t + 1, so a
position is keyed by its input token and the last one of a window has none; nor has a start token.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from torch import nn

from lib.hooks import capture
from lib.linear.affine import AffineMap
from lib.models.blocks import Subject
from lib.stats import sums
from lib.store import kept
from lib.swap.sweep import token_sweep
from lib.text.windows import Windows


@dataclass(frozen=True, eq=False)
class LossIncreases:
    """The loss increase δ of each block at each position of some text that has one."""

    subject: Subject
    windows: Windows
    loss_increase: dict[int, np.ndarray]
    """{block: [n, predictions]}, nats"""

    @cached_property
    def x(self) -> dict[int, np.ndarray]:
        """{block: [n, predictions, d_model]}: what its FFN reads there, float32; one pass over the
        text when first asked for."""
        # What is captured begins after a start token; the last position predicts nothing.
        rows = capture(self.subject, self.windows, [*self.loss_increase])
        return {b: x[:, :-1].numpy() for b, (x, _) in rows.items()}

    @property
    def token(self) -> np.ndarray:
        """[n, predictions]: the input token of the position"""
        return self.windows.tokens.numpy()[:, self.subject.n_start : -1]

    @property
    def next_token(self) -> np.ndarray:
        """[n, predictions]: the token to be predicted there"""
        return self.windows.tokens.numpy()[:, self.subject.n_start + 1 :]

    @property
    def document(self) -> np.ndarray:
        """[n]"""
        return self.windows.document

    def rows(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """(x [m, d_model], loss increase [m]) of all positions."""
        x = self.x[block]
        return x.reshape(-1, x.shape[-1]), self.loss_increase[block].ravel()


def loss_increases(
    subject: Subject, windows: Windows, maps: Mapping[int, AffineMap], keep: bool = False
) -> LossIncreases:
    """δ of each block in `maps`, its map at every position of the text (§3.2), with its x.

    `keep`: to five decimals, and kept with the small tables; 2 MB for three blocks and 75 thousand
    positions.
    """
    if not keep:
        swept = token_sweep(subject, windows, {(b, "plain"): m for b, m in maps.items()})
        increase = {b: swept[b, "plain"] - swept[None] for b in maps}
    else:
        table = _at_positions(subject, windows, maps).set_index("block")
        increase = {b: table.loc[[b]].drop(columns="document").to_numpy() for b in maps}
    return LossIncreases(subject, windows, increase)


@kept("loss increases at positions", 1, maps="in the FFNs' places")
def _at_positions(
    subject: Subject, windows: Windows, maps: Mapping[int, AffineMap]
) -> pd.DataFrame:
    """δ of each block: a row a window, with its document, and a column a position."""
    increases = loss_increases(subject, windows, maps).loss_increase
    columns = [str(t) for t in range(windows.tokens.shape[1] - subject.n_start - 1)]
    tables = [pd.DataFrame(np.round(of, 5), columns=columns) for of in increases.values()]
    tables = [of.assign(document=windows.document, block=b) for b, of in zip(maps, tables)]
    return pd.concat(tables, ignore_index=True)


@kept("loss increases", 1, maps="in the FFNs' places")
def distribution(subject: Subject, windows: Windows, maps: Mapping[int, nn.Module]) -> pd.DataFrame:
    """How the loss increase is spread over positions, by block and document: positions, within
    (how many lie within ±0.05 nats), gain (below 0), increase (their sum, nats); with each block
    its quantiles over all positions, "5%" to "95%", and `top`, the sum over the 5% of positions
    where it is largest."""
    tables = []
    swept = token_sweep(subject, windows, {(b, "swap"): m for b, m in maps.items()})
    for b in maps:
        increase = swept[b, "swap"] - swept[None]  # [n, predictions]
        columns = {
            "positions": np.ones_like(increase),
            "within": np.abs(increase) < 0.05,
            "gain": increase < 0,
            "increase": increase,
        }
        by_document = {name: sums(v, windows.document) for name, v in columns.items()}
        table = pd.DataFrame({"document": np.unique(windows.document)} | by_document)
        for level in (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95):
            table[f"{level:.0%}"] = np.quantile(increase, level)
        table["top"] = increase[increase >= np.quantile(increase, 0.95)].sum()
        tables.append(table.assign(block=b))
    return pd.concat(tables, ignore_index=True)
