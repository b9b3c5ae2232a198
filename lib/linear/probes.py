"""Candidates trained in the place of one FFN, on its rows (Whipp §3.2, §5.3, §5.5)."""

import copy
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from lib.errors import InputError, unknown
from lib.hooks import Rows
from lib.keys import settings, words_of
from lib.lazy import LazyModule, lazily, made
from lib.linear.affine import AffineMap
from lib.linear.candidates import FROZEN, START, WHOLE, build, conjunction_index, mean_gate
from lib.stats import sums
from lib.store import cached, kept

BATCH, CHECKS = 256, 20
MAP = ("weight", "bias")  # the affine part of a branch's module


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
        weights = {"best": self.best, "last": self.last}
        if at not in weights:
            raise InputError(f"weights of checkpoint {at} are not kept: ask for its errors alone.")
        module = build(self.kind, self.d)
        module.load_state_dict(weights[at])
        return module.requires_grad_(False).eval()


@dataclass(frozen=True, eq=False)
class ProbeTraining:
    """All that decides how a candidate is trained in an FFN's place; see `train_probe`."""

    rows: Rows
    block: int
    affine: nn.Module
    kind: str
    steps: int
    seed: int = 42
    start: Literal["closed form", "random"] = "closed form"
    planted: float = 0.0

    @property
    def provenance(self) -> dict[str, str] | None:
        """The training in words, for keys."""
        made_of = self.rows.provenance
        if made_of is None or words_of(self.affine) is None:
            return None
        return made_of | settings(
            self,
            block="block",
            affine="affine map",
            kind="kind",
            steps="steps",
            seed="seed",
            start="start",
            planted="planted share",
        )


@dataclass(frozen=True, eq=False)
class Probe:
    """A trained candidate and its errors; it is trained when it is first used."""

    module: LazyModule
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
    at: Literal["last", "best"] | int = "last",
) -> Probe:
    """One candidate (see `build`) trained in a block's place, as the author's code does.

    AdamW without decay at a constant rate of 0.001, batches of 256 rows with replacement, raw x and
    y. A product or gelu is a branch on the frozen closed-form map `affine`; the others are trained
    whole, a linear or a poly from that map or from a `random` start. The first four fifths of the
    fit rows are trained on; `at` "best", the last fifth has chosen one of 20 checkpoints, which a
    number names (its errors alone are there). Positions
    on which `affine` keeps the FFN are neither trained on nor in the errors. `planted` replaces
    that share of the residual's variance by a random rank-16 product, in both texts: a world where
    there is something to find. Raises InputError for an unknown kind.
    """
    training = ProbeTraining(rows, block, affine, kind, steps, seed, start, planted)
    said = None
    if (made_of := training.provenance) is not None and isinstance(at, str):
        when = "after its last step" if at == "last" else "at its best checkpoint"
        words = ", ".join(f"{name}: {of}" for name, of in made_of.items())
        said = f"{train_layer.version} {when}: {words}"
    module = lazily(
        {kind: said}, lambda: {kind: train_layer(training).module(at)}, rows=rows, map=affine
    )[kind]
    return Probe(module, probe_errors(training, at))


@kept("errors of probes", 1, at="checkpoint")
def probe_errors(
    training: ProbeTraining, at: Literal["last", "best"] | int = "last"
) -> pd.DataFrame:
    """See Probe.errors."""
    trained = train_layer(training)
    named = {"last": -1, "best": trained.best_checkpoint}
    checkpoint = named[at] if isinstance(at, str) else at
    by_window = {
        "error": trained.error[checkpoint],
        "error_closed_form": trained.closed_form,
        "spread": trained.spread,
    }
    document = training.rows.test.document
    columns = {name: sums(values[:, None], document) for name, values in by_window.items()}
    return pd.DataFrame({"document": np.unique(document), **columns})


@cached("probe", 3)
def train_layer(training: ProbeTraining) -> Trained:
    """The training behind `train_probe`."""
    kind, steps, planted = training.kind, training.steps, training.planted
    if kind not in (*FROZEN, *WHOLE):
        raise unknown("candidate", kind, [*FROZEN, *WHOLE])
    if steps < 1 or not 0 <= planted <= 1:
        raise InputError(
            f"a probe cannot be trained in {steps} steps with a planted share of {planted}: give 1 "
            "step or more and a share from 0 to 1."
        )
    affine = copy.deepcopy(made(training.affine)).cpu()
    x, y, x_test, y_test = training.rows[training.block]
    # Only rows that the map computes: [n, d] of the fit text; the test keeps its windows.
    ordinary, scored = ~affine.massive(x), ~affine.massive(x_test)
    x, y = x[ordinary], y[ordinary]
    if planted:
        y, y_test = _planted(planted, affine, x, y, x_test, y_test)
    model = build(kind, x.shape[1], training.seed)
    if kind in FROZEN or (training.start == "closed form" and hasattr(model, "weight")):
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
    train_rows(predict, solver, x, target, steps, training.seed, marks, look)
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
