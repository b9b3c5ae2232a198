"""The linear gate of every block: how well it ranks, and what its score has to do with function
words (Balogh §4.3, §5.1, §5.6)."""

from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.linear_model import LinearRegression

from lib.second.gates.features import Described
from lib.second.gates.fitted import Unit
from lib.second.gates.gate import Labels
from lib.second.gates.variance_explained import r2_rows
from lib.second.stats.intervals import Interval, cluster_variance, clustered
from lib.second.stats.rows import auc_rows, pearson_rows
from lib.second.stats.twoway import pooled_half_width

ABOUT = ("log frequency", "position", "next-token entropy", "surprisal")
"""what §5.1 says lies behind the gate's correlation with function words"""
Scores = Mapping[Unit, np.ndarray]
"""{(block, kind): logits of "linear OK" [n, seq_len-1]}, as `gate_scores` gives them"""
ByBlock = Mapping[int, np.ndarray]
"""{block: a row a position}"""


def area_rows(
    scores: Scores, rules: Mapping[int, Labels], by_block: ByBlock, kind: str = "linear"
) -> dict[int, np.ndarray]:
    """{block: rows [positions]} whose means are the area under the ROC curve of gates of a kind,
    for the labels of δ `by_block` by the thresholds of `rules`."""
    return {
        block: auc_rows(rule.of(by_block[block].ravel()), scores[block, kind].ravel())
        for block, rule in rules.items()
    }


def best_area_rows(
    scores: Scores, rules: Mapping[int, Labels], by_block: ByBlock, document
) -> tuple[dict[int, str], dict[int, np.ndarray]]:
    """The best gate of each block among the kinds in `scores`, chosen on one half of the documents
    and read on the other, both ways round: ({block: the kinds chosen}, {block: rows [positions]}
    whose means are its area). document [n]."""
    names = np.unique(document)
    first = np.isin(document, names[np.random.default_rng(0).permutation(len(names)) % 2 == 0])
    chosen, rows = {}, {}
    for block, rule in rules.items():
        truth, picked = rule.of(by_block[block]), []
        of_block = {kind: score for (b, kind), score in scores.items() if b == block}
        found = np.empty(truth.shape)
        for choose, read in ((first, ~first), (~first, first)):
            there = {
                k: auc_rows(truth[choose].ravel(), s[choose].ravel()).mean()
                for k, s in of_block.items()
            }
            best = max(there, key=there.get)
            area = auc_rows(truth[read].ravel(), of_block[best][read].ravel())
            found[read] = area.reshape(found[read].shape)
            picked.append(best)
        chosen[block], rows[block] = " and ".join(dict.fromkeys(picked)), found.ravel()
    return chosen, rows


def with_function_words(scores: Scores, function: np.ndarray) -> dict[int, np.ndarray]:
    """{block: rows [positions]} whose means are the correlations of the linear gate's score and the
    function-word indicator [n, seq_len-1]."""
    linear = {block: score for (block, kind), score in scores.items() if kind == "linear"}
    return {b: pearson_rows(score.ravel(), function.ravel()) for b, score in linear.items()}


def sized(rows: ByBlock) -> dict[int, np.ndarray]:
    """The rows of absolute values: those of a negative statistic with the other sign."""
    return {block: values * np.sign(values.mean()) for block, values in rows.items()}


def median_rows(rows: ByBlock) -> np.ndarray:
    """Rows whose mean is the median over blocks of the rows' means: those of the block in the
    middle, or the mean of the two."""
    order = sorted(rows.values(), key=np.mean)
    return np.mean(order[(len(order) - 1) // 2 : len(order) // 2 + 1], axis=0)


def kept_elsewhere(home: ByBlock, away: ByBlock, documents: Sequence) -> Interval:
    """Summed over blocks, a correlation on another domain with the sign that it has at home, over
    its size at home; 95% over documents of both. documents: those of the rows of both."""
    signs = {b: np.sign(rows.mean()) for b, rows in home.items()}
    here, there = (sum(s * rows[b] for b, s in signs.items()) for rows in (home, away))
    return ratio_of_means((there, documents[1]), (here, documents[0]))


def ratio_of_means(part: tuple, whole: tuple, level: float = 0.95) -> Interval:
    """Mean of one sample over that of another, each (rows, clusters), of different documents; nan
    where the second is not above 0."""
    top, bottom = (float(np.mean(rows)) for rows, _ in (part, whole))
    if not bottom > 0:
        return Interval(np.nan, np.nan, np.nan)
    ratio = top / bottom
    (above, one), (below, other) = cluster_variance(*part), cluster_variance(*whole)
    if not one or not other:
        return Interval(ratio, np.nan, np.nan)
    parts = [(above / bottom**2, one), (below * ratio**2 / bottom**2, other)]
    half = float(pooled_half_width(parts, level))
    return Interval(ratio, ratio - half, ratio + half)


def beyond_context(
    learned: Scores, read: Scores, described: Sequence[Described], document
) -> Interval:
    """Held-out R² of the linear gate's score on ABOUT and the function-word indicator less that
    without it, mean over blocks; learned on one sample, read on another, whose rows are of
    `document`; 95% over its documents. described: what is said of the two."""
    rows = [
        _score_rows(learned, read, described, columns)
        for columns in ([*ABOUT, "function word"], [*ABOUT])
    ]
    return clustered(rows[0] - rows[1], document)


def by_function_words(
    learned: Scores, read: Scores, described: Sequence[Described], document
) -> Interval:
    """Held-out R² of the linear gate's score on the function-word indicator alone, as above."""
    return clustered(_score_rows(learned, read, described, ["function word"]), document)


def _score_rows(
    learned: Scores, read: Scores, described: Sequence[Described], columns: list[str]
) -> np.ndarray:
    """Rows [positions] whose mean is the R² of the linear gate's score on `columns`, mean over
    blocks."""
    seen, unseen = (d.table[columns] for d in described)
    found = []
    for unit, score in learned.items():
        if unit[1] == "linear":
            predicted = LinearRegression().fit(seen, score.ravel()).predict(unseen)
            found.append(r2_rows(read[unit].ravel().astype(float), predicted))
    return np.mean(found, axis=0)
