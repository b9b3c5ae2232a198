"""The papers' instruments on one model, by block: how well an affine map fits each FFN, what it
costs in the FFN's place, and how what the FFN adds lies in the residual stream (notebook 31)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib import stats
from lib.linear import rank
from lib.linear.regression import AffineFit
from lib.models.blocks import Subject
from lib.swap import novelty
from lib.swap.expected import predicted_cost
from lib.swap.losses import Losses
from lib.swap.sweep import sweep
from lib.text.windows import Windows

MAP, KEPT, MEAN = "affine map", "FFN kept", "mean output"


def swaps(subject: Subject, windows: Windows, fit: AffineFit) -> Losses:
    """Losses with something else in the place of one FFN at a time: its affine MAP, its MEAN output
    and, in blocks with massive activations, the map fitted without these, the FFN KEPT there."""
    modules = {(b, MAP): affine for b, affine in fit.maps.items()}
    modules |= {(b, MEAN): mean for b, mean in fit.mean_output.items()}
    modules |= {(b, KEPT): kept for b, kept in fit.massive_kept.items()}
    return sweep(subject, windows, modules)


def by_block(
    subject: Subject,
    windows: Windows,
    backward: Windows,
    fit: AffineFit,
    losses: Losses,
    seed: int = 42,
) -> pd.DataFrame:
    """A row a block and a column an instrument, read on `windows`.

    R² of the affine map, about each feature's mean, and its effective rank at 90% in shares of the
    width; the costs of `swaps` (its `losses`), nats a token; in blocks with massive activations
    alone "FFN kept" and "R² off massive", of the map that is fitted and scored without these; the
    map's cost as one backward pass on `backward` predicts it; the mean cosine of what the FFN adds
    with its token's stream and with another token's (in the order of `seed`), and the mean ratio of
    their lengths.
    """
    found = rank.kinds(subject, windows, fit).set_index("block")
    kinds, off_massive = found[found.positions == "all"], found[found.positions == "ordinary"]
    predicted = predicted_cost(subject, backward, fit).set_index("block").predicted
    lies = novelty.cosines(subject, windows, seed).groupby("block").sum()
    instruments = {
        "R²": kinds.r2,
        "R² off massive": off_massive.r2,
        "effective rank": kinds["rank"] / subject.d_model,
        "swap cost": losses.nats(MAP),
        KEPT: losses.nats(KEPT),
        MEAN: losses.nats(MEAN),
        "predicted cost": predicted,
        "cosine": lies["added, h"] / lies.positions,
        "with another token's": lies["added, another h"] / lies.positions,
        "relative length": lies.norm_ratio / lies.positions,
    }
    return pd.DataFrame(instruments)


def order_of_costs(
    losses: Losses, signals: pd.DataFrame, rivals: Sequence[str], kind: str = MAP
) -> pd.DataFrame:
    """How each column of `signals` [blocks] orders what swaps of one kind add to the loss, a row a
    signal and rival (itself a column): signal, rho (Spearman's), rival, and the lead over the
    rival's rho with its interval over documents, low, high; rho on a half of the documents (mean
    of halves), and last, in this column alone, that of costs on the other half ("half of the
    text")."""
    added = np.stack([losses.added((b, kind)) for b in signals.index])  # [blocks, documents]
    rho_of = {name: stats.order_by(signals[name], added, losses.predictions) for name in signals}
    rows = []
    for signal, rival in [(signal, rival) for signal in signals for rival in rivals]:
        order = stats.contrast(rho_of[signal], rho_of[rival], losses.document)
        lead = dict(zip(["lead", "low", "high"], order.difference))
        rows.append({"signal": signal, "rho": order.value.value, "rival": rival} | lead)
    on_half = {s: stats.split_halves(added, losses.predictions, signals[s]) for s in signals}
    on_half["half of the text"] = stats.split_halves(added, losses.predictions)
    table = pd.DataFrame([*rows, {"signal": "half of the text"}])
    return table.assign(**{"rho on a half": table.signal.map(on_half)})
