"""Numbers of a run beside those that the paper prints."""

from collections.abc import Sequence

from lib.stats.intervals import Interval
from lib.stats.joint import largest
from lib.stats.ratios import absolute


def off_by(found: Sequence[Interval], printed: Sequence[float], relative: bool = False) -> Interval:
    """Largest absolute difference of intervals that hold jointly from the printed numbers, or
    relative to them; numbers without a partner on the other side are left out."""
    apart = {}
    for k, (i, number) in enumerate(zip(found, printed)):
        unit = number if relative else 1.0
        apart[k] = Interval(*((v - number) / unit for v in (i.value, i.low, i.high)))
    return largest(absolute(apart))
