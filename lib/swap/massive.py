"""Massive activations in the way of a map: where they are, how few spoil a fit, and what has to
stand there (notebook 29).

Windows are read as they are or with a start token in front, and no position is set apart: a start
token is fitted, swapped and scored as any other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.errors import InputError
from lib.hooks import capture, capture_residual, forward, resume, slices, swap
from lib.keys import all_said
from lib.linear.affine import AffineMap, constant
from lib.linear.moments import Moments
from lib.linear.regression import MASSIVE, AffineFit, repair, single
from lib.models.blocks import Subject
from lib.stats import sums
from lib.store import cached, kept
from lib.swap.losses import Losses
from lib.swap.sweep import token_losses, token_sweep
from lib.text.windows import Windows


def opened(subject: Subject, windows: Windows, token: int | None) -> Windows:
    """The text of windows with `token` in front of each, or with nothing (None); equally long."""
    text = windows.tokens[:, subject.n_start :]
    if token is None:
        return replace(windows, tokens=text)
    front = torch.full((len(text), 1), token)
    return replace(windows, tokens=torch.cat([front, text[:, :-1]], 1))


def bare(subject: Subject) -> Subject:
    """The model with the first position of a window treated as any other, start token or not."""
    blocks = tuple(replace(block, n_start=0) for block in subject.blocks)
    return replace(subject, start_tokens=(), blocks=blocks, loaded_as=None)


@dataclass(frozen=True, eq=False)
class Trial:
    """On what maps are fitted and tried where no position is set apart."""

    subject: Subject
    windows: Windows
    """the fit text"""
    test: Windows
    blocks: Sequence[int]
    token: int | None
    """in front of every window; None: nothing"""
    fit: AffineFit
    """whose limits say which outputs are massive"""

    @property
    def provenance(self) -> dict[str, str] | None:
        """Its parts in words, for keys."""
        parts = {"model": self.subject, "fit text": self.windows, "test": self.test}
        parts |= {"blocks": self.blocks, "in front": self.token, "limits": self.fit}
        return all_said(parts)

    def unchanging(self):
        """While open, the model is not looked at again (see Subject)."""
        return self.subject.unchanging()

    def fitted(self, counts: Sequence[int]) -> dict[int, dict]:
        """See `fitted_on`."""
        return fitted_on(self.subject, self.windows, self.blocks, self.token, self.fit, counts)

    def opened(self, windows: Windows) -> Windows:
        return opened(self.subject, windows, self.token)


@kept("where outputs are long", 1, token="in front")
def long_outputs(
    subject: Subject,
    windows: Windows,
    token: int | None,
    limits: Sequence[int] = (10, 20, 50, 100),
) -> pd.DataFrame:
    """Positions whose FFN output is over so many medians of their block's: block, over, longest (in
    medians), their share of all positions, first: of windows whose first position is one, others:
    of all other positions, first tokens (how many there are), commonest (of the others) and its
    share of these."""
    tokenizer: Any = subject.tokenizer
    text = opened(subject, windows, token)
    norms: dict[int, list[torch.Tensor]] = {b: [] for b in range(len(subject))}
    forward(bare(subject), text, on_ffn=lambda b, _, y: norms[b].append(y.norm(dim=-1)))
    rows = []
    for b, over in [(b, over) for b in norms for over in limits]:
        ratio = torch.cat(norms[b]).float().cpu() / torch.cat(norms[b]).median().cpu()
        long = ratio > over  # [window, position]
        others = pd.Series(text.tokens[:, 1:][long[:, 1:]].tolist(), dtype=int).value_counts()
        shares = {"share": long, "first": long[:, 0], "others": long[:, 1:]}
        row = {"block": b, "over": over, "longest": float(ratio.max())}
        row |= {name: float(part.float().mean()) for name, part in shares.items()}
        row["first tokens"] = len(set(text.tokens[:, 0].tolist()))
        row["commonest"] = tokenizer.decode([*others.index[:1]])
        row["its share"] = float(others.max() / others.sum()) if len(others) else 0.0
        rows.append(row)
    return pd.DataFrame(rows)


@cached("maps fitted without some positions", 1, fit="limits", token="in front")
def fitted_on(
    subject: Subject,
    windows: Windows,
    blocks: Sequence[int],
    token: int | None,
    fit: AffineFit,
    counts: Sequence[int],
) -> dict[int, dict]:
    """{block: {positions: map}}, each fitted on other positions of one text, from one pass: a map
    without some rows is fitted on the difference of sums. Massive is what `fit` takes for it."""
    text = opened(subject, windows, token)
    found: dict[int, list[Moments]] = {}
    long: dict[int, list] = {b: [] for b in blocks}
    middle, limits = text.tokens.shape[1] // 2, fit.facts.limit.tolist()

    def add(b: int, x: torch.Tensor, y: torch.Tensor) -> None:  # [batch, position, d]
        x, y = x.float().cpu(), y.float().cpu()
        norm, median = y.norm(dim=-1), limits[b] / MASSIVE
        parts = slice(None), slice(0, 1), slice(middle, middle + 1)
        new = [Moments.of(x[:, p].flatten(0, 1), y[:, p].flatten(0, 1)) for p in parts]
        weight = (norm.clamp_min(median) / median).flatten() ** -2
        new.append(Moments.of(x.flatten(0, 1), y.flatten(0, 1), weight))
        found[b] = [old + more for old, more in zip(found[b], new)] if b in found else new
        long[b].append((x[norm > limits[b]], y[norm > limits[b]]))

    forward(bare(subject), text, on_ffn=add, blocks=blocks, desc="statistics of positions")
    maps = {}
    for b in blocks:
        x, y = (torch.cat(side) for side in zip(*long[b]))
        maps[b] = _maps_of(found[b], x, y, counts)
    return maps


def _maps_of(
    sums_of: Sequence[Moments], x: torch.Tensor, y: torch.Tensor, counts: Sequence[int]
) -> dict[str | int, AffineMap]:
    """{positions: map} of one block, from the moments of all rows, first ones, middle ones and of
    all, weighted; x, y [n, d] are its massive rows, in the text's order, the first few of which
    (`counts`) are put back into the fit without them."""
    whole, first, middle, weighted = sums_of
    on: dict = {"all": whole, "all, weighted": weighted}
    on |= {"all but the first": whole - first, "all but the middle": whole - middle}
    maps: dict = {"mean output": constant(whole.mean_y.float())}
    if len(x):
        ordinary = whole - Moments.of(x, y)
        on["ordinary"] = ordinary
        for k in counts:
            if k < len(x):
                on[k] = ordinary + Moments.of(x[:k], y[:k])
        maps["FFN kept"] = repair(ordinary, x)
        maps["massive mean"] = constant(y.mean(0))
    return maps | {name: single(moments.fit()) for name, moments in on.items()}


class FFNAt(AffineMap):
    """An affine map that leaves one position of every window to the FFN."""

    def __init__(self, fitted: AffineMap, position: int):
        super().__init__(fitted.weight, fitted.bias)
        self.position = position

    def massive(self, x: torch.Tensor) -> torch.Tensor:  # [batch, position, d] -> [.., position]
        here = torch.arange(x.shape[1], device=x.device) == self.position
        return here.repeat(len(x), 1)


class ConstantAt(AffineMap):
    """An affine map, and a constant [d] at the positions that `kept` leaves to the FFN."""

    def __init__(self, kept: AffineMap, value: torch.Tensor):
        super().__init__(kept.weight, kept.bias)
        self.kept = kept
        self.register_buffer("value", value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., d] -> [..., d]
        y = super().forward(x)
        return torch.where(self.kept.massive(x)[..., None], self.value.to(y.dtype), y)


def stand_ins(maps: Mapping, middle: int) -> dict[str, nn.Module]:
    """{how it is fitted, and what stands at a few positions: module} of one block, from
    `fitted_on`; `middle` is the position that is as many others as first ones."""
    found = {
        "fitted on all": maps["all"],
        "weighted": maps["all, weighted"],
        "without the middle, FFN there": FFNAt(maps["all but the middle"], middle),
        "without the first, FFN there": FFNAt(maps["all but the first"], 0),
        "mean output": maps["mean output"],
    }
    if "ordinary" in maps:
        kept_map = maps["FFN kept"]
        there = ConstantAt(kept_map, maps["massive mean"].bias)
        found["fitted on all, FFN at massive"] = kept_map.with_affine(maps["all"])
        found["without massive"] = maps["ordinary"]
        found["without massive, FFN there"] = kept_map
        found["without massive, a constant there"] = there
        for k in [k for k in maps if isinstance(k, int)]:
            found[f"without massive but {k}, FFN there"] = kept_map.with_affine(maps[k])
    return found


@kept("swaps with some positions set apart", 1)
def apart(trial: Trial, counts: Sequence[int], leave_out: Sequence[str] = ()) -> pd.DataFrame:
    """Losses on the test text with what `stand_ins` names in each block's FFN's place, but for
    `leave_out`: block, swap, document, before, sum, predictions."""
    text, maps, modules = trial.opened(trial.test), trial.fitted(counts), {}
    for b in trial.blocks:
        for name, module in stand_ins(maps[b], text.tokens.shape[1] // 2).items():
            if name not in leave_out:
                modules[b, name] = module
    swept = token_sweep(bare(trial.subject), text, modules)
    return pd.concat([paired_sums(swept, text, k, block=k[0], swap=k[1]) for k in modules])


@kept("swaps without influential rows", 1)
def without_influential(trial: Trial) -> pd.DataFrame:
    """Losses as in `apart`, with maps fitted on all rows but as many ordinary ones as there are
    massive ones: those of the longest outputs, or of the greatest leverage in x. Blocks without
    massive positions have no rows. Raises InputError where none has any."""
    plain, modules = bare(trial.subject), {}
    rows = capture(plain, trial.opened(trial.windows), trial.blocks)
    for b in trial.blocks:
        x, y = (side.flatten(0, 1) for side in rows[b])  # [n, d]
        norm, whole = y.norm(dim=-1), Moments.of(x, y)
        is_massive = norm > float(trial.fit.facts.limit[b])
        n = int(is_massive.sum())
        if not n:
            continue
        e, v = whole.eigen
        leverage = ((x.double() - whole.mean_x) @ v).square().div(e).sum(1)
        for name, influence in {"longest outputs": norm, "greatest leverage": leverage}.items():
            out = influence.masked_fill(is_massive, 0.0).topk(n).indices
            fitted = single((whole - Moments.of(x[out], y[out])).fit())
            modules[b, f"without as many ordinary rows of the {name}"] = fitted
    if not modules:
        raise InputError(f"blocks {[*trial.blocks]} have no massive position here: give others.")
    read = trial.opened(trial.test)
    swept = token_sweep(plain, read, modules)
    return pd.concat([paired_sums(swept, read, k, block=k[0], swap=k[1]) for k in modules])


@kept("losses with the first position mended", 1)
def mended(trial: Trial, counts: Sequence[int], block: int, places: Sequence[int]) -> pd.DataFrame:
    """Losses with a map fitted without massive positions in a block's place everywhere, where from
    the block `at` on the stream of the first position, or of all others, is the model's own (at,
    mended, document, before, sum, predictions); of a block without such positions the map of all.
    Raises InputError for places that are not all behind the block."""
    if not places or min(places) <= block:
        raise InputError(f"places {[*places]} are not all behind block {block}: give later blocks.")
    text, plain = trial.opened(trial.test), bare(trial.subject)
    maps = trial.fitted(counts)[block]
    clean = capture_residual(plain, text, places)
    with swap(plain.blocks[block], maps.get("ordinary", maps["all"])):
        changed = capture_residual(plain, text, places)
    streams: dict = {None: clean[places[0]]}  # the model as it is
    for at in places:
        streams[at, "first"] = torch.cat([clean[at][:, :1], changed[at][:, 1:]], 1)
        streams[at, "others"] = torch.cat([changed[at][:, :1], clean[at][:, 1:]], 1)
    swept = {}
    for key, stream in streams.items():
        of_key = []
        for rows in slices(len(text), 4):
            with resume(plain, key[0] if key else places[0], stream[rows].to(plain.device)):
                of_key.append(token_losses(plain, text.tokens[rows]).cpu().numpy())
        swept[key] = np.concatenate(of_key)
    return pd.concat([paired_sums(swept, text, k, at=k[0], mended=k[1]) for k in swept if k])


def paired_sums(swept: Mapping, windows: Windows, key: tuple, **names) -> pd.DataFrame:
    """Losses [n, predictions] before a swap (None) and after it, summed by document."""
    before, after = (sums(swept[k], windows.document) for k in (None, key))
    predictions = sums(np.ones_like(swept[None]), windows.document)
    table = {"document": np.unique(windows.document), "before": before, "sum": after}
    return pd.DataFrame(names | table | {"predictions": predictions})


def as_losses(table: pd.DataFrame, key: Sequence[str] = ("block", "swap")) -> Losses:
    """The losses of a table of documents with these two columns, to ask them for costs."""
    parts = dict([*table.groupby([*key], sort=False)])
    one = next(iter(parts.values()))
    document, predictions, before = (
        one[column].to_numpy() for column in ("document", "predictions", "before")
    )
    after = {k: of["sum"].to_numpy() for k, of in parts.items()}
    return Losses(document, predictions, before, after)
