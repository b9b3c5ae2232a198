"""Gates that predict from x where a position needs its FFN (Balogh §3.2, Table 1), by the loss
increases of lib.gating.increases."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn
from tqdm import tqdm

from lib.errors import InputError, unknown
from lib.gating.increases import loss_increases
from lib.hooks import for_windows
from lib.keys import seal
from lib.lazy import LazyModule, for_maps, lazily
from lib.linear.affine import AffineMap
from lib.models.blocks import Subject
from lib.stats import interval, sums
from lib.store import cached, kept
from lib.text.windows import Windows

KINDS = ("linear", "b=1", "b=3", "b=6")
"""Table 1's gates as the author's code has them: logistic regression on x, or on its first 2b
principal components. (Table 1 prints a ReLU for b=1; his code has none, so all four are
hyperplanes.)"""
N_COMPONENTS = {"b=1": 2, "b=3": 6, "b=6": 12}
"""principal components that a gate of Table 1 reads, 2b; "linear" reads x itself"""


class GateText(NamedTuple):
    """Windows to train gates on and, of other documents, to choose among them."""

    train: Windows
    choose: Windows


def split_gate_text(windows: Windows, n_tokens: int) -> GateText:
    """Every third document to choose on, the others to train on: up to n_tokens of these, and a
    quarter as many to choose on."""
    documents = np.unique(windows.document)
    for_choice = np.isin(windows.document, documents[2::3])

    def up_to(part: Windows, most: int) -> Windows:
        return part.take(min(most, part.n_tokens))

    return GateText(
        up_to(windows[~for_choice], n_tokens), up_to(windows[for_choice], n_tokens // 4)
    )


class Gate(nn.Module):
    """x [..., d] -> [...], true where the map suffices: where `score` exceeds `threshold`.

    Layers of `weights` [out, in] and `biases` [out] one after another, with ReLU between if `relu`;
    the last gives the score.
    """

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        biases: Sequence[torch.Tensor],
        threshold: float = 0.0,
        relu: bool = False,
    ):
        super().__init__()
        self.net = nn.Sequential()
        self.threshold, self.relu = threshold, relu
        for k, (weight, bias) in enumerate(zip(weights, biases)):
            if k and relu:
                self.net.append(nn.ReLU())
            layer = nn.Linear(*weight.T.shape)
            layer.load_state_dict({"weight": weight, "bias": bias})
            self.net.append(layer)
        self.requires_grad_(False).eval()

    @property
    def weights(self) -> list[torch.Tensor]:
        return [layer.weight for layer in self.net if isinstance(layer, nn.Linear)]

    @property
    def biases(self) -> list[torch.Tensor]:
        return [layer.bias for layer in self.net if isinstance(layer, nn.Linear)]

    @property
    def n_multiplications(self) -> int:
        """Of a position's score."""
        return sum(weight.numel() for weight in self.weights)

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x.float())[..., 0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(x) > self.threshold


def linear_suffices(increase: np.ndarray) -> np.ndarray:
    """The paper's labels, §3.2: true where the loss increase is at most its median; where fewer
    than 5% of the positions gain from the map, at most its 25th percentile."""
    enough_gain = (increase < 0).mean() >= 0.05
    return increase <= np.quantile(increase, 0.5 if enough_gain else 0.25)


def fit_gate(
    x: np.ndarray,
    label: np.ndarray,
    kind: str = "linear",
    seed: int = 42,
) -> Gate:
    """Fit a gate of KINDS to rows x [n, d] and their labels [n]: logistic regression with C = 1
    (§3.2) on x, standardized by these rows with the scale folded into the first layer.

    Raises InputError for an unknown kind, for values that are no numbers, and where all labels are
    alike.
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
    layers: list[tuple[np.ndarray, np.ndarray]] = []  # (weight [in, out], bias [out])
    if kind in N_COMPONENTS:
        pca = PCA(N_COMPONENTS[kind], random_state=seed).fit(z)
        layers.append((pca.components_.T, -pca.mean_ @ pca.components_.T))
        z = pca.transform(z)
    found = LogisticRegression(C=1.0, max_iter=2_000).fit(z, label)
    layers.append((found.coef_.T, found.intercept_))
    return _from_standardized(layers, scale, relu=False)


def _from_standardized(
    layers: list[tuple[np.ndarray, np.ndarray]], scale: StandardScaler, relu: bool
) -> Gate:
    """The gate of raw x whose layers (weight [in, out], bias [out]) read standardized x."""
    weight, bias = layers[0]
    first = weight / scale.scale_[:, None], bias - (scale.mean_ / scale.scale_) @ weight
    pairs = [first, *layers[1:]]
    weights = [torch.tensor(w.T, dtype=torch.float32) for w, _ in pairs]
    biases = [torch.tensor(b, dtype=torch.float32) for _, b in pairs]
    return Gate(weights, biases, relu=relu)


@torch.enable_grad()
def fit_loss_gate(
    x: np.ndarray,
    increase: np.ndarray,
    hidden: int = 32,
    steps: int = 500,
    seed: int = 42,
) -> Gate:
    """A gate trained on the loss itself, as the author's repository has it for GPT-2 small: one
    hidden layer of ReLU units, Adam at 0.001 on batches of 512 rows, minimizing
    mean(g δ) + 0.01 mean(g) with g = sigmoid(score) the weight of the map.

    x [n, d] (standardized here, the scale folded in) and loss increases [n], in nats.
    """
    scale = StandardScaler().fit(x)
    z = torch.from_numpy(scale.transform(x)).float()
    delta = torch.from_numpy(np.asarray(increase)).float()
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(z.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, 1))
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)
        for _ in range(steps):
            batch = torch.randint(len(z), (512,))
            g = net(z[batch])[:, 0].sigmoid()
            loss = (g * delta[batch]).mean() + 0.01 * g.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    layers = []
    for layer in (net[0], net[2]):
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        layers.append((weight.T.astype(float), bias.astype(float)))
    return _from_standardized(layers, scale, relu=True)


@cached("gates", 1)
def fit_gates(
    subject: Subject,
    windows: Windows,
    maps: Mapping[int, AffineMap],
    kinds: Sequence[str] = KINDS,
    seed: int = 42,
) -> dict[int, dict[str, Gate]]:
    """Gates of each block in `maps` on the paper's labels of this text: {block: {kind: gate}}; the
    kind "loss" is `fit_loss_gate`."""
    increases = loss_increases(subject, windows, maps)
    found: dict[int, dict[str, Gate]] = {}
    for b in tqdm(maps, desc="gates", unit="block", delay=2, leave=False):
        x, increase = increases.rows(b)
        found[b] = {}
        for kind in kinds:
            if kind == "loss":
                found[b][kind] = fit_loss_gate(x, increase, seed=seed)
            else:
                found[b][kind] = fit_gate(x, linear_suffices(increase), kind, seed)
    return found


def choose_gate(gates: Mapping[str, Gate], x: np.ndarray, increase: np.ndarray) -> str:
    """The kind whose gate has the least mean(g δ) on rows x [n, d] and their loss increases [n]:
    what routing by it would add to the loss if positions did not act on one another."""
    rows = torch.from_numpy(x)
    added = {kind: float((gate(rows).numpy() * increase).mean()) for kind, gate in gates.items()}
    return min(added, key=lambda kind: added[kind])


def best_of_four(
    subject: Subject, text: GateText, maps: Mapping[int, AffineMap]
) -> dict[int, LazyModule]:
    """{block: gate}: the best of KINDS for each map (§3.4), trained on `text.train` and chosen on
    `text.choose`, when it is first used."""

    def compute() -> dict[int, Gate]:
        return {b: gate for b, (_, gate) in _best_of_four(subject, text, maps).items()}

    how = f"gate for {{}}; the best of four, {fit_gates.version}, of {subject.provenance} on "
    how += f"{text.train.provenance}, chosen on {text.choose.provenance}"
    words = for_maps(subject.provenance and how, maps)
    return lazily(words, compute, model=subject, texts=text, maps=maps)


def _best_of_four(
    subject: Subject, text: GateText, maps: Mapping[int, AffineMap]
) -> dict[int, tuple[str, Gate]]:
    """{block: (kind, gate)}"""
    gates = fit_gates(subject, text.train, maps)
    unseen = loss_increases(subject, text.choose, maps)
    kinds = {b: choose_gate(gates[b], *unseen.rows(b)) for b in maps}
    return {b: (kind, gates[b][kind]) for b, kind in kinds.items()}


@kept("kinds of gates", 1, text="texts")
def kinds_of(subject: Subject, text: GateText, maps: Mapping[int, AffineMap]) -> pd.DataFrame:
    """Which of four gates is the best for each map: block, kind, parameters."""
    rows = []
    for b, (kind, gate) in _best_of_four(subject, text, maps).items():
        n = sum(tensor.numel() for tensor in (*gate.weights, *gate.biases))
        rows.append({"block": b, "kind": kind, "parameters": n})
    return pd.DataFrame(rows)


@kept("gates on a text", 1, text="texts", windows="test text")
def on_text(
    subject: Subject, text: GateText, windows: Windows, maps: Mapping[int, AffineMap]
) -> pd.DataFrame:
    """What gates of each kind, trained on `text.train`, do on other windows, by block, kind and
    document: positions, how many it sends to the map (sent), the loss increase of all positions and
    of those that it sends (nats, summed). With each kind of a block its held-out auc for the
    paper's labels, whose threshold is that of the training text, with an interval over documents
    (low, high), and its parameters. The kind "loss" is `fit_loss_gate`."""
    gates = fit_gates(subject, text.train, maps)
    of_loss = fit_gates(subject, text.train, maps, ("loss",))
    trained, here = (loss_increases(subject, w, maps) for w in (text.train, windows))
    tables = []
    for b in maps:
        increase, seen = here.loss_increase[b], trained.loss_increase[b]
        label = increase <= seen[linear_suffices(seen)].max()
        for kind, gate in (gates[b] | of_loss[b]).items():
            score = gate.score(torch.from_numpy(here.x[b])).numpy()
            sent = score > gate.threshold
            area = interval(auc_by_document(score, label, here.document), np.unique(here.document))
            columns = {
                "positions": np.ones_like(increase),
                "sent": sent,
                "increase": increase,
                "sent_increase": sent * increase,
            }
            by_document = {name: sums(v, here.document) for name, v in columns.items()}
            table = pd.DataFrame({"document": np.unique(here.document)} | by_document)
            n = sum(tensor.numel() for tensor in (*gate.weights, *gate.biases))
            table = table.assign(auc=area.value, low=area.low, high=area.high, parameters=n)
            tables.append(table.assign(block=b, kind=kind))
    return pd.concat(tables, ignore_index=True)


class Routed(nn.Module):
    """An FFN with its map: `surrogate` where `router` says so, `ffn` elsewhere (Eq. 5).

    A repaired map's massive positions stay with the FFN whatever the router says. After a pass
    `linear` [batch, position] says where the map was used.
    """

    def __init__(self, ffn: nn.Module, surrogate: AffineMap, router: nn.Module):
        super().__init__()
        self.ffn, self.surrogate, self.router = ffn, surrogate, router
        self.linear: torch.Tensor = None
        seal(self, surrogate, "where", router, "else", ffn)

    def at(self, chunk: slice) -> "Routed":
        """The same on some of the windows, where the router is told per window."""
        return Routed(self.ffn, self.surrogate, for_windows(self.router, chunk))

    def used(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., d] -> [...]: where the map is used."""
        return self.router(x) & ~self.surrogate.massive(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.linear = self.used(x)
        y = self.surrogate(x)
        if not self.linear.all():
            # As a batch of one: a mixture of experts reads three dimensions.
            y[~self.linear] = self.ffn(x[~self.linear][None])[0]
        return y


def auc_by_document(score: np.ndarray, label: np.ndarray, document: np.ndarray):
    """Area under the ROC curve of scores for labels, both [n, positions], as a function of weights
    [k, documents]: pairs of a positive and a negative row are counted by their two documents."""
    _, index = np.unique(document, return_inverse=True)
    of_row = np.repeat(index, score.size // len(index))  # rows of a window share its document
    score, label = score.ravel(), np.asarray(label).ravel().astype(bool)
    n = of_row.max() + 1
    # Pairs that a positive row of one document wins over a negative row of another.
    won = np.zeros((n, n))
    for j in range(n):
        negatives = np.sort(score[~label & (of_row == j)])
        below = np.searchsorted(negatives, score[label], "left")
        not_above = np.searchsorted(negatives, score[label], "right")
        won[:, j] = np.bincount(of_row[label], (below + not_above) / 2, n)
    positive = np.bincount(of_row[label], minlength=n)
    negative = np.bincount(of_row[~label], minlength=n)
    return lambda w: ((w @ won) * w).sum(1) / ((w @ positive) * (w @ negative))
