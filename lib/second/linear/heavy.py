"""Definitions of a massive token compared, and fits without such tokens (beyond Whipp §5.4)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lib.second.linear.affine import AffineMap
from lib.second.linear.massive import TIMES, TokenEnergy
from lib.second.linear.rank import rank_profile
from lib.second.linear.reweighing import Reweighted

FEW = 0.01
"""share of a block's tokens that counts as few"""


def massive_definitions(energy: TokenEnergy) -> dict[str, np.ndarray]:
    """Which tokens are massive, by definition: {name: bool [n_blocks, n_windows, seq_len]}."""
    return {
        f"norm over {2 * TIMES:g} × median": energy.massive(2 * TIMES),
        f"norm over {TIMES:g} × median": energy.massive(),
        "fewest that hold half of the variance": fewest(energy.deviation),
    }


def fewest(weight: np.ndarray, share: float = 0.5, few: float = FEW) -> np.ndarray:
    """The fewest tokens that hold `share` of each block's `weight` [n_blocks, ...], bool of the
    same shape; none in a block where these are more than `few` of all tokens."""
    flat = weight.reshape(len(weight), -1)
    order = np.argsort(-flat, axis=1, kind="stable")
    held = np.take_along_axis(flat, order, 1).cumsum(1)
    n = (held < share * held[:, -1:]).sum(1) + 1  # [n_blocks]
    ranks = np.argsort(order, axis=1, kind="stable")  # place of each token, the heaviest first
    marked = (ranks < n[:, None]) & (n[:, None] <= few * flat.shape[1])
    return marked.reshape(weight.shape)


def held_by_few(weight: np.ndarray, keep: np.ndarray, few: float = FEW) -> np.ndarray:
    """Share of each block's kept `weight` [n_blocks, ...] that the heaviest `few` of the kept
    tokens (at least one) hold, [n_blocks]; nan where nothing is kept."""
    found = []
    for row, kept in zip(weight, keep, strict=True):
        rest = np.sort(row[kept])[::-1]
        held = rest[: max(1, int(few * len(rest)))].sum()
        found.append(held / rest.sum() if rest.sum() > 0 else np.nan)
    return np.array(found)


def compare_definitions(marked: Mapping[str, np.ndarray], energy: TokenEnergy) -> pd.DataFrame:
    """What each definition marks and leaves: columns definition, blocks (with a marked token),
    share_of_tokens (of all blocks), largest_share_in_a_block, still_concentrated (blocks).

    A block is concentrated where `FEW` of its tokens hold over half of Σ‖y‖²; squared norms need no
    mean, which massive tokens would shift. The first row is that of no definition.
    """
    squares, rows = np.square(energy.norm), []
    for name, mask in {"none": np.zeros_like(energy.norm, bool), **marked}.items():
        rows.append(
            {
                "definition": name,
                "blocks": int(mask.any((1, 2)).sum()),
                "share_of_tokens": float(mask.mean()),
                "largest_share_in_a_block": float(mask.mean((1, 2)).max()),
                "still_concentrated": int((held_by_few(squares, ~mask) > 0.5).sum()),
            }
        )
    return pd.DataFrame(rows)


def choose_definition(table: pd.DataFrame) -> str:
    """The definition in a table of `compare_definitions` that leaves the fewest blocks
    concentrated; of those, the one that marks the fewest tokens, and of those the first."""
    defined = table[table.definition != "none"]
    order = ["still_concentrated", "share_of_tokens"]
    return str(defined.sort_values(order, kind="stable").definition.iloc[0])


def refits(
    train: Sequence[Reweighted], tail: Sequence[Reweighted], maps: Mapping[int, AffineMap]
) -> pd.DataFrame:
    """The held-out fold without the tokens that `reweighted` left out, one row a block: columns
    block, left_out (held-out tokens), r2_without_massive (the same map, about the mean of the kept
    rows), r2_refit, median_refit and rank_refit (a map fitted and scored without them)."""
    rows = []
    for block, affine in maps.items():
        fit, rest = train[block].kept, tail[block].kept
        refitted = rest.score(fit.fit())
        rows.append(
            {
                "block": block,
                "left_out": tail[block].outputs.n - rest.n,
                "r2_without_massive": rest.score(affine).r2,
                "r2_refit": refitted.r2,
                "median_refit": refitted.median_r2,
                "rank_refit": rank_profile(fit, rest).effective_rank() or np.nan,
            }
        )
    return pd.DataFrame(rows)
