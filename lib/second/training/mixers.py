"""Train masked mixers of several kinds and widths from several seeds (Badger, "Nearly Linear
Models", "Linear models inference").

The learning rate is swept for every kind and width with the first seed and chosen on validation
documents; the loss is read on other documents, after each third of the training.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import joblib
import numpy as np
import pandas as pd
import torch

from lib.second.base.cache import cached, digest
from lib.second.base.checks import check_fits
from lib.second.base.errors import InputError
from lib.second.base.steps import Item, each
from lib.second.models.composed import compose
from lib.second.models.mixers import LINEAR, Mixer, build_mixer
from lib.second.swaps.losses import next_token_losses
from lib.second.texts.windows import Windows
from lib.second.training.loop import TrainingRun, train

PROMPTS = 32
"""windows whose beginning every model continues, so that its text can be looked at"""


@dataclass(frozen=True)
class Splits:
    """One text in windows of the context, each part of other documents."""

    train: Windows
    validation: Windows
    """a learning rate is chosen here"""
    test: Windows
    """a loss is read here"""

    @classmethod
    def of(cls, train: Windows, rest: Windows, n_tokens: int) -> "Splits":
        """`rest` is cut into two halves without a document in common, and `n_tokens` of each are
        taken, alike of every document."""
        halves = (half.take(min(n_tokens, half.n_tokens), evenly=True) for half in rest.halves())
        return cls(train, *halves)


def recipe(steps: int, windows: int, context: int, lr: float, seed: int) -> TrainingRun:
    """The training of every model: AdamW without weight decay, warm-up over a tenth."""
    return TrainingRun(steps, windows, context, lr, max(1, steps // 10), 0.0, seed)


def sweep(
    specs: Sequence[Mixer],
    rates: Sequence[float],
    seeds: Sequence[int],
    data: Splits,
    steps: int,
    windows: int,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Train every model of `specs` from all `seeds` at the learning rate that does best with the
    first. Each run is cached when it is done.

    Returns (runs, tried). runs: a row a model and seed, columns model, kind, width, vocab, context,
    modules, maps, parameters, flops, seed, lr, validation (nats per token), loss_1, loss_2, loss
    (test, after each third), rank (of Q, -1 where there is none), windows (test loss of each
    window, a list) and text (token ids sampled after PROMPTS beginnings). tried: model, width,
    lr, validation, chosen.
    """
    check_fits(steps, seeds)
    if steps % 3 or not rates or not specs:
        raise InputError(
            f"{steps} steps, {len(rates)} learning rates and {len(specs)} models make no sweep: "
            "give a multiple of three, and at least one of each."
        )
    first, *others = seeds
    todo = [(spec, lr, first) for spec in specs for lr in rates]
    found = _trained(todo, data, steps, windows, "learning rates")
    tried = pd.DataFrame(
        {"model": s.label, "width": s.width, "lr": lr, "validation": r["validation"]}
        for (s, lr, _), r in zip(todo, found, strict=True)
    )
    best = {
        spec: min(range(len(rates)), key=lambda k: found[n * len(rates) + k]["validation"])
        for n, spec in enumerate(specs)
    }
    tried["chosen"] = [lr == rates[best[spec]] for spec, lr, _ in todo]
    chosen = [(t, r) for t, r in zip(todo, found, strict=True) if t[1] == rates[best[t[0]]]]
    more = [(spec, rates[best[spec]], seed) for seed in others for spec in specs]
    chosen += list(zip(more, _trained(more, data, steps, windows, "seeds"), strict=True))
    sizes = lambda s: {"model": s.label, "parameters": s.parameters, "flops": s.flops}
    rows = [{**asdict(s), **sizes(s), "lr": lr, "seed": seed, **r} for (s, lr, seed), r in chosen]
    return pd.DataFrame(rows), tried


def at_the_edge(tried: pd.DataFrame) -> tuple[int, int]:
    """Of how many sweeps the chosen learning rate lies at an end of the grid, and the sweeps."""
    by = [c for c in ("fixed", "vocab", "model", "width") if c in tried]
    ends = [
        part.lr[part.chosen].isin([part.lr.min(), part.lr.max()]).all()
        for _, part in tried.groupby(by)
    ]
    return sum(ends), len(ends)


def _trained(
    todo: Sequence[tuple[Mixer, float, int]], data: Splits, steps: int, windows: int, what: str
) -> list[dict]:
    cuda = torch.cuda.is_available()
    # Starting a worker takes longer than a few steps.
    alone = cuda or steps < 30
    workers = 1 if alone else max(1, min(len(todo), joblib.cpu_count()))
    texts = [data.train.key, data.validation.key, data.test.key]
    items = []
    for spec, lr, seed in todo:
        run = recipe(steps, windows, spec.context, lr, seed)
        key = {"spec": asdict(spec), "text": texts, "run": digest(vars(run)), "cuda": cuda}
        items.append(Item(key, (spec, data, run, "cuda" if cuda else "cpu"), size=1))
    title = f"training mixers: {what}"
    return list(each(_run, items, total=len(todo), desc=title, unit="model", workers=workers))


@cached
def _run(work: tuple[Mixer, Splits, TrainingRun, str], tick: Callable[[int], None]) -> dict:
    spec, data, run, device = work
    model = build_mixer(spec, run.seed).to(device)
    curve = train(model, data.train, data.test, run, every=run.steps // 3, quiet=True)
    losses = dict(zip(("loss_1", "loss_2", "loss"), curve.held_out_loss.tolist(), strict=True))
    rank = -1
    if spec.kind in LINEAR:
        rank = int(np.linalg.matrix_rank(compose(model).q.astype(np.float32)))
    return {
        **losses,
        "validation": float(window_losses(model, data.validation).mean()),
        "windows": window_losses(model, data.test).mean(1).tolist(),
        "rank": rank,
        "text": sample(model, data.test.tokens[:PROMPTS], run.seed).tolist(),
    }


@torch.no_grad()
def window_losses(model, data: Windows, batch: int = 32) -> np.ndarray:
    """Next-token losses in nats, [n, seq_len-1]."""
    parts = [
        next_token_losses(model(b := chunk.to(model.device), use_cache=False).logits, b)
        for chunk in data.tokens.split(batch)
    ]
    return torch.cat(parts).cpu().numpy()


@torch.no_grad()
def sample(model, tokens: torch.Tensor, seed: int) -> torch.Tensor:
    """The second half of windows [n, seq_len], drawn from the model after the first half:
    [n, seq_len // 2]."""
    generator, begin = torch.Generator().manual_seed(seed), tokens.shape[1] - tokens.shape[1] // 2
    text = tokens[:, :begin]
    while text.shape[1] < tokens.shape[1]:
        logits = model(text.to(model.device), use_cache=False).logits[:, -1].cpu()
        drawn = torch.multinomial(logits.double().softmax(-1), 1, generator=generator)
        text = torch.cat([text, drawn], 1)
    return text[:, begin:]


def train_one(spec: Mixer, lr: float, seed: int, data: Splits, steps: int, windows: int):
    """A trained model itself, for what a table cannot hold; its weights are cached."""
    cuda = "cuda" if torch.cuda.is_available() else "cpu"
    run = recipe(steps, windows, spec.context, lr, seed)
    key = {"spec": asdict(spec), "text": data.train.key, "run": digest(vars(run)), "cuda": cuda}
    weights: Mapping = _weights(key, (spec, data, run, cuda))
    model = build_mixer(spec, seed)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in weights.items()})
    return model.eval().requires_grad_(False)


@cached
def _weights(work: tuple[Mixer, Splits, TrainingRun, str]) -> dict:
    spec, data, run, device = work
    model = build_mixer(spec, run.seed).to(device)
    train(model, data.train, data.validation[:1], run, every=run.steps, quiet=True)
    return {name: value.cpu().numpy() for name, value in model.state_dict().items()}
