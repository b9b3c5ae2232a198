"""The affine map by gradient descent, against its closed form (Whipp §3.2, §5.1)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import torch

from lib.errors import InputError, unknown
from lib.hooks import Rows
from lib.linear.affine import ROUNDING, AffineMap, precision_of
from lib.linear.candidates import PolyLinear, build
from lib.linear.moments import Moments
from lib.linear.probes import CHECKS, n_trained, train_rows
from lib.linear.regression import single
from lib.stats import sums
from lib.store import cached, kept

Optimizer = Literal["sgd", "adamw"]
SOLVERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
Standardized = Literal["", "inputs", "outputs"]
"""the side of a layer whose features are given mean 0 and SD 1 for its training"""


@dataclass(frozen=True, eq=False)
class Descent:
    """A map trained on one block's rows, and its error along the way."""

    rate: float
    step: np.ndarray
    """[k]: steps at which the error was measured; the last is the end"""
    held_out: np.ndarray
    """[k]: mean ‖y-ŷ‖² on the last fifth of the fit rows, on which nothing was trained"""
    error: np.ndarray
    """[k, n]: Σ‖y-ŷ‖² on each test window"""
    map: AffineMap | None
    """the trained map; None for a poly"""


@cached("trained layer", 2, whiten="whitened")
def descend(
    rows: Rows,
    block: int,
    optimizer: Optimizer,
    rate: float,
    steps: int,
    seed: int,
    kind: Literal["linear", "poly"] = "linear",
    whiten: bool = False,
    standardized: Standardized = "",
) -> Descent:
    """Train a linear or a poly layer on a block's FFN rows from a random start, at a constant rate.

    As the author's code has it: minibatches of 256 rows with replacement, no weight decay, raw x
    and y. `whiten` decorrelates x first; `standardized` scales each feature of x or of y, which
    leaves the closed form as it is; errors are those of raw y. Trained on the first four fifths of
    the fit rows. Raises InputError for an unknown optimizer or side; where the training diverges,
    errors are not finite.
    """
    if optimizer not in SOLVERS:
        raise InputError(f"optimizer {optimizer!r} is unknown: use 'sgd' or 'adamw'.")
    if steps < 1 or not rate > 0:
        raise InputError(f"{steps} steps at rate {rate} train nothing: give both above 0.")
    if standardized not in ("", "inputs", "outputs"):
        raise unknown("standardized side", standardized, ["inputs", "outputs"])
    x, y, x_test, y_test = rows[block]
    cut = n_trained(x)
    mean, change = _change_of_inputs(x[:cut], whiten, standardized)
    y_mean, y_scale = torch.zeros(y.shape[1]), torch.ones(y.shape[1])
    if standardized == "outputs":
        y_mean, y_scale = _mean_and_scale(y[:cut])
    x, x_test, y = (x - mean) @ change, (x_test - mean) @ change, (y - y_mean) / y_scale
    d = x.shape[1]
    model = PolyLinear(d, min(16, d), seed) if kind == "poly" else build(kind, d, seed)
    solver = SOLVERS[optimizer](model.parameters(), lr=rate, weight_decay=0.0)
    marks = sorted({round(steps ** (k / CHECKS)) for k in range(CHECKS + 1)})
    held_out, error = [], []

    def look() -> None:
        left = (model(x[cut:]) - y[cut:]) * y_scale
        held_out.append(float(left.square().sum(1).mean()))
        left = model(x_test) * y_scale + y_mean - y_test
        error.append(left.double().square().sum((1, 2)).numpy())

    train_rows(model, solver, x, y, steps, seed, marks, look)
    trained = None
    if kind == "linear":
        # The same map of raw inputs.
        weight, bias = model.weight.detach().T, model.bias.detach()
        weight, bias = change @ weight, bias - mean @ change @ weight
        trained = AffineMap(weight * y_scale, bias * y_scale + y_mean)
    return Descent(rate, np.array(marks), np.array(held_out), np.stack(error), trained)


def _closed_form(rows: Rows, block: int) -> Descent:
    """Exact least squares on the rows that `descend` trains on, in the form of its result."""
    x, y, x_test, y_test = rows[block]
    cut = n_trained(x)
    affine = single(Moments.of(x[:cut], y[:cut]).fit())
    held_out = (affine(x[cut:]) - y[cut:]).square().sum(1).mean()
    error = (affine(x_test) - y_test).double().square().sum((1, 2)).numpy()
    return Descent(np.nan, np.array([0]), held_out.numpy()[None], error[None], affine)


@kept("errors of trained layers", 1, whiten="whitened")
def trained_errors(
    rows: Rows,
    block: int,
    optimizer: Optimizer | Literal["closed form"],
    rates: Sequence[float] = (),
    steps: int = 0,
    seed: int = 42,
    kind: Literal["linear", "poly"] = "linear",
    whiten: bool = False,
    standardized: Standardized = "",
) -> pd.DataFrame:
    """What a layer trained by `descend` leaves on the test text: step, document (-1: all of them,
    before the last step), error Σ‖y-ŷ‖², and the rate; of several `rates` that which `search_rate`
    finds in a sixth of the steps. The closed form on the same rows is at step 0."""
    if optimizer != "closed form" and not rates:
        raise InputError("there is no learning rate to train at: give at least one.")
    if optimizer == "closed form":
        run = _closed_form(rows, block)
    else:
        how = dict(whiten=whiten, standardized=standardized)

        def held_out(rate: float) -> float:
            return descend(rows, block, optimizer, rate, steps // 6, seed, **how).held_out[-1]

        with rows.subject.unchanging():  # its weights are looked at once for all keys
            rate = rates[0] if len(rates) == 1 else search_rate(rates, held_out)
            run = descend(rows, block, optimizer, rate, steps, seed, kind, **how)
    windows = rows.test.document
    before = pd.DataFrame({"step": run.step[:-1], "document": -1, "error": run.error[:-1].sum(1)})
    end = {"step": run.step[-1], "document": np.unique(windows)}
    of_document = pd.DataFrame(end | {"error": sums(run.error[-1][:, None], windows)})
    return pd.concat([before, of_document], ignore_index=True).assign(rate=run.rate)


def _change_of_inputs(
    x: torch.Tensor, whiten: bool, standardized: Standardized
) -> tuple[torch.Tensor, torch.Tensor]:
    """What is taken from inputs, [d], and the matrix [d, d] that they are then multiplied by."""
    if whiten:
        return _whitening(x)
    if standardized == "inputs":
        mean, scale = _mean_and_scale(x)
        return mean, torch.diag(1 / scale)
    return torch.zeros(x.shape[1]), torch.eye(x.shape[1])


def _mean_and_scale(side: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and SD of each feature, [d] each; a feature that does not vary keeps its scale."""
    mean, scale = side.double().mean(0), side.double().std(0)
    return mean.float(), torch.where(scale > 0, scale, 1.0).float()


def _whitening(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean [d] and the matrix [d, d] that makes the covariance of x - mean a multiple of the
    identity, in the directions that vary; the total variance stays, so only the conditioning
    changes."""
    mean = x.double().mean(0)
    values, directions = torch.linalg.eigh((x.double() - mean).T @ (x.double() - mean) / len(x))
    of_rows = (ROUNDING * precision_of(x)) ** 2  # of a variance
    keep = values > max(of_rows, torch.finfo(values.dtype).eps * len(values)) * values[-1]
    scale = (values[keep].mean() / values[keep]).sqrt()
    return mean.float(), ((directions[:, keep] * scale) @ directions[:, keep].T).float()


def search_rate(rates: Sequence[float], error: Callable[[float], float]) -> float:
    """The rate among `rates` with the lowest error; while the best is at an end of those tried, a
    rate half a decade further is tried too."""
    tried: dict[float, float] = {}
    new = list(rates)
    while new:
        for rate in new:
            found = error(rate)
            tried[rate] = float(found) if np.isfinite(found) else np.inf
        best = min(tried, key=lambda rate: tried[rate])
        further = {min(tried): best / 10**0.5, max(tried): best * 10**0.5}
        new = [further[best]] if best in further and len(tried) < 2 * len(rates) else []
    return best
