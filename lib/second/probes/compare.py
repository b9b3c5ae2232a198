"""Fitted replacements compared on held-out documents: differences of R² with their intervals over
seeds and documents, and how far they had come to rest (Whipp §5.5)."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from lib.second.stats.intervals import Interval
from lib.second.stats.joint import joint_level
from lib.second.stats.ratios import influence
from lib.second.stats.twoway import seeds_and_documents


@dataclass(frozen=True, eq=False)
class Effect:
    """A score, or a difference of scores, and what it varies with."""

    by_seed: np.ndarray
    """[n_seeds]; a single number where no seed reaches it"""
    documents: np.ndarray
    """[n_documents]: influence of each held-out document on the mean over seeds"""
    moves: np.ndarray
    """[2]: what the second half of the steps added, and what the plain recipe gives beyond"""

    def interval(self, level: float = 0.95) -> Interval:
        """95% interval over seeds and held-out documents."""
        return seeds_and_documents(self.by_seed, self.documents, level)

    @property
    def doubt(self) -> float:
        """The larger of both moves: how far the value depends on how long and by which recipe
        was trained."""
        return float(np.abs(self.moves).max())

    @classmethod
    def mean(cls, effects: Sequence["Effect"]) -> "Effect":
        """The mean of effects, such as one a block, on the same seeds and documents."""
        return cls(*(np.mean([getattr(e, f.name) for e in effects], 0) for f in fields(cls)))

    def __sub__(self, other: "Effect") -> "Effect":
        return Effect(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


def together(effects: Mapping[Hashable, Effect], level: float = 0.95) -> dict[Hashable, Interval]:
    """Intervals of all effects (units) that hold jointly."""
    each = joint_level(len(effects), level)
    return {unit: effect.interval(each) for unit, effect in effects.items()}


def doubts(effects: Mapping[Hashable, Effect]) -> dict[Hashable, float]:
    """The doubt of every unit."""
    return {unit: effect.doubt for unit, effect in effects.items()}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Fits of a few candidates, told apart on the documents that no checkpoint was chosen on."""

    fits: pd.DataFrame
    """columns block, candidate, seed, r2, r2_unseen, r2_halfway; "linear" among the candidates"""
    documents: pd.DataFrame
    """columns block, candidate, seed, document, error, deviation (`by_document`)"""
    plain: pd.DataFrame | None = None
    """fits of the same candidates by the plain recipe, with one seed at least"""

    def r2(self, block: int, candidate: str) -> Effect:
        """R² of a candidate."""
        error, deviation = self._sums(block, candidate)
        scores = self._scores(block, candidate)
        moves = self._moves(block, candidate)
        return Effect(scores, influence(deviation - error, deviation), moves)

    def gain(self, block: int, candidate: str, over: str = "linear") -> Effect:
        """R² of a candidate less that of another."""
        return self.r2(block, candidate) - self.r2(block, over)

    def share(self, block: int, candidate: str) -> Effect:
        """(R² of a candidate - R²_lin) / (1 - R²_lin): what it recovers of the residual."""
        residual = 1 - float(self.r2(block, "linear").by_seed)
        gain = self.gain(block, candidate)
        error, _ = self._sums(block, candidate)
        left, _ = self._sums(block, "linear")
        return Effect(gain.by_seed / residual, influence(left - error, left), gain.moves / residual)

    def by_seed(self, candidate: str, over: str, blocks: Sequence[int]) -> pd.DataFrame:
        """Differences of R², a row a seed and a column a block."""
        return pd.DataFrame({b: self.gain(b, candidate, over).by_seed for b in blocks})

    def scores(self) -> pd.DataFrame:
        """One row a block and candidate: R² with its 95% interval, its gain over the linear map
        with its interval, R² by the checkpoint chosen where it is scored, by half the steps and by
        the plain recipe, and the standard deviation over seeds."""
        rows = []
        for block, name in self.fits[["block", "candidate"]].drop_duplicates().to_numpy():
            r2, gain = self.r2(block, name).interval(), self.gain(block, name).interval()
            linear = name == "linear"
            of = self.fits[(self.fits.block == block) & (self.fits.candidate == name)]
            rows.append(
                {
                    "block": block,
                    "candidate": name,
                    **{"r2": r2.value, "r2_low": r2.low, "r2_high": r2.high},
                    "gain": gain.value,
                    "gain_low": 0.0 if linear else gain.low,
                    "gain_high": 0.0 if linear else gain.high,
                    "r2_std": of.r2_unseen.std(),
                    "r2_same_documents": of.r2.mean(),
                    "r2_halfway": of.r2_halfway.mean(),
                }
            )
        return pd.DataFrame(rows)

    def _scores(self, block: int, candidate: str, column: str = "r2_unseen") -> np.ndarray:
        """[n_seeds] in the seeds' order; one number of the linear map."""
        found = _of(self.fits, block, candidate).sort_values("seed")[column].to_numpy(float)
        return found[0] if candidate == "linear" else found

    def _sums(self, block: int, candidate: str) -> tuple[np.ndarray, np.ndarray]:
        """Error (mean over seeds) and deviation of each held-out document."""
        found = _of(self.documents, block, candidate).groupby("document")[["error", "deviation"]]
        error, deviation = found.mean().to_numpy().T
        return error, deviation

    def _moves(self, block: int, candidate: str) -> np.ndarray:
        late = self._scores(block, candidate, "r2") - self._scores(block, candidate, "r2_halfway")
        found = pd.DataFrame() if self.plain is None else _of(self.plain, block, candidate)
        if candidate == "linear" or found.empty:
            return np.array([np.mean(late), 0.0])
        plain = found.set_index("seed").r2_unseen
        aware = _of(self.fits, block, candidate).set_index("seed").r2_unseen
        return np.array([np.mean(late), (plain - aware).mean()])


def _of(table: pd.DataFrame, block: int, candidate: str) -> pd.DataFrame:
    return table[(table.block == block) & (table.candidate == candidate)]
