"""Trained linear maps kept and scored window by window, on raw and on whitened inputs: what the
curves of `trained_baselines` cannot say (Whipp §5.1, the cautionary note)."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch

from lib.second.base.bars import progress
from lib.second.base.cache import as_numpy, cached
from lib.second.linear.affine import AffineMap, score_rows
from lib.second.linear.descent import best_rate, train_map
from lib.second.linear.moments import Moments
from lib.second.models.hooks import capture
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows


@dataclass(frozen=True, eq=False)
class Controls:
    """Linear maps of a few blocks after the same number of steps, beside the exact one."""

    windows: pd.DataFrame
    """one row a block, kind, seed and held-out window: error (Σ‖y-ŷ‖²), deviation (Σ‖y-ȳ‖², ȳ the
    held-out mean), document. Kinds: exact, sgd and adamw (first seed), whitened (every seed)"""
    fitted: pd.DataFrame
    """one row a block, kind and seed: r2_fitted, R² on the fit rows, and the learning rate"""
    maps: dict[tuple[int, str], AffineMap]
    """float32, of the first seed, without the whitened ones: (block, kind)"""


def controls(
    subject: Subject,
    windows: Windows,
    rates: Mapping[int, Mapping[str, float]],
    steps: int,
    seeds: Sequence[int],
    n_folds: int = 5,
) -> Controls:
    """Train linear maps of each block in `rates` ({block: {optimizer: learning rate}}) on all folds
    of `windows` but the last, as `trained_baselines` does and with its seeds, and keep them.

    For `whitened` the inputs are centred, rotated to their principal axes and brought to unit
    variance on the fit rows; the training is that of plain SGD, its rate the best of the same
    fractions of the stable limit in the same kind of pilot.
    """
    rows = functools.cache(lambda: capture(subject, windows, list(rates)))
    held_out = windows.held_out(n_folds)
    scored, fitted, maps = [], [], {}
    for block, rate in rates.items():
        key = {
            "subject": subject.key,
            "windows": windows.key,
            "held_out": held_out.numpy(),
            "block": block,
            "rates": dict(rate),
            "steps": steps,
            "seeds": list(seeds),
            "device": subject.device.type,
        }
        work = (lambda b=block: rows()[b], held_out, dict(rate), steps, list(seeds))
        for run in _of_block(key, work):
            about = {"block": block, "kind": run["kind"], "seed": run["seed"]}
            fitted.append(about | {"r2_fitted": run["r2_fitted"], "lr": run["lr"]})
            document = windows.document[held_out].numpy()
            one = {"error": run["error"], "deviation": run["deviation"], "document": document}
            scored.append(pd.DataFrame(about | one))
            if "weight" in run:
                maps[block, run["kind"]] = AffineMap(
                    torch.from_numpy(run["weight"]), torch.from_numpy(run["bias"])
                )
    return Controls(pd.concat(scored, ignore_index=True), pd.DataFrame(fitted), maps)


@cached
def _of_block(work: tuple) -> list[dict]:
    load, held_out, rates, steps, seeds = work
    x, y = load()  # each [n, seq_len, d]
    fit, test = (x[~held_out], y[~held_out]), (x[held_out], y[held_out])
    flat = tuple(side.flatten(0, 1) for side in fit)
    moments = Moments.of(*flat)
    white = _whitening(moments)
    whitened = white(flat[0]).float(), flat[1]
    total = steps * (len(rates) + len(seeds))
    found = [_scored("exact", 0, 0.0, moments.fit(), fit, test)]
    with progress(total=total, desc="trained maps, and on whitened inputs", unit="step") as bar:
        for kind, rate in rates.items():
            affine = train_map(flat, kind, rate, steps, seeds[0], bar=bar)
            found.append(_scored(kind, seeds[0], rate, affine, fit, test))
        rate = best_rate(whitened, steps, seeds[0])
        for seed in seeds:
            affine = train_map(whitened, "sgd", rate, steps, seed, bar=bar)
            affine = _unwhitened(affine, white)
            found.append(_scored("whitened", seed, rate, affine, fit, test))
    return found


def _whitening(moments: Moments) -> AffineMap:
    """x [.., d_in] -> centred, uncorrelated, unit variance [.., rank], float64."""
    e, v = moments.eigen
    weight = v * (moments.n / e).sqrt()
    return AffineMap(weight, -moments.mean_x @ weight)


def _unwhitened(affine: AffineMap, white: AffineMap) -> AffineMap:
    """The map of raw inputs that whitening and then `affine` is, float64."""
    weight = affine.weight.double()
    return AffineMap(white.weight @ weight, white.bias @ weight + affine.bias.double())


def _scored(kind: str, seed: int, rate: float, affine: AffineMap, fit: tuple, test: tuple) -> dict:
    """Errors by held-out window and R² on the fit rows, both in float64."""
    exact = AffineMap(affine.weight.double(), affine.bias.double())
    x, y = (side.double() for side in test)  # each [n, seq_len, d]
    found = {
        "kind": kind,
        "seed": seed,
        "lr": rate,
        "error": as_numpy((y - exact(x)).square().sum((1, 2))),
        "deviation": as_numpy((y - y.mean((0, 1))).square().sum((1, 2))),
        "r2_fitted": score_rows(exact, *(side.flatten(0, 1).double() for side in fit)).r2,
    }
    if kind == "whitened":
        return found
    return found | {
        "weight": as_numpy(affine.weight.float()),
        "bias": as_numpy(affine.bias.float()),
    }
