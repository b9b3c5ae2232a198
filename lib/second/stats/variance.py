"""How the variance of a measurement divides among the factors of a balanced design (analysis of
variance)."""

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.second.base.errors import InputError


def variance_shares(table: pd.DataFrame, factors: Sequence[str], value: str = "r2") -> pd.DataFrame:
    """How the variance of `value` divides among `factors` and their interactions: columns term
    (a:b), degrees, share.

    Analysis of variance of a balanced design with one value a cell: the effect of a set of factors
    is its cell mean less the effects of all smaller sets, so the sums of squares add up to the
    whole. Raises InputError if some combination is missing or repeated.
    """
    missing = [c for c in (*factors, value) if c not in table]
    if missing:
        raise InputError(
            f"the table has no column {missing[0]!r}: it has {', '.join(map(str, table.columns))}."
        )
    if not np.isfinite(table[value]).all():
        raise InputError(
            f"{value} is not finite in {int((~np.isfinite(table[value])).sum())} of "
            f"{len(table)} rows: leave those combinations out, or measure them again."
        )
    sizes = [table[f].nunique() for f in factors]
    if len(table) != np.prod(sizes) or table.duplicated(list(factors)).any():
        raise InputError(
            f"the design is not balanced: {len(table)} rows for "
            f"{' × '.join(f'{n} {f}' for n, f in zip(sizes, factors, strict=True))}; give "
            "each combination once."
        )
    cells = table.sort_values(list(factors))[value].to_numpy(float).reshape(sizes)
    total = np.square(cells - cells.mean()).sum()
    if not total > 1e-20 * np.square(cells).sum():  # else only rounding varies
        raise InputError(f"{value} does not vary: there is nothing to divide.")
    effects: dict[tuple, np.ndarray] = {}
    for order in range(len(factors) + 1):
        for chosen in itertools.combinations(range(len(factors)), order):
            others = tuple(a for a in range(len(factors)) if a not in chosen)
            mean = cells.mean(others, keepdims=True)
            effects[chosen] = mean - sum(
                effect for smaller, effect in effects.items() if set(smaller) < set(chosen)
            )
    return pd.DataFrame(
        [
            {
                "term": ":".join(factors[a] for a in chosen),
                "degrees": int(np.prod([sizes[a] - 1 for a in chosen])),
                "share": float(np.square(np.broadcast_to(effect, sizes)).sum() / total),
            }
            for chosen, effect in effects.items()
            if chosen
        ]
    )


def pairwise(
    table: pd.DataFrame, factors: Sequence[str], over: str, value: str = "r2"
) -> pd.DataFrame:
    """Every pair of runs compared over the levels of `over`: columns <factor> ("same" or
    "other") for each factor, pearson, mean_difference (mean absolute)."""
    if table.duplicated([over, *factors]).any():
        raise InputError(
            f"some combination of {', '.join([over, *factors])} is there more than once: "
            "give each once."
        )
    wide = table.pivot_table(index=over, columns=list(factors), values=value)
    wide.columns = [
        key if isinstance(key, tuple) else (key,) for key in wide.columns
    ]  # a plain index, for one factor too
    rows = []
    for a, b in itertools.combinations(wide.columns, 2):
        alike = {
            factor: "same" if x == y else "other"
            for factor, x, y in zip(factors, a, b, strict=True)
        }
        rows.append(
            alike
            | {
                "pearson": wide[a].corr(wide[b]),
                "mean_difference": float((wide[a] - wide[b]).abs().mean()),
            }
        )
    return pd.DataFrame(rows)
