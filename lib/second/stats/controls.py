"""Whether a verdict can be trusted: what a comparison of like with like gives by the same rule, and
whether it stands when fits have not come to rest."""

from collections.abc import Mapping

from lib.second.stats.intervals import Interval
from lib.second.stats.ledger import claim_row, threshold
from lib.second.stats.rules import DECIDE, INCONCLUSIVE, REPRODUCED, as_interval
from lib.second.stats.verdicts import judge


def control_passes(id: str, control: Interval | float) -> bool:
    """Whether the value of the control lies on the claim's side of its threshold.

    Two samples of one text differ by sampling alone. Where they fail the claim already, what other
    texts do says nothing about them: the run is too small to judge it, either way. Raises
    InputError for an id that is not in the ledger.
    """
    row = claim_row(id)
    value = control.value if isinstance(control, Interval) else float(control)
    statistic = {"control": value} if row.rule.startswith(("all_", "any_")) else value
    return DECIDE[row.rule](statistic, *threshold(row), exact=True) == REPRODUCED


def settled(id: str, statistic, doubt) -> bool:
    """Whether the verdict of claim `id` stays when the statistic moves by `doubt` up or down: a
    number, or for a mapping of units one for each. What decides nothing cannot be unsettled."""
    verdict = judge(id, statistic).verdict
    if verdict == INCONCLUSIVE:
        return True
    moved = [judge(id, _moved(statistic, doubt, sign)).verdict for sign in (-1, 1)]
    return moved == [verdict] * 2


def _moved(statistic, doubt, sign: int):
    if isinstance(statistic, Mapping):
        return {u: _moved(i, doubt[u], sign) for u, i in statistic.items()}
    found = as_interval(statistic)
    by = sign * float(doubt)
    return Interval(found.value + by, found.low + by, found.high + by)
