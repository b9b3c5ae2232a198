"""The rules of the ledger: what verdict follows from a statistic with its interval.

A statistic is an `Interval`, for `any_…` and `all_…` a mapping of units (blocks, pairs, models) to
intervals that hold jointly (`lib.second.stats.joint`), and for `rank_…` a `RankResult`. A number without
interval decides nothing, unless it is exact: true by arithmetic, not measured.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from numbers import Real

import pandas as pd

from lib.second.base.errors import InputError
from lib.second.stats.intervals import Interval
from lib.second.stats.rank import RankResult

REPRODUCED, CONTRADICTED, INCONCLUSIVE = "reproduced", "contradicted", "inconclusive"
# One-sided, so that noise is decided in one case in twenty; blocks are no independent draws, and
# profiles that are smooth in depth would be decided in over one in ten at twice this.
ALPHA = 0.025
Units = Mapping[Hashable, Interval | float] | pd.DataFrame


def above(statistic: Interval | float, threshold: float, *, exact: bool = False) -> str:
    """ "The quantity exceeds `threshold`": its interval lies wholly above (reproduced), wholly
    below (contradicted), or neither."""
    interval = as_interval(statistic, exact)
    if interval.low > threshold:
        return REPRODUCED
    at = exact and interval.low == interval.high == threshold  # what is equal does not exceed
    return CONTRADICTED if at or interval.high < threshold else INCONCLUSIVE


def below(statistic: Interval | float, threshold: float, *, exact: bool = False) -> str:
    """ "The quantity is less than `threshold`"."""
    return above(negated(as_interval(statistic, exact)), -threshold, exact=exact)


def within(statistic: Interval | float, low: float, high: float, *, exact: bool = False) -> str:
    """ "The quantity lies from `low` to `high`", equivalence by margin: its interval lies inside
    (reproduced), wholly outside (contradicted), or neither."""
    interval = as_interval(statistic, exact)
    if low <= interval.low and interval.high <= high:
        return REPRODUCED
    return CONTRADICTED if interval.high < low or high < interval.low else INCONCLUSIVE


def any_above(units: Units, threshold: float, *, exact: bool = False) -> str:
    """ "Some unit exceeds `threshold`": one clears it (reproduced), all fail it (contradicted)."""
    return _some([above(i, threshold, exact=exact) for i in as_units(units, exact).values()])


def any_below(units: Units, threshold: float, *, exact: bool = False) -> str:
    """ "Some unit is less than `threshold`"."""
    return _some([below(i, threshold, exact=exact) for i in as_units(units, exact).values()])


def all_above(units: Units, threshold: float, *, exact: bool = False) -> str:
    """ "Every unit exceeds `threshold`": all clear it (reproduced), one fails it (contradicted)."""
    return _every([above(i, threshold, exact=exact) for i in as_units(units, exact).values()])


def all_below(units: Units, threshold: float, *, exact: bool = False) -> str:
    """ "Every unit is less than `threshold`"."""
    return _every([below(i, threshold, exact=exact) for i in as_units(units, exact).values()])


def all_within(units: Units, low: float, high: float, *, exact: bool = False) -> str:
    """ "Every unit lies from `low` to `high`"."""
    return _every([within(i, low, high, exact=exact) for i in as_units(units, exact).values()])


def rank_positive(statistic: RankResult, zero: float = 0, *, exact: bool = False) -> str:
    """ "The two go together": the permutation test rejects `zero` upwards (reproduced) or downwards
    (contradicted), each at one-sided ALPHA."""
    found = _as_rank(statistic)
    if found.p_positive <= ALPHA:
        return REPRODUCED
    return CONTRADICTED if found.p_negative <= ALPHA else INCONCLUSIVE


def rank_negative(statistic: RankResult, zero: float = 0, *, exact: bool = False) -> str:
    """ "The two go against each other"."""
    found = _as_rank(statistic)
    if found.p_negative <= ALPHA:
        return REPRODUCED
    return CONTRADICTED if found.p_positive <= ALPHA else INCONCLUSIVE


def rank_none(statistic: RankResult, margin: float, *, exact: bool = False) -> str:
    """ "The two are uncorrelated", up to `margin`: the 90% interval of rho lies within ±margin,
    which is two one-sided tests at 5% (reproduced), wholly outside (contradicted), or neither."""
    return within(_as_rank(statistic).narrow, -margin, margin)


def equal(
    statistic: Interval | float | Units,
    published: float,
    tolerance: float,
    *,
    exact: bool = False,
) -> str:
    """ "The printed number": what is found lies within `tolerance` of `published`, with its whole
    interval; of units, every one."""
    decide = all_within if isinstance(statistic, Mapping | pd.DataFrame) else within
    return decide(statistic, published - tolerance, published + tolerance, exact=exact)


DECIDE: dict[str, Callable[..., str]] = {
    rule.__name__: rule
    for rule in (
        above,
        below,
        within,
        any_above,
        any_below,
        all_above,
        all_below,
        all_within,
        rank_positive,
        rank_negative,
        rank_none,
        equal,
    )
}


def guarded(verdict: str, ok: bool, why: str) -> str:
    """The verdict of a run whose quality is in doubt (too small a budget, not settled): unless it
    is `ok`, neither a confirmation nor a refusal stands. Raises InputError if `why` is missing."""
    if ok:
        return verdict
    if not why.strip():
        raise InputError("a guard that fails must say why: give `why`, a few words.")
    return INCONCLUSIVE if verdict in (REPRODUCED, CONTRADICTED) else verdict


def as_interval(statistic: Interval | float, exact: bool = False) -> Interval:
    """A number as an interval: of no width if it is exact, else without bounds. Raises InputError
    for anything else."""
    if isinstance(statistic, Interval):
        return statistic
    if not isinstance(statistic, Real):
        raise InputError(
            f"a {type(statistic).__name__} is no single statistic: give an Interval, or a number."
        )
    bound = float(statistic) if exact else math.nan
    return Interval(float(statistic), bound, bound)


def as_units(units: Units, exact: bool = False) -> dict[Hashable, Interval]:
    """Units with their intervals, from a mapping or a table with columns low, high and value or
    mean, a row a unit. Raises InputError if there is none."""
    if isinstance(units, pd.DataFrame):
        middle = "value" if "value" in units else "mean"
        missing = [c for c in (middle, "low", "high") if c not in units]
        if missing:
            raise InputError(f"the table of units has no column {missing[0]!r}: add it.")
        rows = zip(units.index, units[middle], units["low"], units["high"], strict=True)
        units = {unit: Interval(*map(float, row)) for unit, *row in rows}
    if not isinstance(units, Mapping):
        raise InputError(
            f"a {type(units).__name__} is no mapping of units to intervals: make one with jointly."
        )
    if not units:
        raise InputError("there is no unit to judge: hand over None, and say why.")
    return {unit: as_interval(i, exact) for unit, i in units.items()}


def negated(interval: Interval) -> Interval:
    """The interval of minus the quantity."""
    return Interval(-interval.value, -interval.high, -interval.low)


def _as_rank(statistic: RankResult) -> RankResult:
    if not isinstance(statistic, RankResult):
        raise InputError(
            f"a {type(statistic).__name__} is no rank correlation: make one with rank_correlation."
        )
    return statistic


def _some(verdicts: list[str]) -> str:
    if REPRODUCED in verdicts:
        return REPRODUCED
    return CONTRADICTED if all(v == CONTRADICTED for v in verdicts) else INCONCLUSIVE


def _every(verdicts: list[str]) -> str:
    if CONTRADICTED in verdicts:
        return CONTRADICTED
    return REPRODUCED if all(v == REPRODUCED for v in verdicts) else INCONCLUSIVE
