"""One profile on several texts, and several models beside each other (Whipp §5.7): statistics of
domain_profiles, each with an interval over held-out documents."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lib.second.base.errors import InputError, unknown
from lib.second.linear.shape import step_intervals, turns
from lib.second.stats.folds import jackknifed
from lib.second.stats.intervals import Interval, fold_mean, mean_interval, pearson, spearman
from lib.second.stats.joint import joint_level
from lib.second.stats.ratios import absolute, transformed

Scores = Mapping[str, np.ndarray]
"""{text: R² [n_folds, n_blocks]}, or [n_folds, n_models, n_blocks]"""


def _pearson_z(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.arctanh(np.clip(pearson(a, b), -1 + 1e-12, 1 - 1e-12)))


def _spearman_z(a: np.ndarray, b: np.ndarray) -> float:
    # The same order throughout is less than 1 by half of what one exchange of neighbours costs.
    most = 1 - 6 / (len(a) * (len(a) ** 2 - 1)) if len(a) > 1 else 0
    return float(np.arctanh(np.clip(spearman(a, b), -most, most)))


def _mean_shift(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).mean())


MEASURES = {
    "pearson": (pearson, _pearson_z, np.tanh),
    "spearman": (spearman, _spearman_z, np.tanh),
    "mean_shift": (_mean_shift, _mean_shift, lambda shift: max(0.0, shift)),
}
"""how two profiles compare: the measure, its scale on which an interval is even, the way back"""


def scores_of(profiles: pd.DataFrame) -> dict[str, np.ndarray]:
    """domain_profiles as {domain: R² [n_folds, n_blocks]}."""
    return {
        domain: rows.pivot_table(index="fold", columns="block", values="r2").to_numpy()
        for domain, rows in profiles.groupby("domain", sort=False)
    }


def side_by_side(profiles: Mapping[str, pd.DataFrame]) -> dict[str, np.ndarray]:
    """domain_profiles of several models of equal depth, {model: table}, as {domain: R² [n_folds,
    n_models, n_blocks]}. Raises InputError for models whose depths differ."""
    scores = [scores_of(table) for table in profiles.values()]
    depths = {name: table.block.nunique() for name, table in profiles.items()}
    if len(set(depths.values())) != 1:
        raise InputError(
            f"models of {', '.join(f'{n} blocks ({name})' for name, n in depths.items())} cannot "
            "be compared block by block: give models of equal depth."
        )
    return {name: np.stack([of_model[name] for of_model in scores], axis=1) for name in scores[0]}


def agreement(profiles: pd.DataFrame, reference: str, n_joint: int | None = None) -> pd.DataFrame:
    """Each domain of domain_profiles against `reference`, by the means over folds: columns
    domain, measure (pearson and spearman over blocks, mean_shift of |ΔR²|), value, low, high.

    The 95% intervals are jackknifed over folds, the correlations on Fisher's scale, and hold
    jointly over `n_joint` domains (default: all). Blocks are not resampled, for they are all there
    are. Raises InputError if the reference is not among the domains.
    """
    scores = scores_of(profiles)
    if reference not in scores:
        raise unknown("domain", reference, list(scores))
    others = [name for name in scores if name != reference]
    level, rows = joint_level(n_joint or len(others)), []
    for name in others:
        pair = {text: scores[text] for text in (reference, name)}
        for measure, (compare, scaled, back) in MEASURES.items():
            found = jackknifed(pair, lambda m, f=scaled: f(*m.values()), level)
            value = compare(*(scores.mean(0) for scores in pair.values()))
            low, high = float(back(found.low)), float(back(found.high))
            row = {"value": value, "low": low, "high": max(high, value)}
            rows.append({"domain": name, "measure": measure, **row})
    return pd.DataFrame(rows)


def block_shifts(
    profiles: pd.DataFrame, reference: str, domains: Sequence[str]
) -> dict[str, Interval]:
    """|ΔR²| of every block between each of `domains` and the reference; 95% intervals that hold for
    all of them at once, for the largest is chosen after all were seen: {"domain, block 3": ...}."""
    scores = {name: pd.DataFrame(scores_of(profiles)[name]) for name in (reference, *domains)}
    n_folds, n_blocks = scores[reference].shape
    level = joint_level(len(domains) * n_blocks)
    found = {
        name: mean_interval(table, level, 1 / max(n_folds - 1, 1)) for name, table in scores.items()
    }
    half = {name: rows.high - rows["mean"] for name, rows in found.items()}
    units = {}
    for name in domains:
        shift = found[name]["mean"] - found[reference]["mean"]
        by = np.hypot(half[name], half[reference])
        rows = zip(shift, shift - by, shift + by, strict=True)
        units |= {f"{name}, block {b}": Interval(*row) for b, row in enumerate(rows)}
    return absolute(units)


def same_ends(
    profiles: pd.DataFrame, reference: str, domains: Sequence[str]
) -> dict[str, Interval]:
    """R² on each of `domains` of the reference's most linear less its least linear block, jointly
    95% over folds. No bounds for a model of one block."""
    scores = scores_of(profiles)
    home, level = scores[reference].mean(0), joint_level(len(domains))
    top, bottom = int(home.argmax()), int(home.argmin())
    if top == bottom:
        return {name: Interval(0.0, np.nan, np.nan) for name in domains}
    gaps = {name: scores[name][:, top] - scores[name][:, bottom] for name in domains}
    return {name: fold_mean(gap, 1 / max(len(gap) - 1, 1), level) for name, gap in gaps.items()}


def turns_of(profiles: pd.DataFrame, domains: Sequence[str]) -> dict[str, Interval]:
    """How often the profile turns along depth on each of `domains` (lib.second.linear.shape), jointly."""
    level = joint_level(len(domains))
    parts = {name: profiles[profiles.domain == name] for name in domains}
    return {name: turns(step_intervals(part, level)) for name, part in parts.items()}


def models_over_texts(scores: Scores, reference: str, level: float = 0.95) -> Interval:
    """How much more models differ on one text than one model on two: mean |ΔR²| over pairs of
    models and all texts, over the mean |ΔR²| over models between the reference and each other text.

    scores: {text: [n_folds, n_models, n_blocks]}, blocks at equal depth. The interval is that of
    the log ratio, jackknifed over folds. Raises InputError for fewer than two models or texts.
    """
    n_models = scores[reference].shape[1]
    if n_models < 2 or len(scores) < 2:
        raise InputError(
            f"{n_models} model(s) on {len(scores)} text(s) cannot be compared: give two of each."
        )
    first, second = np.triu_indices(n_models, 1)

    def log_ratio(means: dict[str, np.ndarray]) -> float:
        models = [np.abs(m[first] - m[second]).mean() for m in means.values()]
        home = means[reference]
        texts = [np.abs(m - home).mean() for name, m in means.items() if name != reference]
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.log(np.mean(models)) - np.log(np.mean(texts)))

    return transformed(jackknifed(scores, log_ratio, level), np.exp)


def leads(scores: Scores, reference: str, pair: tuple[int, int] = (0, 1)) -> dict[str, Interval]:
    """The smaller of two models' largest leads over each other in R², on every text but the
    reference, at the two blocks chosen there; jointly 95% over folds.

    scores: {text: [n_folds, n_models, n_blocks]}; `pair`: which two models. Below 0 where one model
    leads at both blocks.
    """
    a, b = pair
    home = scores[reference].mean(0)
    ahead, behind = int((home[a] - home[b]).argmax()), int((home[a] - home[b]).argmin())
    lead = lambda m: min(m[a, ahead] - m[b, ahead], m[b, behind] - m[a, behind])
    others = [name for name in scores if name != reference]
    level = joint_level(len(others))
    return {
        name: jackknifed({name: scores[name]}, lambda m: lead(*m.values()), level)
        for name in others
    }


def transfer_loss(
    profiles: pd.DataFrame, moved: pd.DataFrame, reference: str, domains: Sequence[str]
) -> dict[str, Interval]:
    """Mean over blocks of R² of the map fitted on a domain itself less R² there of the map fitted
    on the reference, both on the same held-out folds; jointly 95% over folds.

    moved: the table of `transfer`."""
    moved = moved[moved.fit_on == reference].rename(columns={"scored_on": "domain"})
    both = profiles.merge(moved, on=["domain", "block", "fold"], suffixes=("", "_moved"))
    lost = (both.r2 - both.r2_moved).groupby([both.domain, both.fold]).mean()
    level = joint_level(len(domains))
    return {name: fold_mean(lost[name], 1 / max(len(lost[name]) - 1, 1), level) for name in domains}
