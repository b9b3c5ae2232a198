"""A few affine maps in an FFN's place, one in each cell of what it reads (notebook 30)."""

import copy
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from sklearn.cluster import KMeans
from torch import nn
from tqdm import tqdm

from lib.errors import InputError
from lib.hooks import block_pass, capture_residual, forward, slices
from lib.lazy import LazyModule, for_maps, lazily, made
from lib.linear.affine import AffineMap
from lib.linear.moments import Moments
from lib.models.blocks import Subject
from lib.stats import Interval, interval, sums
from lib.store import cached, kept
from lib.swap.losses import Losses
from lib.text.windows import Windows

PRIORS = tuple(10.0**n for n in range(6))
"""rows that the one map may count as in a cell; the best for a block is chosen on other text"""
Kind = tuple[str, int]
"""which cells, and how many: "k-means", "random" (around so many rows of x) or "position" (equal
ranges of the window)"""


class Pieces(AffineMap):
    """An affine map in each cell, `weights` [K, d, d] and `biases` [K, d]: a row is in the cell of
    the nearest of `centres` [K, d]. The FFN stays where `base`, the one map, leaves it."""

    def __init__(
        self, base: AffineMap, weights: torch.Tensor, biases: torch.Tensor, centres: torch.Tensor
    ):
        super().__init__(base.weight, base.bias)
        self.base = base
        self.register_buffer("weights", weights.detach())
        self.register_buffer("biases", biases.detach())
        self.register_buffer("centres", centres.detach())

    @property
    def n_multiplications(self) -> int:
        """Of a position: a map's, and those of the choice."""
        return self.weight.numel() + self.centres.numel()

    def cells(self, x: torch.Tensor) -> torch.Tensor:  # [..., d] -> [...]
        return (x @ self.centres.T - self.centres.square().sum(-1) / 2).argmax(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., d] -> [..., d]
        z = x.to(self.weights.dtype)
        return in_cells(z, self.cells(z), self.weights, self.biases).to(x.dtype)

    def massive(self, x: torch.Tensor) -> torch.Tensor:  # [..., d] -> [...] bool
        return self.base.massive(x)

    def with_affine(self, affine: AffineMap) -> AffineMap:
        """Several maps cannot become one: raises InputError."""
        raise InputError(
            f"{len(self.weights)} maps of a block cannot be refitted as one: refit the one map, or "
            "fit pieces again."
        )


class ByPosition(Pieces):
    """The same with equal ranges of the position in the window (without a start token) for cells;
    of `centres` only their number counts."""

    @property
    def n_multiplications(self) -> int:
        return self.weight.numel()

    def cells(self, x: torch.Tensor) -> torch.Tensor:  # [batch, position, d] -> [batch, position]
        n = x.shape[-2]
        return (torch.arange(n, device=x.device) * len(self.centres) // n).expand(x.shape[:-1])


def in_cells(
    x: torch.Tensor, cell: torch.Tensor, weights: torch.Tensor, biases: torch.Tensor
) -> torch.Tensor:
    """x [..., d] through the map of each row's `cell` [...]: gathered, multiplied, scattered."""
    rows, cell = x.reshape(-1, x.shape[-1]), cell.reshape(-1)
    y, sizes = torch.empty_like(rows), cell.bincount(minlength=len(weights)).tolist()
    for k, of_cell in enumerate(cell.argsort().split(sizes)):
        y[of_cell] = torch.addmm(biases[k], rows[of_cell], weights[k])
    return y.view(x.shape)


def fit_in_cells(
    x: torch.Tensor, y: torch.Tensor, cell: torch.Tensor, k: int, old: AffineMap
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Weights [K, d, d] and biases [K, d] for each of PRIORS, from rows x, y [n, d]: `old`, and in
    each cell a ridge regression on its rows of what `old` leaves; the ridge is that of so many rows
    of x's mean variance."""
    left, variance = y - old(x), float(x.double().var(0, correction=0).mean())
    found = [(old.weight.repeat(k, 1, 1), old.bias.repeat(k, 1)) for _ in PRIORS]
    for c in cell.unique().tolist():
        of_cell = Moments.of(x[cell == c], left[cell == c])
        e, v = of_cell.eigen
        along = v.T @ of_cell.sxy  # once for all ridges
        for prior, (weights, biases) in zip(PRIORS, found):
            weight = v @ (along / (e + prior * variance)[:, None])
            weights[c] += weight.float()
            biases[c] += (of_cell.mean_y - of_cell.mean_x @ weight).float()
    return found


def rows_by_block(
    subject: Subject, windows: Windows
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """(block, x, y) of each FFN in turn, x and y [n, position, d] without a start token: one pass
    in all, with the rows of one block in memory."""
    streams = capture_residual(subject, windows, [0])[0].to(subject.device)
    for b in tqdm(range(len(subject)), desc="pieces", delay=2, leave=False):
        sides: tuple[list, list] = ([], [])
        for batch in slices(len(windows)):
            x, y, streams[batch] = block_pass(subject, b, windows.tokens[batch], streams[batch])
            for side, value in zip(sides, (x, y)):
                side.append(value[:, subject.n_start :].float().cpu())
        yield b, torch.cat(sides[0]), torch.cat(sides[1])


@cached("affine pieces", 1, choose="prior chosen on")
@torch.no_grad()
def fit_pieces(
    subject: Subject,
    windows: Windows,
    choose: Windows,
    maps: Mapping[int, nn.Module],
    kinds: Sequence[Kind],
    seed: int = 42,
) -> dict[int, list[Pieces]]:
    """{block: pieces of each kind}, drawn to the block's one map; both texts have windows of one
    length. What the map leaves to the FFN is not fitted. Raises InputError for windows of unlike
    lengths."""
    long, other = windows.tokens.shape[1], choose.tokens.shape[1]
    if long != other:
        raise InputError(
            f"windows of {long} tokens to fit, of {other} to choose on: cut both alike."
        )
    both = Windows(torch.cat([windows.tokens, choose.tokens]), np.arange(0), "both texts")
    ready = {b: copy.deepcopy(made(affine)).cpu() for b, affine in maps.items()}
    found: dict[int, list[Pieces]] = {}
    for b, x, y in rows_by_block(subject, both):
        base, (x_fit, x_choose), (y_fit, y_choose) = (
            ready[b],
            *(side.split([len(windows), len(choose)]) for side in (x, y)),
        )
        fitted, chosen = ~base.massive(x_fit), ~base.massive(x_choose)
        found[b] = []
        for how, k in kinds:
            kind = ByPosition if how == "position" else Pieces
            centres = _centres(how, k, x_fit[fitted], seed)
            cell = kind(base, base.weight[None], base.bias[None], centres).cells(x_fit)
            rows = x_fit[fitted], y_fit[fitted], cell[fitted]
            tried = [kind(base, *fit, centres) for fit in fit_in_cells(*rows, k, base)]
            left = [(y_choose - pieces(x_choose))[chosen].square().sum() for pieces in tried]
            found[b].append(tried[int(torch.stack(left).argmin())])
    return found


def _centres(how: str, k: int, x: torch.Tensor, seed: int) -> torch.Tensor:
    """[K, d]: by k-means on 8,192 of the rows x [n, d], or else K of these at random."""
    order = np.random.default_rng(seed).permutation(len(x))
    if how != "k-means":
        return x[order[:k]]
    means = KMeans(k, n_init=1, random_state=seed).fit(x[order[:8_192]].numpy())
    return torch.from_numpy(means.cluster_centers_).to(x.dtype)


def pieces_of(
    subject: Subject,
    windows: Windows,
    choose: Windows,
    maps: Mapping[int, nn.Module],
    kinds: Mapping[str, Kind],
    seed: int = 42,
) -> dict[str, dict[int, LazyModule]]:
    """{name: {block: pieces}} of each kind (see `fit_pieces`), fitted when one is first used."""
    order = tuple(kinds.values())

    def compute() -> dict[tuple[str, int], Pieces]:
        found = fit_pieces(subject, windows, choose, maps, order, seed)
        return {(name, b): found[b][k] for b in maps for k, name in enumerate(kinds)}

    made_of = f"{subject.provenance} on {windows.provenance}, prior chosen on {choose.provenance}"
    words = {}
    for name, (how, k) in kinds.items():
        said = f"{k} cells by {how}, seed {seed}, {fit_pieces.version}, of {made_of}, drawn to {{}}"
        for b, of_block in for_maps(subject.provenance and said, maps).items():
            words[name, b] = of_block
    lazy = lazily(words, compute, model=subject, text=windows, choose=choose, maps=maps)
    return {name: {b: lazy[name, b] for b in maps} for name in kinds}


@kept("errors of affine pieces", 1, windows="test text", modules="in the FFNs' places")
def errors(subject: Subject, windows: Windows, modules: Mapping[int, nn.Module]) -> pd.DataFrame:
    """Σ‖y-ŷ‖² (error) and Σ‖y-ȳ‖² (spread), by block and document, over the positions that a map
    does not leave to the FFN."""
    ready = {b: copy.deepcopy(made(module)).cpu() for b, module in modules.items()}
    left: dict[int, list] = {b: [] for b in modules}
    rows: dict[int, list] = {b: [] for b in modules}

    def add(b: int, x: torch.Tensor, y: torch.Tensor) -> None:  # [batch, position, d]
        x, y, module = x.float().cpu(), y.float().cpu(), ready[b]
        stays = module.massive(x)
        left[b].append((y - module(x)).double().square().sum(-1).masked_fill(stays, 0.0))
        rows[b].append(y.double().masked_fill(stays[..., None], torch.nan))

    forward(subject, windows, on_ffn=add, blocks=[*modules], desc="errors of pieces")
    tables = []
    for b in modules:
        y = torch.cat(rows[b])
        spread = (y - y.nanmean((0, 1))).square().sum(-1).nan_to_num()
        columns = {"error": torch.cat(left[b]), "spread": spread}
        table = {name: sums(of.numpy(), windows.document) for name, of in columns.items()}
        tables.append(pd.DataFrame(table).assign(document=np.unique(windows.document), block=b))
    return pd.concat(tables, ignore_index=True)


def share_at(losses: Losses, names: Sequence[str], cost: float = 0.05) -> Interval:
    """The share of all evaluations that maps can have at a relative change of perplexity, straight
    between the routed models of `names`, in order of their shares, and the model as it is; the
    largest share that was tried, where that costs less."""
    shares = np.append(0.0, losses.table().set_index("name").affine[[*names]])
    added = np.stack([np.zeros_like(losses.unchanged), *map(losses.added, names)])

    def statistic(w: np.ndarray) -> np.ndarray:
        nats = (w @ added.T) / (w @ losses.predictions)[:, None]  # [draws, names]
        return np.array([np.interp(np.log1p(cost), of_draw, shares) for of_draw in nats])

    return interval(statistic, losses.document, possible=(0, 1))


@torch.no_grad()
def timed(
    x: torch.Tensor, n_pieces: int, ffn: nn.Module, shares: Sequence[float], rounds: int = 9
) -> pd.DataFrame:
    """The time of rows x [n, d] that go each through one of so many maps (around as many of the
    rows; their weights do not matter here) or through the FFN, a router's score included, over that
    of the FFN on all of them: share of rows for the maps, ratio (median of the rounds, each beside
    a dense pass), low and high."""

    def now() -> float:
        if x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    d, rows = x.shape[1], []
    router, base = nn.Linear(d, 1).to(x.device), AffineMap(torch.zeros(d, d), torch.zeros(d))
    weights, biases = torch.zeros(n_pieces, d, d), torch.zeros(n_pieces, d)
    module = (Pieces(base, weights, biases, x[:n_pieces]) if n_pieces > 1 else base).to(x.device)
    for share in shares:
        cut, ratios = router(x)[:, 0].quantile(1 - share), []
        for _ in range(rounds + 1):  # the first is not counted
            began = now()
            ffn(x[None])
            between = now()
            used, y = router(x)[:, 0] > cut, torch.empty_like(x)
            y[used] = module(x[used])
            y[~used] = ffn(x[~used][None])[0]
            ratios.append((now() - between) / (between - began))
        low, middle, high = np.quantile(ratios[1:], [0.1, 0.5, 0.9])
        rows.append({"share": share, "ratio": middle, "low": low, "high": high})
    return pd.DataFrame(rows)
