"""All blocks at once: the share of positions that gets a map, refitted maps, and what a routed
model costs and saves (Balogh §3.4, §4.5; shares by block and the refit are ours)."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch
from sklearn.isotonic import IsotonicRegression
from torch import nn
from tqdm import tqdm

from lib import hooks, keys
from lib.errors import InputError
from lib.gating.gates import GateText, Routed
from lib.gating.routers import Errors, learn_errors, learned_errors, said_of
from lib.gating.sparse import SparseFFN
from lib.hooks import advance, block_pass, capture_residual, for_windows, get_block, slices
from lib.lazy import LazyModule, for_maps, lazily, made
from lib.linear.affine import AffineMap
from lib.linear.moments import Moments
from lib.models.blocks import Subject
from lib.stats import sums
from lib.store import cached, kept
from lib.swap import sweep as single
from lib.swap.losses import Losses, of_tables
from lib.text.windows import Windows

PRIOR = 1.0
"""rows of x that the old map counts as in a refit"""


def marginal_costs(errors: Errors, loss_per_error: Sequence[float]) -> np.ndarray:
    """What sending one more position to a block's map is expected to cost, [blocks, n, position],
    nats: its loss per squared error times the squared error expected at the router's score, by
    isotonic regression; infinite where the FFN stays."""
    cost = np.full(errors.error.shape, np.inf)
    for b, rate in enumerate(loss_per_error):
        ordinary = ~errors.massive[b]
        score, error = errors.predicted[b][ordinary], errors.error[b][ordinary]
        expected = IsotonicRegression().fit(score, error).predict(score)
        # A last digit of the score breaks the ties of the steps.
        order = score.argsort().argsort() / len(score)
        cost[b][ordinary] = rate * expected * (1 + 1e-9 * order)
    return cost


def allocate(cost: np.ndarray, share: float) -> np.ndarray:
    """The `share` of all evaluations that cost least, a mask like `cost` [blocks, n, position]."""
    check_share(share)
    n = min(round(share * cost.size), int(np.isfinite(cost).sum()))
    chosen = np.zeros(cost.size, bool)
    chosen[np.argsort(cost, axis=None, kind="stable")[:n]] = True
    return chosen.reshape(cost.shape)


def check_share(share: float) -> None:
    """Raise InputError for a share outside 0 to 1."""
    if not 0 <= share <= 1:
        raise InputError(f"a share of {share} is not possible: give one from 0 to 1.")


class TopShare(nn.Module):
    """A router that sends the same `share` of every window to the map: where `scorer.score` is
    highest. The share is exact, whatever text and inputs; a router in use would need a threshold.
    """

    def __init__(self, scorer: nn.Module, share: float):
        super().__init__()
        check_share(share)
        self.scorer, self.share = scorer, share
        keys.seal(self, f"the highest {share!r} of each window by", scorer)

    @property
    def n_multiplications(self) -> int:
        return getattr(self.scorer, "n_multiplications", 0)

    def at(self, chunk: slice) -> "TopShare":
        return TopShare(for_windows(self.scorer, chunk), self.share)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, position, d] -> [.., ..] bool
        score = self.scorer.score(x)
        top = score.topk(round(self.share * score.shape[-1]), dim=-1).indices
        return torch.zeros_like(score, dtype=torch.bool).scatter(-1, top, True)


def routed(
    subject: Subject,
    maps: Mapping[int, AffineMap],
    scores: Mapping[int, nn.Module],
    share: float,
    ffns: Mapping[int, nn.Module] | None = None,
) -> dict[int, Routed]:
    """{block of `scores`: its FFN (or what `ffns` has in its place) with its map where the score is
    among the highest `share` of the window}."""
    return {
        b: Routed((ffns or {}).get(b, get_block(subject, b).original), maps[b], TopShare(s, share))
        for b, s in scores.items()
    }


def cheapest(
    subject: Subject, text: GateText, maps: Mapping[int, AffineMap], share: float
) -> dict[int, LazyModule]:
    """{block: routed FFN}: `share` of all evaluations affine, where the learned error is least,
    with each block's share by what its map is expected to add to the loss (ours).

    The expectation: `marginal_costs`, with a loss per error from each map's cost on `text.choose`.
    """
    check_share(share)
    how = f"{{}} where the error learned is least, {share!r} of all blocks, shares by costs on "
    said = said_of(how + text.choose.provenance, subject, text.train)

    def best() -> dict[int, TopShare]:
        errors = learn_errors(subject, text.train, maps)
        alone = single.sweep(subject, text.choose, {(b, "map"): maps[b] for b in maps})
        mean_error = (errors.error * ~errors.massive).mean((1, 2))  # [blocks]
        rates = np.maximum(alone.nats("map")[[*maps]].to_numpy(), 1e-6) / mean_error
        shares = allocate(marginal_costs(errors, rates), share).mean((1, 2))
        scores = learned_errors(subject, text.train, maps)
        return {b: TopShare(scores[b], float(of_block)) for b, of_block in zip(maps, shares)}

    def ffn(router: TopShare, b: int) -> Routed:
        return Routed(subject.blocks[b].original, maps[b], router)

    return lazily(for_maps(said, maps), best, ffn, model=subject, texts=text, maps=maps)


def sweep(
    subject: Subject, windows: Windows, models: Mapping[str, Mapping[int, nn.Module]]
) -> Losses:
    """Losses by document of the model as it is and with all modules of each entry of `models`
    ({name: {block: module}}) in their FFNs' places at once; each is kept (lib.store).

    `Losses.shares` says by name: affine, the share of all FFN evaluations (a block at a position)
    that a map took; saved, the share of the multiplications of all FFNs that were left out.
    """
    single.check_predictions(subject, windows)
    for modules in models.values():
        for block in modules:
            get_block(subject, block)
    tables = {}
    with subject.unchanging():
        unchanged = single.document_losses(subject, windows)
        for name, modules in models.items():
            tables[name] = document_losses(subject, windows, modules)
    shares = {name: table[["affine", "saved"]].mean() for name, table in tables.items()}
    return replace(of_tables(unchanged, tables), shares=pd.DataFrame(shares).T)


@kept("losses of routed models", 1, modules="in the FFNs' places")
@torch.no_grad()
def document_losses(
    subject: Subject, windows: Windows, modules: Mapping[int, nn.Module]
) -> pd.DataFrame:
    """Losses with `modules` in several FFNs' places: document, sum (nats), predictions, affine and
    saved (shares, see `sweep`)."""
    # All is made before anything is swapped: maps and scores are fitted on the model as it is.
    for b, module in modules.items():
        hooks.check_replacement(subject.blocks[b], module)
    found, affine, saved = [], [], []  # [predictions] a window; a number a window
    n_params = {b.index: b.n_params for b in subject.blocks}
    rows_of = slices(len(windows), single.batch_size(subject, windows))
    for rows in tqdm(rows_of, desc="routed", delay=2, leave=False):
        here = {b: for_windows(made(m), rows) for b, m in modules.items()}
        with contextlib.ExitStack() as stack:
            for b, module in here.items():
                stack.enter_context(hooks.swap(subject.blocks[b], module))
            found.append(single.token_losses(subject, windows.tokens[rows]).cpu().numpy())
        used, less = np.zeros((2, len(found[-1])))
        for b, module in here.items():
            shape = windows.tokens[rows].shape
            parts = arithmetic_saved(module, n_params[b], shape)
            # At a start token the FFN stays.
            of_block = [part[:, subject.n_start :].mean(1) for part in parts]
            used += of_block[0] / len(subject)
            less += of_block[1] * n_params[b] / sum(n_params.values())
        affine.append(used)
        saved.append(less)
    losses = np.concatenate(found)
    table = {
        "document": np.unique(windows.document),
        "sum": sums(losses, windows.document),
        "predictions": sums(np.ones_like(losses), windows.document).astype(int),
    }
    n_windows = sums(np.ones((len(losses), 1)), windows.document)
    for name, of_windows in (("affine", affine), ("saved", saved)):
        table[name] = sums(np.concatenate(of_windows)[:, None], windows.document) / n_windows
    return pd.DataFrame(table)


def arithmetic_saved(
    module: nn.Module, n_params: int, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """(where a map was used, share of the FFN's multiplications saved), both [n, position], from
    what `module` noted in its last pass; an FFN is counted as one multiplication for each of its
    n_params, biases among them."""
    if isinstance(module, SparseFFN):
        return np.zeros(shape, bool), module.saved.numpy()
    if not isinstance(module, Routed):
        return np.ones(shape, bool), np.full(shape, _saved_by_map(module, n_params))
    used = module.linear.cpu().numpy()
    saved = np.where(used, _saved_by_map(module.surrogate, n_params), 0.0)
    if isinstance(ffn := made(module.ffn), SparseFFN) and not used.all():
        saved[~used] = ffn.saved.numpy().ravel()
    return used, saved - getattr(module.router, "n_multiplications", 0) / n_params


def _saved_by_map(affine: AffineMap, n_params: int) -> float:
    """What a map saves where it is used: all but its own multiplications, d² of an affine map (none
    of a constant), more of one that says so."""
    of_map = affine.weight.numel() if affine.weight.any() else 0
    return 1 - getattr(affine, "n_multiplications", of_map) / n_params


def refit(
    subject: Subject, windows: Windows, modules: Mapping[int, Routed]
) -> dict[int, LazyModule]:
    """Maps fitted anew in order of depth, each on the positions that its router sends it while all
    earlier blocks are routed with their new maps: {block: Routed}, fitted when first used.

    One walk down the blocks with the residual streams of all windows in memory.
    """
    together = keys.in_one(modules)
    said = together and f"refitted in order of depth on {windows.provenance}: {together}"

    def ffn(affine: AffineMap, b: int) -> Routed:
        return _with_map(made(modules[b]), affine.to(subject.device))

    words = {b: said and f"FFN of block {b} routed, {said}" for b in modules}
    fitted = partial(_refit, subject, windows, modules)
    return lazily(words, fitted, ffn, model=subject, text=windows, routed=modules)


@cached("refitted maps", 3, modules="routed")
@torch.no_grad()
def _refit(
    subject: Subject, windows: Windows, modules: Mapping[int, Routed]
) -> dict[int, AffineMap]:
    """{block: refitted map}, see `refit`."""
    streams = capture_residual(subject, windows, [0])[0].to(subject.device)
    maps: dict[int, AffineMap] = {}
    for b in tqdm(range(len(subject)), desc="refits", delay=2, leave=False):
        module = subject.blocks[b].ffn
        if b in modules:
            before = made(modules[b]).to(subject.device)
            x, y = _routed_rows(subject, windows, before, b, streams)
            affine = shrunk_fit(x, y, before.surrogate) if len(x) else before.surrogate
            maps[b] = AffineMap(affine.weight.float(), affine.bias.float())
            module = _with_map(before, maps[b])
        # The stream goes on as the routed model has it.
        advance(subject, windows, b, module, streams)
    return maps


def _routed_rows(
    subject: Subject, windows: Windows, module: Routed, block: int, streams: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y of a block's FFN, both [rows, d], at the positions that its router sends to the map;
    `streams` [n, position, d] enters the block."""
    rows_x, rows_y = [], []
    for batch in slices(len(windows)):
        x, y, _ = block_pass(subject, block, windows.tokens[batch], streams[batch])
        used = module.at(batch).used(x)
        used[:, : subject.n_start] = False  # a start token stays with the FFN
        rows_x.append(x[used])
        rows_y.append(y[used])
    return torch.cat(rows_x), torch.cat(rows_y)


def _with_map(module: Routed, affine: AffineMap) -> Routed:
    """The same routing to another map."""
    return Routed(module.ffn, module.surrogate.with_affine(affine), module.router)


def shrunk_fit(x: torch.Tensor, y: torch.Tensor, old: AffineMap) -> AffineMap:
    """Ridge regression of rows y [n, d] on x [n, d] that is drawn to an old map where rows are
    few: the ridge is that of PRIOR rows of x's mean variance."""
    residual = Moments.of(x, y - old(x))
    ridge = PRIOR * float(residual.sxx.diagonal().mean()) / residual.n
    correction = residual.fit(ridge)
    weight, bias = correction.weight.float(), correction.bias.float()
    return AffineMap(old.weight + weight, old.bias + bias)
