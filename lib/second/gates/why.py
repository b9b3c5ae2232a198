"""Why an FFN may be nearly linear: three reasons that Balogh gives (§5.3), each measured."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lib.second.base.cache import as_numpy, cached
from lib.second.base.steps import Item, each
from lib.second.gates.protocol import N_FOLDS, RIDGE
from lib.second.linear.moments import Collector, Moments, total
from lib.second.models.blocks import Block
from lib.second.models.hooks import forward_body, record
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows


@dataclass(frozen=True, eq=False)
class Activity:
    """What FFNs do, window by window."""

    relative: np.ndarray
    """[n_blocks, n, seq_len]: |FFN output| / |residual stream that it is added to|"""
    outer: np.ndarray | None
    """[n_blocks, n]: share of the inputs of GELU above 1 or below -3; None for another function"""


def activity(subject: Subject, windows: Windows, batch: int = 16) -> Activity:
    """Contributions to the residual stream and inputs of the activation function, in one pass."""
    subject.check(windows, batch)
    key = {
        "subject": subject.key,
        "windows": windows.key,
        "batch": batch,
        "device": subject.device.type,
    }
    items = [Item(key, (subject, windows, batch), len(windows))]
    title = "contributions and activations"
    (found,) = each(_activity, items, total=len(windows), desc=title, unit="window")
    return Activity(found["relative"], found.get("outer"))


@cached
def _activity(work: tuple, tick: Callable[[int], None]) -> dict[str, np.ndarray]:
    subject, windows, batch = work
    n_blocks = len(subject)
    relative = np.empty((n_blocks, *windows.tokens.shape))
    outer = np.full((n_blocks, len(windows)), np.nan)
    outputs, span, handles = {}, slice(0, 0), []

    def added(index: int) -> Callable:
        def hook(_, args, out) -> None:
            stream = out[0] if isinstance(out, tuple) else out
            y = outputs.pop(index)
            length = y.norm(dim=-1) / (stream - y).norm(dim=-1)
            relative[index, span] = as_numpy(length)

        return hook

    def entered(index: int) -> Callable:
        def hook(_, args) -> None:
            x = args[0]
            outer[index, span] = as_numpy(((x > 1) | (x < -3)).double().mean((1, 2)))

        return hook

    try:
        for block in subject.blocks:
            handles.append(block.layer.register_forward_hook(added(block.index)))
            if (function := gelu(block)) is not None:
                handles.append(function.register_forward_pre_hook(entered(block.index)))
        with record(subject, on_ffn=lambda i, x, y: outputs.__setitem__(i, y.clone())):
            for start in range(0, len(windows), batch):
                span = slice(start, min(start + batch, len(windows)))
                forward_body(subject, windows.tokens[span])
                tick(span.stop - span.start)
    finally:
        for handle in handles:
            handle.remove()
    return {"relative": relative} | ({} if np.isnan(outer).any() else {"outer": outer})


def gelu(block: Block) -> nn.Module | None:
    """The GELU inside an FFN, whatever its approximation; None where there is none."""
    inner = (m for m in block.ffn.modules() if "gelu" in type(m).__name__.lower())
    return next(inner, None)


def last_projection(block: Block) -> nn.Module:
    """The part of an FFN that reads its hidden units: the last with a weight matrix to run."""
    order: list[nn.Module] = []
    parts = [m for m in block.ffn.modules() if any(p.dim() >= 2 for p in m.parameters(False))]
    handles = [m.register_forward_pre_hook(lambda m, args: order.append(m)) for m in parts]
    like = next(block.ffn.parameters())
    try:
        with torch.no_grad():
            block.ffn(torch.zeros(1, 1, block.d_model, device=like.device, dtype=like.dtype))
    finally:
        for handle in handles:
            handle.remove()
    return order[-1]


def quarters(
    subject: Subject, windows: Windows, draws: int = 2, seed: int = 42, batch: int = 16
) -> np.ndarray:
    """1 - R²_lin of the output of a random quarter of the hidden units less that of the whole FFN,
    [n_folds, n_blocks], mean over `draws`: each fold of documents in turn is held out."""
    subject.check(windows, batch)
    key = {
        "subject": subject.key,
        "windows": windows.key,
        "folds": windows.folds(N_FOLDS).numpy(),
        "draws": draws,
        "seed": seed,
        "batch": batch,
        "device": subject.device.type,
    }
    items = [Item(key, (subject, windows, draws, seed, batch), len(windows))]
    title = "a quarter of the hidden units"
    (found,) = each(_quarters, items, total=len(windows), desc=title, unit="window")
    return found


@cached
def _quarters(work: tuple, tick: Callable[[int], None]) -> np.ndarray:
    subject, windows, draws, seed, batch = work
    rng, folds = np.random.default_rng(seed), windows.folds(N_FOLDS)
    collectors = [Collector() for _ in range(N_FOLDS)]
    hidden: dict[int, torch.Tensor] = {}
    projections = {b.index: last_projection(b) for b in subject.blocks}
    fold, kept = 0, {}

    def add(index: int, x: torch.Tensor, y: torch.Tensor) -> None:
        units, project = hidden.pop(index), projections[index]
        if index not in kept:
            width = units.shape[-1]
            drawn = rng.random((draws, width)).argsort(1) < width // 4  # [draws, d_ff] bool
            kept[index] = torch.from_numpy(drawn).to(units)
        parts = [type(project).forward(project, units * mask) for mask in kept[index]]
        collectors[fold].add(index, x, torch.cat([y, *parts], -1))

    handles = [
        project.register_forward_pre_hook(
            lambda _, args, i=index: hidden.__setitem__(i, args[0].detach())
        )
        for index, project in projections.items()
    ]
    try:
        with record(subject, on_ffn=add):
            for fold in range(N_FOLDS):
                for chunk in windows.tokens[folds == fold].split(batch):
                    forward_body(subject, chunk)
                    tick(len(chunk))
    finally:
        for handle in handles:
            handle.remove()
    return np.array([[_excess(collectors, b, k) for b in projections] for k in range(N_FOLDS)])


def _excess(collectors: list[Collector], block: int, held_out: int) -> float:
    parts = [collector.moments[block] for collector in collectors]
    held: Moments = parts.pop(held_out)
    score = held.score(total(parts).fit(RIDGE))
    width = len(held.mean_x)
    varies = torch.where(held.syy > 0, held.syy, 0.0)
    missed = (1 - score.per_feature_r2).nan_to_num() * varies
    shares = [m.sum() / s.sum() for m, s in zip(missed.split(width), varies.split(width))]
    return float(torch.stack(shares[1:]).mean() - shares[0])
