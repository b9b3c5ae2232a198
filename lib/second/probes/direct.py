"""A solver made for the product branch of a PolyLinear (Whipp §5.3): it works in few output
directions, trains several seeds as one program, and ends with the output map that least squares
gives for the factors found."""

import functools
import math
import time
from collections.abc import Sequence

import torch

from lib.second.base.errors import InputError
from lib.second.probes.paths import Path, Residual, _by_window, _start
from lib.second.probes.products import START, Layout, PolyLinear, products


@torch.no_grad()
def fit_direct(
    rows: Residual,
    layout: Layout,
    seeds: Sequence[int],
    steps: int = 800,
    batch: int = 512,
    rate: float = 2e-3,
    directions: int = 192,
    trim: float = 0.7,
    ridges: Sequence[float] = (0.0, 0.01),
    every: int = 50,
) -> list[Path]:
    """The solver made for the problem; a Path for each seed (a seed sets the initial factors; all
    share the order of the rows).

    What differs from the paper's way, each part chosen on held-out gain:
    - inputs scaled to unit RMS, factors started small, rates relative to the data's scale, cosine
      schedule;
    - the error is followed in the `directions` leading principal directions of the residual only;
    - rows whose error exceeds `trim` times the batch's median are scaled down to it: massive tokens
      no longer set the step;
    - all seeds are columns of one matrix, rows are shuffled once and read in order;
    - with the factors fixed the output map is a least-squares problem; its solutions (plain, and
      ridge) end the path.

    Gradients are written out: the products are few and small, so autograd's overhead would be most
    of the time.
    """
    device, (n, d), n_out = rows.x.device, rows.x.shape, rows.left.shape[1]
    models = [PolyLinear(d, n_out, layout, seed).to(device) for seed in seeds]
    paths = [_start(rows, model, seed) for model, seed in zip(models, seeds, strict=True)]
    begun, checking = time.perf_counter(), 0.0

    scale = float(rows.x.double().square().mean().sqrt())
    if not scale > 0:
        raise InputError(
            "the FFN's input is zero everywhere: there is nothing to fit; check the model's "
            "weights."
        )
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seeds[0])).to(device)
    x, left = rows.x[order] / scale, rows.left[order]
    basis = torch.linalg.eigh(left.T @ left)[1][:, -min(directions, n_out) :]  # [d_out, q]
    target = left @ basis
    size = float(target.square().mean().sqrt())
    x_test, target_test = rows.x_test / scale, rows.left_test @ basis
    # The error in the directions that are not followed.
    beyond = _by_window(rows.left_test) - _by_window(target_test)

    n_products, width = sum(r for _, r in layout), models[0].factors.shape[1]
    # Ours: products start near 1e-4 whatever their degree, so each factor takes its share of that.
    start = torch.cat(
        [torch.full((degree * rank,), 150 ** (-2 / degree)) for degree, rank in layout]
    ).to(device)
    w = torch.cat([model.factors * start for model in models], 1)  # [d, seeds · width]
    p = torch.zeros(len(seeds), n_products, target.shape[1], device=device)
    states = [
        (w, torch.zeros_like(w), torch.zeros_like(w), 1.0),
        (p, torch.zeros_like(p), torch.zeros_like(p), 30 * size),
    ]
    batch = min(batch, n)

    def project(rows_x: torch.Tensor) -> torch.Tensor:  # [..., d] -> [seeds, ..., width]
        return (rows_x @ w).unflatten(-1, (len(seeds), width)).movedim(-2, 0)

    def check(step: int, outs: list[torch.Tensor] | None = None) -> None:
        """Note the held-out error with the trained output map, or with given ones in all
        directions."""
        nonlocal checking
        now = time.perf_counter()
        held = products(project(x_test), layout)
        for k, path in enumerate(paths):
            error = (
                _by_window(held[k] @ p[k] - target_test) + beyond
                if outs is None
                else _by_window(held[k] @ outs[k] - rows.left_test)
            )
            out = p[k] @ basis.T if outs is None else outs[k]
            factors = w[:, k * width : (k + 1) * width] / scale
            branch = {
                "factors": factors,
                "out": out / math.exp(START),
                "quad_scale": models[k].quad_scale,
            }
            path.note(step, now - begun - checking, math.exp(START), error, branch)
        checking += time.perf_counter() - now

    first = 0
    for step in range(1, steps + 1):
        first = 0 if first + batch > n else first
        xb, yb = x[first : first + batch], target[first : first + batch]
        first += batch
        z = project(xb)  # [seeds, batch, width]
        h = products(z, layout)
        error = torch.baddbmm(yb.expand(len(seeds), -1, -1), h, p, beta=-1)  # [seeds, batch, q]
        norm = error.norm(dim=2, keepdim=True)
        error *= (trim * norm.median(1, keepdim=True).values / norm).nan_to_num(1.0).clamp_max(1)
        gradients = (
            xb.T @ _through_products(z, error @ p.mT, layout).movedim(0, 1).flatten(1),
            h.mT @ error,
        )
        fraction = min(step / 20, 0.5 + 0.5 * math.cos(math.pi * step / steps))
        for (value, mean, square, unit), gradient in zip(states, gradients, strict=True):  # Adam
            mean.lerp_(gradient, 0.1)
            square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
            value.addcdiv_(
                mean,
                square.sqrt().div_(math.sqrt(1 - 0.99**step)).add_(1e-12),
                value=-rate * unit * fraction / (1 - 0.9**step),
            )
        if step % every == 0:
            check(step)
    h = products(project(x), layout).double()  # [seeds, n, products]
    gram, cross = h.mT @ h, h.mT @ left.double()
    for ridge in ridges:
        # Relative to each product's own size; the smallest addition keeps a product that died out
        # from being divided by.
        penalty = torch.diag_embed(
            (ridge + 1e-9) * gram.diagonal(dim1=1, dim2=2) + torch.finfo(torch.float64).tiny
        )
        check(steps, list(torch.linalg.solve(gram + penalty, cross).float()))
    return paths


def _through_products(z: torch.Tensor, gradient: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Gradient with respect to the projections z [..., Σ degree·rank] from that with respect to
    their products [..., Σ rank]."""
    parts = []
    grads = gradient.split([rank for _, rank in layout], -1)
    for term, g, shape in zip(
        z.split([degree * rank for degree, rank in layout], -1), grads, layout, strict=True
    ):
        factors = term.unflatten(-1, shape).unbind(-2)
        for k in range(len(factors)):
            others = [f for j, f in enumerate(factors) if j != k]
            parts.append(functools.reduce(torch.mul, others) * g)
    return torch.cat(parts, -1)
