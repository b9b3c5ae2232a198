"""Tables of several models: Balogh's Table 8, what it lacks, and counts of blocks below the base
beside those of random routers."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.second.gates.across import below_base
from lib.second.gates.gated_claims import random_draws, wins_over_chance
from lib.second.gates.survey import Survey
from lib.second.stats.resampled import over_documents
from lib.second.swaps.losses import perplexity


def _percent(rise: np.ndarray) -> np.ndarray:
    """Costs in percent of the base from mean loss differences [..., n], without a minus zero."""
    return np.round(100 * np.expm1(rise.mean(-1)), 3) + 0.0


def table8(surveys: Sequence[Survey]) -> pd.DataFrame:
    """Balogh's Table 8, a row a model; costs in percent of the base.

    blocks_are: parallel or sequential. best_block: the one whose chosen gate was cheapest on the
    sample for choosing; cost_there: here, with that gate and its share. average_linear_percent:
    what the chosen gates send down the linear path, mean over blocks."""
    rows = []
    for s in surveys:
        cost = dict(zip(sorted(s.gated), _percent(s.rise("gated")), strict=True))
        best = min(s.choice_cost, key=s.choice_cost.get)
        rows.append(
            {
                "model": s.model,
                "blocks_are": "parallel" if s.parallel else "sequential",
                "params_millions": s.n_params / 1e6,
                "base_ppl": perplexity(s.base),
                "blocks": len(s.gated),
                "best_block": best,
                "cost_there": cost[best],
                "gate_there": s.kind[best],
                "linear_percent_there": 100 * s.share[best].mean(),
                "average_linear_percent": 100 * np.mean(list(s.share.values())),
            }
        )
    return pd.DataFrame(rows)


def medians(surveys: Sequence[Survey]) -> pd.DataFrame:
    """Medians over blocks of costs in percent of the base, a row a model.

    deleted, mean_output: nothing, and the mean output in the FFN's place; all_linear; chosen_gate
    and random_of_its_shares; cut_for_40_percent: the linear gate cut at EQUAL on other documents,
    realised_percent: the share it then has here, mean over blocks, random_of_realised: random
    routers of each block's."""
    rows = []
    for s in surveys:
        median = lambda rise: float(np.median(_percent(rise)))
        at = {b: s.equal_share["linear", b] for b in sorted(s.random)}
        rows.append(
            {
                "model": s.model,
                "deleted": median(s.rise("deleted")),
                "mean_output": median(s.rise("mean_output")),
                "all_linear": median(s.rise("linear")),
                "chosen_gate": median(s.rise("gated")),
                "random_of_its_shares": median(s.by_chance(_shares(s))),
                "cut_for_40_percent": median(s.rise("equal", "linear")),
                "realised_percent": 100 * np.mean(list(at.values())),
                "random_of_realised": median(s.by_chance(at)),
            }
        )
    return pd.DataFrame(rows)


def _shares(s: Survey) -> dict[int, float]:
    return {b: share.mean() for b, share in s.share.items()}


def wins_table(surveys: Sequence[Survey], seed: int = 42) -> pd.DataFrame:
    """Blocks whose chosen gate costs less than nothing, a row a model: below_base with its 95%
    interval over documents (low, high); by_chance: the same with random routers of each block's
    share, mean of 400 draws; more, more_low, more_high: what the gates have beyond chance, in
    blocks."""
    rows = []
    for s in surveys:
        n, found = len(s.gated), s.priced()
        count = over_documents(lambda w, s=s, n=n: n * below_base(s, w), s.document)
        lucky = (random_draws(found, s.kind, 400, seed).mean(2) < 0).sum(1)
        more = wins_over_chance(found, s.kind, seed=seed)
        rows.append(
            {
                "model": s.model,
                "blocks": n,
                "below_base": round(count.value),
                "low": count.low,
                "high": count.high,
                "by_chance": lucky.mean(),
                "more": n * more.value,
                "more_low": n * more.low,
                "more_high": n * more.high,
            }
        )
    return pd.DataFrame(rows)
