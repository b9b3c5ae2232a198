"""Where recoverability comes from (Whipp §5.2): profiles at random initialisation, and along
training over seeds and texts."""

from collections.abc import Callable, Mapping, Sequence

import joblib
import numpy as np
import pandas as pd
import torch

from lib.second.base.cache import cached, digest
from lib.second.base.checks import check_fits
from lib.second.base.errors import unknown
from lib.second.base.names import RANDOM
from lib.second.base.steps import Item, each
from lib.second.linear.moments import Collector
from lib.second.models.hooks import forward_body, record
from lib.second.models.null import draw
from lib.second.models.subjects import Subject, as_subject
from lib.second.texts.windows import Windows
from lib.second.training.loop import FAMILIES, TrainingRun, build, train


def untrained(subject: Subject, seed: int = 42) -> Subject:
    """The subject's architecture at random initialisation, as its own configuration draws it."""
    model = draw(subject.model.config, seed).to(subject.device)
    return as_subject(model, subject.tokenizer, f"{subject.name}{RANDOM}")


def profile(subject: Subject, windows: Windows, n_folds: int = 5, batch: int = 32) -> np.ndarray:
    """R²_lin of every block, [n_blocks], fitted on all folds of `windows` but the last and scored
    on that. Not cached."""
    subject.check(windows, batch)
    held_out, moments = windows.held_out(n_folds), []
    for part in (windows[~held_out], windows[held_out]):
        collector = Collector()
        with record(subject, on_ffn=collector.add):
            for chunk in part.tokens.split(batch):
                forward_body(subject, chunk)
        moments.append(collector.moments)
    train, test = moments
    return np.array([test[b.index].score(train[b.index].fit()).r2 for b in subject.blocks])


def checkpoints(steps: int, n: int = 12) -> list[int]:
    """About `n` steps to look at: 0, then log-spaced up to `steps`."""
    return sorted({0, *(round(float(s)) for s in np.geomspace(max(1, steps / 100), steps, n - 1))})


def develop(
    todo: Sequence[tuple[str, str, int]],
    texts: Mapping[str, tuple[Windows, Windows]],
    measured_on: Windows,
    vocab_size: int,
    steps: int,
    batch: int = 16,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Train one small model for each (family, text, seed) and measure R²_lin of every block at a
    dozen checkpoints, always on the same windows.

    texts: {name: (training windows, held-out windows)}; `batch` windows a step. Without a GPU the
    models train side by side, one thread each: they are too small to gain from more. Each is cached
    when it is done. Returns (profiles, losses): columns family, text, seed, step, block, r2; and
    family, text, seed, step, train_loss, held_out_loss (nats).
    """
    for family, text, _ in todo:
        if family not in FAMILIES:
            raise unknown("family", family, list(FAMILIES))
        if text not in texts:
            raise unknown("text", text, list(texts))
    check_fits(steps, {seed for *_, seed in todo})
    cuda = torch.cuda.is_available()
    workers = 1 if cuda else min(len(todo), joblib.cpu_count())
    items = []
    for family, text, seed in todo:
        run = TrainingRun(steps=steps, batch=batch, warmup=min(100, max(1, steps // 5)), seed=seed)
        key = {
            "family": family,
            "text": [part.key for part in texts[text]],
            "measured_on": measured_on.key,
            "run": digest(vars(run)),
            "vocab": vocab_size,
            "device": "cuda" if cuda else "cpu",
        }
        work = (family, texts[text], measured_on, vocab_size, run, key["device"])
        items.append(Item(key, work))
    title, n = f"training small models, {workers} at a time", len(todo)
    results = list(each(_develop, items, total=n, desc=title, unit="model", workers=workers))
    where = [dict(zip(("family", "text", "seed"), names, strict=True)) for names in todo]
    profiles, losses = (
        [
            pd.DataFrame(found[part]).assign(**names)
            for found, names in zip(results, where, strict=True)
        ]
        for part in ("profiles", "losses")
    )
    return pd.concat(profiles, ignore_index=True), pd.concat(losses, ignore_index=True)


@cached
def _develop(work: tuple, tick: Callable[[int], None]) -> dict:
    family, (data, held_out), measured_on, vocab_size, run, device = work
    model, rows = build(family, vocab_size, run.seed).to(device), []

    def look(step: int) -> None:
        subject = as_subject(model, name=family)
        rows.extend(
            {"step": step, "block": b, "r2": float(r2)}
            for b, r2 in enumerate(profile(subject, measured_on))
        )
        model.requires_grad_(True).train()  # a Subject is frozen

    curve = train(
        model,
        data,
        held_out,
        run,
        every=max(1, run.steps // 4),
        look=look,
        at=checkpoints(run.steps),
        quiet=True,
    )
    return {"profiles": rows, "losses": curve.to_dict("records")}
