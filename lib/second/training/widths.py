"""What width, stacking and nonlinearity do to the loss of small language models (Badger, "Nearly
Linear Models", "Linear models inference").

Everything is read from the table of runs of `lib.second.training.mixers.sweep`. Differences are paired by
seed; where there are several, their intervals hold jointly.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from lib.second.base.profiles import Profile
from lib.second.models.mixers import Mixer
from lib.second.stats.claims import published
from lib.second.stats.intervals import Interval, clustered
from lib.second.stats.joint import jointly, over_seeds
from lib.second.training.mixers import Splits

KIND_OF = {
    "linear-mixer-conv-gelu-conv": ("convolutions", "conv"),
    "mixer-1-layer": ("mixer", "mixer"),
    "llama-1-layer": ("llama", "llama"),
}
"""the page's models: our kind, and their word in the ids of the ledger"""


def frequency_loss(train: np.ndarray, test: np.ndarray, vocab: int) -> float:
    """Mean loss in nats of the predicted tokens of `test` windows [n, seq_len] by the frequencies
    of tokens in `train` (one added to each): what a model that looks at nothing reaches."""
    counts = np.bincount(train.ravel(), minlength=vocab) + 1.0
    return float(-np.log(counts / counts.sum())[test[:, 1:]].mean())


def line_up(profile: Profile) -> list[tuple[list[Mixer], tuple[float, ...]]]:
    """The models that a profile compares, each group with the learning rates that it is tried at:
    linear and nearly linear ones, with the stacked ones and Q itself at m = |t|; and the one-layer
    mixer and Llama."""
    vocab, context = profile.mixer_vocab, profile.mixer_context

    def at(kinds: Sequence[str], shares: Sequence[float]) -> list[Mixer]:
        return [Mixer(k, round(share * vocab), vocab, context) for k in kinds for share in shares]

    stacked = [{what: k} for what in ("modules", "maps") for k in (2, 3)]
    flat = [
        *at(["linear"], profile.mixer_widths),
        *at(["direct"], [1]),
        *(Mixer("linear", vocab, vocab, context, **deep) for deep in stacked),
        *at(["relu", "convolutions"], profile.nearly_widths),
    ]
    layers = at(["mixer", "llama"], profile.layer_widths)
    return [(flat, profile.mixer_rates), (layers, profile.layer_rates)]


def learned(runs: pd.DataFrame, data: Splits, vocab: int) -> dict[str, object]:
    """Whether the best linear mixer is 0.2 nats below the frequencies of single tokens, as what a
    judge is told (`ok`, `why`): where nothing is learned, models have nothing to differ in."""
    blind = frequency_loss(data.train.tokens.numpy(), data.test.tokens.numpy(), vocab)
    least = losses(runs).mean().min()
    why = f"the best linear mixer is at {least:.2f} nats, token frequencies alone at {blind:.2f}"
    return {"ok": least < blind - 0.2, "why": why}


def losses(runs: pd.DataFrame, kind: str = "linear", column: str = "loss") -> pd.DataFrame:
    """Losses [seed, width] of an unstacked model."""
    plain = runs[(runs.kind == kind) & (runs.modules == 1) & (runs.maps == 1)]
    return plain.pivot(index="seed", columns="width", values=column)


def largest_less_smallest(table: pd.DataFrame) -> Interval:
    """Loss at the largest width less that at the smallest, of a table [seed, width]."""
    return over_seeds(table[table.columns.max()] - table[table.columns.min()])


def late_gain(runs: pd.DataFrame, kind: str) -> Interval:
    """What the largest width gains over the smallest at the end less what it gains after the first
    third."""
    late, early = (losses(runs, kind, column) for column in ("loss", "loss_1"))
    gains = [t[t.columns.min()] - t[t.columns.max()] for t in (late, early)]
    return over_seeds(gains[0] - gains[1])


def kind_less_kind(runs: pd.DataFrame, kind: str, other: str) -> dict[str, Interval]:
    """Loss of one kind less that of another at every width that both have."""
    apart = (losses(runs, kind) - losses(runs, other)).dropna(axis=1)
    return jointly(apart.rename(columns="width {}".format))


def best_less_best(runs: pd.DataFrame, kind: str, other: str) -> Interval:
    """Loss of the best width of one kind less that of another; the width is that of the lowest
    mean loss on the validation documents."""
    sides = []
    for name in (kind, other):
        width = losses(runs, name, "validation").mean().idxmin()
        sides.append(losses(runs, name)[width])
    return over_seeds(sides[0] - sides[1])


def against_vocabulary(
    runs: pd.DataFrame, chosen: Callable[[float], bool]
) -> dict[str, Interval] | None:
    """Loss of the linear mixer at the widths m with chosen(m / |t|), less that at m = |t|; None
    if there is none."""
    table, vocab = losses(runs), int(runs.vocab.iloc[0])
    widths = [m for m in table if chosen(m / vocab)]
    apart = table[widths].sub(table[vocab], axis=0)
    return jointly(apart.rename(columns=lambda m: f"m = {m / vocab:g}|t|")) if widths else None


def stacked(runs: pd.DataFrame, what: str) -> dict[str, Interval]:
    """Loss with several `modules` or `maps` less that with one, at the same width."""
    rows = runs[(runs.kind == "linear") & (runs[what] > 1)]
    found = {}
    for (model, width), part in rows.groupby(["model", "width"], sort=False):
        found[model] = part.set_index("seed").loss - losses(runs)[width]
    return jointly(pd.DataFrame(found))


def direct_less_factored(runs: pd.DataFrame) -> Interval:
    """Loss of the model whose Q is trained directly less that with H and W at m = |t|."""
    vocab = int(runs.vocab.iloc[0])
    return over_seeds(losses(runs, "direct")[vocab] - losses(runs)[vocab])


def slope_break(runs: pd.DataFrame) -> Interval:
    """Mean gain per doubling of m up to |t| less that above it, linear mixer."""
    table, vocab = losses(runs), int(runs.vocab.iloc[0])
    low, high = table.columns.min(), table.columns.max()
    below = (table[low] - table[vocab]) / np.log2(vocab / low)
    above = (table[vocab] - table[high]) / np.log2(high / vocab)
    return over_seeds(below - above)


def matched(runs: pd.DataFrame, kind: str, by: str) -> dict[str, Interval]:
    """Loss of every width of a `kind` less that of a linear mixer with as many `by` (parameters or
    flops), read on straight lines between widths over their logarithm; widths outside the range of
    the linear mixers are left out."""
    sizes = runs.drop_duplicates(["model", "width"]).set_index(["kind", "modules", "maps", "width"])
    linear, other = losses(runs), losses(runs, kind)
    at = np.log([sizes.loc[("linear", 1, 1, m), by] for m in linear])
    found = {}
    for width in other:
        wanted = np.log(sizes.loc[(kind, 1, 1, width), by])
        if at[0] <= wanted <= at[-1]:
            there = [np.interp(wanted, at, row) for row in linear.to_numpy()]
            found[f"width {width}"] = other[width] - there
    return jointly(pd.DataFrame(found))


def rank_excess(runs: pd.DataFrame) -> int:
    """Largest excess of the rank of Q over m, of linear mixers with m below |t|."""
    narrow = runs[(runs.kind == "linear") & (runs.width < runs.vocab)]
    return int(max(0, (narrow["rank"] - narrow.width).max()))


def by_third(runs: pd.DataFrame) -> pd.DataFrame:
    """The page's tables: a row a model and third of the training, a column a width; mean over
    seeds."""
    rows = runs.groupby(["model", "width"], sort=False)[["loss_1", "loss_2", "loss"]].mean()
    rows.columns = ["1/3", "2/3", "3/3"]
    tall = rows.stack().rename("loss").rename_axis(["model", "width", "trained"]).reset_index()
    wide = tall.pivot_table("loss", ["model", "trained"], "width", sort=False)
    return wide[sorted(wide)].rename(columns=str).reset_index()


def printed_losses(runs: pd.DataFrame) -> Iterator[tuple[str, Interval | None, str]]:
    """The page's own numbers: id of the claim, the loss here of a model of that width with its
    interval (None if there is none), and the name of the model as the ledger has it."""
    for row in published("badger", metric="loss").itertuples():
        kind, word = KIND_OF[row.subject]
        width, epoch = int(row.d_model), int(row.epoch)
        table = losses(runs, kind, ("loss_1", "loss_2", "loss")[epoch - 1])
        found = over_seeds(table[width]) if width in table else None
        yield f"badger-table-{word}-{width}-{epoch}e", found, f"{row.subject}-of-width-{width}"


def triples(text: str) -> list[tuple[str, ...]]:
    """Neighbouring words and marks of a text, three at a time, without the first and the last word,
    which may be cut."""
    words = re.findall(r"[^\W\d_]+(?:'\w+)?|[.,;:?!]", text.lower())[1:-1]
    return list(zip(words, words[1:], words[2:]))


def attested(texts: Iterable[str], known: set) -> float:
    """Share of the word triples of `texts` that are in `known`; nan without any."""
    found = [triple in known for text in texts for triple in triples(text)]
    return float(np.mean(found)) if found else float("nan")


def attested_by_seed(
    runs: pd.DataFrame, decode: Callable[[list[int]], str], known: set, held_out: float
) -> Mapping[str, list[float]]:
    """For the best width of the linear mixer and of the one-layer Llama: by seed, the share of
    attested word triples in sampled text over that in held-out text."""
    found = {}
    for kind in ("linear", "llama"):
        width = losses(runs, kind, "validation").mean().idxmin()
        rows = runs[(runs.kind == kind) & (runs.width == width) & (runs.modules == 1)]
        rows = rows[rows.maps == 1]
        shares = [attested(map(decode, text), known) for text in rows.text]
        found[kind] = [share / held_out for share in shares]
    return found


def agreement_by_token(agree: np.ndarray, documents: np.ndarray) -> pd.DataFrame:
    """Share that agree by position after the prompt (from 1), of [prompts, n], with intervals over
    documents: columns position, mean, low, high."""
    found = [clustered(column, documents) for column in agree.T]
    rows = [(k, i.value, i.low, i.high) for k, i in enumerate(found, start=1)]
    table = pd.DataFrame(rows, columns=["position", "mean", "low", "high"])
    return table.assign(low=table.low.clip(lower=0), high=table.high.clip(upper=1))
