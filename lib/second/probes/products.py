"""Position-wise stand-ins for an FFN beyond the affine map: polynomial and two-layer probes, and
the conjunction index (Whipp §3.2, §3.3)."""

import copy
import functools
import math
from collections.abc import Callable

import torch
from torch import nn

from lib.second.base.errors import InputError, unknown
from lib.second.linear.affine import AffineMap

Layout = tuple[tuple[int, int], ...]
"""(degree, rank) of each product term, for example ((2, 16),) for a bilinear term of rank 16"""

BILINEAR: Layout = ((2, 16),)
START = -2.0
"""initial log gate: exp(-2) = 0.135 (Whipp §5.3)"""


def products(z: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Products of each term's projections: [..., Σ degree·rank] -> [..., Σ rank]."""
    terms = z.split([degree * rank for degree, rank in layout], -1)
    return torch.cat(
        [
            functools.reduce(torch.mul, t.unflatten(-1, shape).unbind(-2))
            for t, shape in zip(terms, layout, strict=True)
        ],
        -1,
    )


class PolyLinear(nn.Module):
    """y = x W + b + exp(quad_scale) ∘ (products of projections of x) P: a linear term plus
    factorized products (Whipp §3.2).

    With layout ((2, r),) the products are (x U) ∘ (x V), a rank-r bilinear term, and at d = 768, r
    = 16 there are 628,224 parameters. A term (3, r) multiplies three projections (factorization
    machines of higher order, Whipp §8). Raises InputError for a rank beyond the width or a degree
    below 2.
    """

    def __init__(self, d_in: int, d_out: int, layout: Layout = BILINEAR, seed: int = 42):
        super().__init__()
        if not layout:
            raise InputError(
                "a PolyLinear needs a product term: give a layout such as ((2, 16),), or use "
                "an AffineMap."
            )
        for degree, rank in layout:
            if not (isinstance(rank, int) and 1 <= rank <= min(d_in, d_out)):
                raise InputError(
                    f"rank {rank} is not possible for a map from {d_in} to {d_out} features: "
                    f"use a whole number from 1 to {min(d_in, d_out)}."
                )
            if not (isinstance(degree, int) and degree >= 2):
                raise InputError(
                    f"degree {degree} is no product: use a whole number from 2 (bilinear) "
                    "up; the linear term is always there."
                )
        self.layout = tuple(layout)
        generator = torch.Generator().manual_seed(seed)
        normal = lambda *shape, std: nn.Parameter(torch.randn(shape, generator=generator) * std)
        self.weight, self.bias = (
            normal(d_in, d_out, std=d_in**-0.5),
            nn.Parameter(torch.zeros(d_out)),
        )
        self.factors = normal(d_in, sum(degree * rank for degree, rank in layout), std=d_in**-0.5)
        self.out = normal(n := sum(rank for _, rank in layout), d_out, std=n**-0.5)
        self.quad_scale = nn.Parameter(torch.full((d_out,), START))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., d_in] -> [..., d_out]
        return (
            x @ self.weight
            + self.bias
            + self.quad_scale.exp() * (products(x @ self.factors, self.layout) @ self.out)
        )

    @property
    def gate(self) -> float:
        """Mean recruitment gate exp(quad_scale) over output features (Whipp §3.3)."""
        return float(self.quad_scale.exp().mean())

    @torch.no_grad()
    def seeded(self, affine: AffineMap) -> "PolyLinear":
        """Set the linear term to a closed-form map, and hand self back (Whipp §5.3)."""
        self.weight.copy_(affine.weight), self.bias.copy_(affine.bias)
        return self

    def extra_repr(self) -> str:
        d_in, d_out = self.weight.shape
        return f"{d_in} -> {d_out}, layout={self.layout}"


def dense2x(d_in: int, d_out: int, seed: int = 42) -> nn.Sequential:
    """Linear -> GELU -> Linear with a hidden layer as wide as the output: about 2d² parameters
    (Whipp §3.2)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(d_in, d_out), nn.GELU(), nn.Linear(d_out, d_out))


def poly2x(d_in: int, d_out: int, seed: int = 42) -> nn.Sequential:
    """PolyLinear -> GELU -> PolyLinear, the multiplicative counterpart of dense2x (Whipp §5.5)."""
    rank = BILINEAR[0][1]
    layout = ((2, min(rank, d_in, d_out)),)
    return nn.Sequential(
        PolyLinear(d_in, d_out, layout, seed),
        nn.GELU(),
        PolyLinear(d_out, d_out, layout, seed + 2**31),
    )


PROBES: dict[str, Callable[[int, int, int], nn.Module]] = {
    "poly": lambda d_in, d_out, seed: PolyLinear(d_in, d_out, BILINEAR, seed),
    "dense2x": dense2x,
    "poly2x": poly2x,
}


def build_probe(name: str, d_in: int, d_out: int, seed: int = 42) -> nn.Module:
    """A fresh trainable candidate of Whipp §3.2 and §5.5. Raises InputError for an unknown name."""
    if name not in PROBES:
        raise unknown("candidate", name, ["linear", *PROBES])
    return PROBES[name](d_in, d_out, seed)


def n_params(module: nn.Module) -> int:
    """Parameters of a module, the frozen buffers of an AffineMap among them."""
    return sum(t.numel() for t in module.state_dict().values())


@torch.no_grad()
def conjunction_index(
    module: nn.Module,
    x: torch.Tensor,
    half: torch.Tensor,
    baseline: torch.Tensor | None = None,
    chunk: int = 2048,
) -> float:
    """How much of the response to two disjoint halves of the features is there only when both are
    (Whipp §3.3), in [0, 1].

    x [n, d]; half [d] bool: the features of half A, the rest are half B; a half is occluded by
    `baseline` [d] (default: the mean of x). With f_A, f_B the responses to one half alone, f_AB to
    both and f_0 to none,

        joint = f_AB - f_A - f_B + f_0,   alone = (f_A - f_0) + (f_B - f_0),   index = |joint| /
        (|joint| + |alone|),

    norms over all rows and features. The formula is ours; the paper names only the idea. An affine
    map reads 0, a pure AND 1. Computed in float64. Raises InputError if a half is empty or
    something is not finite.
    """
    if half.dtype != torch.bool or half.shape != x.shape[-1:]:
        raise InputError(
            f"half must be {x.shape[-1]} true/false values, one a feature, not {half.dtype} "
            f"of shape {tuple(half.shape)}."
        )
    if not 0 < int(half.sum()) < len(half):
        raise InputError(
            f"one of the two feature halves is empty ({int(half.sum())} of {len(half)} "
            "features are in the first): put features in both."
        )
    if x.dim() != 2 or not len(x):
        raise InputError(f"x must be rows [n, d], at least one, not of shape {tuple(x.shape)}.")
    if baseline is not None and baseline.shape != half.shape:
        raise InputError(
            f"baseline must be {len(half)} values, one a feature, not of shape "
            f"{tuple(baseline.shape)}."
        )
    module, x = copy.deepcopy(module).double(), x.double()  # the caller's keeps its precision
    baseline = x.mean(0) if baseline is None else baseline.double()
    joint = alone = 0.0
    for rows in x.split(chunk):
        both, none = module(rows), module(baseline.expand_as(rows))
        a, b = module(torch.where(half, rows, baseline)), module(torch.where(half, baseline, rows))
        joint += float((both - a - b + none).square().sum())
        alone += float((a + b - 2 * none).square().sum())
    if not math.isfinite(joint + alone):
        raise InputError(
            "the conjunction index is undefined: the module, x or baseline holds values that "
            "are not finite."
        )
    return math.sqrt(joint) / (math.sqrt(joint) + math.sqrt(alone)) if joint + alone > 0 else 0.0


def random_half(d: int, seed: int) -> torch.Tensor:
    """A random half of d features, [d] bool."""
    half = torch.zeros(d, dtype=torch.bool)
    half[torch.randperm(d, generator=torch.Generator().manual_seed(seed))[: d // 2]] = True
    return half
