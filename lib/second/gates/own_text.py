"""Whether an FFN that a gated map beats has overfitted: the same gates on the text that the model
was trained on (Balogh §4.8)."""

from collections.abc import Sequence

import numpy as np
import torch

from lib.second.gates.protocol import Protocol
from lib.second.gates.routing import Routed, routed_losses
from lib.second.gates.survey import Survey
from lib.second.models.subjects import Subject
from lib.second.stats.intervals import Interval
from lib.second.stats.resampled import over_halves, weighted_mean
from lib.second.texts.windows import Windows


def spare(whole: Windows, parts: Protocol, n_tokens: int) -> Windows | None:
    """Windows of the documents that gates learn from and are chosen on, at most `n_tokens`, that no
    sample holds; None where fewer than two documents are left."""
    samples = parts.train, parts.choose
    known = {tuple(w) for sample in samples for w in sample.tokens.tolist()}
    documents = np.concatenate([sample.document.numpy() for sample in samples])
    of_gates = np.flatnonzero(np.isin(whole.document.numpy(), documents))
    new = [i for i in of_gates if tuple(whole.tokens[i].tolist()) not in known]
    left = whole[torch.tensor(new, dtype=torch.int64)][: max(1, n_tokens // whole.seq_len)]
    return left if len(left) and left.n_documents > 1 else None


def on_training_text(subject: Subject, parts: Protocol, s: Survey, own: Windows) -> np.ndarray:
    """Mean loss difference of each window of the model's own training text `own`, by block, with
    the chosen gate of each block alone: [blocks, n]."""
    routes = {b: {b: (parts.maps[b], s.fitted.gates[b, s.kind[b]])} for b in sorted(s.gated)}
    found: Routed = routed_losses(subject, own, routes)
    return np.stack([(found.losses[b] - found.base).mean(1) for b in routes])


def overfitting(read: Sequence[tuple[Survey, np.ndarray, np.ndarray]]) -> Interval | None:
    """Gated cost on training text less that on unseen text, mean over the blocks of all models
    where the latter is below 0 on one half of the unseen documents, read on the other, both ways
    averaged; 95% over the documents of both texts. None where no block is below 0.

    read: (survey, rise on training text [blocks, m], its documents [m]), a model each.
    """
    if not any((s.rise("gated").mean(1) < 0).any() for s, _, _ in read):
        return None
    known = np.concatenate([s.document for s, _, _ in read])
    trained = np.concatenate([document for _, _, document in read])
    # Both texts in one axis, so that one draw of documents serves all models.
    document = np.concatenate([known, trained + known.max() + 1])
    n_own, ends = len(known), np.cumsum([0, *(len(s.document) for s, _, _ in read)])
    starts = n_own + np.cumsum([0, *(len(d) for _, _, d in read)])

    def more(choice: np.ndarray, other: np.ndarray) -> float:
        values = []
        for k, (s, rise, _) in enumerate(read):
            here = slice(ends[k], ends[k + 1])
            there = slice(starts[k], starts[k + 1])
            both = choice[there] + other[there]
            if not (choice[here].sum() and other[here].sum() and both.sum()):
                return float("nan")
            wins = weighted_mean(s.rise("gated"), choice[here]) < 0
            unseen = np.expm1(weighted_mean(s.rise("gated"), other[here]))
            values += (np.expm1(weighted_mean(rise, both)) - unseen)[wins].tolist()
        return float(np.mean(values)) if values else float("nan")

    return over_halves(more, document)
