"""One model on several text domains (Whipp §5.7): profiles, their agreement, and how a map
fitted on one domain does on another."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.base.errors import InputError, unknown
from lib.linear.moments import total
from lib.linear.survey import fold_intervals, fold_moments, recoverability
from lib.models.subjects import Subject
from lib.stats.intervals import bootstrap, mean_interval, pearson, spearman
from lib.texts.windows import Windows


def domain_profiles(
    subject: Subject, domains: Mapping[str, Windows], n_folds: int = 5
) -> pd.DataFrame:
    """R²_lin of every block and fold on each domain's windows: columns domain, block, fold, r2.

    Raises InputError for fewer than two domains, which cannot be compared.
    """
    if len(domains) < 2:
        raise InputError(
            f"only one domain was given ({', '.join(domains) or 'none'}): name at least two "
            "corpora to compare."
        )
    return pd.concat(
        [
            recoverability(subject, windows, n_folds).folds.assign(domain=name)
            for name, windows in domains.items()
        ],
        ignore_index=True,
    )


def agreement(profiles: pd.DataFrame, reference: str, seed: int = 42) -> pd.DataFrame:
    """Each domain of domain_profiles against `reference`, by the means over folds.

    Pearson and Spearman over blocks and the mean absolute shift carry a 95% bootstrap over blocks;
    the largest shift of a block an interval that holds for all blocks jointly (Bonferroni, t over
    folds), for the block is chosen after all were seen. Columns domain, pearson(_low, _high),
    spearman(_low, _high), mean_abs_shift(_low, _high), worst_shift(_low, _high), worst_block.
    """
    if reference not in set(profiles.domain):
        raise unknown("domain", reference, list(profiles.domain.unique()))
    means, margins = {}, {}
    for domain, rows in profiles.groupby("domain", sort=False):
        wide = rows.pivot_table(index="fold", columns="block", values="r2")
        level = 1 - 0.05 / wide.shape[1]
        found = mean_interval(wide, level, 1 / (len(wide) - 1))
        means[domain], margins[domain] = found["mean"], found["high"] - found["mean"]
    rows = []
    for name in (d for d in means if d != reference):
        pair = means[reference].to_numpy(), means[name].to_numpy()
        row = {"domain": name}
        for metric, function in STATISTICS.items():
            found = bootstrap(function, *pair, paired=True, seed=seed)
            row |= {metric: found.value, f"{metric}_low": found.low, f"{metric}_high": found.high}
        shift = (means[name] - means[reference]).abs()
        margin = np.hypot(margins[name], margins[reference])
        row |= {
            "worst_shift": shift.max(),
            "worst_shift_low": max(0.0, (shift - margin).max()),
            "worst_shift_high": (shift + margin).max(),
            "worst_block": int(shift.idxmax()),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _mean_abs_shift(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).mean())


STATISTICS = {"pearson": pearson, "spearman": spearman, "mean_abs_shift": _mean_abs_shift}


def transfer(subject: Subject, domains: Mapping[str, Windows], n_folds: int = 5) -> pd.DataFrame:
    """R² on each domain's last fold of the map fitted on each domain's other folds: columns fit_on,
    scored_on, block, r2.

    Everything comes from the moments that domain_profiles has stored; nothing is run again.
    """
    folds = {name: fold_moments(subject, windows, n_folds) for name, windows in domains.items()}
    rows = []
    for fit_on, source in folds.items():
        for block in subject.blocks:
            affine = total([fold[block.index] for fold in source[:-1]]).fit()
            for name, target in folds.items():
                r2 = target[-1][block.index].score(affine).r2
                row = {"fit_on": fit_on, "scored_on": name, "block": block.index, "r2": r2}
                rows.append(row)
    return pd.DataFrame(rows)


def domain_intervals(profiles: pd.DataFrame) -> pd.DataFrame:
    """Mean over folds with its interval, on each domain of domain_profiles: columns domain, block,
    mean, low, high, std."""
    return pd.concat(
        [
            fold_intervals(rows).assign(domain=name)
            for name, rows in profiles.groupby("domain", sort=False)
        ],
        ignore_index=True,
    )
