"""What training one architecture again changes (Whipp §5.2): seeds as units.

`wide` is a table of R²_lin with a row a (family, seed) and a column a block; `profiles` the long
table of `develop`. `noise` [block] is the sampling variance of one model's score that another on
the same documents does not share.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd

from lib.second.stats.intervals import Interval
from lib.second.stats.joint import jointly, largest, over_seeds, smallest
from lib.second.stats.variance import pairwise, variance_shares
from lib.second.training.apart import FOLDED, less_chance

RUN = ["family", "text", "seed"]


def wide(profiles: pd.DataFrame, step: int) -> pd.DataFrame:
    """R²_lin at one step: a row a (family, seed), a column a block. One text only."""
    return profiles[profiles.step == step].pivot(
        index=["family", "seed"], columns="block", values="r2"
    )


def settling(profiles: pd.DataFrame) -> tuple[float, float, int]:
    """How far a block still moves on average between the last two checkpoints, how far it lies
    apart between seeds at the end, and the step of the last but one. Columns family, seed, step,
    block, r2, of one text."""
    *_, before, end = sorted(profiles.step.unique())
    last = wide(profiles, end)
    moved = (last - wide(profiles, before)).abs().to_numpy().mean()
    apart = [
        np.abs(rows[i] - rows[j]).mean()
        for _, family in last.groupby("family")
        for rows in [family.to_numpy(float)]
        for i, j in combinations(range(len(rows)), 2)
    ]
    return float(moved), float(np.mean(apart)) if apart else float("nan"), int(before)


def unshared(models: Sequence[pd.DataFrame]) -> np.ndarray:
    """Sampling variance of a model's score on one fold that the other models do not share,
    [block], from `models` [fold, block] scored on the same folds: what is left of the scores
    without the means of models and of folds. Fits share training rows, hence Nadeau and Bengio's
    factor 1 + test/train."""
    scores = np.stack([table.to_numpy(float) for table in models])  # [model, fold, block]
    m, k, _ = scores.shape
    left = scores - scores.mean(1, keepdims=True)
    left = left - left.mean(0, keepdims=True)
    return (left**2).sum((0, 1)) / ((m - 1) * (k - 1)) * (1 + 1 / (k - 1))


def jackknife(table: pd.DataFrame, statistic: Callable[[pd.DataFrame], float]) -> Interval:
    """t-interval over seeds of a statistic of all of them, from its jackknife pseudo-values
    (Tukey, Annals of Mathematical Statistics 29, 1958); one seed is left out of all families."""
    seeds = list(table.index.unique("seed"))
    n, whole = len(seeds), statistic(table)
    if n < 2:
        return Interval(whole, np.nan, np.nan)
    without = [statistic(table.drop(index=s, level="seed")) for s in seeds]
    found = over_seeds([n * whole - (n - 1) * part for part in without])
    return found if np.isfinite(found.value) else Interval(whole, np.nan, np.nan)


def between_bounds(
    table: pd.DataFrame, statistic: Callable[..., float], noise: np.ndarray
) -> Interval:
    """The jackknife interval that holds whichever sampling variance, from none to `noise`, two
    seeds of one family do not share: `noise` is that of two families, which is no less."""
    most = jackknife(table, partial(statistic, noise=noise))
    none = jackknife(table, partial(statistic, noise=0 * noise))
    low, high = np.min([most.low, none.low]), np.max([most.high, none.high])  # a nan is passed on
    return Interval(most.value, float(low), float(high))


def seed_ratio(table: pd.DataFrame, noise: np.ndarray) -> float:
    """Root-mean-square difference of two seeds of a family over the root-mean-square spread over
    its blocks, sampling variance taken off both; mean over pairs of seeds and families.

    0 where seeds agree, 1.41 where their profiles are unrelated. nan without a pair, or where the
    spread of some family is not above sampling noise: less than twice it.
    """
    ratios, chance = [], float(np.mean(noise))
    for _, rows in table.groupby("family"):
        x = rows.to_numpy(float)  # [seed, block]
        spread = x.var(1, ddof=1).mean() if x.shape[1] > 1 else 0.0
        if len(x) < 2 or not spread > 2 * chance:
            return float("nan")
        apart = [np.square(a - b).mean() - 2 * chance for a, b in combinations(x, 2)]
        ratios.append(np.sqrt(np.maximum(apart, 0) / (spread - chance)).mean())
    return float(np.mean(ratios))


def family_share(table: pd.DataFrame, noise: np.ndarray) -> float:
    """Share of the variance of R²_lin at one block that lies between families rather than between
    seeds of a family: variance components, sampling variance taken off, summed over blocks. nan
    with a single family or seed, and where the whole is not above sampling noise."""
    cells = np.stack([rows.to_numpy(float) for _, rows in table.groupby("family")])
    n_families, n_seeds, _ = cells.shape
    if n_families < 2 or n_seeds < 2:
        return float("nan")
    within = cells.var(1, ddof=1).mean(0)  # [block]
    between = cells.mean(1).var(0, ddof=1) - within / n_seeds
    whole, chance = (between + within).sum(), noise.sum()
    if not whole > 2 * chance:
        return float("nan")
    return float(between.sum() / (between + within - noise).sum())


def text_effect(final: pd.DataFrame, text: str) -> tuple[Interval, pd.DataFrame]:
    """Mean absolute profile difference between models of one family trained on `text` and on
    another less that between seeds on `text`: over families, each of which has a single model of
    the other text. And the two by family. final: columns family, text, seed, block, r2."""
    rows = []
    for family, table in final.groupby("family", sort=False):
        runs = table.pivot(index=["text", "seed"], columns="block", values="r2")
        own = runs.loc[[text]].to_numpy(float)
        others = runs.drop(index=text, level="text").to_numpy(float)
        seeds = [np.abs(a - b).mean() for a, b in combinations(own, 2)]
        texts = [np.abs(a - b).mean() for a in own for b in others]
        rows.append({"family": family, "text": np.mean(texts), "seed": np.mean(seeds or [np.nan])})
    table = pd.DataFrame(rows)
    return over_seeds(table.text - table.seed), table


def change(start: pd.DataFrame, end: pd.DataFrame, noise: np.ndarray) -> Interval:
    """Mean over blocks and families of the absolute difference of two tables (`wide`), less what
    sampling alone would give; interval over seeds."""
    apart = (end - start).abs().mean(axis=1).groupby("seed").mean()
    return less_chance(over_seeds(apart), float(FOLDED * np.sqrt(2 * noise).mean()))


def courses(profiles: pd.DataFrame) -> pd.DataFrame:
    """Mean R²_lin over blocks: a row a (family, seed), a column a step."""
    mean = profiles.groupby(["family", "seed", "step"], sort=False).r2.mean()
    return mean.unstack("step").sort_index(axis=1)


def rise_and_fall(course: pd.DataFrame) -> Interval:
    """The smaller of the rise of R²_lin from initialisation to its peak and of the fall from there
    to the end, smallest over families: joint intervals over seeds. The step of the peak is that of
    the family's other seeds. 0 for a monotone course, nan with fewer than two seeds."""
    read: dict[str, np.ndarray] = {}
    for family, rows in course.groupby("family", sort=False):
        x = rows.to_numpy(float)  # [seed, step]
        if len(x) < 2:
            return Interval(np.nan, np.nan, np.nan)
        peak = ((x.sum(0) - x) / (len(x) - 1)).argmax(1)
        top = x[np.arange(len(x)), peak]
        read |= {f"{family} rise": top - x[:, 0], f"{family} fall": top - x[:, -1]}
    # A peak at an end leaves exactly no rise or no fall, in every seed.
    if any(not np.any(v) for v in read.values()):
        return Interval(0.0, 0.0, 0.0)
    return smallest(jointly(pd.DataFrame(read)))


def untrained_range(folds: pd.DataFrame) -> Interval:
    """Highest less lowest R²_lin over the blocks of untrained models, the largest of all families:
    joint intervals over seeds of the initialisation. Blocks are chosen on every other fold of
    documents and read on the rest, both ways averaged. folds: columns family, seed, fold, block,
    r2."""
    rows = []
    for (family, seed), table in folds.groupby(["family", "seed"], sort=False):
        x = table.pivot(index="fold", columns="block", values="r2").to_numpy(float)
        halves = x[::2].mean(0), x[1::2].mean(0)
        both = [b[a.argmax()] - b[a.argmin()] for a, b in (halves, halves[::-1])]
        rows.append({"family": family, "seed": seed, "range": np.mean(both)})
    by_family = pd.DataFrame(rows).pivot(index="seed", columns="family", values="range")
    return largest(jointly(by_family))


def one_apart(final: pd.DataFrame) -> pd.DataFrame:
    """Pairs of trained models that differ in one thing only, family, text or seed: a row for each
    thing, with the number of pairs, their Pearson correlation over blocks (median, lowest) and
    their mean absolute difference (mean, lowest, highest)."""
    alike = pairwise(final, RUN, over="block")
    other = alike[RUN].eq("other")
    alone = alike[other.sum(axis=1) == 1].assign(differs=other.idxmax(axis=1))
    grouped = alone.groupby("differs", sort=False)
    return grouped.agg(
        pairs=("pearson", "size"),
        pearson=("pearson", "median"),
        pearson_lowest=("pearson", "min"),
        mean_difference=("mean_difference", "mean"),
        difference_low=("mean_difference", "min"),
        difference_high=("mean_difference", "max"),
    ).reset_index()


def design_shares(final: pd.DataFrame, text: str, seed: int) -> pd.DataFrame:
    """`variance_shares` over the models of one text and over those of one seed: columns varied,
    term, degrees, share, kind."""
    designs = {"seed": final[final.text == text], "text": final[final.seed == seed]}
    parts = [
        variance_shares(table, ["family", varied, "block"]).assign(varied=varied)
        for varied, table in designs.items()
    ]
    shares = pd.concat(parts, ignore_index=True)
    kinds = {"seed": "training accident (seed)", "text": "training text", "family": "family"}
    own = [next((k for f, k in kinds.items() if f in term), "block alone") for term in shares.term]
    return shares.assign(kind=own)
