"""Controls: whether a comparison of like with like passes the claim that is judged on others."""

from lib.stats.intervals import Interval
from lib.stats.ledger import claim_row, threshold
from lib.stats.rules import DECIDE, REPRODUCED


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
