"""All blocks at once: routers that see x alone, their thresholds, refits, and what a routed model
costs (Balogh §3.4, §4.5; the learned-error router is ours)."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import RidgeCV
from torch import nn
from tqdm import tqdm

from lib.affine import AffineMap
from lib.cache import step
from lib.errors import InputError
from lib.gates import Gate, Routed
from lib.hooks import block_pass, capture_residual, forward, get_block, swap
from lib.model import Subject
from lib.moments import Moments
from lib.stats import Interval, interval, sums
from lib.swap import next_token_losses
from lib.text import Windows

BATCH = 8
PRIOR = 1.0
"""rows of x that the old map counts as in a refit"""
RIDGES = tuple(np.logspace(0, 5, 6))
"""strengths that RidgeCV chooses among, for standardized x"""


@dataclass(frozen=True, eq=False)
class Errors:
    """How far each block's map is from its FFN on some text, and how well x tells."""

    error: np.ndarray
    """[blocks, n, seq_len]: ‖y-ŷ‖² of the affine map"""
    massive: np.ndarray
    """[blocks, n, seq_len], bool: told massive by x, so kept on the FFN"""
    predicted: np.ndarray
    """[blocks, n, seq_len]: log ‖y-ŷ‖² as each block's router reads it from x"""
    routers: list[Gate]
    """one a block, d + 1 numbers: minus the predicted log error"""


def learn_errors(subject: Subject, windows: Windows, maps: Mapping[int, nn.Module]) -> Errors:
    """Fit each block's learned-error router: a ridge regression of the log squared error of its map
    on x, over the tokens that are not massive."""
    found, recipe = _learn(subject, windows, maps), _learn.recipe(subject, windows, maps)
    routers = []
    for b, (w, bias) in enumerate(zip(found["weight"], found["bias"])):
        net = nn.Linear(len(w), 1)
        state = {"weight": -torch.from_numpy(w)[None], "bias": -torch.tensor([bias])}
        net.load_state_dict(state)
        net = net.requires_grad_(False).to(subject.device)
        routers.append(Gate(net, recipe=recipe and f"error {b} {recipe}"))
    return Errors(found["error"], found["massive"], found["predicted"], routers)


@step(version=2)
def _learn(subject: Subject, windows: Windows, maps: Mapping[int, nn.Module]) -> dict:
    kept: dict[str, list] = {n: [[] for _ in subject.blocks] for n in ("x", "error", "massive")}

    def add(b: int, x: torch.Tensor, y: torch.Tensor) -> None:
        x, y = x.float(), y.float()
        massive = maps[b].massive(x)
        error = (y - maps[b](x)).double().square().sum(-1)
        named = {"x": x, "error": error, "massive": massive}
        for name, value in named.items():
            kept[name][b].append(value.cpu().numpy())

    forward(subject, windows, on_ffn=add, desc="errors of the maps")
    found: dict[str, list] = {n: [] for n in ("error", "massive", "predicted", "weight", "bias")}
    for b in tqdm(range(len(subject)), desc="error routers", delay=2, leave=False):
        x, error, massive = (np.concatenate(kept[name][b]) for name in kept)
        off = ~massive
        target = np.log(error + 1e-30)
        mean, scale = x[off].mean(0), x[off].std(0) + 1e-12
        ridge = RidgeCV(RIDGES).fit((x[off] - mean) / scale, target[off])
        weight = ridge.coef_ / scale
        bias = ridge.intercept_ - mean @ weight
        values = (error, massive, x @ weight + bias, weight.astype(np.float32), np.float32(bias))
        for name, value in zip(found, values):
            found[name].append(value)
        for name in kept:
            kept[name][b] = None
    return {name: np.stack(values) for name, values in found.items()}


def marginal_costs(
    score: np.ndarray, error: np.ndarray, off: np.ndarray, price: float
) -> np.ndarray:
    """What sending one more position to the map costs, [n, seq_len]: `price` (loss per squared
    error) times the expected squared error at its `score` (higher: linear sooner), by isotonic
    regression; infinite where `off` is false."""
    expected = IsotonicRegression(increasing=False).fit(score[off], error[off]).predict(score[off])
    cost = np.full(score.shape, np.inf)
    # A last digit of the score breaks the ties of the steps.
    cost[off] = price * expected * (1 - 1e-9 * score[off].argsort().argsort() / off.sum())
    return cost


def allocate(cost: np.ndarray, share: float) -> np.ndarray:
    """The `share` of all evaluations that cost least, a mask like `cost` [blocks, n, seq_len]."""
    if not 0 <= share <= 1:
        raise InputError(f"a share of {share} is not possible: give one from 0 to 1.")
    n = min(round(share * cost.size), int(np.isfinite(cost).sum()))
    chosen = np.zeros(cost.size, bool)
    chosen[np.argsort(cost, axis=None, kind="stable")[:n]] = True
    return chosen.reshape(cost.shape)


class Priced:
    """Losses of a routed model and what it routed."""

    def __init__(self, found: Mapping, base: np.ndarray, document: np.ndarray):
        self.losses: np.ndarray = found["losses"]
        """[n, seq_len - 1]"""
        self.base: np.ndarray = base
        """[n, seq_len - 1]: of the original model"""
        self.kl: np.ndarray = found["kl"]
        """[n, seq_len - 1]: KL of the original's next-token distribution from it, nats"""
        self.linear: np.ndarray = found["linear"]
        """[blocks, n]: positions of each window sent to the map"""
        self.document = document

    def cost(self, start: int = 0) -> Interval:
        """Relative change of perplexity from position `start` on, over documents."""
        return self._mean((self.losses - self.base)[:, start:]).map(np.expm1)

    def divergence(self) -> Interval:
        """Mean KL from the original, nats."""
        return self._mean(self.kl)

    def _mean(self, values: np.ndarray) -> Interval:
        top, n = (sums(v, self.document) for v in (values, np.ones_like(values)))
        return interval(lambda w: (w @ top) / (w @ n), np.arange(len(n)))

    @property
    def share(self) -> float:
        """Share of all FFN evaluations (a block at a position) that the maps took."""
        return float(self.linear.sum() / (self.linear[..., None].size * (self.losses.shape[1] + 1)))


def price(
    subject: Subject, windows: Windows, models: Mapping[str, Mapping[int, nn.Module]]
) -> dict[str, Priced]:
    """Run the model with all modules of each entry of `models` ({name: {block: module}}) in their
    blocks' places at once. Every batch and entry is a cached step."""
    for modules in models.values():
        for block in modules:
            get_block(subject, block)
    parts: dict[str, list] = {name: [] for name in models}
    base = []
    bar = tqdm(total=len(windows) * len(models), desc="routed", unit="window", delay=2, leave=False)
    for start in range(0, len(windows), BATCH):
        part = slice(start, start + BATCH)
        chunk = windows[part]
        original = _Original(subject, chunk)
        base.append(_original(subject, chunk, original)["losses"])
        for name, modules in models.items():
            here = {b: m.at(part) if hasattr(m, "at") else m for b, m in modules.items()}
            parts[name].append(_routed(subject, chunk, here, original))
            bar.update(len(chunk))
    bar.close()

    def join(name):
        return {
            k: np.concatenate([p[k] for p in parts[name]], 1 if k == "linear" else 0)
            for k in parts[name][0]
        }

    return {name: Priced(join(name), np.concatenate(base), windows.document) for name in models}


class _Original:
    """Logits of the original on a batch, computed when first asked for."""

    def __init__(self, subject: Subject, chunk: Windows):
        self.subject, self.tokens, self.logits = subject, chunk.tokens.to(subject.device), None

    @torch.no_grad()
    def __call__(self) -> torch.Tensor:
        if self.logits is None:
            self.logits = self.subject.model(self.tokens, use_cache=False).logits
        return self.logits


@step(version=1, ignore=("original",))
def _original(subject: Subject, chunk: Windows, original: _Original) -> dict:
    return {"losses": next_token_losses(original(), original.tokens).cpu().numpy()}


@step(version=1, ignore=("original",))
def _routed(
    subject: Subject, chunk: Windows, modules: Mapping[int, nn.Module], original: _Original
) -> dict:
    linear = np.zeros((len(subject), len(chunk)), np.int32)
    with contextlib.ExitStack() as stack:
        for b, module in modules.items():
            stack.enter_context(swap(subject.blocks[b], module))
        with torch.no_grad():
            logits = subject.model(original.tokens, use_cache=False).logits
    for b, module in modules.items():
        used = module.linear if isinstance(module, Routed) else None
        linear[b] = used.sum(1).cpu() if used is not None else chunk.tokens.shape[1]
    kl = torch.stack([_kl(p[:-1], q[:-1]) for p, q in zip(original(), logits)])
    losses = next_token_losses(logits, original.tokens).cpu().numpy()
    return {"losses": losses, "kl": kl.cpu().numpy(), "linear": linear}


def _kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL(p‖q) of rows of logits, [positions], nats."""
    p, q = p.log_softmax(-1), q.log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).double()


def refit(subject: Subject, windows: Windows, modules: Mapping[int, Routed]) -> dict[int, Routed]:
    """Maps fitted anew in order of depth, each on the positions that its router sends it while all
    earlier blocks are routed with their new maps: {block: Routed}.

    One walk down the blocks with the residual streams of all windows in memory.
    """
    found, recipe = _refit(subject, windows, modules), _refit.recipe(subject, windows, modules)
    new = {}
    for b, module in modules.items():
        w, bias = found[f"{b}.weight"], found[f"{b}.bias"]
        affine = AffineMap(w, bias, recipe and f"{recipe} {b}").to(subject.device)
        new[b] = Routed(module.ffn, module.surrogate.with_affine(affine), module.router)
    return new


@step(version=1)
@torch.no_grad()
def _refit(subject: Subject, windows: Windows, modules: Mapping[int, Routed]) -> dict:
    batches = [slice(i, i + BATCH) for i in range(0, len(windows), BATCH)]
    streams = capture_residual(subject, windows, [0])[0].to(subject.device)
    found: dict = {}
    for b in tqdm(range(len(subject)), desc="refits", delay=2, leave=False):
        rows = []
        for at in batches:
            x, y, streams[at] = block_pass(subject, b, windows.tokens[at], streams[at])
            rows.append((x, y))
        if b not in modules:
            continue
        old = modules[b].surrogate
        x, y = (torch.cat([r[k][modules[b].used(r[0])] for r in rows]) for k in (0, 1))
        affine = shrunk_fit(x, y, old) if len(x) else old
        found |= {f"{b}.weight": affine.weight.float(), f"{b}.bias": affine.bias.float()}
        affine = AffineMap(found[f"{b}.weight"], found[f"{b}.bias"])
        for at, (x, y) in zip(batches, rows):
            used = modules[b].used(x)[..., None]
            streams[at] += torch.where(used, affine(x) - y, 0.0)  # FFNs write by adding
    return found


def shrunk_fit(x: torch.Tensor, y: torch.Tensor, old: AffineMap) -> AffineMap:
    """Ridge regression of rows y [n, d] on x [n, d] that is drawn to an old map where rows are
    few: the ridge is that of PRIOR rows of x's mean variance."""
    left = Moments.of(x, y - old(x))
    step = left.fit(PRIOR * float(left.sxx.diagonal().mean()) / left.n)
    return AffineMap(old.weight + step.weight.float(), old.bias + step.bias.float())
