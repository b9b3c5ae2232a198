"""Whether a divide between two models is one of overfitted maps: their costs with as many rows a
feature, and with as many rows (Balogh §3.1 fits every map on 10,000)."""

from collections.abc import Sequence

import numpy as np

from lib.gates.across import log, over_shared
from lib.gates.delta import deltas
from lib.gates.protocol import N_FOLDS, Protocol
from lib.gates.refit import refit
from lib.gates.survey import Survey
from lib.models.subjects import Subject
from lib.stats.intervals import Interval
from lib.stats.resampled import weighted_mean
from lib.texts.windows import Windows


def rows_per_feature(
    pair: Sequence[tuple[Subject, Windows, Protocol, Survey]], rows: int = 40, fixed: int = 10_000
) -> Interval:
    """Log ratio of the median all-linear costs of the dearer and the cheaper of two models, maps
    fitted on `rows` rows a feature (or all that `fit` has, alike for both), over that with `fixed`
    rows: 95% over documents. nan where the interval of the latter's log ratio touches 0.

    pair: (subject, fit, protocol, survey) of both.
    """
    counts = [min(rows * subject.d_model, _available(fit)) for subject, fit, _, _ in pair]
    if len({n // s.d_model for n, (s, *_) in zip(counts, pair, strict=True)}) > 1:
        each = min(n // s.d_model for n, (s, *_) in zip(counts, pair, strict=True))
        counts = [each * s.d_model for s, *_ in pair]
    alike = [_costs(*one, n) for one, n in zip(pair, counts, strict=True)]
    same = [_costs(*one, min(fixed, _available(one[1]))) for one in pair]
    surveys = [s for *_, s in pair]
    apart = lambda rises, ws: np.subtract(
        *(log(np.median(np.expm1(weighted_mean(r, w)))) for r, w in zip(rises, ws, strict=True))
    )
    at_fixed = over_shared(lambda *w: float(apart(same, w)), surveys)
    if not (at_fixed.low > 0 or at_fixed.high < 0):
        return Interval(np.nan, np.nan, np.nan)
    return over_shared(lambda *w: float(apart(alike, w) / apart(same, w)), surveys)


def _available(fit: Windows) -> int:
    """Tokens of the documents that maps learn from."""
    return int((~fit.held_out(N_FOLDS)).sum()) * fit.seq_len


def _costs(subject: Subject, fit: Windows, parts: Protocol, s: Survey, n_tokens: int) -> np.ndarray:
    """Mean loss difference by block and window with maps from so many tokens, [blocks, n]."""
    any_gate = {b: s.fitted.gates[b, "linear"] for b in sorted(s.linear)}
    maps = refit(subject, fit, any_gate, max(fit.seq_len, n_tokens))
    found = deltas(subject, parts.report, maps)
    return np.stack([found.by_block[b].mean(1) for b in any_gate])
