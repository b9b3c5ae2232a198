"""Who decides which positions get the map: scores of positions, high where the map should do.

A score is any module with a method `score`, x [.., position, d] -> [.., position]; a gate is one
(lib.gating.gates). The learned error is ours; the lists of tokens are Balogh's (§4.3.3).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.linear_model import RidgeCV
from torch import nn
from tqdm import tqdm

from lib import hooks, keys
from lib.errors import unknown
from lib.gating.gates import Gate
from lib.gating.increases import loss_increases
from lib.gating.tokens import smoothed_token_mean
from lib.lazy import LazyModule, for_maps, lazily, made
from lib.linear.affine import AffineMap
from lib.models.blocks import Subject
from lib.store import cached
from lib.text.windows import Windows

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


@cached("errors of maps", 3)
def learn_errors(subject: Subject, windows: Windows, maps: Mapping[int, AffineMap]) -> Errors:
    """Fit each block's learned-error router: a ridge regression of the log squared error of its map
    on x, over the positions that are not massive."""
    inputs: list[list[np.ndarray]] = [[] for _ in maps]
    errors: list[list[np.ndarray]] = [[] for _ in maps]
    massives: list[list[np.ndarray]] = [[] for _ in maps]
    place = {b: k for k, b in enumerate(maps)}
    maps = {b: made(affine) for b, affine in maps.items()}  # before a pass, not within it

    def add(b: int, x: torch.Tensor, y: torch.Tensor) -> None:  # [batch, position, d]
        x, y = x.float(), y.float()
        affine, k = maps[b].to(x.device), place[b]
        inputs[k].append(x.cpu().numpy())
        errors[k].append((y - affine(x)).double().square().sum(-1).cpu().numpy())
        massives[k].append(affine.massive(x).cpu().numpy())

    hooks.forward(subject, windows, on_ffn=add, blocks=[*maps], desc="errors of the maps")
    error = np.stack([np.concatenate(batches) for batches in errors])
    massive = np.stack([np.concatenate(batches) for batches in massives])
    predicted, routers = [], []
    for k in tqdm(range(len(maps)), desc="error routers", delay=2, leave=False):
        x = np.concatenate(inputs[k])
        inputs[k].clear()  # the rows of a block are large
        ordinary = ~massive[k]
        weight, bias = _fit_log_error(x[ordinary], error[k][ordinary])
        predicted.append(x @ weight + bias)
        # A gate says yes where its score is high: where the predicted error is small.
        routers.append(_gate_below(weight, bias))
    return Errors(error, massive, np.stack(predicted), routers)


def _fit_log_error(x: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, float]:
    return _fit_ridge(x, np.log(error + 1e-30))


def _fit_ridge(x: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, float]:
    """Weight [d] and bias of a ridge regression of target [n] on x [n, d]; the strength is chosen
    for standardized x."""
    mean, scale = x.mean(0), x.std(0) + 1e-12
    ridge = RidgeCV(RIDGES).fit((x - mean) / scale, target)
    weight = ridge.coef_ / scale
    return weight, ridge.intercept_ - mean @ weight


def _gate_below(weight: np.ndarray, bias: float) -> Gate:
    """Scores that are high where what a regression predicts is small."""
    return Gate([torch.tensor(-weight[None]).float()], [torch.tensor([-bias]).float()])


class FixedScores(nn.Module):
    """Scores that are told: `scores` [n, seq_len] of the windows it is used on, in their order;
    `words`: how they were made, for keys."""

    def __init__(self, scores: np.ndarray, words: str | None = None):
        super().__init__()
        self.scores = np.asarray(scores, np.float32)
        keys.seal(self, words)

    def at(self, chunk: slice) -> "FixedScores":
        words = keys.words_of(self)
        return FixedScores(self.scores[chunk], words and f"{words}, {chunk.start} to {chunk.stop}")

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self.scores[: x.shape[0], : x.shape[1]], device=x.device)


class TrueError(nn.Module):
    """Scores of an oracle: minus the squared error of the map, for which the FFN must be run."""

    def __init__(self, ffn: nn.Module, affine: AffineMap):
        super().__init__()
        self.ffn, self.affine = ffn, affine
        keys.seal(self, "the true error of", affine)

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return -(self.ffn(x) - self.affine(x)).square().sum(-1)


def true_errors(subject: Subject, maps: Mapping[int, AffineMap]) -> dict[int, TrueError]:
    """{block: the oracle's scores}."""
    return {b: TrueError(subject.blocks[b].original, affine) for b, affine in maps.items()}


class SmallNorm(nn.Module):
    """Scores without a parameter: minus the norm of x."""

    def __init__(self):
        super().__init__()
        keys.seal(self, "the norm of x")

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return -x.norm(dim=-1)


def small_norms(blocks: Iterable[int]) -> dict[int, SmallNorm]:
    """{block: scores by the norm of what its FFN reads}."""
    return {b: SmallNorm() for b in blocks}


def random_scores(
    windows: Windows, blocks: Iterable[int], seed: int = 42
) -> dict[int, FixedScores]:
    """{block: scores at random}, for these windows."""
    shape = tuple(windows.tokens.shape)
    words = "random order, seed {} of block {}"
    return {
        b: FixedScores(
            np.random.default_rng([seed, b]).random(shape), words.format(seed, f"block {b}")
        )
        for b in blocks
    }


def learned_errors(
    subject: Subject, windows: Windows, maps: Mapping[int, AffineMap]
) -> dict[int, LazyModule]:
    """{block: scores from x}: minus the log squared error of the block's map, by ridge regression
    on these windows (see `learn_errors`); fitted when first used."""

    def compute() -> dict[int, Gate]:
        return dict(zip(maps, learn_errors(subject, windows, maps).routers))

    words = for_maps(said_of(f"{learn_errors.version} of {{}}", subject, windows), maps)
    return lazily(words, compute, model=subject, text=windows, maps=maps)


def learned_increases(
    subject: Subject, windows: Windows, maps: Mapping[int, AffineMap]
) -> dict[int, LazyModule]:
    """{block: scores from x}: minus the loss increase by the block's map (Balogh §3.2), by ridge
    regression on these windows, without massive positions; fitted when first used."""

    def compute() -> dict[int, Gate]:
        increases = loss_increases(subject, windows, maps)
        gates = {}
        for b in maps:
            x, increase = increases.rows(b)
            ordinary = ~made(maps[b]).massive(torch.tensor(x)).numpy()
            gates[b] = _gate_below(*_fit_ridge(x[ordinary], increase[ordinary]))
        return gates

    how = said_of("a ridge regression of the loss increase by {}", subject, windows)
    return lazily(for_maps(how, maps), compute, model=subject, text=windows, maps=maps)


def by_token(
    subject: Subject,
    windows: Windows,
    test: Windows,
    maps: Mapping[int, AffineMap],
    mean_of: str = "error",
) -> dict[int, LazyModule]:
    """{block: scores of the positions of `test` by their input token alone}: minus the mean over
    `windows` of the map's squared error there, or of the "loss increase" (Balogh §4.3.3); or the
    token's "frequency" there, of which nothing is learned."""
    if mean_of not in ("error", "loss increase", "frequency"):
        raise unknown("mean of a token", mean_of, ["error", "loss increase", "frequency"])
    tokens = windows.tokens.numpy()[:, subject.n_start :]
    size = int(max(windows.tokens.max(), test.tokens.max())) + 1

    def tables() -> dict[int, np.ndarray]:
        """{block: [vocabulary]}"""
        if mean_of == "frequency":
            return dict.fromkeys(maps, -np.bincount(tokens.ravel(), minlength=size))
        if mean_of == "loss increase":
            increases = loss_increases(subject, windows, maps)
            return {
                b: smoothed_token_mean(increases.loss_increase[b], increases.token, size)
                for b in maps
            }
        errors = learn_errors(subject, windows, maps)
        ordinary = ~errors.massive  # what stays with the FFN has no error of the map
        return {
            b: smoothed_token_mean(errors.error[k][ordinary[k]], tokens[ordinary[k]], size)
            for k, b in enumerate(maps)
        }

    said = said_of(f"the input token's mean {mean_of} of {{}}", subject, windows)
    said = said and f"{said}, for {test.provenance}"

    def compute() -> dict[int, FixedScores]:
        return {b: FixedScores(-mean[test.tokens.numpy()]) for b, mean in tables().items()}

    # The scores themselves are looked up later too, so the text that they are for is an input.
    inputs: dict = dict(model=subject, text=windows, maps=maps) | {"test text": test}
    return lazily(for_maps(said, maps), compute, **inputs)


def said_of(how: str, subject: Subject, windows: Windows) -> str | None:
    """How scores are made, in words, with a place for the map that they are about."""
    made_of = subject.provenance
    return made_of and f"{how}, of {made_of} on {windows.provenance}"
