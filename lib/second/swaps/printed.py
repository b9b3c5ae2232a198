"""The costs that Whipp prints (Tables 1 and 4, §5.6), as shares of the base perplexity, and the
claims of the ledger that compare the printed numbers themselves."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lib.second.stats.intervals import Interval, clustered
from lib.second.stats.ledger import rows_of
from lib.second.stats.published import published
from lib.second.swaps.costs import as_perplexity

NAMES = {"gpt2": "gpt2", "llama-160m": "llama", "pythia-160m": "pythia"}
"""subject: what the ledger's ids call it"""
CANDIDATES = {"bilinear": "poly", "original": "orig"}
PHASES = {"zero-shot": "zero", "healed": "healed"}


def printed_swaps() -> pd.DataFrame:
    """Linear swaps for which the paper prints cost, R² and base perplexity: columns subject, block,
    r2, cost (percent of the base: our conversion)."""
    costs = published("whipp", metric="delta_ppl")
    wanted = (costs.candidate == "linear") & (costs.phase == "zero-shot")
    costs = costs[wanted & costs.table.isin(["Table 1", "§5.6"])]
    costs = costs.drop_duplicates(["subject", "block"])
    fits = published("whipp", table="Figure 2", metric="r2_lin")[["subject", "block", "value"]]
    found = costs.merge(fits.rename(columns={"value": "r2"}), on=["subject", "block"])
    base = base_perplexities()
    found = found[found.subject.isin(base.index)]
    cost = 100 * found.value / base[found.subject].to_numpy()
    return found[["subject", "block", "r2"]].assign(cost=cost).reset_index(drop=True)


def printed_table4(pair: Sequence[int]) -> pd.DataFrame:
    """Whipp's Table 4 in percent of each base perplexity, its early and deep block put at the first
    and last of `pair`: index block, candidate, phase; a column a subject."""
    printed = published("whipp", table="Table 4", metric="delta_ppl")
    percent = 100 * printed.value / base_perplexities()[printed.subject].to_numpy()
    place = printed.block.map({1: pair[0], 10: pair[-1]})
    table = printed.assign(block=place, percent=percent).pivot_table(
        index=["block", "candidate", "phase"], columns="subject", values="percent", sort=False
    )
    return table.rename(columns=lambda subject: f"{subject} (paper)")


def base_perplexities() -> pd.Series:
    """The base perplexities that §5.6 prints, by subject."""
    return published("whipp", table="§5.6", metric="ppl").set_index("subject").value


def printed_claims(
    notebook: str, model: str, base: np.ndarray, sweep: Mapping, healing: Mapping, document
) -> dict[str, Interval]:
    """What a run has for the ledger's rows that compare printed perplexities: {id: Interval}, 95%
    over documents; empty unless `model` is one of the paper's.

    sweep: losses by (block, "linear" or "bilinear"); healing: losses by (block, candidate, seed,
    phase), of which the mean over seeds is compared.
    """
    name = NAMES.get(model)
    values = {f"whipp-5.6-base-{name}": as_perplexity(base)}
    for (block, candidate), losses in sweep.items():
        of = CANDIDATES.get(candidate, candidate)
        values[f"whipp-5.6-cost-{name}-{block}-{of}"] = as_perplexity(losses) - as_perplexity(base)
    seeds: dict[str, list] = {}
    for (block, candidate, _, phase), losses in healing.items():
        where = f"{PHASES[phase]}-{name}-{block}-{CANDIDATES.get(candidate, candidate)}"
        cost = as_perplexity(losses) - as_perplexity(base)
        seeds.setdefault(f"whipp-table4-{where}", []).append(cost)
    values |= {id: np.mean(costs, axis=0) for id, costs in seeds.items()}
    known = set(rows_of(notebook).id)
    return {id: clustered(each, document) for id, each in values.items() if id in known}
