"""How well a score ranks positions of unseen documents (Balogh §4.2: AUC 0.54-0.61)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lib.second.gates.delta import Deltas
from lib.second.gates.fitted import Fitted, gate_scores
from lib.second.gates.inputs import Inputs
from lib.second.stats.intervals import Interval, clustered
from lib.second.stats.joint import joint_level
from lib.second.stats.rows import auc_rows


def clustered_auc(score, positive, document, level: float = 0.95) -> Interval:
    """Area under the ROC curve of `score` for `positive` (bool), with a t-interval over documents.

    score, positive, document: [n]. The AUC is the share of pairs (positive, negative) in which the
    positive scores higher, ties counting half; pairs join two documents, and each document's part
    of the error is what its positives and its negatives add (Obuchowski, Biometrics 53, 1997). The
    bounds are nan, which decides nothing, with fewer than two documents. Raises InputError where
    one class is missing.
    """
    return clustered(auc_rows(positive, score), document, level)


def auc_table(fitted: Fitted, inputs: Inputs, deltas: Deltas, document) -> pd.DataFrame:
    """Held-out AUC of every gate for the labels of its block: columns block, kind, auc, low, high,
    joint_low, joint_high, positive (share "linear OK" there), linear_share.

    inputs, deltas and document [n] are of windows that no gate has seen; the thresholds are those
    of the gates' own. Intervals over documents, 95%: for each gate alone, and jointly over blocks.
    """
    scores = gate_scores(fitted, inputs)
    positive = {b: fitted.labels[b].of(deltas.by_block[b]) for b in fitted.blocks}
    return score_table(scores, positive, document)


def score_table(
    scores: Mapping[tuple[int, str], np.ndarray], positive: Mapping[int, np.ndarray], document
) -> pd.DataFrame:
    """AUC of scores {(block, name): [n, seq_len-1]} for the labels {block: bool [n, seq_len-1]},
    a row each, with the columns of `auc_table`."""
    level, rows = joint_level(len(positive)), []
    for (block, name), score in scores.items():
        truth = positive[block]
        each = np.repeat(np.asarray(document), truth.shape[1])
        alone = clustered_auc(score.ravel(), truth.ravel(), each)
        joint = clustered_auc(score.ravel(), truth.ravel(), each, level)
        rows.append(
            {
                "block": block,
                "kind": name,
                "auc": alone.value,
                "low": alone.low,
                "high": alone.high,
                "joint_low": joint.low,
                "joint_high": joint.high,
                "positive": truth.mean(),
                "linear_share": (score > 0).mean(),
            }
        )
    return pd.DataFrame(rows)


def jointly(
    scores: Mapping[tuple[int, str], np.ndarray],
    positive: Mapping[int, np.ndarray],
    kinds: Sequence[str],
    document,
) -> dict[str, Interval]:
    """AUC of every block and kind of gate, {"block 3, b=1": Interval}, 95% over documents [n] for
    all of them at once."""
    level = joint_level(len(positive) * len(kinds))
    return {
        f"block {block}, {kind}": clustered(row, document, level)
        for kind in kinds
        for block, row in zip(positive, by_window(scores, positive, kind), strict=True)
    }


def by_window(
    scores: Mapping[tuple[int, str], np.ndarray], positive: Mapping[int, np.ndarray], name: str
) -> np.ndarray:
    """What each window adds to the AUC of a gate, [n_blocks, n]: rows whose means are the AUCs."""
    return np.stack(
        [
            auc_rows(truth.ravel(), scores[block, name].ravel()).reshape(truth.shape).mean(1)
            for block, truth in positive.items()
        ]
    )
