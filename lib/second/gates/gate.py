"""Gates: when may the linear map stand in? (Balogh §3.2, Table 1)."""

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from torch import nn

from lib.second.base.errors import InputError, unknown

GATES = ("linear", "b=1", "b=3", "b=6")
"""the four gates of Balogh's Table 1"""
MLP = "mlp"
"""a gate with a hidden layer that is trained, which none of the four has"""
HIDDEN = 64
"""its hidden units"""
EPOCHS, PATIENCE = 30, 3
"""passes over the rows that train it at most, and after the best one"""


@dataclass(frozen=True)
class Labels:
    """Which positions a gate learns to send down the linear path (Balogh §3.2)."""

    threshold: float
    """positions with δ up to here are "linear OK", nats"""
    relaxed: bool
    """whether fewer than 5% of positions have δ < 0, so that the threshold is the 25th percentile
    instead of the median (the paper says "relax"; it is stricter)"""

    def of(self, delta: np.ndarray) -> np.ndarray:
        """Whether each δ is "linear OK", bool of its shape."""
        return delta <= self.threshold


def labels(delta: np.ndarray) -> Labels:
    """The paper's rule on the δ of the gate's own training positions; the threshold then holds
    unchanged for other positions. Raises InputError if it makes one class."""
    relaxed = bool((delta < 0).mean() < 0.05)
    found = Labels(float(np.percentile(delta, 25 if relaxed else 50)), relaxed)
    if found.of(delta).all():
        raise InputError(
            f"all {delta.size:,} positions have δ of at most {found.threshold:.3g}: a gate needs "
            "two classes; is the map the FFN itself?"
        )
    return found


class Threshold(nn.Module):
    """Linear where the score of x [..., d_model] is above 0, that is g(x) > 0.5 (Balogh Eq. 5)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(x) > 0

    @property
    def n_params(self) -> int:
        """Numbers that the gate holds."""
        return sum(b.numel() for b in self.buffers())


class Layered(Threshold):
    """score = v · φ(P x + p) + c; the parts that a gate does not have are left out."""

    def __init__(self, v, c, projection=None, offset=None, relu: bool = False):
        super().__init__()
        as_buffer = lambda a: torch.as_tensor(np.asarray(a), dtype=torch.float32)
        self.register_buffer("v", as_buffer(v))  # [k], k = d_model without a projection
        self.register_buffer("c", as_buffer(c))  # []
        if projection is not None:
            self.register_buffer("projection", as_buffer(projection))  # [d_model, k]
            self.register_buffer("offset", as_buffer(offset))  # [k]
        self.relu = relu

    def score(self, x: torch.Tensor) -> torch.Tensor:
        """Logit of "linear OK", [...]."""
        if hasattr(self, "projection"):
            x = x @ self.projection + self.offset
        return (x.relu() if self.relu else x) @ self.v + self.c

    def extra_repr(self) -> str:
        return f"{self.n_params:,} parameters" + (", ReLU" if self.relu else "")


def fit_gate(
    kind: str, x: np.ndarray, linear: np.ndarray, seed: int = 42, document=None
) -> Layered:
    """A gate of x [n, d_model] that has learned the labels `linear` [n].

    Inputs are standardized by their own mean and scale, which are then folded into the weights: the
    gate sees the raw x. "linear" is logistic regression (L-BFGS, C = 1), d + 1 parameters. "b=1",
    "b=3" and "b=6" are a PCA to 2b dimensions and logistic regression, 2bd + 4b + 1 parameters;
    "b=1" has a ReLU between (how it is trained is not said: here the projection is the PCA's, and
    the regression sees its positive part). "mlp" has HIDDEN trained units (Adam), and its training
    stops on a quarter of the documents: `document` [n], or consecutive tenths of the rows.
    Raises InputError for an unknown kind, rows that do not fit, or labels of one class.
    """
    if kind not in (*GATES, MLP):
        raise unknown("gate", kind, [*GATES, MLP])
    if len(x) != len(linear):
        raise InputError(f"{len(x)} rows and {len(linear)} labels do not fit: give one a row.")
    if len(np.unique(linear)) < 2:
        raise InputError(
            f"all {len(linear):,} labels are {bool(linear[0])}: a gate needs both classes; use "
            "more tokens."
        )
    scaler = StandardScaler().fit(x)
    z = scaler.transform(x)
    if kind == "linear":
        found = _logistic(z, linear)
        v = found.coef_[0] / scaler.scale_
        return Layered(v, found.intercept_[0] - scaler.mean_ @ v)
    if kind == MLP:
        (w, v), (p, c) = _mlp(z, linear, seed, document)
        projection = w / scaler.scale_[:, None]
        return Layered(v[:, 0], c[0], projection, p - scaler.mean_ @ projection, relu=True)
    pca = PCA(2 * int(kind[2:]), random_state=seed).fit(z)
    projection = pca.components_.T / scaler.scale_[:, None]
    offset = -(pca.mean_ @ pca.components_.T) - scaler.mean_ @ projection
    relu = kind == "b=1"
    seen = pca.transform(z)
    found = _logistic(np.maximum(seen, 0) if relu else seen, linear)
    return Layered(found.coef_[0], found.intercept_[0], projection, offset, relu)


def _logistic(z: np.ndarray, linear: np.ndarray) -> LogisticRegression:
    return LogisticRegression(C=1.0, max_iter=1000).fit(z, linear)


def _mlp(z: np.ndarray, linear: np.ndarray, seed: int, document) -> list[list]:
    """Weights and biases of a trained hidden layer and its read-out, of the pass over the rows that
    loses least on documents that do not train it."""
    n = len(z)
    group = np.arange(n) * 10 // n if document is None else np.asarray(document)
    names = np.random.default_rng(seed).permutation(np.unique(group))
    stop = np.isin(group, names[: max(1, len(names) // 4)])
    if stop.all() or len(np.unique(linear[~stop])) < 2:
        stop = np.arange(n) % 4 == 0
    found = MLPClassifier((HIDDEN,), random_state=seed, alpha=1e-3)
    best, kept, since = np.inf, None, 0
    for _ in range(EPOCHS):
        found.partial_fit(z[~stop], linear[~stop], classes=[False, True])
        loss = log_loss(linear[stop], found.predict_proba(z[stop])[:, 1], labels=[False, True])
        since = 0 if loss < best else since + 1
        if loss < best:
            best, kept = (
                loss,
                ([w.copy() for w in found.coefs_], [*map(np.copy, found.intercepts_)]),
            )
        if since == PATIENCE:
            break
    return kept


def gate_parameters(kind: str, d_model: int) -> int:
    """Parameters of a gate: d+1, or 2bd+4b+1 (Balogh Table 1; the b = 3 and 6 of "~6d" and "~12d"
    are read off the total of Table 7)."""
    if kind == "linear":
        return d_model + 1
    if kind == MLP:
        return HIDDEN * d_model + 2 * HIDDEN + 1
    if kind not in GATES:
        raise unknown("gate", kind, [*GATES, MLP])
    b = int(kind[2:])
    return 2 * b * d_model + 4 * b + 1


def compositions(total: int, n_blocks: int, d_model: int) -> list[tuple[int, ...]]:
    """Every way in which gates of GATES on `n_blocks` blocks add up to `total` parameters: counts
    in the order of GATES (Balogh Table 7: 104,659 over 23 blocks at d = 1024)."""
    sizes = [gate_parameters(kind, d_model) for kind in GATES]
    found = []
    for b6 in range(n_blocks + 1):
        for b3 in range(n_blocks - b6 + 1):
            for b1 in range(n_blocks - b6 - b3 + 1):
                mix = (n_blocks - b6 - b3 - b1, b1, b3, b6)
                if sum(n * size for n, size in zip(mix, sizes, strict=True)) == total:
                    found.append(mix)
    return found
