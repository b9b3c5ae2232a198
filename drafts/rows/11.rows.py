# %% [markdown]
# Do some tokens always need the FFN?
*Balogh 2026, "Half the Nonlinearity Is Wasted" ([arXiv 2603.03459](https://arxiv.org/abs/2603.03459)), §3.3, §4.3.3, §5.6, Table 5*
# %%
from lib.report import top

top()
# %% [markdown]
**What the paper did.** The need of a position is the loss it gains when a block's FFN becomes its affine map at every position:

$$ \delta_t = L_{\mathrm{lin}}(t) - L_{\mathrm{full}}(t) \qquad \text{(§3.2)} $$

At one block of GPT-2 Medium it lists "No-Fly" tokens, those whose mean $\delta$ exceeds 0.05 over ten occurrences or more, and looks for them on other text. A third keep their status on other Wikipedia articles, over a quarter turn to a negative mean, and the means correlate by 0.04; on fiction by −0.06, "worse than random". So "token-based routing is a dead end": no look-up table will carry over to another corpus, while routing by context remains viable. No look-up was run.
# %% tag=parameters
profile = "study"  # smoke, laptop, study or paper: sets every budget
model = None  # a name, a folder, or owner/name on the hub
corpus = None  # a name or a text file
seed = 42
# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from scipy.stats import binomtest

from lib import plots
from lib.compare import errata, in_words, published
from lib.gates import Masked, Routed, fit_gates, measure_needs, split_gate_text
from lib.hooks import capture
from lib.linear import fit_maps
from lib.model import load_subject
from lib.report import SECOND, show_table, start
from lib.stats import Interval, correlation, interval, paired, spread
from lib.swap import Sweep, sweep
from lib.text import load_corpus
from lib.tokens import by_type, lookup, often

run = start("11_routing_lists", profile, model, corpus, seed)
# %%
subject, text = load_subject(run.model), load_corpus(run.corpus)
maps_text, gates_text, test = run.sample(subject, text)
n_tokens = run.pick(smoke=1_024, laptop=3_072, study=25_088, paper=25_088) // run.divisor
list_windows = split_gate_text(gates_text, n_tokens).train
fits = fit_maps(subject, maps_text)
n_blocks = len(subject)
blocks = spread(n_blocks, run.pick(smoke=3, laptop=4, study=10, paper=None))
maps = {b: fits.plain[b] for b in blocks}
middle = min(blocks, key=lambda b: abs(b - (n_blocks - 1) / 2))  # for Table 5's single block
print(subject, maps_text, list_windows, test, sep="\n")
with_massive = [b for b in blocks if b in fits.mended]
print(f"blocks {blocks}; with massive activations in the fit text: {with_massive or 'none'}")
# %% [markdown]
## As the paper did it

| | paper | author's code | this section |
|---|---|---|---|
| type | "tokens" | the token **to be predicted**, which no router has | the same, and the input token |
| listed | mean $\delta$ over 0.05, ten occurrences | the same, **and over 60% of $\delta$ positive** | as the code |
| found elsewhere | not said | three occurrences | the same for Table 5; ten for correlations, as on the list's side |
| still, flipped | not said | both criteria; mean below 0 | the same |
| map | one | **one of its own for each corpus**, from 10,000 tokens | the same, from each corpus's text for maps |
| list's text | WikiText-103 test | 50,000 tokens of it | 25,000 tokens of Wikipedia, the gates' text of [09](09_gates.ipynb) |
| other text | WikiText-103 train, LAMBADA | the same | other Wikipedia articles (the test sample); King James and Python's docstrings, one window of each of 32 documents |
| correlation | not said | over listed tokens that were found | the same in Table 5; judged over **all frequent types**, for a list cuts off the range |
| block | L12 | the same | one in the middle, and ten |

Left out: the paper's single tokens ("Side", "On", "Since"), each a mean of a few occurrences.
# %%
# Other domains; the live routers run on the first.
candidates = ["king-james", "python-docs"]
n_away = run.pick(smoke=1, laptop=2, study=2, paper=2)
away = [name for name in candidates if name != run.corpus][:n_away]
judged_domain = away[0]
n_away_windows = run.pick(smoke=11, laptop=12, study=32, paper=60) // run.divisor

NAMES = {"wikipedia": "Wikipedia", "king-james": "King James", "python-docs": "Python docstrings"}
articles = f"other {NAMES.get(text.name, text.name)} articles"
windows_of = {"list": list_windows, articles: test}
needs = {name: measure_needs(subject, part, maps) for name, part in windows_of.items()}
for name in away:
    sample = run.sample(subject, load_corpus(name))
    own_fits = fit_maps(subject, sample.maps)
    windows_of[name] = sample.test.per_document(1, n_away_windows)
    own_maps = {b: own_fits.plain[b] for b in blocks}
    needs[name] = measure_needs(subject, windows_of[name], own_maps)
    print(f"maps from {sample.maps}; needs on {windows_of[name]}")


def called(name: str) -> str:
    """The name of a text as a reader knows it."""
    return NAMES.get(name, name)
# %% [markdown]
### Table 5
# %%
LEAST = run.pick(smoke=4, laptop=5, study=10, paper=10)
FOUND, MEAN, POSITIVE = 3, 0.05, 0.6
KEYS = {"next_token": "token to be predicted", "token": "input token"}


def needy(mean: pd.Series, positive: pd.Series) -> pd.Series:
    """Both of his criteria."""
    return (mean > MEAN) & (positive > POSITIVE)
# %%
def followed(b: int, key: str, name: str) -> pd.DataFrame:
    """Types that occur LEAST times in the list's text, a row a type, and what became of those that
    are found in another text: `still` needy, or `flipped`."""
    types = by_type(needs["list"].need[b], getattr(needs["list"], key), LEAST)
    elsewhere = by_type(needs[name].need[b], getattr(needs[name], key), FOUND)
    both = types.merge(elsewhere, "left", on="token", suffixes=("", " there"))
    both["listed"] = needy(both["mean"], both["positive"])
    both["found"] = both["mean there"].notna()
    both["still"] = needy(both["mean there"], both["positive there"])
    both["flipped"] = both["mean there"] < 0
    return both


history = {
    (b, key, name): followed(b, key, name)
    for b in blocks
    for key in KEYS
    for name in (articles, *away)
}
# %%
def sums_of_types(name: str, b: int, key: str, types: np.ndarray, part: np.ndarray | None = None):
    """Sum of δ and number of occurrences of each of `types` in a text, or at some of its positions,
    each [documents, types]."""
    ids = getattr(needs[name], key)
    column = np.searchsorted(types, ids).clip(max=len(types) - 1)
    chosen = (types[column] == ids) & (True if part is None else part)
    documents, row = np.unique(needs[name].document, return_inverse=True)
    cell = (row[:, None] * len(types) + column)[chosen]
    shape = (len(documents), len(types))
    n = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    need = needs[name].need[b][chosen]
    return np.bincount(cell, need, shape[0] * shape[1]).reshape(shape), n
# %%
def correlation_over_types(left: tuple, right: tuple) -> np.ndarray:
    """Pearson's correlation over types of two mean needs, [draws], from sums and numbers [draws,
    types]; types that a draw lacks on either side are left out."""
    known = (left[1] > 0) & (right[1] > 0)
    centred = []
    for total, n in (left, right):
        mean = np.where(known, total / np.maximum(n, 1), 0)
        middle_of_types = mean.sum(1, keepdims=True) / known.sum(1, keepdims=True)
        centred.append(np.where(known, mean - middle_of_types, 0))
    x, y = centred
    return (x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1))
# %%
n_documents = {name: len(np.unique(part.document)) for name, part in needs.items()}


def between_texts(name: str, key: str, types: dict, of_list: slice, of_other: slice):
    """Correlation of the mean δ of `types` {block: types} in the list's text and another, median
    block: a statistic of weights of documents, those of the two texts at the two slices."""
    sides = [
        [sums_of_types(side, b, key, types[b]) for side in ("list", name)] for b in types
    ]

    def statistic(w: np.ndarray) -> np.ndarray:
        by_block = []
        for (total, n), (total_there, n_there) in sides:
            in_list = (w[:, of_list] @ total, w[:, of_list] @ n)
            in_other = (w[:, of_other] @ total_there, w[:, of_other] @ n_there)
            by_block.append(correlation_over_types(in_list, in_other))
        return np.median(by_block, axis=0)

    return statistic
# %%
def median_correlation(name: str, key: str, types: dict[int, np.ndarray]) -> Interval:
    """The correlation with its interval over the documents of both texts."""
    if not types:
        return Interval(np.nan, np.nan, np.nan)
    n_list, n_other = n_documents["list"], n_documents[name]
    statistic = between_texts(name, key, types, slice(0, n_list), slice(n_list, None))
    return interval(statistic, np.arange(n_list + n_other), possible=(-1, 1))


def listed_types(name: str, key: str, fewest: int = 10) -> dict[int, np.ndarray]:
    """{block: its listed types that are found in another text}, where there are enough."""
    by_block = {}
    for b in blocks:
        types = history[b, key, name]
        by_block[b] = types.token[types.listed & types.found].to_numpy()
    return {b: types for b, types in by_block.items() if len(types) >= fewest}


# The paper's own quantity: over listed types only.
carried_if_listed = {
    (name, key): median_correlation(name, key, listed_types(name, key))
    for key in KEYS
    for name in (articles, *away)
}
# %%
def share_of_types(k: int, n: int) -> str:
    """A share of n types with Wilson's interval, in words."""
    if n == 0:
        return ""
    ends = binomtest(k, n).proportion_ci(method="wilson")
    return in_words(Interval(k / n, ends.low, ends.high), "share")


def fisher(r: float, n: int) -> Interval:
    """A printed correlation over n types with Fisher's interval."""
    ends = np.arctanh(r) + 1.96 / np.sqrt(n - 3) * np.array([-1, 1])
    return Interval(r, *np.tanh(ends))


def mean_there(found: pd.DataFrame) -> float:
    """Mean δ of the types found, by occurrence."""
    n = found["occurrences there"]
    return (found["mean there"] * n).sum() / max(n.sum(), 1)
# %%
def line_of_table5(b: int, key: str, name: str) -> dict:
    """One line of Table 5 at a block."""
    types = history[b, key, name]
    found = types[types.listed & types.found]
    line = {"model": f"{run.model}, block {b}", "type": KEYS[key], "text": called(name)}
    line |= {"listed": f"{types.listed.sum()}", "found": f"{len(found)}"}
    for column in ("still", "flipped"):
        line[column] = share_of_types(found[column].sum(), len(found))
    line["mean δ there"] = mean_there(found)
    line["all positions there"] = needs[name].need[b].mean()
    if len(found) > 3:
        r = correlation(found["mean"], found["mean there"])
        line["correlation"] = in_words(r, signed=True)
    return line


lines = [line_of_table5(middle, key, name) for key in KEYS for name in (articles, *away)]
# %%
def median_line(key: str, name: str) -> dict:
    """The same of the median block; shares are of the types found."""
    tables = [history[b, key, name] for b in blocks]
    found = [types[types.listed & types.found] for types in tables]
    line = {"model": f"{run.model}, median of {len(blocks)} blocks"}
    line |= {"type": KEYS[key], "text": called(name)}
    line["listed"] = f"{np.median([types.listed.sum() for types in tables]):.0f}"
    line["found"] = f"{np.median([len(types) for types in found]):.0f}"
    for column in ("still", "flipped"):
        line[column] = f"{np.nanmedian([types[column].mean() for types in found]):.0%}"
    line["mean δ there"] = np.median([mean_there(types) for types in found])
    line["all positions there"] = np.median([needs[name].need[b].mean() for b in blocks])
    return line | {"correlation": in_words(carried_if_listed[name, key], signed=True)}


lines += [median_line(key, name) for key in KEYS for name in (articles, *away)]
table5 = pd.DataFrame(lines)
run.table(table5, "table5", show=False)
# %%
# The paper's own lines, and what its author's repository adds to them.
printed = published("balogh", table="Table 5").pivot_table("value", "corpus", "metric")
stored = published("balogh", table="repository", experiment="lists")
stored = stored[stored.token.isna()].fillna({"subset": ""})
his = stored.set_index(["corpus", "subset", "metric"]).value.sort_index()
his_texts = {"wikitext-103-train": "WikiText-103 train", "lambada": "LAMBADA (fiction)"}
his_r = {}
for name in his_texts:
    his_r[name] = fisher(his[name, "", "pearson_r"], his[name, "", "tokens_found"])


def paper_line(name: str) -> dict:
    """A line of Table 5 as it is printed."""
    row = printed.loc[name]
    line = {"model": "GPT-2 Medium, block 12 (paper)", "type": "not said", "text": his_texts[name]}
    line |= {"listed": f"{row.no_fly_tokens:.0f}", "found": f"{row.tokens_found:.0f}"}
    line["still"] = f"{row.still_no_fly_share:.1%}"
    line["flipped"] = f"{row.flipped_share:.1%}" if np.isfinite(row.flipped_share) else "not said"
    return line | {"correlation": in_words(row.pearson_r, signed=True)}
# %%
def repository_line(name: str) -> dict:
    """The same from the author's repository, with intervals of ours from its counts."""
    counted = his[name, ""]
    n_found = int(counted["tokens_found"])
    line = {"model": "GPT-2 Medium, block 12 (author's repository)"}
    line |= {"type": KEYS["next_token"], "text": his_texts[name]}
    line |= {"listed": f"{printed.no_fly_tokens[name]:.0f}", "found": f"{n_found}"}
    line["still"] = share_of_types(int(counted["tokens_still_no_fly"]), n_found)
    line["flipped"] = share_of_types(int(counted["tokens_flipped"]), n_found)
    line["mean δ there"] = his[name, "listed-by-occurrence", "delta_loss"]
    return line | {"correlation": in_words(his_r[name], signed=True)}


his_lines = [paper_line(name) for name in his_texts] + [repository_line(n) for n in his_texts]
second_table5 = run.second_table("table5")  # the second model's, on the committed page
parts = [pd.DataFrame(his_lines), table5, *([] if second_table5 is None else [second_table5])]
show_table(pd.concat(parts)[[*table5.columns]].fillna({"correlation": ""}))
# %% [markdown]
*"Still": both criteria of the list are met there; "flipped": the mean there is below 0. "Mean δ there": of the found types, by occurrence, to be compared with all positions there (not stored in the repository). Brackets: Wilson's and Fisher's intervals over types, for the median block over documents.*

### Do types' needs carry over?

All types that occur ten times in every text compared, by the token to be predicted as in his lists. The control of the first row halves the occurrences in the list's own articles, odd against even: the same topics and authors, and half the occurrences, so as much noise or more. That of the other domains takes the same types on other articles. These domains have maps of their own, as in the author's code, so text and map change together; with Wikipedia's maps their δ was not measured.
# %%
def occurrence(ids: np.ndarray) -> np.ndarray:
    """Which occurrence of its token each position is, from 0, like ids [n, predictions]."""
    rows = pd.Series(ids.ravel())
    return rows.groupby(rows).cumcount().to_numpy().reshape(ids.shape)


def between_halves(key: str, types: np.ndarray, of_list: slice):
    """Correlation of the mean δ of `types` at the odd and the even occurrences in the list's own
    articles, median block: a statistic of weights of documents."""
    odd = occurrence(getattr(needs["list"], key)) % 2 == 1
    halves = [[sums_of_types("list", b, key, types, part) for part in (odd, ~odd)] for b in blocks]

    def statistic(w: np.ndarray) -> np.ndarray:
        by_block = []
        for pair in halves:
            of_odd, of_even = ((w[:, of_list] @ total, w[:, of_list] @ n) for total, n in pair)
            by_block.append(correlation_over_types(of_odd, of_even))
        return np.median(by_block, axis=0)

    return statistic
# %%
# Types that are frequent in the list's text, on other articles and in the text compared.
frequent = {(name, key): often(getattr(needs[name], key), LEAST) for name in needs for key in KEYS}
types_of = {}
for key in KEYS:
    on_both = np.intersect1d(frequent["list", key], frequent[articles, key])
    types_of[articles, key] = on_both
    for name in away:
        types_of[name, key] = np.intersect1d(on_both, frequent[name, key])
at_every_block = {pair: dict.fromkeys(blocks, types) for pair, types in types_of.items()}
carried = {
    (name, key): median_correlation(name, key, types)
    for (name, key), types in at_every_block.items()
}
# %%
# The control of each: the same types in halves of the list's text, or on other articles.
list_documents = np.unique(needs["list"].document)
control = {}
for (name, key), types in types_of.items():
    if name == articles:
        halves = between_halves(key, types, slice(None))
        control[name, key] = interval(halves, list_documents, possible=(-1, 1))
    else:
        control[name, key] = median_correlation(articles, key, at_every_block[name, key])
# %%
def less_control(name: str, key: str) -> Interval:
    """The correlation with a text less its control, all documents resampled together."""
    types = at_every_block[name, key]
    end_of_list = n_documents["list"]
    end_of_text = end_of_list + n_documents[name]
    of_list, of_text = slice(0, end_of_list), slice(end_of_list, end_of_text)
    here = between_texts(name, key, types, of_list, of_text)
    if name == articles:
        n, other = end_of_text, between_halves(key, types_of[name, key], of_list)
    else:
        n = end_of_text + n_documents[articles]
        other = between_texts(articles, key, types, of_list, slice(end_of_text, n))
    return interval(lambda w: here(w) - other(w), np.arange(n), possible=(-2, 2))


difference = {pair: less_control(*pair) for pair in types_of}
# %%
in_articles, in_domain = (articles, "next_token"), (judged_domain, "next_token")
if_listed = in_words(carried_if_listed[in_articles], signed=True)
run.compare(
    "balogh-4.3.3-within-domain",
    carried[in_articles],
    control[in_articles],
    note=f"over all frequent types; over listed ones, as the paper has it, {if_listed}",
)
ids = {
    "king-james": "balogh-4.3.3-across-domains",
    "python-docs": "balogh-4.3.3-across-domains-code",
}
for name in away:
    pair = (name, "next_token")
    run.compare(ids[name], carried[pair], control[pair], difference[pair])
# %%
rows = []
for name, key in types_of:
    line = {"model": run.model, "type": KEYS[key], "text": called(name)}
    line |= {"types": len(types_of[name, key])}
    line["correlation of mean δ, median block"] = in_words(carried[name, key], signed=True)
    whose = "same articles, odd and even" if name == articles else articles
    line["control, same types"] = f"{in_words(control[name, key], signed=True)}, {whose}"
    line["difference"] = in_words(difference[name, key], signed=True)
    rows.append(line)
correlations = pd.DataFrame(rows)
run.table(correlations, "correlations", show=False)
second_correlations = run.second_table("correlations")
both_models = [correlations, *([] if second_correlations is None else [second_correlations])]
show_table(pd.concat(both_models))
# %% [markdown]
### Flips

A mean of ten occurrences is noisy, so what came out high falls on any new occurrences. The control is a list made on half of the occurrences and followed on the other half **of the same articles**; there and on other articles with as many occurrences of each type. Both halves serve in turn. The paper's recipe, all occurrences and whatever is found three times, gives another share, below.
# %%
def at_most(ids: np.ndarray, most: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """A mask like ids [n, predictions]: of the positions that are `allowed`, at random up to
    most[token] occurrences of each token."""
    order = np.random.default_rng(seed).permutation(ids.size)
    order = order[allowed.ravel()[order]]
    number = occurrence(ids.ravel()[order])
    kept = np.zeros(ids.size, bool)
    kept[order] = number < most[ids.ravel()[order]]
    return kept.reshape(ids.shape)


vocabulary = subject.model.get_input_embeddings().num_embeddings


def mean_of_types(values: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Mean of the values of each token, [vocabulary]; nan where there is none."""
    n = np.bincount(ids, minlength=vocabulary)
    return np.bincount(ids, values, vocabulary) / np.where(n > 0, n, np.nan)
# %%
ids_here, ids_there = needs["list"].next_token, needs[articles].next_token
n_there = np.bincount(ids_there.ravel(), minlength=vocabulary)
is_odd = occurrence(ids_here) % 2 == 1
# %%
counts = {name: np.zeros((len(blocks), vocabulary)) for name in ("listed", "unseen", "there")}
for seen in (is_odd, ~is_odd):
    n_unseen = np.bincount(ids_here[~seen], minlength=vocabulary)
    most = np.minimum(n_there, n_unseen)
    in_unseen = at_most(ids_here, most, ~seen)
    in_others = at_most(ids_there, most, np.ones(ids_there.shape, bool))
    for k, b in enumerate(blocks):
        need_here, need_there = needs["list"].need[b], needs[articles].need[b]
        types = by_type(need_here[seen], ids_here[seen], LEAST)
        on_list = types.token[needy(types["mean"], types.positive)].to_numpy()
        on_list = on_list[most[on_list] >= FOUND]
        unseen = mean_of_types(need_here[in_unseen], ids_here[in_unseen])
        there = mean_of_types(need_there[in_others], ids_there[in_others])
        counts["listed"][k, on_list] += 1
        counts["unseen"][k, on_list] += unseen[on_list] < 0
        counts["there"][k, on_list] += there[on_list] < 0
# %%
def median_of_blocks(top: np.ndarray, bottom: np.ndarray):
    """Σ top / Σ bottom, each [blocks, types], in the median block that lists any: a statistic of
    weights of types, which are the units here."""

    def statistic(w: np.ndarray) -> np.ndarray:
        n = w @ bottom.T  # [draws, blocks]
        return np.nanmedian((w @ top.T) / np.where(n > 0, n, np.nan), axis=1)

    return statistic


# [blocks, types]; a type that both halves list counts twice.
ever_listed = counts["listed"].any(axis=0)
listed, flips_there, flips_unseen = (
    counts[n][:, ever_listed] for n in ("listed", "there", "unseen")
)
flipped = paired(
    median_of_blocks(flips_there, listed),
    median_of_blocks(flips_unseen, listed),
    np.arange(ever_listed.sum()),
)
# %%
# The paper's recipe, of listed types and of all others: [blocks, types], the same types each time.
of_block = [history[b, "next_token", articles] for b in blocks]
found_types = {
    "listed": np.stack([t.found & t.listed for t in of_block]),
    "not listed": np.stack([t.found & ~t.listed for t in of_block]),
}
flips_of_type = np.stack([t.flipped for t in of_block])
n_there_of_type = np.stack([t["occurrences there"].fillna(0) for t in of_block])
sum_there = np.stack([(t["mean there"] * t["occurrences there"]).fillna(0) for t in of_block])
flips_by, mean_by = {}, {}
for who, found in found_types.items():
    flips_by[who] = median_of_blocks(found & flips_of_type, found)
    mean_by[who] = median_of_blocks(found * sum_there, found * n_there_of_type)
all_types = np.arange(flips_of_type.shape[1])
recipe = paired(flips_by["listed"], flips_by["not listed"], all_types)
mean_of_recipe = paired(mean_by["listed"], mean_by["not listed"], all_types)
# %%
shares = [share.cut(0, 1) for share in (flipped.here, flipped.control)]
in_recipe = in_words(recipe.here.cut(0, 1), "share")
run.compare(
    "balogh-4.3.3-flipped",
    *shares,
    flipped.difference,
    note=f"by the paper's recipe {in_recipe} flip",
)
lines_of_flips = []
for who, where, share in (
    ("listed on half of the occurrences", articles, shares[0]),
    ("listed on half of the occurrences", "unseen occurrences, same articles", shares[1]),
    ("listed, the paper's recipe", articles, recipe.here.cut(0, 1)),
    ("not listed, the paper's recipe", articles, recipe.control.cut(0, 1)),
):
    line = {"model": run.model, "types": who, "followed on": where}
    lines_of_flips.append(line | {"share that flips, median block": in_words(share, "share")})
lines_of_flips[2]["mean δ there"] = in_words(mean_of_recipe.here)
lines_of_flips[3]["mean δ there"] = in_words(mean_of_recipe.control)
# %%
flips = pd.DataFrame(lines_of_flips).fillna({"mean δ there": "not computed"})
run.table(flips, "flips", show=False)
second_flips = run.second_table("flips")
show_table(flips if second_flips is None else pd.concat([flips, second_flips]))
spread_of_need = np.median([needs["list"].need[b].std() for b in blocks])
error_of_mean = spread_of_need / np.sqrt(LEAST)
print(f"standard error of a mean of {LEAST} occurrences, median block: {error_of_mean:.2g} nats")
print(f"types listed by either half, median block: {np.median((listed > 0).sum(1)):.0f}")
less = in_words(recipe.difference, "points", signed=True)
print(f"flips of listed less those of other types, the paper's recipe: {less}")
more = in_words(mean_of_recipe.difference, signed=True)
print(f"mean δ on {articles}, listed less other types: {more} nats")
# %% [markdown]
## What we add: the look-up, run

A router can know the input token. The look-up sends a position to the map where the mean $\delta$ of its input token on the gates' text is low. That mean counts four more occurrences with the mean of all positions, which a token never seen has too. The linear gate is that of [09](09_gates.ipynb), cut at 40% of the gates' text; "random" is one draw of positions a block. In the live model, one block at a time, all three use the map on the share of positions that the gate reaches on that text. On King James, **Wikipedia's maps, gates and look-ups are used unchanged**. Differences are of two medians over blocks, documents resampled together.
# %%
SHARE = 0.4
of_each_kind = fit_gates(subject, list_windows, maps, ("linear",))
gates = {}
for b in blocks:
    x_of_list = torch.from_numpy(needs["list"].x[b])
    gates[b] = of_each_kind[b]["linear"].at_share(x_of_list, SHARE)
mean_need = {b: lookup(needs["list"].need[b], needs["list"].token, vocabulary) for b in blocks}
n_live = run.pick(smoke=6, laptop=6, study=12, paper=60)
live_rows = np.flatnonzero(test.first_of_document)[:n_live]
live = {text.name: test[live_rows], judged_domain: windows_of[judged_domain][:n_live]}
# %%
def lowest(score: np.ndarray, share: float) -> np.ndarray:
    """A mask of the `share` of positions with the lowest score, ties broken at random; a start
    token is never among them."""
    ties = np.random.default_rng(seed).random(score.shape)
    order = np.lexsort((ties[:, subject.n_start :].ravel(), score[:, subject.n_start :].ravel()))
    chosen = np.zeros(order.size, bool)
    chosen[order[: round(share * order.size)]] = True
    mask = np.zeros(score.shape, bool)
    mask[:, subject.n_start :] = chosen.reshape(len(score), -1)
    return mask
# %%
routed: dict[str, Sweep] = {}
reached: dict = {}  # {(text, block): the share of positions that the gate sends to the map}
for name, windows in live.items():
    x_of_live = capture(subject, windows, blocks)
    tokens = windows.tokens.numpy()
    modules = {}
    for b in blocks:
        share = float(gates[b](x_of_live[b][0]).float().mean())
        reached[name, b] = share
        random = np.random.default_rng([seed, b]).random(tokens.shape)
        routers = {
            "linear gate": gates[b],
            "look-up": Masked(lowest(mean_need[b][tokens], share)),
            "random": Masked(lowest(random, share)),
        }
        for router_name, router in routers.items():
            modules[b, router_name] = Routed(subject.blocks[b].original, maps[b], router)
    routed[name] = sweep(subject, windows, modules)
# %%
ROUTERS = ("linear gate", "look-up", "random")


def median_cost(name: str, router: str):
    """Relative change of perplexity in the median block, a statistic of documents."""
    added = routed[name].median_added([(b, router) for b in blocks])
    return lambda w: np.expm1(added(w))


def against(name: str, router: str, other: str):
    """The median costs of two routers on a text and their paired difference."""
    return paired(median_cost(name, router), median_cost(name, other), routed[name].documents)


over_random = {
    (name, router): against(name, router, "random").difference
    for name in live
    for router in ("linear gate", "look-up")
}
gate_over_lookup = {name: against(name, "linear gate", "look-up") for name in live}
run.compare(
    "balogh-4.3.3-lookup-across-domains", *against(judged_domain, "look-up", "random")
)
run.compare(
    "balogh-5.2-gate-across-domains", *against(judged_domain, "linear gate", "random")
)
run.compare("ours-5.6-gate-over-lookup", *gate_over_lookup[judged_domain])
run.compare("ours-5.6-lookup", *against(text.name, "look-up", "random"))
# %%
cost = {
    (name, router): interval(median_cost(name, router), routed[name].documents)
    for name in live
    for router in ROUTERS
}
rows_of_routers = []
for name in live:
    known = np.isin(live[name].tokens.numpy(), needs["list"].token).mean()
    line = {"model": run.model, "text": called(name)}
    line["tokens seen in the gates' text"] = f"{known:.0%}"
    line["share on the map"] = f"{np.median([reached[name, b] for b in blocks]):.0%}"
    for router in ROUTERS:
        line[router] = in_words(cost[name, router], "relative change of perplexity")
    for router in ("linear gate", "look-up"):
        saved = over_random[name, router]
        line[f"{router} less random"] = in_words(saved, "points", signed=True)
    saved = gate_over_lookup[name].difference
    line["linear gate less look-up"] = in_words(saved, "points", signed=True)
    rows_of_routers.append(line)
by_router = pd.DataFrame(rows_of_routers)
run.table(by_router, "routers", show=False)
second_routers = run.second_table("routers")
show_table(by_router if second_routers is None else pd.concat([by_router, second_routers]))
# %%
def percent(cost: float) -> str:
    """A cost with one decimal."""
    return f"{100 * cost:+.1f}%".replace("-", "−")


each_block = pd.DataFrame({"block": blocks})
for name in live:
    each_block[f"{called(name)}: share"] = [f"{reached[name, b]:.0%}" for b in blocks]
    for router in ROUTERS:
        costs = [percent(routed[name].cost((b, router)).value) for b in blocks]
        each_block[f"{called(name)}: {router}"] = costs
run.table(each_block, "blocks")
for name in live:
    at_middle = {router: routed[name].cost((middle, router)) for router in ROUTERS}
    unit = "relative change of perplexity"
    words = [f"{router} {in_words(value, unit)}" for router, value in at_middle.items()]
    print(f"block {middle}, that of Table 5, on {called(name)}: {', '.join(words)}")
# %%
# What the answer and the title rest on; the second model's run keeps the same numbers.
findings = {called(name): carried[name, "next_token"] for name in (articles, *away)}
findings |= {f"look-up: {called(name)}": over_random[name, "look-up"] for name in live}
findings |= {f"gate: {called(name)}": gate_over_lookup[name].difference for name in live}
kept = [{"finding": name} | value._asdict() for name, value in findings.items()]
run.table(pd.DataFrame(kept), "findings", show=False)


def seen(values: dict[str, Interval]) -> dict[str, bool]:
    """Whether each finding is seen: a correlation above 0, the look-up below random positions, the
    gate below the look-up."""
    costs = [name for name in values if name.startswith(("look-up", "gate"))]
    return {name: (v.high < 0 if name in costs else v.low > 0) for name, v in values.items()}
# %%
def joined(names: list[str], last: str = "and") -> str:
    """a, b and c."""
    return f" {last} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def yes_and_no(is_seen: dict[str, bool], verb: str, negated: str, to: str) -> str:
    """One clause on the texts where something is seen, and those where it is not."""
    where = [name for name, yes in is_seen.items() if yes]
    where_not = [name for name, yes in is_seen.items() if not yes]
    if not where:
        return f"{negated} {to} {joined(where_not, 'or')}"
    rest = f", but not visibly {to} {joined(where_not, 'or')}" if where_not else ""
    return f"{verb} {to} {joined(where)}{rest}"


seen_here = seen(findings)
transfer = {called(name): seen_here[called(name)] for name in (articles, *away)}
beats_random = {name: seen_here[f"look-up: {called(name)}"] for name in live}
gate_is_better = {name: seen_here[f"gate: {called(name)}"] for name in live}
# %%
def draw_correlations(ax) -> None:
    """Correlations of the types' mean δ by pair of texts, with the paper's numbers."""
    texts = [articles, *away]
    for look, key in enumerate(KEYS):
        values = [control[articles, key], *(carried[name, key] for name in texts)]
        label = f"all frequent types, by {KEYS[key]}"
        plots.whiskers(ax, np.arange(len(values)) + 0.2 * look - 0.2, values, label, look)
    values = [carried_if_listed[name, "next_token"] for name in texts]
    label = f"listed types only, by {KEYS['next_token']}"
    plots.whiskers(ax, np.arange(1, len(values) + 1) + 0.2, values, label, 2)
    # The paper's two texts: other Wikipedia articles, and fiction in a column of its own.
    at = [1.35, len(texts) + 1]
    ends = np.array([[r.value - r.low, r.high - r.value] for r in his_r.values()]).T
    star = dict(fmt="*", ms=13, mfc="white", color=plots.SUBJECT, lw=1.2)
    ax.errorbar(at, [r.value for r in his_r.values()], ends, label="paper, listed types", **star)
    ax.axhline(0, color="#999999", lw=1)
    domains = [called(name) for name in away]
    ticks = ["same articles", "other articles", *domains, "LAMBADA (paper)"]
    ax.set_xticks(range(len(ticks)), [tick.replace(" ", "\n", 1) for tick in ticks])
    ax.set_ylabel("correlation of types' mean δ")
    ax.legend(fontsize=10, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))
# %%
def draw_costs(ax) -> None:
    """Median cost of each router on each text."""
    for look, router in enumerate(ROUTERS):
        values = [cost[name, router] for name in live]
        plots.whiskers(ax, np.arange(len(live)) + 0.2 * look - 0.2, values, router, look)
    ax.set_xticks(range(len(live)), [called(name) for name in live])
    ax.set_xlim(-0.5, len(live) - 0.5)
    ax.axhline(0, color="#999999", lw=1)
    ax.yaxis.set_major_formatter(lambda value, _: plots.cost_in_words(value))
    ax.set_ylabel("change of perplexity")
    ax.legend(fontsize=10, ncol=3, loc="upper center", bbox_to_anchor=(0.5, -0.2))
# %%
# The titles: the same numbers as in the table at the top.
r_within, r_across = (in_words(carried[at]).split()[0] for at in (in_articles, in_domain))
where = called(judged_domain)
does = "carries over" if transfer[articles] else "does not visibly carry over"
to_domain = "also" if transfer[where] else "not visibly"
title = f"A token's mean δ {does} to other articles\n(r = {r_within}), "
title += f"{to_domain} to {where} ({r_across})"
paid = {router: percent(cost[judged_domain, router].value) for router in ROUTERS}
is_better = "better" if beats_random[judged_domain] else "not visibly better"
title_of_costs = f"{where}: a look-up is {is_better}\nthan random, {paid['look-up']} against "
title_of_costs += paid["random"]
# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.2), width_ratios=[1.45, 1])
draw_correlations(left)
draw_costs(right)
left.set_title(title)
right.set_title(title_of_costs)
caption = (
    f"Left: correlation over token types of their mean δ in the list's text and in another, "
    f"median of {len(blocks)} blocks (1: a straight line, 0: no relation). \"Same articles\": odd "
    "against even occurrences of the list's own text. Bars: 95% intervals over documents; of the "
    "paper's stars, computed by us, over types. Right: perplexity with one block's FFN replaced by "
    "its map at the same share of positions, chosen by each router; median block, 95% intervals "
    "over documents."
)
alt = "Correlation of token types' mean loss increase across texts; cost of routers on two texts."
run.figure(figure, "types", alt, main=True, caption=caption)
# %%
example = history[middle, "token", articles]
example = example[example.listed & example.found].sort_values("mean", ascending=False).head(10)
spelled = [
    subject.tokenizer.decode([t]).replace("\n", "⏎").replace(" ", "␣") for t in example.token
]
listed_tokens = pd.DataFrame({"input token": spelled})
for name in ("mean", "occurrences", "mean there", "occurrences there"):
    listed_tokens[f"{name} δ" if name == "mean" else name] = example[name].to_numpy()
listed_tokens = listed_tokens.rename(columns={"mean there": "mean δ there"})
run.table(listed_tokens, "tokens")
n_lower = (example["mean there"] < example["mean"]).sum()
print(f"block {middle}; there: {articles}; {n_lower} of {len(example)} are lower there")
# %% [markdown]
*The ten input tokens with the highest mean δ at the block of Table 5. They were chosen for being high, so a fall is expected of any token.*
# %%
# On which of the findings the second model's run agrees.
second_findings = run.second_table("findings")
agreement = ""
if second_findings is not None:
    values = second_findings.set_index("finding")[["value", "low", "high"]]
    in_second = seen({name: Interval(*row) for name, row in values.iterrows()})
    differing = [name for name in seen_here if in_second.get(name) != seen_here[name]]
    how_far = "mostly " if differing else ""
    agrees = "agrees" if len(differing) < len(seen_here) / 2 else "differs"
    agreement = f"; {SECOND} {how_far}{agrees}"
    print(f"{SECOND} differs on {', '.join(differing) or 'none'} of: {', '.join(seen_here)}")
# %%
outcome_of = {c.id: c.outcome for c in run.comparisons}
verdict = "In part" if any(transfer.values()) or any(beats_random.values()) else "Not visibly"
if outcome_of["balogh-4.3.3-within-domain"] == "exceeded":
    verdict += ", against the paper"
short = {articles: "other articles", text.name: "new articles"}
carries = yes_and_no(
    {short.get(name, name): yes for name, yes in transfer.items()},
    "carries over",
    "does not visibly carry over",
    "to",
)
beats = yes_and_no(
    {short.get(name, called(name)): yes for name, yes in beats_random.items()},
    "beats random routing",
    "does not visibly beat random routing",
    "on",
)
# %%
worse_on = [short.get(name, called(name)) for name, better in gate_is_better.items() if better]
than_gate = "not visibly worse than a gate"
if worse_on:
    than_gate = f"worse than a gate on {joined(worse_on)}"
run.answer(
    f"{verdict}: in {run.model} a token's mean loss increase {carries}.",
    f"A look-up by input token {beats}, {than_gate}{agreement}.",
)
# %% [markdown]
## Limits

Only frequent types can be listed or compared: function words, punctuation, common word pieces. King James is one book in the words of one time, so few types are frequent on both sides. The list's text has few documents. A correlation of noisy means lies below that of the true ones, on every row. Shares of a list take types as units, although types share documents. One block is routed at a time, with the paper's maps; all at once are in [13](13_compound_gating.ipynb). Small models read from 4-bit files; the paper's are others.

What would have turned the outcomes, by the same code: a correlation as on King James for the first row; for the look-up, median costs as at the blocks above where random positions cost less.

## What the paper's own numbers say
# %%
run.table(errata("balogh", "11"), "errata")
run.end(maps=maps_text, list=list_windows, test=test, away=windows_of[judged_domain])
