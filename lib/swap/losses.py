"""Losses by document: of a model as it is, and with something else in an FFN's place."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.errors import unknown
from lib.stats import Contrast, Interval, Statistic, contrast, interval, ratio_of_sums

Key = tuple[int, str] | str
"""a block, and what stands in its FFN's place; a third entry may tell apart. Or a name, where
something stands in several FFNs' places at once"""


@dataclass(frozen=True, eq=False)
class Losses:
    """Losses summed over each document, nats."""

    document: np.ndarray
    """[documents]: their numbers"""
    predictions: np.ndarray
    """[documents]: how many losses each sum has"""
    unchanged: np.ndarray
    """[documents]: of the model as it is"""
    changed: dict[Key, np.ndarray]
    """{(block, what stands in its FFN's place): [documents]}"""
    shares: pd.DataFrame | None = None
    """where several FFNs are routed at once: a row a name, affine and saved (lib.gating.routing)"""

    @property
    def perplexity(self) -> float:
        """Of the model as it is."""
        return float(np.exp(self.unchanged.sum() / self.predictions.sum()))

    def added(self, key: Key, to: Key | None = None) -> np.ndarray:
        """What a replacement adds to the loss, [documents], nats; `to` another one's, rather than
        to the model's as it is. Raises InputError for what was not measured."""
        for one in (key, to):
            if one is not None and one not in self.changed:
                raise unknown("replacement", one, [str(k) for k in self.changed])
        return self.changed[key] - (self.unchanged if to is None else self.changed[to])

    def difference(self, key: Key, to: Key | None = None, level: float = 0.95) -> Interval:
        """What a replacement adds to the loss, nats a token; `to` as in `added`."""
        return interval(ratio_of_sums(self.added(key, to), self.predictions), self.document, level)

    def change(self, key: Key, to: Key | None = None, level: float = 0.95) -> Interval:
        """The same as a relative change of perplexity (0.05: +5%)."""
        return self.difference(key, to, level).map(np.expm1)

    def nats(self, swap: str) -> pd.Series:
        """What one kind of replacement adds to the loss, by block, nats a token."""
        blocks = [int(key[0]) for key in self.changed if key[1:] == (swap,)]
        added = {b: self.added((b, swap)).sum() / self.predictions.sum() for b in blocks}
        return pd.Series(added, name=swap).rename_axis("block")

    def table(self) -> pd.DataFrame:
        """A row a replacement: block, swap, nats a token with its interval, joint over the rows of
        its kind, and the relative change of perplexity; where it has a name, name and shares."""
        if self.shares is not None:
            return self._table_of_names()
        kinds = [key[1:] for key in self.changed]
        rows = []
        for key in self.changed:
            level = 1 - 0.05 / kinds.count(key[1:])
            nats = self.difference(key, level=level)
            row = {"block": key[0], "swap": ", ".join(key[1:]), "nats": nats.value}
            rows.append(row | {"low": nats.low, "high": nats.high, "change": np.expm1(nats.value)})
        return pd.DataFrame(rows, columns=["block", "swap", "nats", "low", "high", "change"])

    def _table_of_names(self) -> pd.DataFrame:
        rows = []
        for name, shares in [] if self.shares is None else self.shares.iterrows():
            nats = self.difference(name)._asdict()
            row = {"name": name, **shares, "nats": nats.pop("value"), **nats}
            rows.append(row | {"change": np.expm1(row["nats"])})
        return pd.DataFrame(rows)

    def statistic(self, keys: Sequence[Key], over: str = "median") -> Statistic:
        """What replacements add, in the median of several (or `over` their mean), nats a token: a
        statistic of weights of documents."""
        averages: dict[str, Callable] = {"median": np.median, "mean": np.mean}
        if over not in averages:
            raise unknown("average", over, [*averages])
        average = averages[over]
        added = np.stack([self.added(key) for key in keys])
        return lambda w: average((w @ added.T) / (w @ self.predictions)[:, None], axis=1)

    def contrast(
        self,
        swap: str,
        blocks: Sequence[int],
        others: Sequence[int] | None = None,
        *,
        to: str | None = None,
        over: str = "median",
    ) -> Contrast:
        """What a replacement adds in the median of some blocks (or `over` their mean), nats a
        token, against that of `others`, or of another replacement (`to`) in the same blocks."""
        here = self.statistic([(b, swap) for b in blocks], over)
        rival = [(b, to or swap) for b in (blocks if others is None else others)]
        return contrast(here, self.statistic(rival, over), self.document)

    def against(self, key: Key, other: Key, nats: bool = False) -> Contrast:
        """A replacement's relative change of perplexity against another's, paired by document; or
        what each adds to the loss, nats a token."""
        here, there = (ratio_of_sums(self.added(k), self.predictions) for k in (key, other))
        if nats:
            return contrast(here, there, self.document)
        return contrast(lambda w: np.expm1(here(w)), lambda w: np.expm1(there(w)), self.document)

    def cheapest(self, swap: str, among: Sequence[int]) -> int:
        """The block of `among` where a replacement adds least."""
        return int(self.nats(swap)[[*among]].idxmin())


def of_tables(unchanged: pd.DataFrame, changed: Mapping) -> Losses:
    """Losses from kept tables (document, sum, predictions) of the same documents."""
    return Losses(
        unchanged.document.to_numpy(),
        unchanged.predictions.to_numpy(),
        unchanged["sum"].to_numpy(),
        {key: table["sum"].to_numpy() for key, table in changed.items()},
    )
