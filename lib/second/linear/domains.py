"""One model on several text domains (Whipp §5.7): profiles, and how a map fitted on one domain does
on another."""

from collections.abc import Mapping

import pandas as pd

from lib.second.base.errors import InputError, unknown
from lib.second.linear.moments import total
from lib.second.linear.survey import fold_intervals, fold_moments, recoverability
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows


def domain_profiles(
    subject: Subject, domains: Mapping[str, Windows], n_folds: int = 5
) -> pd.DataFrame:
    """R²_lin of every block and fold on each domain's windows: columns domain, block, fold, r2.

    Raises InputError for fewer than two domains, which cannot be compared.
    """
    if not isinstance(domains, Mapping):
        raise InputError(
            f"domains {domains!r} are no samples by name: give {{name: windows}} of at least two."
        )
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


def transfer(
    subject: Subject, domains: Mapping[str, Windows], reference: str, n_folds: int = 5
) -> pd.DataFrame:
    """R² on each domain of the map fitted on each domain without its last fold: columns fit_on,
    scored_on, block, fold, r2.

    Scored is the last fold, and of the reference's map on other domains every fold. Everything
    comes from the moments that domain_profiles has stored; nothing is run again. Raises InputError
    if the reference is not among the domains.
    """
    if reference not in domains:
        raise unknown("domain", reference, list(domains))
    folds = {name: fold_moments(subject, windows, n_folds) for name, windows in domains.items()}
    rows = []
    for fit_on, source in folds.items():
        for block in subject.blocks:
            affine = total([fold[block.index] for fold in source[:-1]]).fit()
            for name, target in folds.items():
                away = fit_on == reference != name
                for k in range(0 if away else n_folds - 1, n_folds):
                    r2 = target[k][block.index].score(affine).r2
                    rows.append((fit_on, name, block.index, k, r2))
    return pd.DataFrame(rows, columns=["fit_on", "scored_on", "block", "fold", "r2"])


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
