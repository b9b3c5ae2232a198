"""Whether what divides two models of unequal width is overfitted maps: their costs with as many
rows a feature, and with as many rows (Balogh §3.1 fits every map on 10,000)."""

from collections.abc import Sequence

import numpy as np

from lib.second.gates.across import log, over_shared
from lib.second.gates.protocol import N_FOLDS
from lib.second.gates.sizes import FIXED, Priced, priced
from lib.second.models.subjects import Subject
from lib.second.stats.intervals import Interval
from lib.second.stats.resampled import weighted_mean
from lib.second.texts.windows import Windows

Sample = tuple[Subject, Windows, Windows, Sequence[int]]
"""a model, the windows that its maps learn from, those that its costs are read on, and its blocks
"""


def with_rows(pair: Sequence[Sample], rows: int = 40) -> tuple[list[Priced], list[Priced]]:
    """Two models with maps from FIXED rows each, and from `rows` rows a feature (or all that the
    shorter sample allows, alike for both)."""
    here = [int((~fit.held_out(N_FOLDS)).sum()) * fit.seq_len for _, fit, _, _ in pair]
    least = [n / subject.d_model for n, (subject, *_) in zip(here, pair, strict=True)]
    each = min(rows, *least)
    same = [priced(s, fit, unseen, FIXED, blocks) for s, fit, unseen, blocks in pair]
    alike = [
        priced(s, fit, unseen, round(each * s.d_model), blocks) for s, fit, unseen, blocks in pair
    ]
    return same, alike


def divide_kept(same: Sequence[Priced], alike: Sequence[Priced]) -> Interval:
    """Log ratio of the median all-linear costs of two models `alike` in rows a feature over that of
    the two with the `same` rows: 95% over the documents that both read. nan where the interval of
    the latter touches 0.
    """
    apart = lambda pair, ws: float(np.subtract(*map(_log_median, pair, ws)))
    at_fixed = over_shared(lambda *ws: apart(same, ws), same)
    if not (at_fixed.low > 0 or at_fixed.high < 0):
        return Interval(np.nan, np.nan, np.nan)
    return over_shared(lambda *ws: apart(alike, ws) / apart(same, ws), same)


def _log_median(found: Priced, weight: np.ndarray) -> float:
    rise = np.stack([(losses - found.base).mean(1) for losses in found.losses.values()])
    return log(np.median(np.expm1(weighted_mean(rise, weight))))
