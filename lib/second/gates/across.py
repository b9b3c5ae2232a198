"""Families compared: costs in parallel and in sequential models, over seeds or over documents
(Balogh §4.6-4.8, §5.5)."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import numpy as np

from lib.second.gates import linear_cost
from lib.second.gates.gate import GATES
from lib.second.gates.survey import Survey
from lib.second.stats.intervals import Interval
from lib.second.stats.joint import joint_level, over_seeds
from lib.second.stats.ratios import jackknife, transformed
from lib.second.stats.resampled import over_documents, weighted_mean
from lib.second.stats.verdicts import interval_text

Weight = np.ndarray
"""[n], of the windows of a survey"""
Of = Callable[[Survey, Weight], float]
"""a number of one model"""


def median_cost(what: str, part=None) -> Of:
    """Median over blocks of the cost (a fraction of the base) of `what`, as in Survey.rise."""
    return lambda s, w: float(np.median(np.expm1(weighted_mean(s.rise(what, part), w))))


def over_mean_output(what: str) -> Of:
    """That median over the one of the FFN's mean output; nan unless both are above 0."""
    cost, constant = median_cost(what), median_cost("mean_output")

    def ratio(s: Survey, w: Weight) -> float:
        one, other = cost(s, w), constant(s, w)
        return one / other if min(one, other) > 0 else float("nan")

    return ratio


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
    return transformed(over_seeds(np.log(by_seed(ones, others, of))), np.exp)


def by_seed(ones: Sequence[Survey], others: Sequence[Survey], of: Of) -> list[float]:
    """The ratio of `ratio_over_seeds` at each seed; nan where either is not above 0."""
    pairs = [(of(a, _plain(a)), of(b, _plain(b))) for a, b in zip(ones, others)]
    return [a / b if min(a, b) > 0 else float("nan") for a, b in pairs]


def ratio_text(ones: Sequence[Survey], others: Sequence[Survey], of: Of) -> str:
    """The ratio of `ratio_over_seeds` in words, with that of each seed; of a cost (a fraction of
    the base) also the difference, where some seed has no ratio."""
    each = [f"{r:.2f}" if np.isfinite(r) else "none" for r in by_seed(ones, others, of)]
    less = transformed(difference_over_seeds(ones, others, of), lambda cost: 100 * cost)
    lack = f"; as a difference {interval_text(less)}% of the base" * ("none" in each)
    ratio = interval_text(ratio_over_seeds(ones, others, of))
    return f"{ratio} (by seed {', '.join(each)}){lack}"


def difference_over_seeds(ones: Sequence[Survey], others: Sequence[Survey], of: Of) -> Interval:
    """`of` the first family less that of the second, paired by seed, 95% over seeds."""
    apart = [of(a, _plain(a)) - of(b, _plain(b)) for a, b in zip(ones, others)]
    return over_seeds(np.round(apart, 12))  # values that are equal differ by rounding


def share_over_seeds(ones: Sequence[Survey], others: Sequence[Survey], of: Of) -> Interval:
    """`of` the first family, a share, less that of the second, paired by seed; from -1 to 1."""
    found = difference_over_seeds(ones, others, of)
    return Interval(found.value, *map(float, np.clip([found.low, found.high], -1, 1)))


def over_shared(
    statistic: Callable[..., float], surveys: Sequence, level: float = 0.95, seed: int = 42
) -> Interval:
    """Bootstrap over the documents that all models read, of statistic(*weights), one of [n] a
    survey, or whatever has its `document`: a resample draws the same documents for all of them."""
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


def unlearned(surveys: Sequence[Survey], blind: float, margin: float = 0.2) -> str:
    """Why models trained here decide nothing, "" if they do: each must be `margin` nats below
    `blind`, the loss of token frequencies, and the median cost of its FFNs' mean outputs surely
    above 0."""
    constant = median_cost("mean_output")
    dull = sum(s.base.mean() > blind - margin for s in surveys)
    idle = sum(
        not over_documents(lambda w, s=s: constant(s, w), s.document).low > 0 for s in surveys
    )
    n = len(surveys)
    why = [f"{dull} of {n} models trained here have not learned {margin} nats beyond frequencies"]
    why += [f"{idle} of {n} do not surely lose by a constant in an FFN's place"]
    return "; ".join(text for text, count in zip(why, (dull, idle), strict=True) if count)


def unequal_pair(surveys: Sequence[Survey], pairs: Sequence[tuple]) -> tuple | None:
    """The first of `pairs` (none: of the first model with each other one) that differs in width;
    None where none does."""
    pairs = pairs or [(surveys[0], s) for s in surveys[1:]]
    return next(((a, b) for a, b in pairs if a.d_model != b.d_model), None)


def over_routing(families: Mapping[str, Sequence[Survey]]) -> Interval:
    """Log ratio of the median gated costs of two families under one gate at equal shares, and of
    two gates in one family: the mean of the former over gates over that of the latter over pairs of
    gates and families, each averaged over seeds and then made absolute, so that noise alone is the
    less the more seeds. 95% jackknife over seeds of the logarithm; nan where a median is not
    positive."""
    logs = np.array(
        [
            [[log(median_cost("equal", k)(s, _plain(s))) for k in GATES] for s in models]
            for models in families.values()
        ]
    )  # [families, seeds, gates]

    def apart(part: np.ndarray) -> float:
        one, other = mean = part.mean(1)  # [families, gates]
        within = [np.abs(mean[:, i] - mean[:, j]) for i, j in combinations(range(len(GATES)), 2)]
        return log(np.abs(one - other).mean()) - log(np.mean(within))

    seeds = range(logs.shape[1])
    without = [apart(np.delete(logs, k, 1)) for k in seeds] if len(seeds) > 1 else []
    return transformed(jackknife(apart(logs), without), np.exp)


def ends_over_middle(surveys: Sequence[Survey]) -> dict[str, Interval]:
    """The smaller of the log median all-linear costs of entry and exit blocks (first and last
    eighth, at least one each) less the log median of those between, by model, 95% over documents
    for all models at once; nan where a median is not positive."""
    level = joint_level(len(surveys))
    return {
        s.model: linear_cost.ends_over_middle(s.base, s.linear, s.document, s.n_blocks, level)
        for s in surveys
    }
