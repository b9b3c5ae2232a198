"""Position-wise stand-ins for an FFN beyond the affine map: product and two-layer probes, how they
are fitted, and the conjunction index (Whipp §3.2, §3.3, §5.3, §5.5)."""

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from lib.affine import AffineMap
from lib.cache import step
from lib.errors import InputError, unknown
from lib.hooks import Rows
from lib.stats import Interval, ratio, sums

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

        def normal(*shape: int, n: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=g) * n**-0.5)

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


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted candidate in one block's place, and its errors along its training."""

    kind: str
    seed: int
    d: int
    state: dict[str, torch.Tensor]
    """its weights at the checkpoint that was best on held-out fit rows"""
    best: int
    """which checkpoint that was; 0 is before any step, so a residual probe can stay at the map"""
    error: np.ndarray
    """[checkpoints, n]: Σ‖y-ŷ‖² on each test window"""
    linear: np.ndarray
    """[n]: that of the affine map"""
    total: np.ndarray
    """[n]: Σ‖y-ȳ‖², ȳ the mean of each feature over the test windows"""
    cosine: np.ndarray
    """[2, n]: mean cosine of ŷ and y on each test window, of candidate and affine map"""
    gate: tuple[float, float]
    """mean exp(quad_scale) at the start and at the best checkpoint; nan without products"""
    recipe: str | None = None

    @cached_property
    def module(self) -> nn.Module:
        """The candidate, ready to be swapped in."""
        module = build(self.kind, self.d, self.seed)
        module.load_state_dict(self.state)
        module.requires_grad_(False).eval()
        module.recipe = self.recipe
        return module

    @property
    def chosen_error(self) -> np.ndarray:
        """[n]: the error on each test window at the best checkpoint."""
        return self.error[self.best]

    def gain(self, document: np.ndarray, level: float = 0.95) -> Interval:
        """R² less that of the affine map, with its interval over documents."""
        saved = sums((self.linear - self.chosen_error)[:, None], document)
        return ratio(saved, sums(self.total[:, None], document), level=level)


class Units(NamedTuple):
    """What a candidate is trained on: rows scaled to unit RMS."""

    x: torch.Tensor
    """[n, d]"""
    target: torch.Tensor
    """[n, d]: y, or for a branch on the frozen map what the map leaves"""
    scale_x: float
    scale_y: float


@step(version=2)
def fit_probe(
    rows: Rows,
    block: int,
    affine: AffineMap,
    kind: str,
    steps: int,
    seed: int = 42,
    target: str = "ffn",
) -> Fitted:
    """Fit one candidate (see `build`) to a block's FFN by AdamW.

    A product or triple is a branch on the frozen closed-form map `affine`; the others are trained
    whole, a poly from the closed form. Inputs and outputs have unit RMS, gradients are clipped, the
    rate is 2e-3 with a cosine: the paper's scale-aware fit (§5.5), with a schedule of ours. It is
    trained on the first four fifths of the fit rows; the checkpoint is the best on the last fifth.

    `target` "ffn" is the FFN. The others are worlds to compare with: "permuted" gives what the map
    leaves to other positions in the fit text, so that there is nothing to find; the planted ones
    put in its place, in both texts, a random rank-16 product, one of three factors, or a two-layer
    network of width 32, of the same size. Raises InputError for an unknown kind or target.
    """
    model = build(kind, len(affine.bias), seed)
    if target not in TARGETS:
        raise unknown("target", target, [*TARGETS])
    if steps < 1:
        raise InputError(f"a probe cannot be trained in {steps} steps: give 1 or more.")
    affine = copy.deepcopy(affine).cpu()
    x, y, x_test, y_test = with_target(rows[block], affine, target, seed)
    units = in_units(x, y, affine, kind)
    start_at(model, affine, units, kind)
    error_on_test = functools.partial(_test_error, model, x_test, y_test, units)
    gate_at_start = mean_gate(model)
    checkpoints, best = train_probe(model, units, kind, steps, seed, error_on_test)
    checkpoints.restore(best)
    gate = (gate_at_start, mean_gate(model))
    to_raw_units(model, units)
    with torch.no_grad():
        guesses = model(x_test), affine(x_test)
        cosine = [torch.cosine_similarity(g, y_test, dim=-1).double().mean(1) for g in guesses]
    centred = y_test.double() - y_test.double().mean((0, 1))
    return Fitted(
        kind,
        seed,
        x.shape[1],
        dict(model.state_dict()),
        best,
        error=np.stack(checkpoints.error),
        linear=(guesses[1] - y_test).double().square().sum((1, 2)).numpy(),
        total=centred.square().sum((1, 2)).numpy(),
        cosine=torch.stack(cosine).numpy(),
        gate=gate,
    )


def with_target(
    rows: tuple[torch.Tensor, ...], affine: AffineMap, target: str, seed: int
) -> tuple[torch.Tensor, ...]:
    """x, y [n, d] and x_test, y_test [m, seq_len, d] with what one of TARGETS puts in y's place."""
    x, y, x_test, y_test = rows
    if target == "ffn":
        return x, y, x_test, y_test
    if target == "permuted":
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
        return x, affine(x) + (y - affine(x))[order], x_test, y_test
    # The planted function and its scales are those of the fit text, in both texts.
    size, scale_x = rms(y - affine(x)), rms(x)
    planted = planted_function(target, x.shape[1])
    scale = size / rms(planted(x / scale_x))
    return (
        x,
        affine(x) + scale * planted(x / scale_x),
        x_test,
        affine(x_test) + scale * planted(x_test / scale_x),
    )


def planted_function(target: str, d: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A random function of rows of unit RMS [..., d], the same for the same `target` and width."""
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * shape[0] ** -0.5

    if target == "planted_dense":
        into, out = draw(d, 32), draw(32, d)
        return lambda x: nn.functional.gelu(2 * x @ into) @ out
    factors = [draw(d, 16) for _ in range(2 if target == "planted_product" else 3)]
    out = draw(16, d)
    return lambda x: functools.reduce(torch.mul, [x @ f for f in factors]) @ out


def rms(values: torch.Tensor) -> float:
    """Root mean square."""
    return float(values.double().square().mean().sqrt())


def in_units(x: torch.Tensor, y: torch.Tensor, affine: AffineMap, kind: str) -> Units:
    """Fit rows scaled to unit RMS; the target of a frozen kind is what the map leaves."""
    target = y - affine(x) if kind in FROZEN else y
    scale_x, scale_y = rms(x), rms(target)
    return Units(x / scale_x, target / scale_y, scale_x, scale_y)


@torch.no_grad()
def start_at(model: nn.Module, affine: AffineMap, units: Units, kind: str) -> None:
    """Put a PolyLinear at the closed-form map, in the units it is trained in."""
    if isinstance(model, PolyLinear):
        model.weight.copy_(affine.weight * units.scale_x / units.scale_y)
        model.bias.copy_(affine.bias / units.scale_y)
        if kind in FROZEN:
            model.out.zero_()  # the branch starts at nothing


class Checkpoints:
    """What is kept along a training: weights, error on held-out fit rows, error on test windows."""

    def __init__(self, model: nn.Module):
        self.model, self.states, self.held_out, self.error = model, [], [], []

    def keep(self, held_out: float, error: np.ndarray) -> None:
        self.states.append(copy.deepcopy(self.model.state_dict()))
        self.held_out.append(held_out if math.isfinite(held_out) else math.inf)
        self.error.append(np.nan_to_num(error, nan=np.inf))

    def restore(self, k: int) -> None:
        """Give the model the weights of checkpoint k."""
        self.model.load_state_dict(self.states[k])


def train_probe(
    model: nn.Module,
    units: Units,
    kind: str,
    steps: int,
    seed: int,
    error_on_test: Callable[[], np.ndarray],
) -> tuple[Checkpoints, int]:
    """Train by AdamW, with CHECKS checkpoints and one before any step; which is best on the last
    fifth of the rows, on which nothing is trained."""
    frozen = kind in FROZEN
    predict = model.branch if frozen else model
    learnt = [p for n, p in model.named_parameters() if not (frozen and n in ("weight", "bias"))]
    optimizer = torch.optim.AdamW(learnt, lr=2e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    cut = len(units.x) - len(units.x) // 5
    marks = {round(steps * k / CHECKS) for k in range(CHECKS + 1)}
    generator = torch.Generator().manual_seed(seed)
    checkpoints = Checkpoints(model)
    for k in tqdm(range(steps + 1), desc=kind, delay=2, leave=False):
        if k in marks:
            with torch.no_grad():
                left = predict(units.x[cut:]) - units.target[cut:]
            checkpoints.keep(float(left.square().mean()), error_on_test())
        if k == steps:
            break
        index = torch.randint(cut, (BATCH,), generator=generator)
        loss = (predict(units.x[index]) - units.target[index]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        schedule.step()
    return checkpoints, int(np.argmin(checkpoints.held_out))


@torch.no_grad()
def _test_error(model: nn.Module, x: torch.Tensor, y: torch.Tensor, units: Units) -> np.ndarray:
    """Σ‖y-ŷ‖² of each test window in raw units, x and y [n, seq_len, d] -> [n]."""
    guess = model(x / units.scale_x) * units.scale_y
    return (guess - y).double().square().sum((1, 2)).numpy()


def mean_gate(model: nn.Module) -> float:
    """Mean recruitment gate exp(quad_scale) over output features (Whipp §3.3)."""
    return (
        float(model.quad_scale.detach().exp().mean()) if isinstance(model, PolyLinear) else math.nan
    )


@torch.no_grad()
def to_raw_units(model: nn.Module, units: Units) -> None:
    """The same map between raw units: the scales folded into the first and the last layer."""
    layers = list(model) if isinstance(model, nn.Sequential) else [model]
    for name in ("weight", "factors"):
        if hasattr(layers[0], name):
            getattr(layers[0], name).div_(units.scale_x)
    for name in ("weight", "bias", "out"):
        if hasattr(layers[-1], name):
            getattr(layers[-1], name).mul_(units.scale_y)


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
    if not torch.isfinite(x).all():
        raise InputError(f"{len(x)} rows hold values that are no numbers: leave these rows out.")
    module, x = copy.deepcopy(module).double(), x.double()
    half = torch.zeros(x.shape[1], dtype=torch.bool)
    half[torch.randperm(len(half), generator=torch.Generator().manual_seed(seed))[::2]] = True
    middle = x.mean(0)
    both, none = module(x), module(middle.expand_as(x))
    a, b = module(torch.where(half, x, middle)), module(torch.where(half, middle, x))
    joint, alone = float((both - a - b + none).norm()), float((a + b - 2 * none).norm())
    return joint / (joint + alone) if joint + alone > 0 else 0.0
