"""The swap sweep: what replacing one FFN costs, for every block (Whipp §5.6)."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.second.base.cache import as_numpy, cached, digest
from lib.second.base.code import code_digest
from lib.second.base.errors import InputError
from lib.second.base.steps import Item, each
from lib.second.models.hooks import get_block, record, resume, swap
from lib.second.models.subjects import Subject
from lib.second.stats.intervals import clustered
from lib.second.swaps.losses import _losses, perplexity
from lib.second.texts.windows import Windows

Swap = int | tuple
"""what stands where: a block, or (block, ...) where several modules are tried in one block's
place"""


def _block(swap: Swap) -> int:
    return swap[0] if isinstance(swap, tuple) else swap


def swap_sweep(
    subject: Subject, windows: Windows, maps: Mapping[Swap, nn.Module], batch: int = 8
) -> tuple[np.ndarray, dict[Swap, np.ndarray]]:
    """Losses with no swap, and with each module in its block's place in turn: (base, {swap:
    losses}), each [n, seq_len-1].

    `maps` is keyed by block, or by (block, anything else) to try several modules in one place. One
    plain forward pass per batch records the residual stream at every block; each swapped evaluation
    resumes there, so the prefix of the network is never repeated. Each batch is cached when it is
    done, so a killed sweep resumes.
    """
    subject.check(windows, batch)
    maps = {key: maps[key] for key in sorted(maps, key=_block) if get_block(subject, _block(key))}
    for key, module in maps.items():
        with swap(subject.blocks[_block(key)], module):
            pass  # refused before anything is measured
    # A module is more than its weights: only what is built of parts of torch, transformers and this
    # package is cached.
    keep = all(map(is_known, maps.values()))
    weights = digest([(repr(m), dict(m.state_dict())) for m in maps.values()])
    code = sorted({d for m in maps.values() for d in code_of(m)})
    items = []
    for chunk in windows.tokens.split(batch):
        key = {
            "subject": subject.key,
            "windows": digest(chunk),
            "blocks": list(map(_block, maps)),
            "maps": weights,
            "code": code,
            "device": subject.device.type,
        }
        items.append(Item(key, (subject, chunk, maps), len(chunk) * len(maps), keep))
    title, n = f"{len(maps)} swaps in turn", len(windows) * len(maps)
    rows = list(each(_sweep_batch, items, total=n, desc=title, unit="window"))
    base = np.concatenate([r["base"] for r in rows])
    return base, {key: np.concatenate([r["losses"][k] for r in rows]) for k, key in enumerate(maps)}


def is_known(module: nn.Module) -> bool:
    """Whether repr and weights say all about `module`."""
    return all(
        type(part).__module__.startswith(("lib.", "torch.nn.", "transformers."))
        for part in module.modules()
    )


def code_of(module: nn.Module) -> list[str]:
    """Digests of the code of the parts of `module` that are this package's own."""
    kinds = {type(part) for part in module.modules() if type(part).__module__.startswith("lib.")}
    return sorted(map(code_digest, kinds))


@cached
@torch.no_grad()
def _sweep_batch(work: tuple, tick: Callable[[int], None]) -> dict:
    subject, tokens, maps = work
    residual: dict[int, torch.Tensor] = {}
    with record(subject, on_residual=residual.__setitem__, blocks=sorted(set(map(_block, maps)))):
        base = _losses(subject, tokens)
    losses = []
    for key, module in maps.items():
        i = _block(key)
        with resume(subject, i, residual[i]), swap(subject.blocks[i], module):
            losses.append(as_numpy(_losses(subject, tokens)))
        tick(len(tokens))
    return {"base": as_numpy(base), "losses": losses}


def delta_ppl(
    base: np.ndarray,
    swapped: Mapping[Swap, np.ndarray],
    document: np.ndarray | torch.Tensor,
    level: float = 0.95,
    names: Sequence[str] = (),
) -> pd.DataFrame:
    """Cost of each swap: columns block (and `names` for the rest of a longer key), ppl, delta_ppl,
    delta_ppl_percent and its interval (_low, _high).

    base and the losses are [n, seq_len-1] on the same windows, `document` [n] says where each was
    cut. The interval is that of the mean loss difference, paired over tokens and clustered by
    document, carried through exp: ΔPPL in percent is 100 (exp(mean Δ) - 1).
    """
    if not 0 < level < 1:
        raise InputError(f"level {level} is no share: use one between 0 and 1, for example 0.95.")
    if len(document) != len(base):
        raise InputError(
            f"{len(document)} documents do not fit losses of {len(base)} windows: give the "
            "`document` of the windows that were measured."
        )
    rows = []
    for key, losses in swapped.items():
        if np.shape(losses) != np.shape(base):
            raise InputError(
                f"the losses of swap {key} are {np.shape(losses)}, those without a swap "
                f"{np.shape(base)}: measure both on the same windows."
            )
        where = dict(zip(["block", *names], key if isinstance(key, tuple) else (key,), strict=True))
        mean = clustered((losses - base).mean(1), document, level)
        percent = {end: 100 * np.expm1(getattr(mean, end)) for end in ("value", "low", "high")}
        rows.append(
            {
                **where,
                "ppl": perplexity(losses),
                "delta_ppl": perplexity(losses) - perplexity(base),
                "delta_ppl_percent": percent["value"],
                "delta_ppl_percent_low": percent["low"],
                "delta_ppl_percent_high": percent["high"],
            }
        )
    return pd.DataFrame(rows)
