"""A claim of the ledger judged: the rule in its row, applied to the statistic of a run."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from numbers import Integral

import pandas as pd

from lib.second.base.errors import InputError
from lib.second.stats.intervals import Interval
from lib.second.stats.ledger import claim_row, threshold
from lib.second.stats.rank import RankResult
from lib.second.stats.rules import DECIDE, Units, as_interval, as_units, guarded


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict here; the columns of the ledger follow."""

    id: str
    verdict: str
    here: str
    """the statistic and its interval as text; of units, the one that decides"""
    note: str
    """why it was not run, or what casts doubt on the run"""
    paper: str
    section: str
    importance: str
    sentence: str
    published: str
    kind: str
    statistic: str
    rule: str
    threshold: str
    whose: str
    why: str
    notebook: str
    reason: str
    question: str
    amended: str


def judge(
    id: str,
    statistic: Interval | float | Units | RankResult | None,
    *,
    exact: bool = False,
    ok: bool = True,
    why: str = "",
    here: str | None = None,
) -> Judged:
    """The verdict of the ledger's rule for claim `id` from what a run found.

    `statistic`: an Interval; units with intervals that hold jointly for `any_…` and `all_…`; a
    RankResult for `rank_…`; a number if `exact`; None where this run cannot tell ("not run"). `why`
    says why it cannot, or why the run is not `ok` to decide either way. `here` replaces the text
    made from the statistic. Raises InputError for an unknown id, a claim without a rule, a
    statistic that does not fit the rule, or a missing `why`.
    """
    row = claim_row(id)
    if statistic is None:
        return not_run(row, why, here or "")
    if not row.rule:
        raise InputError(f"claim {id!r} has no rule in the ledger: register one before judging it.")
    try:
        limits = threshold(row)
        verdict = DECIDE[row.rule](statistic, *limits, exact=exact)
        text = here or in_words(statistic, row.rule, limits, verdict, exact)
    except InputError as error:
        raise InputError(f"claim {id!r} ({row.rule}): {error}") from None
    return Judged(verdict=guarded(verdict, ok, why), here=text, note="" if ok else why, **row)


def not_run(row: pd.Series, why: str = "", here: str = "") -> Judged:
    """A claim of the ledger that this run does not judge. Raises InputError if neither `why` nor
    the row's `reason` says why, and it is no setting."""
    note = why or row.reason or ("a setting of the paper" if row.kind == "setting" else "")
    if not note:
        raise InputError(f"claim {row.id!r} is not run: give `why`, a few words.")
    return Judged(verdict="not run", here=here, note=note, **row)


def in_words(
    statistic: Interval | float | Units | RankResult,
    rule: str,
    limits: tuple[float, ...],
    verdict: str,
    exact: bool = False,
) -> str:
    """The statistic as text: "0.70 [0.65, 0.75]", "block 11: 0.98 [0.97, 0.99], of 30", or rho with
    its p."""
    if isinstance(statistic, RankResult):
        return rank_text(statistic, rule)
    if isinstance(statistic, Mapping | pd.DataFrame):
        units = as_units(statistic, exact)
        unit = deciding(units, rule, verdict, limits)
        name = f"block {unit}" if isinstance(unit, Integral) else str(unit)
        return f"{name}: {interval_text(units[unit])}, of {len(units)}"
    return interval_text(as_interval(statistic, exact))


def deciding(
    units: Mapping[Hashable, Interval], rule: str, verdict: str, limits: tuple[float, ...]
) -> Hashable:
    """The unit that a verdict over units rests on: for "some …" the one that comes nearest, for
    "all …" the one that does worst."""

    def clears(interval: Interval, by_bound: bool) -> float:
        """How well a unit does, by the bound that must clear the threshold or by the other."""
        low, high = interval.low, interval.high
        if rule.endswith("below"):
            low, high = -high, -low
        elif not rule.endswith("above"):  # minus the distance from the middle of the margin
            middle = limits[0] if rule == "equal" else sum(limits) / 2
            far, near = max(high - middle, middle - low), max(low - middle, middle - high)
            low, high = -far, -near
        found = low if by_bound else high
        return -math.inf if math.isnan(found) else found

    some = rule.startswith("any")
    by_bound = verdict == "reproduced" if some else verdict != "contradicted"
    order = max if some else min
    return order(units, key=lambda unit: clears(units[unit], by_bound))


def rank_text(found: RankResult, rule: str = "") -> str:
    """ "ρ 0.50 [0.10, 0.80], one-sided p 0.02, n 30 (80% power from |ρ| 0.50)": with the p, and for
    `rank_none` the 90% interval, that `rule` judges. What is nan is left out, and all of it is
    undefined if rho is."""
    if math.isnan(found.rho):
        return f"rank correlation undefined (n {found.n})"
    narrow = rule == "rank_none"
    interval = found.narrow if narrow else found.interval
    bounded = math.isfinite(interval.low) and math.isfinite(interval.high)
    rho = f"{interval:.2f}{' (90%)' * narrow}" if bounded else f"{found.rho:.2f} (no interval)"
    power = "" if math.isnan(found.visible) else f" (80% power from |ρ| {found.visible:.2f})"
    tails = {"rank_positive": found.p_positive, "rank_negative": found.p_negative}
    p = f"one-sided p {tails[rule]:.2g}" if rule in tails else f"p {found.p:.2g}"
    return f"ρ {rho.replace('-', '−')}, {p}, n {found.n}{power}"


def interval_text(interval: Interval) -> str:
    """ "0.70 [0.65, 0.75]", with two digits of its width, or more where a bound would read as 0;
    "2.51 [0.95, ∞)" where one bound is infinite; a value without bounds says so, and so does none.
    """
    value, low, high = interval.value, interval.low, interval.high
    if math.isnan(value):
        text = "undefined"
    elif math.isfinite(low) and high == math.inf:
        text = f"{_digits(value, 3)} [{_digits(low, 3)}, ∞)"
    elif not math.isfinite(low) or not math.isfinite(high):
        text = f"{_digits(value, 3)} (no interval)"
    elif low == high:  # exact
        text = f"{value:,.0f}" if float(value).is_integer() else _digits(value, 6)
    else:
        width = math.floor(math.log10((high - low) * (1 + 1e-9)))
        places = min(max(int(abs(low) < 10), 1 - width), 8)
        while places < 8 and any(v and not round(v, places) for v in (low, high)):
            places += 1
        text = f"{interval:,.{places}f}"
    return text.replace("-", "−")


def _digits(value: float, n: int) -> str:
    """`n` significant digits; large numbers with all their places, not with powers of ten."""
    text = f"{value:,.{n}g}"
    return f"{float(text):,.0f}" if "e+" in text else text
