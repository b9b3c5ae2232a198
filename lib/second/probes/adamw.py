"""The paper's way to fit the product branch of a PolyLinear to what a linear map leaves over (Whipp
§5.3): minibatch AdamW on every parameter of the branch."""

import time
from collections.abc import Callable

import torch

from lib.second.probes.paths import Path, Residual, _by_window, _start
from lib.second.probes.products import Layout, PolyLinear, products


def fit_adamw(
    rows: Residual,
    layout: Layout,
    seed: int,
    steps: int,
    batch: int = 256,
    lr: float = 1e-3,
    every: int = 100,
    tick: Callable[[], None] = lambda: None,
) -> Path:
    """The paper's way: AdamW at a constant rate on factors, output map and gate, gradients clipped
    to norm 1, checked every `every` steps.

    The paper gives 8,000 steps; batch size, rate, no weight decay and the initial weights (those of
    PolyLinear) are ours.
    """
    device = rows.x.device
    model = PolyLinear(rows.x.shape[1], rows.left.shape[1], layout, seed).to(device)
    path, branch = (
        _start(rows, model, seed),
        {"factors": model.factors, "out": model.out, "quad_scale": model.quad_scale},
    )
    optimizer = torch.optim.AdamW(branch.values(), lr=lr, weight_decay=0.0)
    generator = torch.Generator().manual_seed(seed)
    predict = lambda x: model.quad_scale.exp() * (products(x @ model.factors, layout) @ model.out)
    spent = 0.0
    for step in range(1, steps + 1):
        begun = time.perf_counter()
        index = torch.randint(len(rows.x), (batch,), generator=generator).to(device)
        loss = (predict(rows.x[index]) - rows.left[index]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(branch.values(), 1.0)
        optimizer.step()
        spent += time.perf_counter() - begun
        if step % every == 0 or step == steps:  # checking is not counted as the solver's time
            with torch.no_grad():
                path.note(
                    step,
                    spent,
                    model.gate,
                    _by_window(predict(rows.x_test) - rows.left_test),
                    branch,
                )
        tick()
    return path
