"""Linear maps trained by gradient descent, to be read against the closed form (Whipp §5.1, "A
cautionary methodological note")."""

import numpy as np
import torch
from tqdm import tqdm

from lib.cache import step
from lib.errors import InputError
from lib.hooks import Rows

BATCH = 128
FRACTIONS = (0.1, 0.3, 1.0)  # of the stable rate; the best for SGD is picked on fit rows


@step(version=1)
def descend(rows: Rows, block: int, optimizer: str, steps: int, seed: int) -> dict[str, np.ndarray]:
    """Train a linear layer on minibatches of a block's FFN rows, and follow it on the test rows.

    optimizer: "sgd" at the best of three fractions of its stable rate, or "adamw" at 1e-3. Returns
    step [k]; error [k, n]: Σ‖y-ŷ‖² on each test window; total [n]: Σ‖y-ȳ‖²; rate. Nobody scales x
    or y for it: that is the point.
    """
    if optimizer not in ("sgd", "adamw"):
        raise InputError(f"optimizer {optimizer!r} is unknown: use 'sgd' or 'adamw'.")
    x, y, x_test, y_test = rows[block]
    x, x_test = (torch.nn.functional.pad(side, (0, 1), value=1.0) for side in (x, x_test))
    rate = 1e-3
    if optimizer == "sgd":
        stable = len(x) / float(torch.linalg.eigvalsh(x.double().T @ x.double())[-1])
        cut, pilots = len(x) - len(x) // 5, []
        for fraction in FRACTIONS:
            *_, (_, weight) = _train(x[:cut], y[:cut], "sgd", fraction * stable, steps // 10, seed)
            left = (x[cut:] @ weight - y[cut:]).square().mean()
            pilots.append(float(left) if torch.isfinite(left) else np.inf)
        rate = stable * FRACTIONS[int(np.argmin(pilots))]
    marks, errors = [], []
    for mark, weight in _train(x, y, optimizer, rate, steps, seed):
        marks.append(mark)
        errors.append((x_test @ weight - y_test).double().square().sum((1, 2)).numpy())
    centred = y_test.double() - y_test.double().mean((0, 1))
    total = centred.square().sum((1, 2)).numpy()
    return {"step": np.array(marks), "error": np.stack(errors), "total": total, "rate": rate}


def _train(x: torch.Tensor, y: torch.Tensor, optimizer: str, rate: float, steps: int, seed: int):
    """(step, weight [d_in, d_out]) at about twenty log-spaced steps; the last is `steps`."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.rand(x.shape[1], y.shape[1], generator=generator) * 2 - 1  # nn.Linear's
    weight = torch.nn.Parameter(start * x.shape[1] ** -0.5)
    solver = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
    solver = solver([weight], lr=rate, weight_decay=0.0)
    marks = {round(max(1, steps) ** (k / 20)) for k in range(21)}
    for k in tqdm(range(1, max(1, steps) + 1), desc=optimizer, delay=2, leave=False):
        index = torch.randint(len(x), (BATCH,), generator=generator)
        xb, yb = x[index], y[index]
        # Gradient of half the mean of ‖xW - y‖² over rows, without autograd's overhead.
        weight.grad = xb.T @ torch.addmm(yb, xb, weight.data, beta=-1) / BATCH
        solver.step()
        if k in marks:
            yield k, weight.data
