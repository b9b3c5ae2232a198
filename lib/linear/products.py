"""Position-wise stand-ins for an FFN beyond the affine map: product and two-layer probes, how they
are trained, and the conjunction index (Whipp §3.2, §3.3, §5.3, §5.5)."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from lib.errors import InputError, unknown
from lib.hooks import Rows
from lib.keys import later, seal
from lib.linear.affine import AffineMap, Handle
from lib.stats import Interval, ratio, sums
from lib.store import cached, kept

START = -2.0  # initial log gate: exp(-2) = 0.135 (Whipp §5.3)
BATCH, CHECKS = 256, 20
FROZEN = ("product", "gelu")  # a branch on the frozen closed-form map (Whipp §5.3)
MAP = ("weight", "bias")  # the affine part of a branch's module
WHOLE = ("linear", "poly", "poly_wide", "dense2x", "poly2x", "ffn")  # trained whole (§5.5, §5.6)


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
    poly2x: PolyLinear-GELU-PolyLinear; poly_wide: a poly of about the parameters of dense2x.
    """
    if kind not in (*FROZEN, *WHOLE):
        raise unknown("candidate", kind, [*FROZEN, *WHOLE])
    rank = min(16, d)
    if kind == "gelu":
        return GeluLinear(d, rank * 3 // 2, seed)
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


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained candidate in one block's place, and its errors along its training."""

    kind: str
    d: int
    state: dict[str, torch.Tensor]
    """its weights at the checkpoint that was best on held-out fit rows"""
    last_state: dict[str, torch.Tensor]
    """its weights after the last step"""
    best: int
    """which checkpoint was best on held-out fit rows; 0 is before any step"""
    error: np.ndarray
    """[checkpoints, n]: Σ‖y-ŷ‖² on each test window"""
    linear: np.ndarray
    """[n]: that of the affine map"""
    total: np.ndarray
    """[n]: Σ‖y-ȳ‖², ȳ the mean of each feature over the test windows"""
    cosine: np.ndarray
    """[2, n]: mean cosine of ŷ and y on each test window, of the last weights and the affine map"""
    gate: tuple[float, float]
    """mean exp(quad_scale) at the start and at the best checkpoint; nan without products"""
    provenance: str | None = None
    """which training it is, for keys"""

    @property
    def module(self) -> nn.Module:
        """The candidate at its best checkpoint, ready to be swapped in."""
        return self._at(self.state, "best")

    @property
    def module_at_end(self) -> nn.Module:
        """The candidate after its last step."""
        return self._at(self.last_state, "last")

    def _at(self, state: dict[str, torch.Tensor], which: str) -> nn.Module:
        module = build(self.kind, self.d)
        module.load_state_dict(state)
        module.requires_grad_(False).eval()
        return seal(module, self.provenance and f"{self.provenance}, {which}")

    @property
    def chosen_error(self) -> np.ndarray:
        """[n]: the error on each test window at the checkpoint best on held-out fit rows."""
        return self.error[self.best]

    @property
    def printed_error(self) -> np.ndarray:
        """[n]: the error at the checkpoint best on these very windows, the paper's reading."""
        return self.error[self.error.sum(1).argmin()]

    def gain(self, document: np.ndarray, level: float = 0.95) -> Interval:
        """R² less that of the affine map, with its interval over documents."""
        saved = sums((self.linear - self.chosen_error)[:, None], document)
        return ratio(saved, sums(self.total[:, None], document), level=level)


def fit_probe(
    rows: Rows,
    block: int,
    affine: AffineMap,
    kind: str,
    steps: int,
    seed: int = 42,
    start: Literal["closed form", "random"] = "closed form",
    planted: float = 0.0,
) -> Fitted:
    """Train one candidate (see `build`) in a block's place, as the author's code does.

    AdamW without decay at a constant rate of 0.001, batches of 256 rows with replacement, raw x and
    y. A product or gelu is a branch on the frozen closed-form map `affine`; the others are trained
    whole, a linear or a poly from that map or from a `random` start. The first four fifths of the
    fit rows are trained on, the last fifth chooses a checkpoint. Positions on which `affine` keeps
    the FFN (a repaired map) are neither trained on nor in its errors. `planted` replaces that share
    of the residual's variance by a random rank-16 product, in both texts: a world where there is
    something to find. Raises InputError for an unknown kind.
    """
    given = (rows, block, affine, kind, steps, seed, start, planted)
    key = _fit_probe.key(*given)
    return replace(_fit_probe(*given), provenance=key and f"{key.name} {key.digest}")


@dataclass(frozen=True, eq=False)
class Probe:
    """A candidate after its last step, and its errors; it is trained when it is first used."""

    module: Handle
    errors: pd.DataFrame
    """by test document: error, that of the closed form, spread (Σ‖y-ȳ‖² about each feature's
    mean)"""

    @property
    def r2(self) -> float:
        """Held-out R² after the last step."""
        return float(1 - self.errors.error.sum() / self.errors.spread.sum())

    @property
    def r2_closed_form(self) -> float:
        """That of the affine map in closed form, on the same rows."""
        return float(1 - self.errors.error_closed_form.sum() / self.errors.spread.sum())


def train_probe(
    rows: Rows,
    block: int,
    affine: nn.Module,
    kind: str,
    steps: int,
    seed: int = 42,
    start: Literal["closed form", "random"] = "closed form",
) -> Probe:
    """A candidate trained as in `fit_probe`, as it is after its last step."""
    given = (rows, block, affine, kind, steps, seed, start)
    key = _fit_probe.key(*given)
    said = None
    if key is not None:
        made_of = ", ".join(f"{name}: {words}" for name, words in key.words.items())
        said = f"{_fit_probe.version} after its last step: {made_of}"
    trained = later(lambda: fit_probe(*given).module_at_end, rows=rows, map=affine)
    return Probe(Handle(said, lambda: trained(lambda module: module)), probe_errors(*given))


@kept("errors of probes", 1, affine="affine map")
def probe_errors(
    rows: Rows,
    block: int,
    affine: nn.Module,
    kind: str,
    steps: int,
    seed: int = 42,
    start: Literal["closed form", "random"] = "closed form",
) -> pd.DataFrame:
    """See Probe.errors."""
    fitted = fit_probe(rows, block, affine, kind, steps, seed, start)
    document = rows.test.document

    def by_document(of_window: np.ndarray) -> np.ndarray:
        return sums(of_window[:, None], document)

    return pd.DataFrame(
        {
            "document": np.unique(document),
            "error": by_document(fitted.error[-1]),
            "error_closed_form": by_document(fitted.linear),
            "spread": by_document(fitted.total),
        }
    )


@cached("probe", 3, affine="affine map", planted="planted share")
def _fit_probe(
    rows: Rows,
    block: int,
    affine: AffineMap,
    kind: str,
    steps: int,
    seed: int = 42,
    start: Literal["closed form", "random"] = "closed form",
    planted: float = 0.0,
) -> Fitted:
    """`fit_probe` itself."""
    if kind not in (*FROZEN, *WHOLE):
        raise unknown("candidate", kind, [*FROZEN, *WHOLE])
    if steps < 1 or not 0 <= planted <= 1:
        raise InputError(
            f"a probe cannot be trained in {steps} steps with a planted share of {planted}: give 1 "
            "step or more and a share from 0 to 1."
        )
    affine = copy.deepcopy(affine).cpu()
    x, y, x_test, y_test = rows[block]
    # Only rows that the map computes: [n, d] of the fit text; the test keeps its windows.
    ordinary, scored = ~affine.massive(x), ~affine.massive(x_test)
    x, y = x[ordinary], y[ordinary]
    if planted:
        y, y_test = _planted(planted, affine, x, y, x_test, y_test)
    model = build(kind, x.shape[1], seed)
    if kind in FROZEN or (start == "closed form" and hasattr(model, "weight")):
        _start_at(model, affine)
    gate_at_start = mean_gate(model)

    # A branch on the frozen map learns what the map leaves.
    left, left_test = y - affine(x), y_test - affine(x_test)
    frozen = kind in FROZEN
    predict = model.branch if frozen else model
    target, target_test = (left, left_test) if frozen else (y, y_test)

    def squared_error(difference: torch.Tensor) -> np.ndarray:  # [n, seq_len, d] -> [n]
        by_position = difference.double().square().sum(2) * scored
        return by_position.sum(1).numpy()

    @torch.no_grad()
    def error_on_test() -> np.ndarray:
        return squared_error(predict(x_test) - target_test)

    learnt = [p for name, p in model.named_parameters() if not frozen or name not in MAP]
    kept = _train(model, predict, learnt, x, target, steps, seed, error_on_test)
    states, held_out, error = kept
    best = int(np.argmin(held_out))
    with torch.no_grad():
        guesses = model(x_test), affine(x_test)  # after the last step
        cosine = [torch.cosine_similarity(g, y_test, dim=-1).double().mean(1) for g in guesses]
    model.load_state_dict(states[best])
    return Fitted(
        kind,
        x.shape[1],
        states[best],
        states[-1],
        best,
        error=np.nan_to_num(np.stack(error), nan=np.inf),
        linear=squared_error(left_test),
        total=squared_error(y_test.double() - y_test[scored].double().mean(0)),
        cosine=torch.stack(cosine).numpy(),
        gate=(gate_at_start, mean_gate(model)),
    )


def _planted(
    share: float,
    affine: AffineMap,
    x: torch.Tensor,
    y: torch.Tensor,
    x_test: torch.Tensor,
    y_test: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """y and y_test whose residuals about the map are for `share` of their variance a random rank-16
    product of x; function and scales are those of the fit text, in both texts."""
    product, residual = planted_product(x.shape[1]), y - affine(x)
    scale_x = rms(x)
    scale = rms(residual) / rms(product(x / scale_x))

    def mixed(inputs: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
        found = scale * product(inputs / scale_x)
        return affine(inputs) + (1 - share) ** 0.5 * rest + share**0.5 * found

    return mixed(x, residual), mixed(x_test, y_test - affine(x_test))


def planted_product(d: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A random rank-16 product of rows of unit RMS [..., d], the same for the same width."""
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * shape[0] ** -0.5

    u, v, out = draw(d, 16), draw(d, 16), draw(16, d)
    return lambda x: ((x @ u) * (x @ v)) @ out


def rms(values: torch.Tensor) -> float:
    """Root mean square."""
    return float(values.double().square().mean().sqrt())


@torch.no_grad()
def _start_at(model: nn.Module, affine: AffineMap) -> None:
    """Put the affine part of a candidate at the closed-form map."""
    weight = affine.weight.T if isinstance(model, nn.Linear) else affine.weight
    model.weight.copy_(weight)
    model.bias.copy_(affine.bias)


@torch.enable_grad()
def _train(
    model: nn.Module,
    predict: Callable[[torch.Tensor], torch.Tensor],
    learnt: list[nn.Parameter],
    x: torch.Tensor,
    target: torch.Tensor,
    steps: int,
    seed: int,
    error_on_test: Callable[[], np.ndarray],
) -> tuple[list[dict], list[float], list[np.ndarray]]:
    """Train `learnt`, with CHECKS evenly spaced checkpoints and one before any step.

    Returns of each checkpoint the model's weights, the error on the last fifth of the rows, on
    which nothing is trained, and the errors of the test windows.
    """
    optimizer = torch.optim.AdamW(learnt, lr=1e-3, weight_decay=0.0)
    cut = len(x) - len(x) // 5
    marks = {round(steps * k / CHECKS) for k in range(CHECKS + 1)}
    generator = torch.Generator().manual_seed(seed)
    states, held_out, error = [], [], []
    for k in tqdm(range(steps + 1), desc="probe", delay=2, leave=False):
        if k in marks:
            with torch.no_grad():
                value = float((predict(x[cut:]) - target[cut:]).double().square().mean())
            states.append(copy.deepcopy(model.state_dict()))
            held_out.append(value if math.isfinite(value) else math.inf)
            error.append(error_on_test())
        if k == steps:
            break
        index = torch.randint(cut, (BATCH,), generator=generator)
        loss = (predict(x[index]) - target[index]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return states, held_out, error


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
