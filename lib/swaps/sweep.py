"""Per-token losses, perplexity, and the swap sweep: what replacing one FFN costs, for every
block."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import nn

from lib.base.bars import progress
from lib.base.cache import as_numpy, cached, code_digest, digest
from lib.base.errors import InputError
from lib.models.hooks import get_block, record, resume, swap
from lib.models.subjects import Subject
from lib.swaps.losses import _losses, perplexity

Swap = int | tuple
"""what stands where: a block, or (block, ...) where several modules are tried in one block's
place"""


def _block(swap: Swap) -> int:
    return swap[0] if isinstance(swap, tuple) else swap


def swap_sweep(
    subject: Subject, windows: torch.Tensor, maps: Mapping[Swap, nn.Module], batch: int = 8
) -> tuple[np.ndarray, dict[Swap, np.ndarray]]:
    """Losses with no swap, and with each module in its block's place in turn: (base, {swap:
    losses}), each [n, seq_len-1].

    `maps` is keyed by block, or by (block, anything else) to try several modules in one place. One
    plain forward pass per batch records the residual stream at every block; each swapped evaluation
    resumes there, so the
    prefix of the network is never repeated. Each batch is cached when it is done, so a killed sweep
    resumes.
    """
    subject.check(windows, batch)
    maps = {key: maps[key] for key in sorted(maps, key=_block) if get_block(subject, _block(key))}
    # A module is more than its weights: only what is built of parts of torch, transformers and this
    # package is cached.
    measure = (
        _sweep_batch
        if all(map(is_known, maps.values()))
        else lambda _, work: _sweep_batch.__wrapped__(work)
    )
    weights = digest([(repr(m), dict(m.state_dict())) for m in maps.values()])
    code = sorted(
        {
            code_digest(type(part).__module__)
            for m in maps.values()
            for part in m.modules()
            if type(part).__module__.startswith("lib.")
        }
    )
    rows = []
    with progress(
        total=len(windows) * len(maps), desc=f"{len(maps)} swaps in turn", unit="window"
    ) as bar:
        for chunk in windows.split(batch):
            key = {
                "subject": subject.key,
                "windows": digest(chunk),
                "blocks": list(map(_block, maps)),
                "maps": weights,
                "code": code,
                "device": subject.device.type,
            }
            rows.append(measure(key, (subject, chunk, maps, bar)))
            bar.update(
                sum(len(r["base"]) for r in rows) * len(maps) - bar.n
            )  # a batch from the cache moved no bar
    base = np.concatenate([r["base"] for r in rows])
    return base, {key: np.concatenate([r["losses"][k] for r in rows]) for k, key in enumerate(maps)}


def is_known(module: nn.Module) -> bool:
    """Whether repr and weights say all about `module`."""
    return all(
        type(part).__module__.startswith(("lib.", "torch.nn.", "transformers."))
        for part in module.modules()
    )


@cached
@torch.no_grad()
def _sweep_batch(work: tuple) -> dict:
    subject, tokens, maps, bar = work
    residual: dict[int, torch.Tensor] = {}
    with record(subject, on_residual=residual.__setitem__, blocks=sorted(set(map(_block, maps)))):
        base = _losses(subject, tokens)
    losses = []
    for key, module in maps.items():
        i = _block(key)
        with resume(subject, i, residual[i]), swap(subject.blocks[i], module):
            losses.append(as_numpy(_losses(subject, tokens)))
        bar.update(len(tokens))
    return {"base": as_numpy(base), "losses": losses}


def delta_ppl(
    base: np.ndarray,
    swapped: Mapping[Swap, np.ndarray],
    level: float = 0.95,
    names: Sequence[str] = (),
) -> pd.DataFrame:
    """Cost of each swap: columns block (and `names` for the rest of a longer key), ppl, delta_ppl,
    delta_ppl_percent and a paired interval of the percentage.

    The interval is a t-interval of the mean loss difference over windows (tokens in a window are
    dependent, windows much
    less so), carried through exp: ΔPPL in percent is 100 (exp(mean Δ) - 1).
    """
    if not 0 < level < 1:
        raise InputError(f"level {level} is no share: use one between 0 and 1, for example 0.95.")
    base_ppl, rows = perplexity(base), []
    for key, losses in swapped.items():
        if np.shape(losses) != np.shape(base):
            raise InputError(
                f"the losses of swap {key} are {np.shape(losses)}, those without a swap "
                f"{np.shape(base)}: measure both on the same windows."
            )
        where = dict(zip(["block", *names], key if isinstance(key, tuple) else (key,), strict=True))
        per_window = (losses - base).mean(1)
        mean, n = per_window.mean(), len(per_window)
        half = (
            stats.t.ppf((1 + level) / 2, n - 1) * per_window.std(ddof=1) / np.sqrt(n)
            if n > 1
            else np.inf
        )
        percent = [100 * np.expm1(m) for m in (mean, mean - half, mean + half)]
        rows.append(
            {
                **where,
                "ppl": perplexity(losses),
                "delta_ppl": perplexity(losses) - base_ppl,
                "delta_ppl_percent": percent[0],
                "delta_ppl_percent_low": percent[1],
                "delta_ppl_percent_high": percent[2],
            }
        )
    return pd.DataFrame(rows)
