"""Linear maps trained by gradient descent, to be read against the closed form (Whipp §5.1, "A
cautionary methodological note").

Two roads to the same curve: minibatch training as anybody would do it, and full-batch gradient
descent, whose iterate after any number of steps is known in closed form from the moments.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch

from lib.second.base.bars import progress
from lib.second.base.cache import cached, digest
from lib.second.base.errors import unknown
from lib.second.linear.affine import AffineMap, score_rows
from lib.second.linear.moments import Moments

Rows = tuple[torch.Tensor, torch.Tensor]
"""x [n, d_in], y [n, d_out]"""


# Constant learning rates. SGD: the best of three fractions of the stable limit (`best_rate`);
# AdamW: a common default.
OPTIMIZERS = {"sgd": "SGD near its stable limit", "adamw": "AdamW, rate 1e-3"}
SGD_FRACTIONS = (0.1, 0.3, 1.0)
BATCH = 128


def checkpoints(steps: int) -> list[int]:
    """About 25 log-spaced steps from 1 to `steps`, with 3,000 among them where it fits (the
    paper reads its baseline there)."""
    return sorted(
        {round(steps ** (k / 24)) for k in range(25)} | {s for s in (3000,) if s <= steps}
    )


def descend(
    rows: Rows, held_out: Rows, optimizer: str, steps: int, seeds: Sequence[int], batch: int = BATCH
) -> pd.DataFrame:
    """Train a linear layer on minibatches of `rows` (x [n, d_in], y [n, d_out]) and follow its
    held-out R².

    Returns one row a seed and checkpoint: columns optimizer, lr, seed, step, r2. A seed sets the
    initial weights (those of nn.Linear) and the order of the minibatches.
    """
    if optimizer not in OPTIMIZERS:
        raise unknown("optimizer", optimizer, list(OPTIMIZERS))
    key = {
        "rows": digest([*rows, *held_out]),
        "optimizer": optimizer,
        "steps": steps,
        "seeds": list(seeds),
        "batch": batch,
    }
    return pd.DataFrame(_descend(key, (rows, held_out, optimizer, steps, seeds, batch)))


@cached
def _descend(work: tuple) -> list[dict]:
    rows, held_out, optimizer, steps, seeds, batch = work
    found = []
    with progress(total=steps * len(seeds), desc=OPTIMIZERS[optimizer], unit="step") as bar:
        rate = 1e-3 if optimizer == "adamw" else best_rate(rows, steps, seeds[0], batch)
        for seed in seeds:
            about = {"optimizer": optimizer, "lr": rate, "seed": seed}
            for step, affine in trained(rows, optimizer, rate, steps, seed, batch, bar):
                found.append(about | {"step": step, "r2": score_rows(affine, *held_out).r2})
    return found


def trained(
    rows: Rows, optimizer: str, rate: float, steps: int, seed: int, batch: int = BATCH, bar=None
) -> Iterator[tuple[int, AffineMap]]:
    """(step, map) at every one of `checkpoints(steps)`, the last of them `steps`, of a linear layer
    trained on minibatches of `rows`. A map is good until the next step is asked for."""
    x, y = rows
    weight = torch.nn.Parameter(initial_weights(x.shape[1], y.shape[1], seed))
    make = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
    solver = make([weight], lr=rate, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    x, marks = torch.cat([x, torch.ones(len(x), 1)], 1), set(checkpoints(steps))
    for step in range(1, steps + 1):
        index = torch.randint(len(x), (batch,), generator=generator)
        xb, yb = x[index], y[index]
        # Gradient of half the mean of ‖xW - y‖² over rows, written out: autograd would only add
        # overhead.
        weight.grad = xb.T @ torch.addmm(yb, xb, weight.data, beta=-1) / batch
        solver.step()
        if bar is not None:
            bar.update()
        if step in marks:
            yield step, AffineMap(weight.data[:-1], weight.data[-1])


def train_map(
    rows: Rows, optimizer: str, rate: float, steps: int, seed: int, batch: int = BATCH, bar=None
) -> AffineMap:
    """The linear map [d_in -> d_out] that `trained` ends with."""
    *_, (_, affine) = trained(rows, optimizer, rate, steps, seed, batch, bar)
    return affine


def best_rate(rows: Rows, steps: int, seed: int, batch: int = BATCH) -> float:
    """Of SGD_FRACTIONS of the stable limit the learning rate with the best R² on the last fifth of
    `rows` after a tenth of the steps on the others: no row that judges the map chooses its rate."""
    x, y = rows
    cut = len(x) - max(1, len(x) // 5)
    rates = [fraction * stable_rate(x) for fraction in SGD_FRACTIONS]
    pilots = (
        train_map((x[:cut], y[:cut]), "sgd", r, max(1, steps // 10), seed, batch) for r in rates
    )
    ends = [score_rows(affine, x[cut:], y[cut:]).r2 for affine in pilots]
    return rates[int(np.argmax([end if np.isfinite(end) else -np.inf for end in ends]))]


def stable_rate(x: torch.Tensor) -> float:
    """1/λ_max of the uncentred second moment of [x, 1]: gradient descent diverges beyond twice
    this learning rate."""
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    augmented = torch.cat([x.double(), ones], 1)
    return 1.0 / float(torch.linalg.eigvalsh(augmented.T @ augmented / len(x))[-1])


def initial_weights(d_in: int, d_out: int, seed: int) -> torch.Tensor:
    """Weights and bias of a fresh nn.Linear as one matrix [d_in + 1, d_out]."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(d_in + 1, d_out, generator=generator) * 2 - 1) * d_in**-0.5


def exact_descent(
    train: Moments, held_out: Moments, rate: float, steps: Sequence[int], seed: int
) -> pd.DataFrame:
    """Held-out R² of full-batch gradient descent on the same loss after each of `steps` steps,
    without taking them.

    With C = E[x̃x̃ᵀ], x̃ = [x, 1] and its eigenvalues c_j, the iterate is W_t = W* + V (1 - ηc)^t
    Vᵀ (W_0 - W*): a direction converges after about 1/(η c_j) steps, so the condition number is the
    number of steps. Columns step, r2, seed.
    """
    d = len(train.mean_x)
    mean = torch.cat([train.mean_x, torch.ones(1, dtype=torch.float64)])
    second = torch.outer(mean, mean)
    second[:d, :d] += train.sxx / train.n  # E[x̃x̃ᵀ]: [d+1, d+1]
    cross = torch.outer(mean, train.mean_y)
    cross[:d] += train.sxy / train.n  # E[x̃yᵀ]: [d+1, d_out]
    c, v = torch.linalg.eigh(second)
    c = c.clamp_min(0)
    start = v.T @ initial_weights(d, len(train.mean_y), seed).double()
    target = v.T @ cross
    rows = []
    for t in steps:
        left = (1 - rate * c).pow(t)  # what is left of the start in each direction
        # (1 - left)/c → ηt where c → 0: a direction without variance never moves.
        gained = torch.where(c > c[-1] * 1e-15, (1 - left) / c.clamp_min(c[-1] * 1e-15), 0.0)
        w = v @ (left[:, None] * start + gained[:, None] * target)
        rows.append({"step": t, "r2": held_out.score(AffineMap(w[:-1], w[-1])).r2, "seed": seed})
    return pd.DataFrame(rows)
