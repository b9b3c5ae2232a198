"""A product against a hidden layer at an equal budget: two branches of as many parameters on the
same frozen linear map, trained alike (Whipp §5.5, "an equal budget of plain additive capacity")."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.second.base.cache import cached
from lib.second.base.checks import check_fits
from lib.second.base.steps import Item, each
from lib.second.probes.candidates import _train, _unseen
from lib.second.probes.held_out import document_sums
from lib.second.probes.products import BILINEAR, START, n_params, products
from lib.second.probes.rows import BlockRows

BRANCHES = ("product", "gelu")


class ProductBranch(nn.Module):
    """exp(quad_scale) ∘ ((x U) ∘ (x V)) P: a PolyLinear without its linear term, 0 at the start."""

    def __init__(self, d_in: int, d_out: int, rank: int, seed: int = 42):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        factors = torch.randn(d_in, 2 * rank, generator=generator)
        self.factors = nn.Parameter(factors * d_in**-0.5)
        self.out = nn.Parameter(torch.zeros(rank, d_out))
        self.quad_scale = nn.Parameter(torch.full((d_out,), START))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., d_in] -> [..., d_out]
        layout = ((2, len(self.out)),)
        return self.quad_scale.exp() * (products(x @ self.factors, layout) @ self.out)


def gelu_branch(d_in: int, d_out: int, rank: int, seed: int = 42) -> nn.Sequential:
    """Linear -> GELU -> Linear, 0 at the start, with the hidden width that comes nearest to the
    parameters of a product of that rank: 3/2 of it, if d_in = d_out."""
    width = max(1, round((2 * rank * d_in + rank * d_out) / (d_in + d_out + 1)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        branch = nn.Sequential(nn.Linear(d_in, width), nn.GELU(), nn.Linear(width, d_out))
    nn.init.zeros_(branch[2].weight), nn.init.zeros_(branch[2].bias)
    return branch


def build_branch(name: str, d_in: int, d_out: int, seed: int = 42) -> nn.Module:
    """A fresh branch, of rank 16 as the paper's poly or of that size."""
    rank = min(BILINEAR[0][1], d_in, d_out)
    return (ProductBranch if name == "product" else gelu_branch)(d_in, d_out, rank, seed)


@dataclass(frozen=True, eq=False)
class EqualBudget:
    """Fits of both branches."""

    table: pd.DataFrame
    """one row a block, candidate (linear, product, gelu) and seed: params (of the branch), r2,
    r2_unseen and r2_halfway of map and branch together, as in `Candidates`"""
    documents: pd.DataFrame
    """error and deviation of each held-out document, by the checkpoint chosen on the other half of
    the documents; columns as in `by_document`"""


def equal_budget(rows: BlockRows, seeds: Sequence[int], steps: int) -> EqualBudget:
    """Train a product and a GELU bottleneck of as many parameters on what the closed-form map of
    each block leaves, with the scale-aware recipe of `fit_candidates`, both from 0.

    Each fit is cached when it is done. The comparison is ours: the paper says it in words.
    """
    check_fits(steps, seeds, rows.blocks)
    todo = [(b, name, s) for b in rows.blocks for name in BRANCHES for s in seeds]
    items = [
        Item(
            {**rows.key(block), "branch": name, "seed": seed, "steps": steps},
            (rows, block, name, seed, steps),
            steps,
        )
        for block, name, seed in todo
    ]
    fits = each(_fit, items, total=steps * len(todo), desc="equal budgets", unit="step")
    table, documents = [], []
    for (block, name, seed), found in zip(todo, fits, strict=True):
        names = {"block": block, "candidate": name, "seed": seed}
        errors, deviation, document = found["errors"], found["deviation"], found["document"]
        if (block, "linear") not in {(row["block"], row["candidate"]) for row in table}:
            linear = names | {"candidate": "linear"}
            r2 = float(1 - errors[0].sum() / deviation.sum())  # a branch starts from 0
            table.append(linear | {"params": 0, "r2": r2, "r2_unseen": r2, "r2_halfway": r2})
            documents.append(document_sums(errors[0], deviation, document).assign(**linear))
        table.append(names | {"params": found["params"]} | _scores(found, steps))
        left = _chosen_elsewhere(errors, document)
        documents.append(document_sums(left, deviation, document).assign(**names))
    return EqualBudget(pd.DataFrame(table), pd.concat(documents, ignore_index=True))


def _scores(found: dict, steps: int) -> dict[str, float]:
    errors, total = found["errors"], float(found["deviation"].sum())
    r2 = 1 - errors.sum(1) / total  # [n_checkpoints]
    path = dict(zip(found["step"], errors, strict=True))
    half = np.asarray(found["step"]) <= steps / 2
    return {
        "r2": float(r2.max()),
        "r2_unseen": _unseen(path, found["document"], total),
        "r2_halfway": float(r2[half].max()),
    }


def _chosen_elsewhere(errors: np.ndarray, document: np.ndarray) -> np.ndarray:
    """The error of each window by the checkpoint chosen on the other half of the documents,
    [n_windows] from [n_checkpoints, n_windows]; nan with a single document."""
    _, index = np.unique(document, return_inverse=True)
    left = np.full(errors.shape[1], np.nan)
    even = index % 2 == 0
    for half in (even, ~even) if index.max() else ():
        left[half] = errors[errors[:, ~half].sum(1).argmin(), half]
    return left


@cached
def _fit(work: tuple, tick: Callable[[], None]) -> dict:
    rows, block, name, seed, steps = work
    split = rows(block)
    affine, _ = split.closed_form()
    left = lambda x, y: (y.double() - affine(x.double())).to(y.dtype)
    residual = replace(split, y=left(split.x, split.y), y_test=left(split.x_test, split.y_test))
    branch = build_branch(name, split.x.shape[1], split.y.shape[1], seed)
    branch, path = _train(residual, affine, branch, seed, steps, True, tick)
    return {
        "step": list(path),
        "errors": np.stack(list(path.values())),  # [n_checkpoints, n_windows]
        "deviation": split.deviation().cpu().numpy(),
        "document": split.document,
        "params": n_params(branch),
    }
