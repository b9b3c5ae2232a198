"""Trained linear baselines of a few FFNs beside their closed form, straight from a model (Whipp
§5.1, the cautionary note)."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from lib.second.base.cache import cached
from lib.second.linear.descent import descend, exact_descent, stable_rate
from lib.second.linear.moments import Moments
from lib.second.models.hooks import capture
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows

FAR = [round(10 ** (k / 4)) for k in range(45)]  # steps of exact descent: far beyond any budget


@dataclass(frozen=True, eq=False)
class Baselines:
    """What gradient descent reaches and what there is to reach."""

    curves: pd.DataFrame
    """columns block, optimizer, lr, seed, step, r2: minibatch training"""
    exact: pd.DataFrame
    """columns block, step, r2, seed: full-batch gradient descent at rate 1/λ_max, in closed form"""
    ceilings: pd.DataFrame
    """columns block, r2_lin, condition_number"""


def trained_baselines(
    subject: Subject,
    windows: Windows,
    blocks: Sequence[int],
    optimizers: Sequence[str],
    steps: int,
    seeds: Sequence[int],
    n_folds: int = 5,
) -> Baselines:
    """Train linear maps of the chosen blocks on all folds of `windows` but the last and follow R²
    on that.

    The model runs only if some block's result is not in the cache.
    """
    rows = functools.cache(lambda: capture(subject, windows, blocks))
    held_out, found = windows.held_out(n_folds), []
    for block in blocks:
        key = {
            "subject": subject.key,
            "windows": windows.key,
            "held_out": held_out.numpy(),
            "block": block,
            "optimizers": list(optimizers),
            "steps": steps,
            "seeds": list(seeds),
            "device": subject.device.type,
        }
        work = (lambda b=block: rows()[b], held_out, optimizers, steps, seeds)
        found.append(_of_block(key, work))
    tables = {
        name: [pd.DataFrame(part[name]).assign(block=b) for b, part in zip(blocks, found)]
        for name in ("curves", "exact", "ceilings")
    }
    return Baselines(**{name: pd.concat(t, ignore_index=True) for name, t in tables.items()})


@cached
def _of_block(work: tuple) -> dict[str, list[dict]]:
    load, held_out, optimizers, steps, seeds = work
    x, y = load()  # each [n, seq_len, d]
    seen = x[~held_out].flatten(0, 1), y[~held_out].flatten(0, 1)
    rest = x[held_out].flatten(0, 1), y[held_out].flatten(0, 1)
    train, test = Moments.of(*seen), Moments.of(*rest)
    curves = pd.concat([descend(seen, rest, name, steps, seeds) for name in optimizers])
    exact = exact_descent(train, test, stable_rate(seen[0]), FAR, seeds[0])
    ceiling = {"r2_lin": test.score(train.fit()).r2, "condition_number": train.condition_number}
    return {
        "curves": curves.to_dict("records"),
        "exact": exact.to_dict("records"),
        "ceilings": [ceiling],
    }
