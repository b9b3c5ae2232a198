"""One model on several text domains (Whipp §5.7): profiles, their agreement, and how a map
fitted on one domain does on another."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch

from lib.base.errors import InputError, unknown
from lib.linear.moments import total
from lib.linear.survey import fold_intervals, fold_moments, recoverability
from lib.models.subjects import Subject
from lib.stats.intervals import bootstrap, pearson, spearman


def domain_profiles(
    subject: Subject, domains: Mapping[str, torch.Tensor], n_folds: int = 5, batch: int = 16
) -> pd.DataFrame:
    """R²_lin of every block on each domain's windows: columns domain, block, r2_lin, mean, low,
    high, std (over folds).

    Raises InputError for fewer than two domains, which cannot be compared.
    """
    if len(domains) < 2:
        raise InputError(
            f"only one domain was given ({', '.join(domains) or 'none'}): name at least two "
            "corpora to compare."
        )
    frames = []
    for name, windows in domains.items():
        found = recoverability(subject, windows, n_folds, batch)
        frames.append(
            found.table[["block", "r2_lin"]].merge(fold_intervals(found.folds)).assign(domain=name)
        )
    return pd.concat(frames, ignore_index=True)


def agreement(profiles: pd.DataFrame, reference: str, seed: int = 42) -> pd.DataFrame:
    """Each domain against `reference`: Pearson and Spearman over blocks (95% bootstrap over
    blocks), the shift of R² and, from the spread over folds, an interval of the largest.

    Columns domain, pearson(_low, _high), spearman(_low, _high), mean_abs_shift(_low, _high),
    worst_shift(_low, _high), worst_block.
    """
    if reference not in set(profiles.domain):
        raise unknown("domain", reference, list(profiles.domain.unique()))
    wide = profiles.pivot_table(index="block", columns="domain", values="r2_lin")
    half = profiles.assign(half=(profiles.high - profiles.low) / 2).pivot_table(
        index="block", columns="domain", values="half"
    )
    rows = []
    for name in (d for d in profiles.domain.unique() if d != reference):
        pair, row = (wide[reference].to_numpy(), wide[name].to_numpy()), {"domain": name}
        for metric, function in {
            "pearson": pearson,
            "spearman": spearman,
            "mean_abs_shift": lambda a, b: np.abs(a - b).mean(),
        }.items():
            found = bootstrap(function, *pair, paired=True, seed=seed)
            row |= {metric: found.value, f"{metric}_low": found.low, f"{metric}_high": found.high}
        shift = (wide[name] - wide[reference]).abs()
        worst = int(shift.idxmax())
        margin = float(np.hypot(half.loc[worst, reference], half.loc[worst, name]))
        rows.append(
            {
                **row,
                "worst_shift": shift.max(),
                "worst_shift_low": shift.max() - margin,
                "worst_shift_high": shift.max() + margin,
                "worst_block": worst,
            }
        )
    return pd.DataFrame(rows)


def transfer(
    subject: Subject, domains: Mapping[str, torch.Tensor], n_folds: int = 5, batch: int = 16
) -> pd.DataFrame:
    """R² on each domain's held-out tail of the map fitted on each domain's other folds: columns
    fit_on, scored_on, block, r2.

    Everything comes from the moments that domain_profiles has stored; nothing is run again.
    """
    folds = {
        name: fold_moments(subject, windows, n_folds, batch) for name, windows in domains.items()
    }
    rows = []
    for fit_on, source in folds.items():
        for block in subject.blocks:
            affine = total([fold[block.index] for fold in source[:-1]]).fit()
            rows += [
                {
                    "fit_on": fit_on,
                    "scored_on": name,
                    "block": block.index,
                    "r2": target[-1][block.index].score(affine).r2,
                }
                for name, target in folds.items()
            ]
    return pd.DataFrame(rows)
