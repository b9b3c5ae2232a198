"""How few rows spoil a fit, and what of them does it: some are put back into the fit of all others,
as they are or with another length, place or direction (notebook 29)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from lib.errors import InputError
from lib.hooks import capture
from lib.linear.moments import Moments
from lib.linear.regression import repair, single
from lib.store import kept
from lib.swap.massive import Trial, bare, paired_sums
from lib.swap.sweep import token_sweep


@kept("swaps with rows put back", 1)
def put_back(
    trial: Trial,
    n: int,
    draws: int,
    seed: int = 42,
    ways: Sequence[str] = ("massive", "ordinary, weighted"),
) -> pd.DataFrame:
    """Losses as in `apart`, with the FFN at massive positions and maps fitted on the ordinary rows
    and `n` more, drawn several times (see `_rows_back`). Blocks with fewer massive positions than
    `n` have no rows. Raises InputError where all have fewer."""
    plain, modules = bare(trial.subject), {}
    rows = capture(plain, trial.opened(trial.windows), trial.blocks)
    for b in trial.blocks:
        x, y = (side.flatten(0, 1) for side in rows[b])  # [rows, d]
        is_massive = y.norm(dim=-1) > float(trial.fit.facts.limit[b])
        if int(is_massive.sum()) < n:
            continue
        ordinary = Moments.of(x[~is_massive], y[~is_massive])
        kept_map = repair(ordinary, x[is_massive])
        for draw in range(draws):
            random = np.random.default_rng([seed, b, draw])
            some, others = (
                random.choice(np.flatnonzero(of), n, replace=False)
                for of in (is_massive, ~is_massive)
            )
            mean_y = ordinary.mean_y.float()
            back = _rows_back((x[some], y[some]), (x[others], y[others]), mean_y)
            for way in ways:
                affine = single((ordinary + back[way]).fit())
                modules[b, f"{way}, draw {draw}"] = kept_map.with_affine(affine)
    if not modules:
        raise InputError(f"no block of {[*trial.blocks]} has {n} massive positions: give others.")
    read = trial.opened(trial.test)
    swept = token_sweep(plain, read, modules)
    return pd.concat([paired_sums(swept, read, k, block=k[0], swap=k[1]) for k in modules])


def _rows_back(
    massive: tuple[torch.Tensor, torch.Tensor],
    others: tuple[torch.Tensor, torch.Tensor],
    mean_y: torch.Tensor,
) -> dict[str, Moments]:
    """{way: moments} of massive rows and of as many ordinary ones, each (x, y) [n, d]. Weighted
    rows have the squared outputs of the other kind, all together; outputs are lengthened or
    shortened until their squared distances from the ordinary mean sum to these."""
    (x_massive, y_massive), (x, y) = massive, others
    size, usual = (part.double().square().sum() for part in (y_massive, y))

    def scaled(part: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
        """Rows whose squared distances from the mean sum to `to`."""
        away = part - mean_y
        return mean_y + away * (to / away.double().square().sum()).sqrt().float()

    def repeated(x: torch.Tensor, y: torch.Tensor) -> Moments:
        """The first of some rows, as often as there are massive ones."""
        return Moments.of(x[:1].expand_as(x_massive), y[:1].expand_as(y_massive))

    longer, ratio = scaled(y, size), (size / usual).repeat(len(x))
    one_longer = scaled(y[:1], size / len(y))
    return {
        "massive": Moments.of(x_massive, y_massive),
        "massive, weighted down": Moments.of(x_massive, y_massive, 1 / ratio),
        "massive, shortened": Moments.of(x_massive, scaled(y_massive, usual)),
        "one massive, repeated": repeated(x_massive, y_massive),
        "ordinary, weighted": Moments.of(x, y, ratio),
        "ordinary, lengthened": Moments.of(x, longer),
        "one ordinary, lengthened and repeated": repeated(x, one_longer),
        "one ordinary, ten times longer and repeated": repeated(
            x, scaled(one_longer, 100 * size / len(y))
        ),
        "one massive output, repeated at an ordinary input": repeated(x, y_massive),
        "one ordinary output, lengthened and repeated at a massive input": repeated(
            x_massive, one_longer
        ),
        "massive outputs at ordinary inputs": Moments.of(x, y_massive),
        "ordinary outputs, lengthened, at massive inputs": Moments.of(x_massive, longer),
    }
