"""Layers trained on one FFN's rows: stand-ins beyond the affine map (Whipp §3.2, §5.3, §5.5), the
map itself by gradient descent (§5.1), and what each leaves of the FFN."""

import copy
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from lib.errors import InputError, unknown
from lib.hooks import Rows
from lib.keys import later
from lib.linear.affine import ROUNDING, AffineMap, Handle, made, precision_of
from lib.linear.moments import Moments
from lib.stats import sums
from lib.store import cached, kept

START = -2.0  # initial log gate: exp(-2) = 0.135 (Whipp §5.3)
BATCH, CHECKS = 256, 20
FROZEN = ("product", "gelu")  # a branch on the frozen closed-form map (Whipp §5.3)
MAP = ("weight", "bias")  # the affine part of a branch's module
WHOLE = ("linear", "poly", "poly_wide", "gelu_beside", "dense2x", "poly2x", "ffn")  # §5.5, §5.6
Optimizer = Literal["sgd", "adamw"]
SOLVERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
Standardized = Literal["", "inputs", "outputs"]
"""the side of a layer whose features are given mean 0 and SD 1 for its training"""


# Candidates


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


# Training


def n_trained(x: torch.Tensor) -> int:
    """How many of rows x [n, d], the first four fifths, are trained on."""
    return len(x) - len(x) // 5


@torch.enable_grad()
def train_rows(
    predict: Callable[[torch.Tensor], torch.Tensor],
    solver: torch.optim.Optimizer,
    x: torch.Tensor,
    y: torch.Tensor,
    steps: int,
    seed: int,
    marks: Collection[int],
    at_mark: Callable[[], None],
) -> None:
    """Least squares by a solver, as the author's code does: batches of 256 of the rows x, y [n, d]
    that are trained on, with replacement. `at_mark` is called after each of `marks` steps."""
    generator = torch.Generator().manual_seed(seed)
    for k in tqdm(range(steps + 1), desc="training on rows", delay=2, leave=False):
        if k in marks:
            with torch.no_grad():
                at_mark()
        if k == steps:
            break
        index = torch.randint(n_trained(x), (BATCH,), generator=generator)
        loss = (predict(x[index]) - y[index]).square().mean()
        solver.zero_grad()
        loss.backward()
        solver.step()


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained candidate, and its errors along its training."""

    kind: str
    d: int
    best: dict[str, torch.Tensor]
    """its weights at the checkpoint that was best on held-out fit rows"""
    last: dict[str, torch.Tensor]
    """its weights after the last step"""
    best_checkpoint: int
    """0 is before any step"""
    error: np.ndarray
    """[checkpoints, n]: Σ‖y-ŷ‖² on each test window"""
    closed_form: np.ndarray
    """[n]: that of the affine map"""
    spread: np.ndarray
    """[n]: Σ‖y-ȳ‖², ȳ the mean of each feature over the test windows"""

    def module(self, at: str) -> nn.Module:
        """The candidate as it is `at` its "best" checkpoint or its "last" step."""
        module = build(self.kind, self.d)
        module.load_state_dict(self.best if at == "best" else self.last)
        return module.requires_grad_(False).eval()


@dataclass(frozen=True, eq=False)
class Probe:
    """A trained candidate and its errors; it is trained when it is first used."""

    module: Handle
    errors: pd.DataFrame
    """by test document: error, that of the closed form, spread (Σ‖y-ȳ‖² about each feature's
    mean)"""

    @property
    def r2(self) -> float:
        """Held-out R²."""
        return float(1 - self.errors.error.sum() / self.errors.spread.sum())


def train_probe(
    rows: Rows,
    block: int,
    affine: nn.Module,
    kind: str,
    steps: int,
    seed: int = 42,
    start: Literal["closed form", "random"] = "closed form",
    planted: float = 0.0,
    at: Literal["last", "best"] = "last",
) -> Probe:
    """One candidate (see `build`) trained in a block's place, as the author's code does.

    AdamW without decay at a constant rate of 0.001, batches of 256 rows with replacement, raw x and
    y. A product or gelu is a branch on the frozen closed-form map `affine`; the others are trained
    whole, a linear or a poly from that map or from a `random` start. The first four fifths of the
    fit rows are trained on; `at` "best", the last fifth has chosen one of 20 checkpoints. Positions
    on which `affine` keeps the FFN are neither trained on nor in the errors. `planted` replaces
    that share of the residual's variance by a random rank-16 product, in both texts: a world where
    there is something to find. Raises InputError for an unknown kind.
    """
    given = (rows, block, affine, kind, steps, seed, start, planted)
    key = train_layer.key(*given)
    said = None
    if key is not None:
        made_of = ", ".join(f"{name}: {words}" for name, words in key.words.items())
        when = "after its last step" if at == "last" else "at its best checkpoint"
        said = f"{train_layer.version} {when}: {made_of}"
    trained = later(lambda: train_layer(*given), rows=rows, map=affine)
    module = Handle(said, lambda: trained(lambda of: of.module(at)))
    return Probe(module, probe_errors(*given, at))


@kept("errors of probes", 1, affine="affine map", planted="planted share", at="checkpoint")
def probe_errors(
    rows: Rows,
    block: int,
    affine: nn.Module,
    kind: str,
    steps: int,
    seed: int = 42,
    start: Literal["closed form", "random"] = "closed form",
    planted: float = 0.0,
    at: Literal["last", "best"] | int = "last",
) -> pd.DataFrame:
    """See Probe.errors; `at` a number: at that checkpoint, of 20 evenly spaced ones."""
    trained = train_layer(rows, block, affine, kind, steps, seed, start, planted)
    named = {"last": -1, "best": trained.best_checkpoint}
    checkpoint = named[at] if isinstance(at, str) else at
    by_window = {
        "error": trained.error[checkpoint],
        "error_closed_form": trained.closed_form,
        "spread": trained.spread,
    }
    document = rows.test.document
    columns = {name: sums(values[:, None], document) for name, values in by_window.items()}
    return pd.DataFrame({"document": np.unique(document), **columns})


@cached("probe", 3, affine="affine map", planted="planted share")
def train_layer(
    rows: Rows,
    block: int,
    affine: nn.Module,
    kind: str,
    steps: int,
    seed: int = 42,
    start: Literal["closed form", "random"] = "closed form",
    planted: float = 0.0,
) -> Trained:
    """The training behind `train_probe`."""
    if kind not in (*FROZEN, *WHOLE):
        raise unknown("candidate", kind, [*FROZEN, *WHOLE])
    if steps < 1 or not 0 <= planted <= 1:
        raise InputError(
            f"a probe cannot be trained in {steps} steps with a planted share of {planted}: give 1 "
            "step or more and a share from 0 to 1."
        )
    affine = copy.deepcopy(made(affine)).cpu()
    x, y, x_test, y_test = rows[block]
    # Only rows that the map computes: [n, d] of the fit text; the test keeps its windows.
    ordinary, scored = ~affine.massive(x), ~affine.massive(x_test)
    x, y = x[ordinary], y[ordinary]
    if planted:
        y, y_test = _planted(planted, affine, x, y, x_test, y_test)
    model = build(kind, x.shape[1], seed)
    if kind in FROZEN or (start == "closed form" and hasattr(model, "weight")):
        _start_at(model, affine)
        if kind == "gelu_beside":  # at the map, as products are by their gate
            model.out.weight.data *= math.exp(START)

    # A branch on the frozen map learns what the map leaves.
    left, left_test = y - affine(x), y_test - affine(x_test)
    predict = model.branch if kind in FROZEN else model
    target, target_test = (left, left_test) if kind in FROZEN else (y, y_test)
    learnt = [p for n, p in model.named_parameters() if kind not in FROZEN or n not in MAP]

    def squared_error(difference: torch.Tensor) -> np.ndarray:  # [n, seq_len, d] -> [n]
        by_position = difference.double().square().sum(2) * scored
        return by_position.sum(1).numpy()

    states, held_out, error = [], [], []

    def look() -> None:
        beyond = slice(n_trained(x), None)
        value = float((predict(x[beyond]) - target[beyond]).double().square().mean())
        states.append(copy.deepcopy(model.state_dict()))
        held_out.append(value if math.isfinite(value) else math.inf)
        error.append(squared_error(predict(x_test) - target_test))

    solver = torch.optim.AdamW(learnt, lr=1e-3, weight_decay=0.0)
    marks = {round(steps * k / CHECKS) for k in range(CHECKS + 1)}
    train_rows(predict, solver, x, target, steps, seed, marks, look)
    best = int(np.argmin(held_out))
    return Trained(
        kind,
        x.shape[1],
        states[best],
        states[-1],
        best,
        error=np.nan_to_num(np.stack(error), nan=np.inf),
        closed_form=squared_error(left_test),
        spread=squared_error(y_test.double() - y_test[scored].double().mean(0)),
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


# The map by gradient descent


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
    mean, change = torch.zeros(x.shape[1]), None
    if whiten:
        mean, change = _whitening(x[:cut])
    elif standardized == "inputs":
        mean, scale = _mean_and_scale(x[:cut])
        change = torch.diag(1 / scale)
    y_mean, y_scale = torch.zeros(y.shape[1]), torch.ones(y.shape[1])
    if standardized == "outputs":
        y_mean, y_scale = _mean_and_scale(y[:cut])

    def inputs(side: torch.Tensor) -> torch.Tensor:
        return side if change is None else (side - mean) @ change

    x, x_test, y = inputs(x), inputs(x_test), (y - y_mean) / y_scale
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
        weight, bias = model.weight.detach().T, model.bias.detach()
        if change is not None:  # the same map of raw inputs
            weight, bias = change @ weight, bias - mean @ change @ weight
        trained = AffineMap(weight * y_scale, bias * y_scale + y_mean)
    return Descent(rate, np.array(marks), np.array(held_out), np.stack(error), trained)


@cached("closed form beside trained layers", 1)
def closed_form(rows: Rows, block: int) -> Descent:
    """Exact least squares on the rows that `descend` trains on, in the form of its result."""
    x, y, x_test, y_test = rows[block]
    cut = n_trained(x)
    affine = Moments.of(x[:cut], y[:cut]).fit()
    affine = AffineMap(affine.weight.float(), affine.bias.float())
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
    if optimizer == "closed form":
        run = closed_form(rows, block)
    else:
        rate = rates[0]
        with rows.subject.unchanging():  # its weights are looked at once for all keys
            if len(rates) > 1:
                search = (rates, steps // 6, seed, whiten, standardized)
                rate = search_rate(rows, block, optimizer, *search)
            run = descend(rows, block, optimizer, rate, steps, seed, kind, whiten, standardized)
    windows = rows.test.document
    before = pd.DataFrame({"step": run.step[:-1], "document": -1, "error": run.error[:-1].sum(1)})
    end = {"step": run.step[-1], "document": np.unique(windows)}
    of_document = pd.DataFrame(end | {"error": sums(run.error[-1][:, None], windows)})
    return pd.concat([before, of_document], ignore_index=True).assign(rate=run.rate)


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


def search_rate(
    rows: Rows,
    block: int,
    optimizer: Optimizer,
    rates: Sequence[float],
    steps: int,
    seed: int,
    whiten: bool = False,
    standardized: Standardized = "",
) -> float:
    """The rate among `rates` with the lowest error on held-out fit rows after so many steps; while
    the best is at an end of those tried, a rate half a decade further is tried too."""
    tried: dict[float, float] = {}
    new = list(rates)
    while new:
        for rate in new:
            how = dict(whiten=whiten, standardized=standardized)
            run = descend(rows, block, optimizer, rate, steps, seed, **how)
            end = run.held_out[-1]
            tried[rate] = float(end) if np.isfinite(end) else np.inf
        best = min(tried, key=lambda rate: tried[rate])
        further = {min(tried): best / 10**0.5, max(tried): best * 10**0.5}
        new = [further[best]] if best in further and len(tried) < 2 * len(rates) else []
    return best


# What a layer does


@kept("cosines of probes", 1, module="layer")
def cosines(rows: Rows, block: int, module: nn.Module) -> pd.DataFrame:
    """How a layer's outputs lie to the FFN's (Whipp §3.3, activation fit): by test document, the
    sum of their cosines and the positions."""
    _, _, x, y = rows[block]
    cosine = torch.cosine_similarity(made(module)(x), y, dim=-1).double().numpy()  # [n, position]
    document = rows.test.document
    columns = {"cosine": cosine, "positions": np.ones_like(cosine)}
    by_document = {name: sums(values, document) for name, values in columns.items()}
    return pd.DataFrame({"document": np.unique(document), **by_document})


@kept("signs of products", 1, module="layer")
def signs(rows: Rows, block: int, module: nn.Module) -> pd.DataFrame:
    """Whether a layer computes conjunctions (Whipp §3.3, §5.3): its conjunction index on the test
    rows, and its mean recruitment gate."""
    layer, x = made(module), rows[block][2].flatten(0, 1)
    return pd.DataFrame([{"conjunction": conjunction_index(layer, x), "gate": mean_gate(layer)}])


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
