"""The numbers that Whipp §5.7 prints about its own models and texts, from the tables of a run."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from lib.second.stats.intervals import Interval
from lib.second.stats.ledger import rows_of
from lib.second.swaps.costs import joint_costs
from lib.second.swaps.products import ProductCosts
from lib.second.texts.windows import Windows

MODELS = {"gpt2": "gpt2", "pythia-160m": "pythia", "llama-160m": "llama"}
TEXTS = {"moby-dick": "moby", "amusements-in-mathematics": "puzzles"}
"""how the ledger's ids name them"""


def printed_elsewhere(
    model: str,
    apart: Mapping[str, pd.DataFrame],
    by_domain: pd.DataFrame,
    priced: Mapping[str, ProductCosts],
    unseen: Mapping[str, Windows],
) -> Iterator[tuple[str, Interval, dict[str, str]]]:
    """(id, statistic, {"model", "corpus"}) of every claim of notebook 07 about a printed number of
    these models and texts; none for others.

    apart: the table of `agreement` of each model; by_domain (domain_intervals), and priced on
    `unseen` windows of each domain, are of `model`; costs become perplexity points.
    """
    wanted, found = set(rows_of("07_cross_domain").id), []
    for name, table in apart.items():
        for row in table[table.measure == "pearson"].itertuples():
            id = f"r-{TEXTS.get(row.domain)}-{MODELS.get(name)}"
            found.append((id, Interval(row.value, row.low, row.high), name, row.domain))
    short = MODELS.get(model)
    for row in by_domain.itertuples():
        interval = Interval(row.mean, row.low, row.high)
        found.append((f"fold-{short}-{row.block}", interval, model, row.domain))
        found.append(
            (f"{TEXTS.get(row.domain)}-{short}-{row.block}-r2", interval, model, row.domain)
        )
    for domain, costs in priced.items():
        points = float(np.exp(costs.base.mean()))
        for name, id in (("linear", "linear"), ("bilinear", "poly")):
            for block, losses in costs.of(name).items():
                cost = joint_costs(costs.base, {block: losses}, unseen[domain].document)[block]
                cost = Interval(*(points * v for v in (cost.value, cost.low, cost.high)))
                found.append((f"{TEXTS.get(domain)}-{short}-{block}-{id}", cost, model, domain))
    for id, statistic, name, domain in found:
        about_text = not id.startswith("fold-") or domain == by_domain.domain.iloc[0]
        if f"whipp-5.7-{id}" in wanted and about_text:
            yield f"whipp-5.7-{id}", statistic, {"model": name, "corpus": domain}
