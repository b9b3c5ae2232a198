"""What the linear map leaves over: is it a low-order product (Whipp §5.3)? Gains of product
branches on a frozen closed-form map."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
import torch

from lib.second.base.cache import as_numpy, cached
from lib.second.base.checks import check_fits
from lib.second.base.errors import unknown
from lib.second.base.steps import Item, each
from lib.second.linear.affine import AffineMap
from lib.second.probes.adamw import fit_adamw
from lib.second.probes.direct import fit_direct
from lib.second.probes.paths import Path, Residual
from lib.second.probes.products import BILINEAR, Layout, PolyLinear, products
from lib.second.probes.rows import BlockRows

MASSIVE = 20.0
"""twice `lib.second.linear.massive.TIMES`: tokens between the two count as ordinary here"""
SOLVERS = {"adamw": "AdamW (the paper's way)", "direct": "solver made for the problem"}


@dataclass(frozen=True, eq=False)
class ResidualProbes:
    """Product branches fitted on frozen closed-form maps."""

    table: pd.DataFrame
    """one row a block and seed: r2_lin, gain (checkpoint chosen on the windows that score it, so
    never negative: the paper's), gain_unseen (chosen on one half of the held-out documents and
    scored on the other, both ways) with a 95% bootstrap interval over documents, best_step, seconds
    (the fit alone), gate (mean exp(quad_scale) at the best checkpoint), massive_share (of the
    held-out error saved, what is saved on tokens whose output norm exceeds MASSIVE times the
    median), ordinary_share (of the residual on all other tokens, what the branch recovers)"""
    curves: pd.DataFrame
    """columns block, seed, step, seconds, gate, gain: each fit along its checkpoints"""
    modules: dict[tuple[int, int], PolyLinear]
    """by (block, seed): the closed-form map with the branch of the best checkpoint"""
    maps: dict[int, AffineMap]
    """the closed-form map of each block, from the same rows"""
    documents: np.ndarray
    """[n_documents]: the held-out documents"""
    deviation: dict[int, np.ndarray]
    """by block: Σ‖y-ȳ‖² of each held-out document, [n_documents]"""
    errors: dict[tuple[int, int], np.ndarray]
    """by (block, seed): squared error of each held-out document at each checkpoint, [n_checkpoints,
    n_documents]; the first is that of the linear map alone"""


def residual_probes(
    rows: BlockRows,
    seeds: Sequence[int],
    solver: str = "direct",
    layout: Layout = BILINEAR,
    steps: int = 800,
    blocks: Sequence[int] | None = None,
) -> ResidualProbes:
    """Freeze the closed-form map of each block (default: all of `rows`) and fit a product branch on
    its residual, with held-out early stopping.

    `steps` is the budget of one fit (the paper: 8,000 of AdamW). Each block is cached when it is
    done; the model runs only for blocks that are not. Raises InputError for an unknown solver, or a
    rank that the FFN does not allow.
    """
    if solver not in SOLVERS:
        raise unknown("solver", solver, list(SOLVERS))
    check_fits(steps, seeds, rows.blocks if blocks is None else blocks)
    # A rank that cannot be is refused before the model runs.
    PolyLinear(rows.subject.d_model, rows.subject.d_model, layout)
    blocks = rows.blocks if blocks is None else list(blocks)
    tables, curves, modules, maps = [], [], {}, {}
    deviation, errors = {}, {}
    items = []
    for block in blocks:
        key = {
            **rows.key(block),
            "seeds": list(seeds),
            "solver": solver,
            "layout": [list(term) for term in layout],
            "steps": steps,
        }
        work = (rows, block, list(seeds), solver, layout, steps)
        items.append(Item(key, work, len(seeds) * steps))
    title, n = f"products on residuals, {solver}", len(blocks) * len(seeds) * steps
    fits = each(_of_block, items, total=n, desc=title, unit="step")
    for block, found in zip(blocks, fits, strict=True):
        maps[block] = AffineMap(torch.from_numpy(found["weight"]), torch.from_numpy(found["bias"]))
        deviation[block] = _by_document(found["deviation"], found["document"])
        for fit, share in zip(found["paths"], found["tokens"], strict=True):
            path = Path(**fit)
            tables.append(
                {
                    "block": block,
                    "seed": path.seed,
                    "r2_lin": found["r2_lin"],
                    **_gains(path, found["deviation"], found["document"]),
                    **share,
                }
            )
            gain = (path.errors[0].sum() - np.array([e.sum() for e in path.errors])) / found[
                "deviation"
            ].sum()
            curves.append(
                pd.DataFrame(
                    {
                        "block": block,
                        "seed": path.seed,
                        "step": path.step,
                        "seconds": path.seconds,
                        "gate": path.gate,
                        "gain": gain,
                    }
                )
            )
            modules[block, path.seed] = _module(maps[block], layout, path)
            errors[block, path.seed] = _by_document(np.stack(path.errors), found["document"])
    return ResidualProbes(
        pd.DataFrame(tables),
        pd.concat(curves, ignore_index=True),
        modules,
        maps,
        rows.windows.document[rows.held_out].unique().numpy(),
        deviation,
        errors,
    )


def _by_document(values: np.ndarray, document: np.ndarray) -> np.ndarray:
    """Sums over the windows of each document, [..., n_windows] -> [..., n_documents]."""
    return np.stack([values[..., document == d].sum(-1) for d in np.unique(document)], -1)


@cached
def _of_block(work: tuple, tick: Callable[[], None]) -> dict:
    rows, block, seeds, solver, layout, steps = work
    split = rows(block)
    affine, score = split.closed_form()
    left = lambda x, y: (y.double() - affine(x.double())).to(y.dtype)
    residual = Residual(
        split.x, left(split.x, split.y), split.x_test, left(split.x_test, split.y_test)
    )
    paths = (
        [fit_adamw(residual, layout, s, steps, tick=tick) for s in seeds]
        if solver == "adamw"
        else fit_direct(residual, layout, seeds, steps)
    )
    norm = split.y_test.double().norm(dim=-1)
    massive = norm > MASSIVE * norm.median()
    shares = [
        _by_kind_of_token(residual, _module(affine, layout, path).to(split.x.device), massive)
        for path in paths
    ]
    return {
        "paths": [asdict(path) for path in paths],
        "r2_lin": score.r2,
        "deviation": as_numpy(split.deviation()),
        "document": split.document,
        "tokens": shares,
        "weight": as_numpy(affine.weight.float()),
        "bias": as_numpy(affine.bias.float()),
    }


@torch.no_grad()
def _by_kind_of_token(
    rows: Residual, module: PolyLinear, massive: torch.Tensor
) -> dict[str, float]:
    """What the branch of the best checkpoint does on massive and on ordinary held-out tokens;
    nan where there is nothing to share."""
    branch = module.quad_scale.exp() * (
        products(rows.x_test @ module.factors, module.layout) @ module.out
    )
    left = rows.left_test.double().square().sum(-1)
    saved = left - (rows.left_test - branch).double().square().sum(-1)
    ratio = lambda part, whole: float(part / whole) if whole > 0 else float("nan")
    return {
        "massive_share": ratio((saved * massive).sum(), saved.sum()),
        "ordinary_share": ratio(saved[~massive].sum(), left[~massive].sum()),
    }


def _module(affine: AffineMap, layout: Layout, path: Path) -> PolyLinear:
    module = PolyLinear(*affine.weight.shape, layout).seeded(affine).requires_grad_(False)
    for name, value in path.branch.items():
        getattr(module, name).copy_(torch.from_numpy(value))
    return module.eval()


def _gains(
    path: Path, deviation: np.ndarray, document: np.ndarray, resamples: int = 2000
) -> dict[str, float]:
    """Gains of one path: on the windows it was stopped on, and on documents it was not stopped on
    (nan with a single held-out document), with a bootstrap over documents."""
    errors = np.stack(path.errors)  # [n_checkpoints, n_windows]
    best = int(errors.sum(1).argmin())
    _, index = np.unique(document, return_inverse=True)
    even = index % 2 == 0
    # Error saved on each window by the checkpoint chosen on the other half of the documents.
    saved = np.full(errors.shape[1], np.nan)
    for half in (even, ~even) if index.max() else ():
        saved[half] = (errors[0] - errors[int(errors[:, ~half].sum(1).argmin())])[half]
    by_document = np.stack([np.bincount(index, part) for part in (saved, deviation)])
    n = by_document.shape[1]
    draws = by_document[:, np.random.default_rng(path.seed).integers(n, size=(resamples, n))]
    low, high = np.quantile(draws[0].sum(1) / draws[1].sum(1), [0.025, 0.975])
    return {
        "gain": (errors[0].sum() - errors[best].sum()) / deviation.sum(),
        "gain_unseen": saved.sum() / deviation.sum(),
        "gain_unseen_low": low,
        "gain_unseen_high": high,
        "best_step": path.step[best],
        "seconds": path.seconds[-1],
        "gate": path.gate[best],
    }
