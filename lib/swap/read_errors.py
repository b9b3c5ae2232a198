"""Of a map's error, the part that later blocks read: along the directions in which the loss moves
with an FFN's output, and across them (ours; notebook 29)."""

from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from lib.hooks import capture
from lib.linear.affine import AffineMap
from lib.models.blocks import Subject
from lib.store import cached, kept
from lib.swap.expected import output_gradients
from lib.swap.massive import paired_sums
from lib.swap.sweep import check_predictions, token_sweep
from lib.text.windows import Windows

PARTS = ("all of it", "along", "across", "along as many random directions")


@cached("second moments of gradients", 1)
def gradient_moments(
    subject: Subject, windows: Windows, blocks: Sequence[int]
) -> dict[int, torch.Tensor]:
    """{block: Σ g gᵀ, [d, d]} over positions of the loss's gradient g at these FFNs' outputs."""
    check_predictions(subject, windows)
    nothing = torch.zeros(subject.d_model, subject.d_model, dtype=torch.float64)
    total = {b: nothing.clone() for b in blocks}
    for tokens in tqdm(windows.tokens.split(1), desc="gradients", delay=2, leave=False):
        at = output_gradients(subject, tokens)
        for b in blocks:
            _, _, leaf = at[b]
            g = leaf.grad[0, subject.n_start :].double().cpu()
            total[b] += g.T @ g
    return total


class PartOfError(nn.Module):
    """An FFN, and of a map's error ŷ - y the part in the span of `basis` [d, k], orthonormal
    columns, or what is left of it; none where the map leaves a position to the FFN."""

    def __init__(self, ffn: nn.Module, affine: AffineMap, basis: torch.Tensor, across: bool):
        super().__init__()
        self.ffn, self.affine, self.across = ffn, affine, across
        self.register_buffer("basis", basis.float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., d] -> [..., d]
        y = self.ffn(x)
        error = ((self.affine(x) - y) * ~self.affine.massive(x)[..., None]).float()
        along = error @ self.basis @ self.basis.T
        return y + (error - along if self.across else along).to(y.dtype)


@kept("swaps with a part of the error", 1, read="gradients on", seed="random directions")
def swaps_by_part(
    subject: Subject,
    read: Windows,
    test: Windows,
    maps: Mapping[int, AffineMap],
    directions: int,
    seed: int = 42,
) -> pd.DataFrame:
    """Losses with a part of each map's error in the FFN's output: block, swap (of PARTS), of error
    (the part's share of Σ‖e‖² on the test text), of gradient (its directions' share of Σ‖g‖² on
    `read`), document, before, sum, predictions. The directions are the first eigenvectors of
    `gradient_moments`."""
    moments, modules, shares = gradient_moments(subject, read, [*maps]), {}, {}
    random = torch.Generator().manual_seed(seed)
    rows = capture(subject, test, [*maps])
    for b, affine in maps.items():
        _, v = torch.linalg.eigh(moments[b])
        drawn = torch.randn(subject.d_model, directions, generator=random, dtype=torch.float64)
        top, any_of = v[:, -directions:], torch.linalg.qr(drawn).Q
        affine = affine.to(subject.device)
        x, y = (side.to(subject.device) for side in rows[b])
        error = ((affine(x) - y) * ~affine.massive(x)[..., None]).flatten(0, 1).double().cpu()
        bases = ((v[:, :0], True), (top, False), (top, True), (any_of, False))
        for part, (basis, across) in zip(PARTS, bases):
            inside = [
                float((error @ basis).square().sum() / error.square().sum()),
                float((basis.T @ moments[b] @ basis).trace() / moments[b].trace()),
            ]
            shares[b, part] = [1 - of if across else of for of in inside]
            modules[b, part] = PartOfError(subject.blocks[b].ffn, affine, basis, across)
    swept = token_sweep(subject, test, modules)
    tables = []
    for key, (of_error, of_gradient) in shares.items():
        named = {"block": key[0], "swap": key[1]}
        named |= {"of error": of_error, "of gradient": of_gradient}
        tables.append(paired_sums(swept, test, key, **named))
    return pd.concat(tables)
