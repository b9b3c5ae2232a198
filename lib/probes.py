"""Position-wise stand-ins for an FFN beyond the affine map: product and two-layer probes, how they
are fitted, and the conjunction index (Whipp §3.2, §3.3, §5.3, §5.5)."""

import copy
import functools
import math

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from lib.cache import step
from lib.errors import InputError, unknown
from lib.hooks import Rows
from lib.moments import AffineMap
from lib.stats import Interval, interval, sums

START = -2.0  # initial log gate: exp(-2) = 0.135 (Whipp §5.3)
BATCH, CHECKS = 256, 20
FROZEN = ("product", "triple")  # a branch on the frozen closed-form map (Whipp §5.3)
WHOLE = ("poly", "poly_wide", "dense2x", "dense_narrow", "poly2x")  # trained whole (§5.5)
TARGETS = ("ffn", "permuted", "planted_product", "planted_triple", "planted_dense")


class PolyLinear(nn.Module):
    """y = x W + b + exp(quad_scale) ∘ (Π_k x F_k) P: a linear term and `rank` products of `degree`
    projections (Whipp §3.2). At d = 768, rank 16 and degree 2 it has 628,224 parameters."""

    def __init__(self, d: int, rank: int = 16, degree: int = 2, seed: int = 42):
        super().__init__()
        if not 1 <= rank <= d:
            raise InputError(f"rank {rank} is not possible at width {d}: use 1 to {d}.")
        g = torch.Generator().manual_seed(seed)
        normal = lambda *shape, n: nn.Parameter(torch.randn(shape, generator=g) * n**-0.5)
        self.weight, self.bias = normal(d, d, n=d), nn.Parameter(torch.zeros(d))
        self.factors = normal(degree, d, rank, n=d)
        self.out = normal(rank, d, n=rank)
        self.quad_scale = nn.Parameter(torch.full((d,), START))

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        """The product term alone."""
        products = functools.reduce(torch.mul, [x @ f for f in self.factors])  # [..., rank]
        return self.quad_scale.exp() * (products @ self.out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., d] -> [..., d]
        return x @ self.weight + self.bias + self.branch(x)


def build(kind: str, d: int, seed: int = 42) -> nn.Module:
    """A fresh candidate. Raises InputError for an unknown kind.

    product, poly: a bilinear term of rank 16; triple: three factors at the same parameters;
    dense2x: Linear-GELU-Linear, d wide, dense_narrow: d/4 wide; poly2x: PolyLinear-GELU-PolyLinear;
    poly_wide: a poly of about the parameters of dense2x.
    """
    if kind not in (*FROZEN, *WHOLE):
        raise unknown("candidate", kind, [*FROZEN, *WHOLE])
    rank = min(16, d)
    if kind == "triple":
        return PolyLinear(d, max(1, rank * 3 // 4), 3, seed)
    if kind == "poly_wide":
        return PolyLinear(d, d // 3, 2, seed)
    if kind == "poly2x":
        layers = PolyLinear(d, rank, 2, seed), nn.GELU(), PolyLinear(d, rank, 2, seed + 2**31)
        return nn.Sequential(*layers)
    if kind in ("product", "poly"):
        return PolyLinear(d, rank, 2, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hidden = d if kind == "dense2x" else d // 4
        return nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, d))


class Fitted:
    """A fitted candidate in one block's place, and its errors along its training."""

    def __init__(self, kind: str, affine: AffineMap, found: dict, seed: int, recipe: str | None):
        self.module = build(kind, len(affine.bias), seed)
        state = {
            k.removeprefix("state."): torch.from_numpy(v) for k, v in found.items() if "state." in k
        }
        self.module.load_state_dict(state)
        self.module.requires_grad_(False).eval()
        self.module.recipe = recipe
        self.error: np.ndarray = found["error"]
        """[checkpoints, n]: Σ‖y-ŷ‖² on each test window; the first is before any step"""
        self.linear: np.ndarray = found["linear"]
        """[n]: that of the affine map"""
        self.total: np.ndarray = found["total"]
        """[n]: Σ‖y-ȳ‖²"""
        self.cosine: np.ndarray = found["cosine"]
        """[2, n]: mean cosine of ŷ and y on each test window, of candidate and affine map"""
        self.gate: tuple[float, float] = tuple(found["gate"])
        """mean exp(quad_scale) at the start and at the best checkpoint; nan without products"""

    def unseen(self, document: np.ndarray) -> np.ndarray:
        """[n]: the error on each test window at the checkpoint that was best on the other half of
        the documents; checkpoint 0 is among them, so a residual probe can stay at the map."""
        _, index = np.unique(document, return_inverse=True)
        even, found = index % 2 == 0, np.empty(len(index))
        for half in (even, ~even):
            found[half] = self.error[self.error[:, ~half].sum(1).argmin(), half]
        return found

    def gain(self, document: np.ndarray, level: float = 0.95) -> Interval:
        """R² less that of the affine map, with its interval over documents."""
        saved = sums((self.linear - self.unseen(document))[:, None], document)
        total = sums(self.total[:, None], document)
        return interval(lambda w: (w @ saved) / (w @ total), np.arange(len(total)), level)


def fit_probe(
    rows: Rows,
    block: int,
    affine: AffineMap,
    kind: str,
    steps: int,
    seed: int = 42,
    target: str = "ffn",
) -> Fitted:
    """Fit one candidate (see `build`) to a block's FFN by AdamW, the best checkpoint kept.

    A product or triple is a branch on the frozen closed-form map `affine`; the others are trained
    whole, a poly from the closed form. Inputs and outputs have unit RMS, gradients are clipped, the
    rate is 2e-3 with a cosine: the paper's scale-aware fit (§5.5), with a schedule of ours.

    `target` "ffn" is the FFN. The others are worlds to compare with: "permuted" deals what the map
    leaves to other positions in the fit text, so that there is nothing to find; the planted ones
    put in its place, in both texts, a random rank-16 product, one of three factors, or a two-layer
    network of width 32, of the same size. Raises InputError for an unknown kind or target.
    """
    build(kind, 16)
    if target not in TARGETS:
        raise unknown("target", target, [*TARGETS])
    given = (rows, block, affine, kind, steps, seed, target)
    return Fitted(kind, affine, _fit(*given), seed, _fit.recipe(*given))


@torch.no_grad()
def _plant(target: str, x: torch.Tensor, size: float) -> torch.Tensor:
    """A random function of x [..., d] of RMS `size`, the same for the same `target`."""
    d, g = x.shape[-1], torch.Generator().manual_seed(7)
    draw = lambda *shape: torch.randn(shape, generator=g) * shape[0] ** -0.5
    x = x / x.square().mean().sqrt()
    if target == "planted_dense":
        y = nn.functional.gelu(2 * x @ draw(d, 32)) @ draw(32, d)
    else:
        factors = [x @ draw(d, 16) for _ in range(2 if target == "planted_product" else 3)]
        y = functools.reduce(torch.mul, factors) @ draw(16, d)
    return y * (size / y.square().mean().sqrt())


@step(version=1)
def _fit(
    rows: Rows, block: int, affine: AffineMap, kind: str, steps: int, seed: int, target: str
) -> dict:
    x, y, x_test, y_test = rows[block]
    affine = copy.deepcopy(affine).cpu()
    generator = torch.Generator().manual_seed(seed)
    rms = lambda t: float(t.double().square().mean().sqrt())
    frozen, left = kind in FROZEN, y - affine(x)
    if target == "permuted":
        y = affine(x) + left[torch.randperm(len(left), generator=generator)]
    elif target != "ffn":
        size = rms(y_test - affine(x_test))
        y, y_test = (affine(t) + _plant(target, t, size) for t in (x, x_test))
    target = y - affine(x) if frozen else y
    unit_x, unit_y = rms(x), rms(target)
    model = build(kind, x.shape[1], seed)
    if isinstance(model, PolyLinear):
        with torch.no_grad():
            model.weight.copy_(affine.weight * unit_x / unit_y)
            model.bias.copy_(affine.bias / unit_y)
            if frozen:
                model.out.zero_()  # it starts at the map
    learnt = [p for n, p in model.named_parameters() if not (frozen and n in ("weight", "bias"))]
    run = (lambda rows: model.branch(rows)) if frozen else model
    x, target = x / unit_x, target / unit_y
    optimizer = torch.optim.AdamW(learnt, lr=2e-3, weight_decay=0.0)
    rate = lambda s: 0.5 + 0.5 * math.cos(math.pi * s / steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    marks, errors, best = {round(steps * k / CHECKS) for k in range(CHECKS + 1)}, [], None
    start = _gate(model)
    for k in tqdm(range(steps + 1), desc=f"{kind}, block {block}", delay=2, leave=False):
        if k in marks:
            with torch.no_grad():
                left = (model(x_test / unit_x) * unit_y - y_test).double().square().sum((1, 2))
            errors.append(left.nan_to_num(nan=float("inf")))
            if errors[-1].sum() <= min(e.sum() for e in errors):
                best = copy.deepcopy(model.state_dict())
        if k == steps:
            break
        index = torch.randint(len(x), (BATCH,), generator=generator)
        loss = (run(x[index]) - target[index]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        schedule.step()
    model.load_state_dict(best)
    with torch.no_grad():
        cosine = lambda f: torch.cosine_similarity(f(x_test), y_test, dim=-1).double().mean(1)
        made = lambda rows: model(rows / unit_x) * unit_y
        cosines = torch.stack([cosine(made), cosine(affine)])
        linear = (affine(x_test) - y_test).double().square().sum((1, 2))
    gate = [start, _gate(model)]
    _in_units(model, unit_x, unit_y)
    centred = y_test.double() - y_test.double().mean((0, 1))
    found = {"error": torch.stack(errors), "linear": linear, "total": centred.square().sum((1, 2))}
    found |= {"cosine": cosines, "gate": np.array(gate)}
    return found | {f"state.{k}": v for k, v in model.state_dict().items()}


def _gate(model: nn.Module) -> float:
    """Mean recruitment gate exp(quad_scale) over output features (Whipp §3.3)."""
    return (
        float(model.quad_scale.detach().exp().mean()) if isinstance(model, PolyLinear) else math.nan
    )


@torch.no_grad()
def _in_units(model: nn.Module, unit_x: float, unit_y: float) -> None:
    """The same map between raw units: the scales folded into the first and the last layer."""
    layers = list(model) if isinstance(model, nn.Sequential) else [model]
    for name in ("weight", "factors"):
        if hasattr(layers[0], name):
            getattr(layers[0], name).div_(unit_x)
    for name in ("weight", "bias", "out"):
        if hasattr(layers[-1], name):
            getattr(layers[-1], name).mul_(unit_y)


def n_params(module: nn.Module) -> int:
    """Parameters of a module, the frozen buffers of an AffineMap among them."""
    return sum(t.numel() for t in module.state_dict().values())


@torch.no_grad()
def conjunction_index(module: nn.Module, x: torch.Tensor, seed: int = 42) -> float:
    """How much of the response to two halves of the features is there only when both are, in [0, 1]
    (Whipp §3.3 names the idea; the formula is ours).

    x [n, d]; a half is occluded by the mean of x. With f_A, f_B, f_AB, f_0 the responses to one
    half, both and none: joint = f_AB - f_A - f_B + f_0, alone = f_A + f_B - 2 f_0, and the index is
    ‖joint‖ / (‖joint‖ + ‖alone‖), norms over all rows and features. An affine map reads 0, a pure
    AND 1.
    """
    module, x = copy.deepcopy(module).double(), x.double()
    half = torch.zeros(x.shape[1], dtype=torch.bool)
    half[torch.randperm(len(half), generator=torch.Generator().manual_seed(seed))[::2]] = True
    middle = x.mean(0)
    both, none = module(x), module(middle.expand_as(x))
    a, b = module(torch.where(half, x, middle)), module(torch.where(half, middle, x))
    joint, alone = float((both - a - b + none).norm()), float((a + b - 2 * none).norm())
    return joint / (joint + alone) if joint + alone > 0 else 0.0
