"""Trained linear baselines of a few FFNs beside their closed form, straight from a model (Whipp
§5.1, the cautionary note)."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
import torch

from lib.base.cache import cached, digest
from lib.linear.descent import Rows, descend, exact_descent, stable_rate
from lib.linear.moments import Moments
from lib.models.hooks import capture
from lib.models.subjects import Subject

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
    windows: torch.Tensor,
    blocks: Sequence[int],
    optimizers: Sequence[str],
    steps: int,
    seeds: Sequence[int],
    held_out: float = 0.2,
) -> Baselines:
    """Train linear maps of the chosen blocks on the first rows of `windows` [n, seq_len] and follow
    R² on the held-out last share.

    The model runs only if some block's result is not in the cache.
    """
    rows = functools.cache(lambda: capture(subject, windows, blocks))
    found = []
    for block in blocks:
        key = {
            "subject": subject.key,
            "windows": digest(windows),
            "block": block,
            "optimizers": list(optimizers),
            "steps": steps,
            "seeds": list(seeds),
            "held_out": held_out,
            "device": subject.device.type,
        }
        found.append(
            _of_block(key, (lambda b=block: rows()[b], optimizers, steps, seeds, held_out))
        )
    tables = (
        {name: pd.DataFrame(part[name]).assign(block=b) for name in part}
        for b, part in zip(blocks, found, strict=True)
    )
    frames = list(tables)
    return Baselines(
        *(
            pd.concat([f[name] for f in frames], ignore_index=True)
            for name in ("curves", "exact", "ceilings")
        )
    )


@cached
def _of_block(
    work: tuple[Callable[[], Rows], Sequence[str], int, Sequence[int], float],
) -> dict[str, list[dict]]:
    load, optimizers, steps, seeds, held_out = work
    x, y = load()
    cut = round(len(x) * (1 - held_out))
    seen, rest = (x[:cut], y[:cut]), (x[cut:], y[cut:])
    train, tail = Moments.of(*seen), Moments.of(*rest)
    curves = pd.concat([descend(seen, rest, name, steps, seeds) for name in optimizers])
    return {
        "curves": curves.to_dict("records"),
        "exact": exact_descent(train, tail, stable_rate(seen[0]), FAR, seeds[0]).to_dict("records"),
        "ceilings": [
            {"r2_lin": tail.score(train.fit()).r2, "condition_number": train.condition_number}
        ],
    }
