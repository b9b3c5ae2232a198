"""The ledger of claims, and the verdict on one: against its threshold and its null, in one call."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

import numpy as np
import pandas as pd

from lib.errors import InputError, unknown
from lib.stats import Interval
from lib.text import DATA

PUBLISHED = DATA / "published"
MARKS = {"holds here": "✔", "fails here": "✘", "open": "?"}
_RULE = re.compile(r"(any |all )?(?:([<>]) (\S+)|in (\S+) (\S+))")
Statistic = Interval | float | Sequence[Interval]


@cache
def ledger() -> pd.DataFrame:
    """data/published/claims.csv, indexed by id."""
    rows = pd.read_csv(PUBLISHED / "claims.csv", keep_default_na=False, dtype=str)
    return rows.set_index("id", drop=False)


@dataclass(frozen=True)
class Verdict:
    """What a claim came to in one run."""

    id: str
    verdict: str
    measured: Interval
    unit: str
    """which unit decided, where the claim is about several"""
    null: Interval | None
    why: str
    """why it is open"""

    @property
    def line(self) -> str:
        """The claim in one line of Markdown."""
        row = ledger().loc[self.id]
        told = f"{in_words(self.measured)}{f' ({self.unit})' if self.unit else ''}"
        null = row.null if self.null is None else f"{row.null} {in_words(self.null)}"
        why = f" · {self.why}" if self.why else ""
        mark = " †" if row.amended else ""
        return (
            f"{MARKS[self.verdict]} **{self.verdict}**{mark} · {row.sentence} · {told} · rule "
            f"{row.rule} · null: {null}{why}"
        )


def judge(id: str, statistic: Statistic, null: Statistic | None = None, units=None) -> Verdict:
    """The verdict on claim `id`: it holds here where the interval lies inside the rule and the
    null's does not, and fails here where it lies wholly outside; else it is open.

    A list of Intervals, joint over units, answers an `any` or `all` rule; `units` names them. An
    `any` claim never fails on one model. Raises InputError for an unknown id.
    """
    if id not in ledger().index:
        near = get_close_matches(id, ledger().index, 3)
        raise unknown("claim", id, near or [f"the ids of {PUBLISHED / 'claims.csv'}"])
    row = ledger().loc[id]
    found = _RULE.fullmatch(row.rule)
    if not found:
        raise InputError(f"claim {id} has the rule {row.rule!r}: write > 0.5, < 0.1 or in -1 1.")
    quantifier = (found[1] or "all").strip()
    lower = float(found[3]) if found[2] == ">" else float(found[4]) if found[4] else -np.inf
    upper = float(found[3]) if found[2] == "<" else float(found[5]) if found[5] else np.inf

    def worst(i):
        return min(i.low - lower, upper - i.high)  # > 0: surely inside

    def decide(statistic: Statistic) -> tuple[str, Interval, int]:
        several = [_interval(s) for s in _listed(statistic)]
        ranks = [worst(i) if np.isfinite(i.low) else -np.inf for i in several]
        at = int(np.argmax(ranks) if quantifier == "any" else np.argmin(ranks))
        outside = [i.high < lower or i.low > upper for i in several]
        if not np.isfinite(several[at].low):
            verdict = "open"
        elif ranks[at] > 0:
            verdict = "holds here"
        elif quantifier == "all" and any(outside):
            verdict, at = "fails here", outside.index(True) if not outside[at] else at
        else:
            verdict = "open"
        if quantifier == "any" and all(outside):
            refuted.append("one model cannot refute it")
        return verdict, several[at], at

    refuted: list[str] = []
    verdict, measured, at = decide(statistic)
    why = "".join(refuted) if np.isfinite(measured.low) else "no interval can be told here"
    beside = None
    if null is not None:
        # A null without an interval of its own is a point: it passes where the point lies inside.
        points = [_interval(s) for s in _listed(null)]
        points = [i if np.isfinite(i.low) else Interval(i.value, i.value, i.value) for i in points]
        passes, beside, _ = decide(points)
        if verdict == "holds here" and passes == "holds here":
            verdict, why = "open", "its null passes too"
        elif np.isnan(beside.value):
            pass  # the null's world has no such unit
        elif verdict == "holds here" and not _apart(measured, beside, lower, upper):
            verdict, why = "open", "not told apart from its null"
    named = units is not None and len(_listed(statistic)) > 1
    return Verdict(id, verdict, measured, str(units[at]) if named else "", beside, why)


def _apart(a: Interval, b: Interval, lower: float, upper: float) -> bool:
    """Whether the difference of two intervals excludes 0, on the claim's side: the halves that
    face each other in quadrature (MOVER; Zou and Donner, 2008)."""
    above = a.value - b.value > np.hypot(a.value - a.low, b.high - b.value)
    below = b.value - a.value > np.hypot(a.high - a.value, b.value - b.low)
    return bool((np.isfinite(lower) and above) or (np.isfinite(upper) and below))


def _listed(statistic: Statistic) -> list:
    return [statistic] if isinstance(statistic, Interval | int | float) else list(statistic)


def _interval(value) -> Interval:
    return value if isinstance(value, Interval) else Interval(float(value), np.nan, np.nan)


def in_words(i: Interval) -> str:
    """0.55 [0.54, 0.56]: the digits that the width deserves."""
    if np.isnan(i.value):
        return "(none there)"
    width = i.high - i.low
    if not width > 0 or not np.isfinite(width):
        return f"{i.value:.3g}".replace("-", "−")
    if i.value >= 1000:
        return f"{i.value:.1e} [{i.low:.1e}, {i.high:.1e}]".replace("e+0", "e")
    digits = int(np.clip(1 - np.floor(np.log10(width)), 0, 4))
    return f"{i.value:.{digits}f} [{i.low:.{digits}f}, {i.high:.{digits}f}]".replace("-", "−")
