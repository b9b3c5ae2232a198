"""Gains of product branches on documents that chose nothing, and their intervals over documents.

Whipp §5.3 reads the gain on the rows that stop the training. Here the checkpoint is chosen on one
half of the held-out documents and scored on the other, both ways, as in `residual_probes`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from lib.second.probes.residual import ResidualProbes
from lib.second.stats import Interval, joint_level, pooled_half_width

RESAMPLES = 2000


@dataclass(frozen=True, eq=False)
class Unseen:
    """Held-out error by document, saved by checkpoints that were chosen on other documents."""

    blocks: list[int]
    documents: np.ndarray
    """[n_documents]"""
    deviation: np.ndarray
    """[n_blocks, n_documents]: Σ‖y-ȳ‖²"""
    left: np.ndarray
    """[n_blocks, n_documents]: squared error of the linear map"""
    saved: np.ndarray
    """[n_seeds, n_blocks, n_documents]: what the branch takes off it; nan with one document"""
    weights: np.ndarray | None = None
    """[n_draws, n_documents]: how often each document counts; None: once"""

    @property
    def gain(self) -> np.ndarray:
        """R² with the branch less R² of the linear map, mean over seeds, [(n_draws,) n_blocks]."""
        return self._sum(self.saved.mean(0)) / self._sum(self.deviation)

    @property
    def residual(self) -> np.ndarray:
        """1 - R² of the linear map, [(n_draws,) n_blocks]."""
        return self._sum(self.left) / self._sum(self.deviation)

    @property
    def share(self) -> np.ndarray:
        """Share of the residual that the branch recovers, [(n_draws,) n_blocks]."""
        return self._sum(self.saved.mean(0)) / self._sum(self.left)

    def only(self, blocks: Sequence[int]) -> "Unseen":
        """The same for some of the blocks, in the order given."""
        rows = [self.blocks.index(block) for block in blocks]
        parts = {"deviation": self.deviation[rows], "left": self.left[rows]}
        return replace(self, blocks=list(blocks), saved=self.saved[:, rows], **parts)

    def _sum(self, values: np.ndarray) -> np.ndarray:
        return values.sum(-1) if self.weights is None else self.weights @ values.T


def unseen(probes: ResidualProbes) -> Unseen:
    """What the branches of `probes` save on documents that did not choose their checkpoint."""
    blocks, seeds = list(probes.maps), list(dict.fromkeys(seed for _, seed in probes.errors))
    n = len(probes.documents)
    half = np.arange(n) % 2 == 0
    saved = np.full((len(seeds), len(blocks), n), np.nan)
    for k, seed in enumerate(seeds):
        for b, block in enumerate(blocks):
            errors = probes.errors[block, seed]  # [n_checkpoints, n_documents]
            for part in (half, ~half) if n > 1 else ():
                chosen = errors[errors[:, ~part].sum(1).argmin()]
                saved[k, b, part] = (errors[0] - chosen)[part]
    left = np.stack([probes.errors[block, seeds[0]][0] for block in blocks])
    deviation = np.stack([probes.deviation[block] for block in blocks])
    return Unseen(blocks, probes.documents, deviation, left, saved)


def over_documents(
    statistic: Callable[..., np.ndarray],
    *samples: Unseen,
    level: float = 0.95,
    seeds: bool = False,
    seed: int = 42,
) -> Interval:
    """A statistic of whole samples, such as lambda at: np.median(at.gain, -1), with its interval
    over held-out documents, which all samples share where they have them.

    A bootstrap over documents gives the variance, Student's t with one degree of freedom less than
    documents the width: with a dozen documents percentiles would be too narrow. `seeds` adds the
    variance over the seeds of each sample that has several. The bounds are nan, which decides
    nothing, with fewer than two documents.
    """
    value, half = _over(statistic, samples, level, seeds, seed)
    return Interval(float(value), float(value - half), float(value + half))


def each_over_documents(
    statistic: Callable[..., np.ndarray],
    *samples: Unseen,
    level: float = 0.95,
    seeds: bool = False,
    seed: int = 42,
) -> dict[int, Interval]:
    """A statistic of each block, such as lambda at: at.gain, with intervals over documents that
    hold for all blocks at once: {block: Interval}."""
    blocks = samples[0].blocks
    values, halves = _over(statistic, samples, joint_level(len(blocks), level), seeds, seed)
    return {
        block: Interval(float(value), float(value - half), float(value + half))
        for block, value, half in zip(blocks, values, halves, strict=True)
    }


def _over(
    statistic: Callable[..., np.ndarray],
    samples: Sequence[Unseen],
    level: float,
    seeds: bool,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The statistic, and the half-width of its interval."""
    value = np.asarray(statistic(*samples))
    documents = np.unique(np.concatenate([sample.documents for sample in samples]))
    n = len(documents)
    if n < 2:
        return value, np.full(value.shape, np.nan)
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(float)
    drawn = [
        replace(sample, weights=counts[:, np.searchsorted(documents, sample.documents)])
        for sample in samples
    ]
    # n / (n - 1): a resample of n documents varies less than n new ones would.
    parts = [(np.var(statistic(*drawn), axis=0) * n / (n - 1), n - 1)]
    for k, sample in enumerate(samples):
        if seeds and (n_seeds := len(sample.saved)) > 1:
            alone = [replace(sample, saved=sample.saved[[s]]) for s in range(n_seeds)]
            found = [statistic(*samples[:k], one, *samples[k + 1 :]) for one in alone]
            parts.append((np.var(found, axis=0, ddof=1) / n_seeds, n_seeds - 1))
    return value, pooled_half_width(parts, level)


def units_table(units: dict[int, Interval]) -> pd.DataFrame:
    """Intervals of blocks as a table: columns block, value, low, high."""
    rows = [(block, i.value, i.low, i.high) for block, i in units.items()]
    return pd.DataFrame(rows, columns=["block", "value", "low", "high"])


def share_gap_by_kind(kinds: Sequence[str], kind: str) -> Callable[..., np.ndarray]:
    """A statistic of one sample a model: mean share over blocks of the models of `kind` less that
    of the others, models weighing the same. `kinds`: the kind of each model, in order."""

    def gap(*models: Unseen) -> np.ndarray:
        shares = np.stack([at.share.mean(-1) for at in models])  # [n_models, (n_draws)]
        ours = np.array([k == kind for k in kinds])
        return shares[ours].mean(0) - shares[~ours].mean(0)

    return gap


def pearson_over_blocks(at: Unseen, without: Sequence[int] = ()) -> np.ndarray:
    """Pearson correlation over blocks of the residual and the gain (Whipp §5.3), [(n_draws)]; nan
    where one does not vary."""
    at = at.only([block for block in at.blocks if block not in without])
    sides = [side - side.mean(-1, keepdims=True) for side in (at.residual, at.gain)]
    size = np.sqrt(np.square(sides[0]).sum(-1) * np.square(sides[1]).sum(-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(size > 0, (sides[0] * sides[1]).sum(-1) / size, np.nan)


def stopping_bias(probes: ResidualProbes, seed: int = 42) -> Interval:
    """Mean over blocks and seeds of the gain read on the documents that stop the training, less
    that on unseen ones; 95% interval over documents and their assignment to halves.

    The value is the mean over random assignments, and each resample of the documents has one of its
    own. The bounds are nan with fewer than four documents.
    """
    n, rng = len(probes.documents), np.random.default_rng(seed)
    if n < 4:
        return Interval(np.nan, np.nan, np.nan)
    halves = rng.permuted(np.tile(np.arange(n) % 2 == 0, (RESAMPLES, 1)), axis=1)
    once = np.ones((RESAMPLES, n))
    counts = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(float)
    value = _bias(probes, once, halves).mean()
    variance = np.var(_bias(probes, counts, halves)) * n / (n - 1)
    half = float(pooled_half_width([(variance, n - 1)]))
    return Interval(float(value), float(value - half), float(value + half))


def _bias(probes: ResidualProbes, weights: np.ndarray, halves: np.ndarray) -> np.ndarray:
    """The bias in each draw: weights and halves [n_draws, n_documents]."""
    found = []
    for (block, _), errors in probes.errors.items():
        errors = np.nan_to_num(errors, posinf=1e200).T  # a checkpoint that diverged is never best
        one, other = (weights * halves) @ errors, (weights * ~halves) @ errors
        pick = [np.take_along_axis(a, b.argmin(1)[:, None], 1)[:, 0] for a, b in _ways(one, other)]
        stopped = (one + other).min(1)
        found.append((sum(pick) - stopped) / (weights @ probes.deviation[block]))
    return np.mean(found, axis=0)


def _ways(one: np.ndarray, other: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(one, other), (other, one)]
