"""Where a position needs its FFN, and gates that predict it from x (Balogh §3.2, Table 1).

The need of position t at a block is the loss it gains when the block's FFN becomes its map at every
position, δ_t = L_lin(t) - L_full(t). Loss t is that of predicting token t + 1, so a position is
keyed by its input token and the last one of a window has no need.
"""

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from torch import nn

from lib.errors import InputError, unknown

KINDS = ("linear", "b=1", "b=3", "b=6", "mlp")
"""Table 1's four (PCA to 2b dimensions, then logistic; b=1 two trained ReLU units), and one of 64
ReLU units"""
HIDDEN = {"b=1": 2, "mlp": 64}


class Gate(nn.Module):
    """x [..., d] -> [...], true where the map suffices: where `score` exceeds `threshold`."""

    def __init__(self, net: nn.Module, threshold: float = 0.0, recipe: str | None = None):
        super().__init__()
        self.net, self.threshold, self.recipe = net, threshold, recipe

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x.float())[..., 0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(x) > self.threshold

    def at_share(self, x: torch.Tensor, share: float) -> "Gate":
        """The gate that says yes to this share of the rows x [..., d]."""
        cut = float(np.quantile(self.score(x).cpu().numpy(), 1 - share))
        return Gate(self.net, cut, self.recipe and f"{self.recipe} at {share}")


def needless(need: np.ndarray) -> np.ndarray:
    """The paper's labels, §3.2: true where the need is at most its median; where fewer than 5% of
    the positions gain from the map, at most its 25th percentile."""
    return need <= np.quantile(need, 0.5 if (need < 0).mean() >= 0.05 else 0.25)


def fit_gate(
    x: np.ndarray,
    label: np.ndarray,
    kind: str = "linear",
    seed: int = 42,
    recipe: str | None = None,
) -> Gate:
    """Fit a gate of KINDS to rows x [n, d] and their labels [n], x standardized by these rows and
    the scale folded into the first layer: logistic regression with C = 1 (§3.2), or for units with
    ReLU scikit-learn's MLPClassifier, stopped early on a tenth of the rows.

    Raises InputError for an unknown kind and where all labels are alike.
    """
    if kind not in KINDS:
        raise unknown("kind of gate", kind, KINDS)
    if not np.isfinite(np.asarray(label, float)).all() or not np.isfinite(x).all():
        raise InputError(
            f"{len(label)} rows for a gate hold values that are no numbers: leave these rows out."
        )
    x, label = np.asarray(x, float), np.asarray(label, bool)
    if label.all() or not label.any():
        raise InputError(
            f"all {len(label)} positions have the label {bool(label[0])}: a gate needs both; use "
            "more text."
        )
    scale = StandardScaler().fit(x)
    z = scale.transform(x)
    if kind in HIDDEN:
        found = MLPClassifier(
            HIDDEN[kind], alpha=1.0, early_stopping=True, max_iter=100, random_state=seed
        ).fit(z, label)
        layers = [*zip(found.coefs_, found.intercepts_)]
    else:
        layers = []
        if kind != "linear":
            pca = PCA(2 * int(kind[2:]), random_state=seed).fit(z)
            layers, z = [(pca.components_.T, -pca.mean_ @ pca.components_.T)], pca.transform(z)
        found = LogisticRegression(C=1.0, max_iter=1_000).fit(z, label)
        layers.append((found.coef_.T, found.intercept_))
    w, b = layers[0]
    layers[0] = (w / scale.scale_[:, None], b - (scale.mean_ / scale.scale_) @ w)
    return Gate(_network(layers, relu=kind in HIDDEN), recipe=recipe)


def _network(layers: list[tuple[np.ndarray, np.ndarray]], relu: bool) -> nn.Sequential:
    """Layers (weight [in, out], bias [out]) one after another, with ReLU between or nothing."""
    net = nn.Sequential()
    for k, (w, b) in enumerate(layers):
        if k and relu:
            net.append(nn.ReLU())
        linear = nn.Linear(*w.shape)
        linear.load_state_dict({"weight": torch.tensor(w.T), "bias": torch.tensor(b)})
        net.append(linear)
    return net.requires_grad_(False).eval()


class Masked(nn.Module):
    """A router that is told: `mask` [n, seq_len] of the windows it is used on, in their order."""

    def __init__(self, mask: np.ndarray, recipe: str | None = None):
        super().__init__()
        self.mask, self.recipe = mask, recipe

    def at(self, chunk: slice) -> "Masked":
        return Masked(self.mask[chunk], self.recipe)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self.mask[: x.shape[0], : x.shape[1]], device=x.device)


class Routed(nn.Module):
    """An FFN with its map: `surrogate` where `router` says so, `ffn` elsewhere (Eq. 5).

    A repaired map's massive tokens go to the FFN whatever the router says. After a pass `linear`
    [batch, position] says where the map was used.
    """

    def __init__(self, ffn: nn.Module, surrogate: nn.Module, router: nn.Module):
        super().__init__()
        self.ffn, self.surrogate, self.router = ffn, surrogate, router
        how = (getattr(surrogate, "recipe", None), getattr(router, "recipe", None))
        self.recipe = None if None in how else f"{how[0]} routed by {how[1]}"
        self.linear = None

    def at(self, chunk: slice) -> "Routed":
        """The same on some of the windows, where the router is told per window."""
        if not hasattr(self.router, "at"):
            return self
        return Routed(self.ffn, self.surrogate, self.router.at(chunk))

    def used(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., d] -> [...]: where the map is used."""
        return self.router(x) & ~self.surrogate.massive(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear = self.used(x)
        y = self.surrogate(x)
        if not self.linear.all():
            y[~self.linear] = self.ffn(x[~self.linear])
        return y


def auc_by_document(score: np.ndarray, label: np.ndarray, document: np.ndarray):
    """Area under the ROC curve of scores for labels, both [n, positions], as a function of weights
    [k, documents]: pairs of a positive and a negative row are counted by their two documents."""
    _, index = np.unique(document, return_inverse=True)
    d = np.repeat(index, score.size // len(index))  # rows of a window share its document
    score, label = score.ravel(), np.asarray(label).ravel().astype(bool)
    n = d.max() + 1
    won = np.zeros(
        (n, n)
    )  # pairs that a positive row of one document wins over another's negatives
    for j in range(n):
        negatives = np.sort(score[~label & (d == j)])
        left = np.searchsorted(negatives, score[label], "left")
        right = np.searchsorted(negatives, score[label], "right")
        won[:, j] = np.bincount(d[label], (left + right) / 2, n)
    positive, negative = np.bincount(d[label], minlength=n), np.bincount(d[~label], minlength=n)
    return lambda w: ((w @ won) * w).sum(1) / ((w @ positive) * (w @ negative))
