"""Single- and two-layer replacements of one FFN, trained to the same target and scored alike
(Whipp §3.2, §5.5)."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import nn

from lib.base.bars import progress
from lib.base.cache import as_numpy, cached
from lib.base.checks import check_fits
from lib.base.errors import InputError, unknown
from lib.linear.affine import AffineMap, score_rows
from lib.probes.products import PROBES, PolyLinear, build_probe, n_params
from lib.probes.rows import BlockRows, Split

CHECKS = 20  # checkpoints of one fit


@dataclass(frozen=True, eq=False)
class Candidates:
    """Fitted replacements of a few FFNs."""

    table: pd.DataFrame
    """one row a block, candidate and seed (the closed form is deterministic: one row): params,
    compression (parameters of the FFN over
    the candidate's), held-out r2, r2_feature_median, cosine (mean over rows), rmse (units of y),
    r2_halfway (best by half the
    steps, to judge convergence), best_step (0: no trained step beat the start), seconds"""
    modules: dict[tuple[int, str, int], nn.Module]
    """by (block, candidate, seed)"""


def fit_candidates(
    rows: BlockRows,
    names: Sequence[str],
    seeds: Sequence[int],
    steps: int,
    scale_aware: bool = True,
) -> Candidates:
    """Fit "linear" (closed form) and any of PROBES on every block of `rows`, AdamW on minibatches
    of 256, best checkpoint on the held-out tail.

    scale_aware (ours, after Whipp §5.5's scale probe): input and output divided by their RMS and
    the scale folded back, a poly's
    linear term seeded with the closed form, gradients clipped to norm 1, rate 3e-3 with a cosine
    schedule. Without it: raw units, random
    start, constant rate 1e-3, no clipping. Each fit is cached when it is done. Raises InputError
    for an unknown name.
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
    with progress(total=steps * len(todo), desc="fitting candidates", unit="step") as bar:
        for done, (block, name, seed) in enumerate(todo, 1):
            ffn, d = rows.subject.blocks[block], rows.subject.d_model
            key = {
                **rows.key(block),
                "candidate": name,
                "seed": seed,
                "steps": steps,
                "scale_aware": scale_aware,
            }
            found = _fit(key, (rows, block, name, seed, steps, scale_aware, bar))
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
            bar.update(done * steps - bar.n)  # a fit from the cache moved no bar
    return Candidates(pd.DataFrame(table), modules)


@cached
def _fit(work: tuple) -> dict:
    rows, block, name, seed, steps, scale_aware, bar = work
    split = rows(block)
    affine, _ = split.closed_form()
    affine = AffineMap(affine.weight.float(), affine.bias.float())
    if name == "linear":
        module, history, seconds = affine, {}, 0.0
    else:
        module, history, seconds = _train(
            split,
            affine,
            build_probe(name, split.x.shape[1], split.y.shape[1], seed),
            seed,
            steps,
            scale_aware,
            bar,
        )
    x, y = split.x_test.flatten(0, 1), split.y_test.flatten(0, 1)
    score = score_rows(module, x, y)
    with torch.no_grad():
        cosine = float(torch.cosine_similarity(module(x).double(), y.double()).mean())
    scores = {
        "r2": score.r2,
        "r2_feature_median": score.median_r2,
        "cosine": cosine,
        "rmse": score.rmse,
        "r2_halfway": max(
            (r2 for step, r2 in history.items() if step <= steps / 2), default=score.r2
        ),
        "best_step": max(history, key=history.get, default=0),
        "seconds": seconds,
    }
    return {"state": {k: as_numpy(v) for k, v in module.state_dict().items()}, "scores": scores}


def _train(
    split: Split, affine: AffineMap, model: nn.Module, seed: int, steps: int, scale_aware: bool, bar
) -> tuple[nn.Module, dict[int, float], float]:
    """Train `model`; returns it with its best parameters, {step: held-out R²} and the seconds of
    training alone."""
    rms = lambda t: float(t.double().square().mean().sqrt()) if scale_aware else 1.0  # noqa: E731
    unit_x, unit_y = rms(split.x), rms(split.y)
    x, y, x_test = split.x / unit_x, split.y / unit_y, split.x_test / unit_x
    if scale_aware and isinstance(model, PolyLinear):
        model.seeded(AffineMap(affine.weight * unit_x / unit_y, affine.bias / unit_y))
    model.to(x.device)
    rate = 3e-3 if scale_aware else 1e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    shape = (
        (lambda s: 0.5 + 0.5 * math.cos(math.pi * s / steps)) if scale_aware else (lambda s: 1.0)
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, shape)
    generator = torch.Generator().manual_seed(seed)
    total, history, seconds, best = float(split.deviation().sum()), {}, 0.0, None
    marks = {math.ceil(steps * k / CHECKS) for k in range(CHECKS + 1)}
    for step in range(steps + 1):
        if step in marks:
            with torch.no_grad():
                error = float((model(x_test) * unit_y - split.y_test).double().square().sum())
            history[step] = 1 - error / total if math.isfinite(error) else -math.inf
            if best is None or history[step] >= max(history.values()):
                best = {k: v.detach().clone() for k, v in model.state_dict().items()}
        if step == steps:
            break
        begun = time.perf_counter()
        index = torch.randint(len(x), (256,), generator=generator).to(x.device)
        loss = (model(x[index]) - y[index]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if scale_aware:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        seconds += time.perf_counter() - begun
        bar.update()
    model.load_state_dict(best)
    return _in_units(model, unit_x, unit_y), history, seconds


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
