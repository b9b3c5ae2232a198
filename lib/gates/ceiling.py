"""How well any gate on x can do, as far as larger ones tell (Balogh §5.6)."""

from collections.abc import Callable, Sequence

import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lib.base.cache import cached, digest
from lib.base.steps import Item, each
from lib.gates.context import Sample
from lib.gates.gate import MLP, fit_gate, labels
from lib.stats.rows import auc_rows

KINDS = ("linear", MLP, "wide mlp")
"""the linear gate, the one with a few trained units, and one with WIDE of them"""
WIDE = 128


def best_gates(
    learn: Sample, test: Sample, blocks: Sequence[int], seed: int = 42
) -> tuple[dict[int, str], dict[int, np.ndarray]]:
    """Of KINDS the gate with the largest area under the ROC curve on a fifth of the documents of
    `learn`, where the others have taught it: ({block: its kind}, {block: rows [positions]} whose
    means are its area on `test`)."""
    items = []
    for block in blocks:
        key = {
            "learn": learn.streams.key(block),
            "test": test.streams.key(block),
            "delta": digest(learn.delta.by_block[block]),
            "seed": seed,
        }
        items.append(Item(key, (learn, test, block, seed), len(KINDS)))
    total = sum(item.size for item in items)
    found = each(_best, items, total=total, desc="larger gates", unit="gate")
    chosen = dict(zip(blocks, found, strict=True))
    rows = {}
    for block, (_, score) in chosen.items():
        rule = labels(learn.delta.by_block[block].ravel())
        rows[block] = auc_rows(rule.of(test.delta.by_block[block].ravel()), score)
    return {block: kind for block, (kind, _) in chosen.items()}, rows


@cached
def _best(work: tuple, tick: Callable[[int], None]) -> list:
    """[kind, its scores on `test`]."""
    learn, test, block, seed = work
    delta = learn.delta.by_block[block].ravel()
    linear = labels(delta).of(delta)
    windows = learn.streams.windows
    held = windows.held_out(min(5, windows.n_documents)).numpy()
    held = np.repeat(held, windows.seq_len - 1)
    x, unseen = learn.streams(block).rows("x"), test.streams(block).rows("x")
    found = []
    for kind in KINDS:
        score = _fitted(kind, x[~held], linear[~held], seed)
        found.append((roc_auc_score(linear[held], score(x[held])), kind, score(unseen)))
        tick(1)
    _, kind, scores = max(found, key=lambda one: one[0])
    return [kind, scores.astype(np.float32)]


def _fitted(kind: str, x: np.ndarray, linear: np.ndarray, seed: int) -> Callable:
    """A function from x to the gate's score."""
    if kind != "wide mlp":
        import torch

        gate = fit_gate(kind, x, linear, seed)
        return lambda rows: gate.score(torch.from_numpy(rows)).numpy()
    net = MLPClassifier((WIDE,), alpha=1e-2, early_stopping=True, n_iter_no_change=3)
    net = make_pipeline(StandardScaler(), net.set_params(random_state=seed, max_iter=30))
    net.fit(x, linear)
    return lambda rows: net.predict_proba(rows)[:, 1]
