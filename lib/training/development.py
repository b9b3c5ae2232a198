"""Where recoverability comes from (Whipp §5.2): profiles at random initialisation, and along
training over seeds and texts."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import torch

from lib.base import cache
from lib.base.bars import progress
from lib.base.cache import cached, digest
from lib.base.checks import check_fits
from lib.base.errors import InputError, unknown
from lib.base.names import RANDOM
from lib.linear.moments import Collector
from lib.models.hooks import forward_body, record
from lib.models.null import draw
from lib.models.subjects import Subject, as_subject
from lib.training.loop import FAMILIES, TrainingRun, build, train


def untrained(subject: Subject, seed: int = 42) -> Subject:
    """The subject's architecture at random initialisation, as its own configuration draws it."""
    model = draw(subject.model.config, seed).to(subject.device)
    return as_subject(model, subject.tokenizer, f"{subject.name}{RANDOM}")


def profile(
    subject: Subject, windows: torch.Tensor, held_out: float = 0.2, batch: int = 32
) -> np.ndarray:
    """R²_lin of every block, [n_blocks], fitted on the first and scored on the last share of
    `windows` [n, seq_len]. Not cached."""
    subject.check(windows, batch)
    if not 0 < held_out < 1 or len(windows) < 2:
        raise InputError(
            f"{len(windows)} windows cannot be split with a share of {held_out} held out: "
            "use at least two windows and a share between 0 and 1."
        )
    cut = len(windows) - max(1, round(len(windows) * held_out))
    moments = []
    for part in (windows[:cut], windows[cut:]):
        collector = Collector()
        with record(subject, on_ffn=collector.add):
            for chunk in part.split(batch):
                forward_body(subject, chunk)
        moments.append(collector.moments)
    return np.array(
        [moments[1][b.index].score(moments[0][b.index].fit()).r2 for b in subject.blocks]
    )


def checkpoints(steps: int, n: int = 12) -> list[int]:
    """About `n` steps to look at: 0, then log-spaced up to `steps`."""
    return sorted({0, *(round(float(s)) for s in np.geomspace(max(1, steps / 100), steps, n - 1))})


def develop(
    todo: Sequence[tuple[str, str, int]],
    texts: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
    measured_on: torch.Tensor,
    vocab_size: int,
    steps: int,
    batch: int = 16,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Train one small model for each (family, text, seed) and measure R²_lin of every block at a
    dozen checkpoints, always on the same windows.

    texts: {name: (training windows, held-out windows)}; measured_on: windows [n, seq_len]. Without
    a GPU the models train side by side, one thread
    each: they are too small to gain from more. Each is cached when it is done. Returns (profiles,
    losses): columns family, text, seed, step, block,
    r2; and family, text, seed, step, train_loss, held_out_loss (nats).
    """
    for family, text, _ in todo:
        if family not in FAMILIES:
            raise unknown("family", family, list(FAMILIES))
        if text not in texts:
            raise unknown("text", text, list(texts))
    check_fits(steps, {seed for *_, seed in todo})
    cuda = torch.cuda.is_available()
    workers, measured, named = (
        1 if cuda else min(len(todo), joblib.cpu_count()),
        digest(measured_on),
        {text: digest(windows) for text, windows in texts.items()},
    )
    calls = []
    for family, text, seed in todo:
        run = TrainingRun(steps=steps, batch=batch, warmup=min(100, max(1, steps // 5)), seed=seed)
        key = {
            "family": family,
            "text": named[text],
            "measured_on": measured,
            "run": digest(vars(run)),
            "vocab": vocab_size,
            "device": "cuda" if cuda else "cpu",
        }
        calls.append(
            joblib.delayed(_in_worker)(
                cache.CACHE, key, (family, texts[text], measured_on, vocab_size, run, key["device"])
            )
        )
    with joblib.parallel_config("loky", n_jobs=workers, inner_max_num_threads=1):
        results = list(
            progress(
                joblib.Parallel(return_as="generator")(calls),
                total=len(todo),
                desc=f"training small models, {workers} at a time",
                unit="model",
            )
        )
    where = [dict(zip(("family", "text", "seed"), names, strict=True)) for names in todo]
    profiles, losses = (
        [
            pd.DataFrame(found[part]).assign(**names)
            for found, names in zip(results, where, strict=True)
        ]
        for part in ("profiles", "losses")
    )
    return pd.concat(profiles, ignore_index=True), pd.concat(losses, ignore_index=True)


def _in_worker(store: Path, key: dict, work: tuple) -> dict:
    cache.CACHE = store  # a worker is a fresh process: it would fall back on the default place
    return _develop(key, work)


@cached
def _develop(work: tuple) -> dict:
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
