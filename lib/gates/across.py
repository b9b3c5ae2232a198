"""Families compared: costs in parallel and in sequential models, over seeds or over documents
(Balogh §4.6-4.8, §5.5)."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np

from lib.gates import linear_cost
from lib.gates.gate import GATES
from lib.gates.survey import Survey
from lib.stats.intervals import Interval
from lib.stats.joint import joint_level, over_seeds
from lib.stats.ratios import transformed
from lib.stats.resampled import over_documents, weighted_mean

Weight = np.ndarray
"""[n], of the windows of a survey"""
Of = Callable[[Survey, Weight], float]
"""a number of one model"""


def median_cost(what: str, part=None) -> Of:
    """Median over blocks of the cost (a fraction of the base) of `what`, as in Survey.rise."""
    return lambda s, w: float(np.median(np.expm1(weighted_mean(s.rise(what, part), w))))


def below_base(s: Survey, w: Weight) -> float:
    """Share of the gated blocks that cost less than nothing."""
    return float((weighted_mean(s.rise("gated"), w) < 0).mean())


def _plain(s: Survey) -> Weight:
    return np.ones(len(s.document))


def log(value: float) -> float:
    """nan where there is no logarithm."""
    return float(np.log(value)) if value > 0 else float("nan")


def ratio_over_seeds(ones: Sequence[Survey], others: Sequence[Survey], of: Of) -> Interval:
    """`of` the first family over that of the second, models paired by seed: the mean log ratio with
    its 95% interval over seeds, carried through exp. nan where a seed has no positive cost."""
    logs = [log(of(a, _plain(a))) - log(of(b, _plain(b))) for a, b in zip(ones, others)]
    return transformed(over_seeds(logs), np.exp)


def difference_over_seeds(ones: Sequence[Survey], others: Sequence[Survey], of: Of) -> Interval:
    """`of` the first family less that of the second, paired by seed."""
    apart = [of(a, _plain(a)) - of(b, _plain(b)) for a, b in zip(ones, others)]
    return over_seeds(np.round(apart, 12))  # shares that are equal differ by rounding


def over_shared(
    statistic: Callable[..., float], surveys: Sequence[Survey], level: float = 0.95, seed: int = 42
) -> Interval:
    """Bootstrap over the documents that all models read, of statistic(*weights), one of [n] a
    survey: a resample draws the same documents for all of them."""
    shared = sorted(set.intersection(*(set(s.document.tolist()) for s in surveys)))

    def value(weight: np.ndarray) -> float:
        drawn = dict(zip(shared, weight, strict=True))
        weights = [np.array([drawn.get(d, 0.0) for d in s.document.tolist()]) for s in surveys]
        return statistic(*weights) if all(w.sum() for w in weights) else float("nan")

    return over_documents(value, np.array(shared), seed=seed, level=level)


def ratio_over_documents(pairs: Sequence[tuple[Survey, Survey]], of: Of) -> Interval:
    """`of` the first model over that of the second, the mean log ratio over pairs, 95% over the
    documents that all read, carried through exp."""
    flat = [s for pair in pairs for s in pair]

    def mean(*weights: Weight) -> float:
        logs = [log(of(s, w)) for s, w in zip(flat, weights, strict=True)]
        return float(np.mean(np.subtract(logs[::2], logs[1::2])))

    return transformed(over_shared(mean, flat), np.exp)


def difference_over_documents(one: Survey, other: Survey, of: Of) -> Interval:
    """`of` the first model less that of the second, 95% over the documents that both read."""
    return over_shared(lambda a, b: of(one, a) - of(other, b), [one, other])


def nearest_pairs(surveys: Sequence[Survey], prefixes=("gpt2", "pythia")) -> list[tuple]:
    """Each model whose name begins with the first prefix with the one of the second that is nearest
    in size, by the logarithm of the parameters."""
    ones, others = ([s for s in surveys if s.model.startswith(p)] for p in prefixes)
    apart = lambda a, b: abs(np.log(a.n_params / b.n_params))
    return [(a, min(others, key=lambda b: apart(a, b))) for a in ones] if others else []


def over_routing(families: Mapping[str, Sequence[Survey]]) -> Interval:
    """Absolute log ratio of the median gated costs of two families at equal shares, averaged over
    gates, over the largest absolute log ratio of two gates within a family: 95% over seeds. nan
    where a median is not positive."""
    ones, others = families.values()
    found = []
    for pair in zip(ones, others, strict=True):
        logs = np.array(
            [[log(median_cost("equal", k)(s, _plain(s))) for k in GATES] for s in pair]
        )  # [families, gates]
        within = max(abs(row[i] - row[j]) for row in logs for i, j in combinations(range(4), 2))
        found.append(np.abs(logs[0] - logs[1]).mean() / within if within > 0 else np.nan)
    return over_seeds(found)


def ends_over_middle(surveys: Sequence[Survey]) -> dict[str, Interval]:
    """The smaller of the log median all-linear costs of entry and exit blocks (first and last
    eighth, at least one each) less the log median of those between, by model, 95% over documents
    for all models at once; nan where a median is not positive."""
    level = joint_level(len(surveys))
    return {
        s.model: linear_cost.ends_over_middle(s.base, s.linear, s.document, s.n_blocks, level)
        for s in surveys
    }
