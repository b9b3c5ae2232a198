"""All blocks at once: routers by name and share, refitted maps, and what a routed model costs and
saves (Balogh §3.4, §4.5; the learned-error router and the refit are ours)."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import RidgeCV
from torch import nn
from tqdm import tqdm

from lib.affine import AffineMap
from lib.cache import cached, sealed
from lib.errors import InputError, unknown
from lib.gates import Gate, Masked, Needs, Routed, check_share
from lib.hooks import (
    advance,
    block_pass,
    capture_residual,
    for_windows,
    forward,
    get_block,
    slices,
    swap,
)
from lib.keys import seal, words_of
from lib.model import Subject
from lib.moments import Moments
from lib.sparse import Thinned
from lib.stats import Interval, ratio, sums
from lib.swap import losses
from lib.text import Windows
from lib.tokens import lookup

BATCH = 8
PRIOR = 1.0
"""rows of x that the old map counts as in a refit"""
RIDGES = tuple(np.logspace(0, 5, 6))
"""strengths that RidgeCV chooses among, for standardized x"""


@dataclass(frozen=True, eq=False)
class Errors:
    """How far each block's map is from its FFN on some text, and what x tells of it."""

    error: np.ndarray
    """[blocks, n, position]: ‖y-ŷ‖² of the affine map; a start token has no position"""
    massive: np.ndarray
    """[blocks, n, position], bool: predicted to be massive, so left to the FFN"""
    predicted: np.ndarray
    """[blocks, n, position]: log ‖y-ŷ‖² as each block's router predicts it from x"""
    routers: list[Gate]
    """one a block, d + 1 numbers: minus the predicted log error"""


def learn_errors(subject: Subject, windows: Windows, maps: Mapping[int, AffineMap]) -> Errors:
    """Fit each block's learned-error router: a ridge regression of the log squared error of its map
    on x, over the positions that are not massive. `maps` has every block."""
    key = _learn_errors.key(subject, windows, maps)
    errors = _learn_errors(subject, windows, maps)
    sealed(errors.routers, key and f"{key.name} {key.digest}")
    return errors


@cached("errors of maps", 3, subject="model", windows="text", maps="maps")
def _learn_errors(subject: Subject, windows: Windows, maps: Mapping[int, AffineMap]) -> Errors:
    """`learn_errors` itself."""
    n_blocks = len(subject)
    inputs: list[list[np.ndarray]] = [[] for _ in range(n_blocks)]
    errors: list[list[np.ndarray]] = [[] for _ in range(n_blocks)]
    massives: list[list[np.ndarray]] = [[] for _ in range(n_blocks)]

    def add(b: int, x: torch.Tensor, y: torch.Tensor) -> None:  # [batch, position, d]
        x, y = x.float(), y.float()
        affine = maps[b].to(x.device)
        inputs[b].append(x.cpu().numpy())
        errors[b].append((y - affine(x)).double().square().sum(-1).cpu().numpy())
        massives[b].append(affine.massive(x).cpu().numpy())

    forward(subject, windows, on_ffn=add, desc="errors of the maps")
    error = np.stack([np.concatenate(batches) for batches in errors])
    massive = np.stack([np.concatenate(batches) for batches in massives])
    predicted, routers = [], []
    for b in tqdm(range(n_blocks), desc="error routers", delay=2, leave=False):
        x = np.concatenate(inputs[b])
        inputs[b].clear()  # the rows of a block are large
        ordinary = ~massive[b]
        weight, bias = _fit_log_error(x[ordinary], error[b][ordinary])
        predicted.append(x @ weight + bias)
        # A gate says yes where its score is high: where the predicted error is small.
        gate_weight = torch.tensor(-weight[None], dtype=torch.float32)
        gate_bias = torch.tensor([-bias]).float()
        routers.append(Gate([gate_weight], [gate_bias]))
    return Errors(error, massive, np.stack(predicted), routers)


def _fit_log_error(x: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, float]:
    """Weight [d] and bias of a ridge regression of the log of error [n] on x [n, d]; the strength
    is chosen for standardized x."""
    mean, scale = x.mean(0), x.std(0) + 1e-12
    ridge = RidgeCV(RIDGES).fit((x - mean) / scale, np.log(error + 1e-30))
    weight = ridge.coef_ / scale
    return weight, ridge.intercept_ - mean @ weight


def marginal_costs(errors: Errors, loss_per_error: Sequence[float]) -> np.ndarray:
    """What sending one more position to a block's map is expected to cost, [blocks, n, position],
    nats: its loss per squared error times the squared error expected at the router's score, by
    isotonic regression; infinite where the FFN stays."""
    cost = np.full(errors.error.shape, np.inf)
    for b, rate in enumerate(loss_per_error):
        ordinary = ~errors.massive[b]
        score, error = errors.predicted[b][ordinary], errors.error[b][ordinary]
        expected = IsotonicRegression().fit(score, error).predict(score)
        # A last digit of the score breaks the ties of the steps.
        order = score.argsort().argsort() / len(score)
        cost[b][ordinary] = rate * expected * (1 + 1e-9 * order)
    return cost


def allocate(cost: np.ndarray, share: float) -> np.ndarray:
    """The `share` of all evaluations that cost least, a mask like `cost` [blocks, n, position]."""
    check_share(share)
    n = min(round(share * cost.size), int(np.isfinite(cost).sum()))
    chosen = np.zeros(cost.size, bool)
    chosen[np.argsort(cost, axis=None, kind="stable")[:n]] = True
    return chosen.reshape(cost.shape)


class TrueError(nn.Module):
    """The router that knows: the map where its squared error is at most `limit`."""

    def __init__(
        self, ffn: nn.Module, surrogate: AffineMap, limit: float, words: str | None = None
    ):
        super().__init__()
        self.ffn, self.surrogate, self.limit = ffn, surrogate, limit
        seal(self, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.ffn(x) - self.surrogate(x)).square().sum(-1) <= self.limit


NAMES = ("error", "gate", "token", "random", "oracle")
"""routers: the learned error, a gate of Balogh's, the mean error of the input token, random
positions, the true error"""


@dataclass(frozen=True, eq=False)
class Routers:
    """Routers of every block by name and share, their thresholds set on the text for gates."""

    subject: Subject
    maps: Mapping[int, AffineMap]
    errors: Errors
    """of these maps on the text for gates"""
    gates: Mapping[int, Gate]
    needs: Needs
    """of the text for gates: what its FFNs read, and its tokens"""
    test: Windows
    """the windows that will be routed, which look-ups and random positions are made for"""
    seed: int = 42

    def at(self, name: str, shares: Mapping[int, float]) -> dict[int, Routed]:
        """{block: its FFN with its map}, the map on about this share of its positions.

        Raises InputError for an unknown name and for a share outside 0 to 1.
        """
        if name not in NAMES:
            raise unknown("router", name, NAMES)
        random = np.random.default_rng(self.seed)
        found = {}
        for k, (b, share) in enumerate(shares.items()):
            check_share(share)
            ffn = get_block(self.subject, b).original
            if name == "random":
                mask = random.random(tuple(self.test.tokens.shape)) < share
                router = Masked(mask, f"random share {share!r}, draw {k} of seed {self.seed}")
            elif name == "token":
                router = self._by_token(b, share)
            elif name == "oracle":
                limit = float(np.quantile(self.errors.error[b], share)) if share else -1.0
                words = self._words(f"true error {share!r}", b)
                router = TrueError(ffn, self.maps[b], limit, words)
            else:
                gate = self.errors.routers[b] if name == "error" else self.gates[b]
                x = torch.from_numpy(self.needs.x[b])
                router = gate.at_share(x, share, self.needs.provenance)
            found[b] = Routed(ffn, self.maps[b], router)
        return found

    def _by_token(self, b: int, share: float) -> Masked:
        """The map where the input token has a small mean squared error on the text for gates."""
        # A window's last position has an error, but no need and no token in `needs`.
        error = self.errors.error[b][:, : self.needs.token.shape[1]]
        size = int(max(self.needs.token.max(), self.test.tokens.max())) + 1
        by_token = lookup(error, self.needs.token, size)  # [vocabulary]
        limit = np.quantile(by_token[self.needs.token], share) if share else -1.0
        words = self._words(f"mean error of the token {share!r} of {self.test.provenance}", b)
        return Masked(by_token[self.test.tokens.numpy()] <= limit, words)

    def _words(self, how: str, b: int) -> str | None:
        """A router in words, by what the errors of block `b` were computed from."""
        errors = words_of(self.errors.routers[b])
        return errors and f"{how} by {errors}"


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Losses of a model with modules in several blocks at once, and what they saved."""

    losses: np.ndarray
    """[n, predictions], nats"""
    base: np.ndarray
    """[n, predictions]: of the original model"""
    linear: np.ndarray
    """[blocks, n]: share of a window's positions that a map took"""
    saved: np.ndarray
    """[blocks, n]: share of the multiplications of that block's FFN that were saved"""
    document: np.ndarray
    """[n]"""

    @property
    def added(self) -> np.ndarray:
        """Loss added, summed by document, [documents], nats."""
        return sums(self.losses - self.base, self.document)

    @property
    def predictions(self) -> np.ndarray:
        """Predictions of each document, [documents]."""
        return sums(np.ones_like(self.base), self.document)

    @property
    def cost(self) -> Interval:
        """Relative change of perplexity, over documents."""
        return ratio(self.added, self.predictions).map(np.expm1)

    @property
    def linear_share(self) -> float:
        """Share of all FFN evaluations (a block at a position) that the maps took."""
        return float(self.linear.mean())

    @property
    def saved_share(self) -> float:
        """Share of the arithmetic of all FFNs that was saved, where these are of one size."""
        return float(self.saved.mean())


def evaluate(
    subject: Subject, windows: Windows, models: Mapping[object, Mapping[int, nn.Module]]
) -> dict[object, Evaluation]:
    """Run the model with all modules of each entry of `models` ({name: {block: module}}) in their
    blocks' places at once. Every batch and entry is a cached step."""
    for modules in models.values():
        for block in modules:
            get_block(subject, block)
    parts: dict = {name: [] for name in models}
    base = []
    bar = tqdm(total=len(windows) * len(models), desc="routed", unit="window", delay=2, leave=False)
    with subject.unchanging():
        for start in range(0, len(windows), BATCH):
            chunk = slice(start, start + BATCH)
            base.append(_evaluated(subject, windows[chunk], {})["losses"])
            for name, modules in models.items():
                here = {b: for_windows(m, chunk) for b, m in modules.items()}
                parts[name].append(_evaluated(subject, windows[chunk], here))
                bar.update(len(windows[chunk]))
    bar.close()
    found = {}
    for name, of_batches in parts.items():
        linear, saved = (np.concatenate([p[k] for p in of_batches], 1) for k in ("linear", "saved"))
        swapped = np.concatenate([p["losses"] for p in of_batches])
        found[name] = Evaluation(swapped, np.concatenate(base), linear, saved, windows.document)
    return found


@cached("routed model", 1, subject="model", windows="text", modules="in the FFNs' places")
def _evaluated(subject: Subject, windows: Windows, modules: Mapping[int, nn.Module]) -> dict:
    """Losses of a batch with `modules` in their blocks' places; shares made linear and saved."""
    linear, saved = (np.zeros((len(subject), len(windows))) for _ in range(2))
    with contextlib.ExitStack() as stack:
        for b, module in modules.items():
            stack.enter_context(swap(subject.blocks[b], module))
        found = losses(subject, windows.tokens).cpu().numpy()
    for b, module in modules.items():
        shape = windows.tokens.shape
        used, less = arithmetic_saved(module, subject.blocks[b].n_params, shape)
        # At a start token the FFN stays.
        linear[b] = used[:, subject.n_start :].mean(1)
        saved[b] = less[:, subject.n_start :].mean(1)
    return {"losses": found, "linear": linear, "saved": saved}


def arithmetic_saved(
    module: nn.Module, n_params: int, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """(where a map was used, share of the FFN's multiplications saved), both [n, position], from
    what `module` noted in its last pass; an FFN is counted as one multiplication for each of its
    n_params, biases among them."""
    if isinstance(module, Thinned):
        return np.zeros(shape, bool), module.saved.numpy()
    if not isinstance(module, Routed):
        return np.ones(shape, bool), np.full(shape, _saved_by_map(module, n_params))
    used = module.linear.cpu().numpy()
    saved = np.where(used, _saved_by_map(module.surrogate, n_params), 0.0)
    if isinstance(module.ffn, Thinned) and not used.all():
        saved[~used] = module.ffn.saved.numpy().ravel()
    if isinstance(module.router, Gate):
        saved = saved - sum(w.numel() for w in module.router.weights) / n_params
    return used, saved


def _saved_by_map(affine: AffineMap, n_params: int) -> float:
    """What a map saves where it is used: all but its own d² multiplications, which a constant does
    not have."""
    multiplies = affine.weight.numel() if affine.weight.any() else 0
    return 1 - multiplies / n_params


def at_saving(evaluations: Sequence[Evaluation], saved: float) -> np.ndarray:
    """Loss added by document at a share of the FFN arithmetic saved, [documents], nats: on the
    straight line between the two nearest runs (nothing saved adds nothing), which overstates the
    loss of a convex curve. Raises InputError where no run saves as much."""
    points = sorted(evaluations, key=lambda e: e.saved_share)
    reached = [0.0, *(e.saved_share for e in points)]
    added = np.array([np.zeros_like(points[0].added), *(e.added for e in points)])
    if not 0 <= saved <= reached[-1]:
        raise InputError(
            f"no run saves {saved:.0%} of the FFN arithmetic, the most is {reached[-1]:.0%}: "
            "evaluate a larger share, or ask for less."
        )
    return np.array([np.interp(saved, reached, column) for column in added.T])


def refit(subject: Subject, windows: Windows, modules: Mapping[int, Routed]) -> dict[int, Routed]:
    """Maps fitted anew in order of depth, each on the positions that its router sends it while all
    earlier blocks are routed with their new maps: {block: Routed}.

    One walk down the blocks with the residual streams of all windows in memory.
    """
    found = _refit(subject, windows, modules)
    return {b: _with_map(module, found[b].to(subject.device)) for b, module in modules.items()}


@cached("refitted maps", 3, subject="model", windows="text", modules="routed")
@torch.no_grad()
def _refit(
    subject: Subject, windows: Windows, modules: Mapping[int, Routed]
) -> dict[int, AffineMap]:
    """{block: refitted map}, see `refit`."""
    streams = capture_residual(subject, windows, [0])[0].to(subject.device)
    maps: dict[int, AffineMap] = {}
    for b in tqdm(range(len(subject)), desc="refits", delay=2, leave=False):
        module = subject.blocks[b].ffn
        if b in modules:
            routed = modules[b].to(subject.device)
            x, y = _routed_rows(subject, windows, routed, b, streams)
            affine = shrunk_fit(x, y, routed.surrogate) if len(x) else routed.surrogate
            maps[b] = AffineMap(affine.weight.float(), affine.bias.float())
            module = _with_map(routed, maps[b])
        # The stream goes on as the routed model has it.
        advance(subject, windows, b, module, streams)
    return maps


def _routed_rows(
    subject: Subject, windows: Windows, module: Routed, block: int, streams: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y of a block's FFN, both [rows, d], at the positions that its router sends to the map;
    `streams` [n, position, d] enters the block."""
    rows_x, rows_y = [], []
    for batch in slices(len(windows)):
        x, y, _ = block_pass(subject, block, windows.tokens[batch], streams[batch])
        used = module.at(batch).used(x)
        used[:, : subject.n_start] = False  # a start token stays with the FFN
        rows_x.append(x[used])
        rows_y.append(y[used])
    return torch.cat(rows_x), torch.cat(rows_y)


def _with_map(module: Routed, affine: AffineMap) -> Routed:
    """The same routing to another map."""
    return Routed(module.ffn, module.surrogate.with_affine(affine), module.router)


def shrunk_fit(x: torch.Tensor, y: torch.Tensor, old: AffineMap) -> AffineMap:
    """Ridge regression of rows y [n, d] on x [n, d] that is drawn to an old map where rows are
    few: the ridge is that of PRIOR rows of x's mean variance."""
    residual = Moments.of(x, y - old(x))
    ridge = PRIOR * float(residual.sxx.diagonal().mean()) / residual.n
    correction = residual.fit(ridge)
    weight, bias = correction.weight.float(), correction.bias.float()
    return AffineMap(old.weight + weight, old.bias + bias)
