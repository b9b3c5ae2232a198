"""Single- and two-layer replacements of one FFN, trained to the same target and scored alike
(Whipp §3.2, §5.5)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.second.base.cache import as_numpy, cached
from lib.second.base.checks import check_fits
from lib.second.base.errors import InputError, unknown
from lib.second.base.steps import Item, each
from lib.second.linear.affine import AffineMap, score_rows
from lib.second.probes.products import PROBES, PolyLinear, build_probe, n_params
from lib.second.probes.rows import BlockRows, Split

CHECKS = 20  # checkpoints of one fit


@dataclass(frozen=True, eq=False)
class Candidates:
    """Fitted replacements of a few FFNs."""

    table: pd.DataFrame
    """one row a block, candidate and seed (the closed form is deterministic: one row): params,
    compression (parameters of the FFN over the candidate's), held-out r2 (checkpoint chosen on the
    windows that score it: the paper's), r2_unseen (chosen on one half of the held-out documents and
    scored on the other, both ways), r2_feature_median, cosine (mean over rows), rmse (units of y),
    r2_halfway (best by half the steps, to judge convergence), best_step (0: no trained step beat
    the start)"""
    modules: dict[tuple[int, str, int], nn.Module]
    """by (block, candidate, seed)"""


def fit_candidates(
    rows: BlockRows,
    names: Sequence[str],
    seeds: Sequence[int],
    steps: int,
    scale_aware: bool = True,
) -> Candidates:
    """Fit "linear" (closed form) and any of PROBES on every block of `rows`: AdamW without weight
    decay on minibatches of 256, best checkpoint on the held-out documents.

    scale_aware (ours, after Whipp §5.5's scale probe): input and output divided by their RMS and
    the scale folded back, a poly's linear term seeded with the closed form, gradients clipped to
    norm 1, rate 3e-3 with a cosine schedule. Without it: raw units, random start, constant rate
    1e-3, no clipping. Each fit is cached when it is done. Raises InputError for an unknown name.
    """
    for name in names:
        if name != "linear" and name not in PROBES:
            raise unknown("candidate", name, ["linear", *PROBES])
    check_fits(steps, seeds, rows.blocks)
    if not isinstance(scale_aware, bool):
        raise InputError(f"scale_aware {scale_aware!r} is neither True nor False.")
    table, modules = [], {}
    todo = [
        (block, name, seed)
        for block in rows.blocks
        for name in names
        for seed in (seeds if name != "linear" else seeds[:1])
    ]
    items = []
    for block, name, seed in todo:
        key = {
            **rows.key(block),
            "candidate": name,
            "seed": seed,
            "steps": steps,
            "scale_aware": scale_aware,
        }
        items.append(Item(key, (rows, block, name, seed, steps, scale_aware), steps))
    fits = each(_fit, items, total=steps * len(todo), desc="fitting candidates", unit="step")
    for (block, name, seed), found in zip(todo, fits, strict=True):
        ffn, d = rows.subject.blocks[block], rows.subject.d_model
        state = {k: torch.from_numpy(v) for k, v in found["state"].items()}
        module = AffineMap(**state) if name == "linear" else build_probe(name, d, d)
        module.load_state_dict(state)
        modules[block, name, seed] = module.requires_grad_(False).eval()
        params = n_params(module)
        table.append(
            {
                "block": block,
                "candidate": name,
                "seed": seed,
                "params": params,
                "compression": ffn.n_params / params,
                **found["scores"],
            }
        )
    return Candidates(pd.DataFrame(table), modules)


@cached
def _fit(work: tuple, tick: Callable[[], None]) -> dict:
    rows, block, name, seed, steps, scale_aware = work
    split = rows(block)
    affine, _ = split.closed_form()
    affine = AffineMap(affine.weight.float(), affine.bias.float())
    if name == "linear":
        module, path = affine, {}
    else:
        probe = build_probe(name, split.x.shape[1], split.y.shape[1], seed)
        module, path = _train(split, affine, probe, seed, steps, scale_aware, tick)
    x, y = split.x_test.flatten(0, 1), split.y_test.flatten(0, 1)
    score = score_rows(module, x, y)
    with torch.no_grad():
        cosine = float(torch.cosine_similarity(module(x).double(), y.double()).mean())
    total = float(split.deviation().sum())
    r2 = {step: 1 - errors.sum() / total for step, errors in path.items()}
    scores = {
        "r2": score.r2,
        "r2_unseen": _unseen(path, split.document, total) if path else score.r2,
        "r2_feature_median": score.median_r2,
        "cosine": cosine,
        "rmse": score.rmse,
        "r2_halfway": max((v for step, v in r2.items() if step <= steps / 2), default=score.r2),
        "best_step": max(r2, key=r2.get, default=0),
    }
    return {"state": {k: as_numpy(v) for k, v in module.state_dict().items()}, "scores": scores}


def _unseen(path: dict[int, np.ndarray], document: np.ndarray, total: float) -> float:
    """R² of the checkpoints chosen on one half of the held-out documents, scored on the other."""
    _, index = np.unique(document, return_inverse=True)
    if not index.max():
        return float("nan")
    errors, even = np.stack(list(path.values())), index % 2 == 0  # [n_checkpoints, n_windows]
    left = sum(errors[errors[:, ~half].sum(1).argmin(), half].sum() for half in (even, ~even))
    return float(1 - left / total)


def _train(
    split: Split,
    affine: AffineMap,
    model: nn.Module,
    seed: int,
    steps: int,
    scale_aware: bool,
    tick: Callable[[], None],
) -> tuple[nn.Module, dict[int, np.ndarray]]:
    """Train `model`; returns it with the parameters of its best checkpoint, and of each checkpoint
    {step: squared error of each held-out window}."""
    rms = lambda t: float(t.double().square().mean().sqrt()) if scale_aware else 1.0
    unit_x, unit_y = rms(split.x), rms(split.y)
    x, y, x_test = split.x / unit_x, split.y / unit_y, split.x_test / unit_x
    if scale_aware and isinstance(model, PolyLinear):
        model.seeded(AffineMap(affine.weight * unit_x / unit_y, affine.bias / unit_y))
    model.to(x.device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-3 if scale_aware else 1e-3, weight_decay=0.0
    )
    shape = (
        (lambda s: 0.5 + 0.5 * math.cos(math.pi * s / steps)) if scale_aware else (lambda s: 1.0)
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, shape)
    generator = torch.Generator().manual_seed(seed)
    path, best = {}, None
    marks = {math.ceil(steps * k / CHECKS) for k in range(CHECKS + 1)}
    for step in range(steps + 1):
        if step in marks:
            with torch.no_grad():
                left = (model(x_test) * unit_y - split.y_test).double().square().sum((1, 2))
            path[step] = np.nan_to_num(as_numpy(left), nan=np.inf)
            if path[step].sum() <= min(errors.sum() for errors in path.values()):
                best = {k: v.detach().clone() for k, v in model.state_dict().items()}
        if step == steps:
            break
        index = torch.randint(len(x), (256,), generator=generator).to(x.device)
        loss = (model(x[index]) - y[index]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if scale_aware:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        tick()
    model.load_state_dict(best)
    return _in_units(model, unit_x, unit_y), path


@torch.no_grad()
def _in_units(model: nn.Module, unit_x: float, unit_y: float) -> nn.Module:
    """The same map between raw units: unit_y · model(x / unit_x), with the scales folded into
    the first and last layer."""
    layers = list(model) if isinstance(model, nn.Sequential) else [model]
    first, last = layers[0], layers[-1]
    for name in ("weight", "factors"):
        if hasattr(first, name):
            getattr(first, name).div_(unit_x)
    for name in ("weight", "bias", "out"):
        if hasattr(last, name):
            getattr(last, name).mul_(unit_y)
    return model.requires_grad_(False).eval()
