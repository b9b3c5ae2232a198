"""Layers that may stand in for an FFN beside the affine map (Whipp §3.2, §5.3, §5.5), and what such
a layer computes (§3.3)."""

import copy
import math

import torch
from torch import nn

from lib.errors import InputError, unknown

START = -2.0  # initial log gate: exp(-2) = 0.135 (Whipp §5.3)
FROZEN = ("product", "gelu")  # a branch on the frozen closed-form map (Whipp §5.3)
WHOLE = ("linear", "poly", "poly_wide", "gelu_beside", "dense2x", "poly2x", "ffn")  # §5.5, §5.6


class PolyLinear(nn.Module):
    """y = x W + b + exp(quad_scale) ∘ ((x F_1) ∘ (x F_2)) P: a linear term and `rank` products of
    two projections (Whipp §3.2). At d = 768 and rank 16 it has 628,224 parameters."""

    def __init__(self, d: int, rank: int = 16, seed: int = 42):
        super().__init__()
        if not 1 <= rank <= d:
            raise InputError(f"rank {rank} is not possible at width {d}: use 1 to {d}.")
        g = torch.Generator().manual_seed(seed)

        def normal(*shape: int, n: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=g) * n**-0.5)

        self.weight, self.bias = normal(d, d, n=d), nn.Parameter(torch.zeros(d))
        self.factors = normal(2, d, rank, n=d)
        self.out = normal(rank, d, n=rank)
        self.quad_scale = nn.Parameter(torch.full((d,), START))

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        """The product term alone."""
        products = (x @ self.factors[0]) * (x @ self.factors[1])  # [..., rank]
        return self.quad_scale.exp() * (products @ self.out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., d] -> [..., d]
        return x @ self.weight + self.bias + self.branch(x)


class GeluLinear(nn.Module):
    """y = x W + b + GELU(x A + a) B: a linear term and a few hidden units, as many as have the
    parameters of a rank-16 product; the control of whether a product is what helps."""

    def __init__(self, d: int, hidden: int, seed: int = 42):
        super().__init__()
        like = PolyLinear(d, 1, seed)
        self.weight, self.bias = like.weight, like.bias
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.into, self.out = nn.Linear(d, hidden), nn.Linear(hidden, d, bias=False)
        nn.init.zeros_(self.out.weight)  # it starts at the map

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        """The hidden units alone."""
        return self.out(nn.functional.gelu(self.into(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., d] -> [..., d]
        return x @ self.weight + self.bias + self.branch(x)


def build(kind: str, d: int, seed: int = 42) -> nn.Module:
    """A fresh candidate. Raises InputError for an unknown kind.

    product, poly: a bilinear term of rank 16 beside a linear one; gelu: hidden units of the same
    parameters; linear: an affine map; dense2x: Linear-GELU-Linear, d wide; ffn: the same, 4 d wide;
    poly2x: PolyLinear-GELU-PolyLinear; poly_wide, gelu_beside: a linear term beside products, or
    beside hidden units, of about the parameters of dense2x.
    """
    if kind not in (*FROZEN, *WHOLE):
        raise unknown("candidate", kind, [*FROZEN, *WHOLE])
    rank = min(16, d)
    if kind == "gelu":
        return GeluLinear(d, rank * 3 // 2, seed)
    if kind == "gelu_beside":
        return _as_random(GeluLinear(d, d // 2, seed), seed)
    if kind in ("product", "poly"):
        return _uniform(PolyLinear(d, rank, seed), seed)
    if kind == "poly_wide":
        return _uniform(PolyLinear(d, d // 3, seed), seed)
    if kind == "poly2x":
        first, second = (build("poly", d, s) for s in (seed, seed + 2**31))
        return nn.Sequential(first, nn.GELU(), second)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "linear":
            return nn.Linear(d, d)
        hidden = d if kind == "dense2x" else 4 * d
        return nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, d))


def _uniform(poly: PolyLinear, seed: int) -> PolyLinear:
    """The paper's random start: each matrix uniform within ± one over the root of its inputs."""
    generator = torch.Generator().manual_seed(seed)
    for matrix in (poly.weight, poly.factors, poly.out):
        limit = matrix.shape[-2] ** -0.5
        nn.init.uniform_(matrix, -limit, limit, generator=generator)
    return poly


def _as_random(layer: GeluLinear, seed: int) -> GeluLinear:
    """The random start of `_uniform` and of nn.Linear, in the place of that at a map."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        nn.init.uniform_(layer.weight, -(len(layer.weight) ** -0.5), len(layer.weight) ** -0.5)
        layer.out.reset_parameters()
    return layer


def mean_gate(model: nn.Module) -> float:
    """Mean recruitment gate exp(quad_scale) over output features (Whipp §3.3)."""
    return (
        float(model.quad_scale.detach().exp().mean()) if isinstance(model, PolyLinear) else math.nan
    )


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
