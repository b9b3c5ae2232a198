"""Where recoverability comes from (Whipp §5.2): profiles along training, over seeds and texts, and how the variance of R² divides."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from transformers import AutoModelForCausalLM

from lib.cache import cached, digest
from lib.errors import InputError
from lib.hooks import forward_body, record
from lib.moments import Collector
from lib.progress import progress
from lib.subjects import Subject, as_subject
from lib.training import TrainingRun, build, train


def untrained(subject: Subject, seed: int = 42) -> Subject:
    """The subject's architecture at random initialisation, as its own configuration draws it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(subject.model.config).float().to(subject.device)
    return as_subject(model, subject.tokenizer, f"{subject.name}, random")


def profile(subject: Subject, windows: torch.Tensor, held_out: float = 0.2, batch: int = 32) -> np.ndarray:
    """R²_lin of every block, [n_blocks], fitted on the first and scored on the last share of `windows` [n, seq_len]. Not cached."""
    cut = len(windows) - max(1, round(len(windows) * held_out))
    moments = []
    for part in (windows[:cut], windows[cut:]):
        collector = Collector()
        with record(subject, on_ffn=collector.add):
            for chunk in part.split(batch):
                forward_body(subject, chunk)
        moments.append(collector.moments)
    return np.array([moments[1][b.index].score(moments[0][b.index].fit()).r2 for b in subject.blocks])


def checkpoints(steps: int, n: int = 12) -> list[int]:
    """About `n` steps to look at: 0, then log-spaced up to `steps`."""
    return sorted({0, *(round(float(s)) for s in np.geomspace(max(1, steps / 100), steps, n - 1))})


def develop(families: Sequence[str], texts: Mapping[str, tuple[torch.Tensor, torch.Tensor]], measured_on: torch.Tensor, seeds: Sequence[int],
            vocab_size: int, steps: int) -> tuple[pd.DataFrame, pd.DataFrame]:  # fmt: skip
    """Train every family on every text from every seed and measure R²_lin of every block at a dozen checkpoints, always on the same windows.

    texts: {name: (training windows, held-out windows)}; measured_on: windows [n, seq_len]. Each run is cached when it is done. Returns (profiles,
    losses): columns family, text, seed, step, block, r2; and family, text, seed, step, train_loss, held_out_loss (nats).
    """
    todo, device = list(itertools.product(families, texts, seeds)), "cuda" if torch.cuda.is_available() else "cpu"
    profiles, losses = [], []
    with progress(total=len(todo) * steps, desc=f"training {len(todo)} small models", unit="step") as bar:
        for done, (family, text, seed) in enumerate(todo, 1):
            run = TrainingRun(steps=steps, warmup=min(100, max(1, steps // 5)), seed=seed)
            key = {"family": family, "text": digest(texts[text]), "measured_on": digest(measured_on), "run": digest(vars(run)), "vocab": vocab_size, "device": device}
            found = _develop(key, (family, texts[text], measured_on, vocab_size, run, device, bar))
            where = {"family": family, "text": text, "seed": seed}
            profiles.append(pd.DataFrame(found["profiles"]).assign(**where))
            losses.append(pd.DataFrame(found["losses"]).assign(**where))
            bar.update(done * steps - bar.n)  # a run from the cache moved no bar
    return pd.concat(profiles, ignore_index=True), pd.concat(losses, ignore_index=True)


@cached
def _develop(work: tuple) -> dict:
    family, (data, held_out), measured_on, vocab_size, run, device, bar = work
    model, rows = build(family, vocab_size, run.seed).to(device), []

    def look(step: int) -> None:
        subject = as_subject(model, name=family)
        rows.extend({"step": step, "block": b, "r2": float(r2)} for b, r2 in enumerate(profile(subject, measured_on)))
        model.requires_grad_(True).train()  # a Subject is frozen

    curve = train(model, data, held_out, run, every=max(1, run.steps // 4), look=look, at=checkpoints(run.steps), bar=bar)
    return {"profiles": rows, "losses": curve.to_dict("records")}


def variance_shares(table: pd.DataFrame, factors: Sequence[str], value: str = "r2") -> pd.DataFrame:
    """How the variance of `value` divides among `factors` and their interactions: columns term (a:b), degrees, share.

    Analysis of variance of a balanced design with one value a cell: the effect of a set of factors is its cell mean less the effects of
    all smaller sets, so the sums of squares add up to the whole. Raises InputError if some combination is missing or repeated.
    """
    sizes = [table[f].nunique() for f in factors]
    if len(table) != np.prod(sizes) or table.duplicated(list(factors)).any():
        raise InputError(f"the design is not balanced: {len(table)} rows for {' × '.join(f'{n} {f}' for n, f in zip(sizes, factors, strict=True))}; give each combination once.")
    cells = table.sort_values(list(factors))[value].to_numpy(float).reshape(sizes)
    total = np.square(cells - cells.mean()).sum()
    if not total > 0:
        raise InputError(f"{value} does not vary: there is nothing to divide.")
    effects: dict[tuple, np.ndarray] = {}
    for order in range(len(factors) + 1):
        for chosen in itertools.combinations(range(len(factors)), order):
            others = tuple(a for a in range(len(factors)) if a not in chosen)
            mean = cells.mean(others, keepdims=True)
            effects[chosen] = mean - sum(effect for smaller, effect in effects.items() if set(smaller) < set(chosen))
    return pd.DataFrame([{"term": ":".join(factors[a] for a in chosen), "degrees": int(np.prod([sizes[a] - 1 for a in chosen])),
                          "share": float(np.square(np.broadcast_to(effect, sizes)).sum() / total)}
                         for chosen, effect in effects.items() if chosen])  # fmt: skip
