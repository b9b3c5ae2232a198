"""Small models trained on the spot whose blocks differ in one switch, attention and FFN in parallel
or in sequence, beside the families of the fixtures (Balogh §5.5, §5.7.6)."""

from collections.abc import Callable, Mapping, Sequence

import joblib
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lib.second.base.cache import as_numpy, cached, digest
from lib.second.base.checks import check_fits
from lib.second.base.errors import unknown
from lib.second.base.steps import Item, each
from lib.second.models.subjects import Subject, as_subject
from lib.second.texts.windows import Windows
from lib.second.training.loop import FAMILIES, TrainingRun, train

SEQUENTIAL = "tiny-neox, sequential"
"""GPT-NeoX as it is but for the switch: the FFN reads the stream after attention"""
SWITCHED = FAMILIES | {SEQUENTIAL: FAMILIES["tiny-neox"] | {"use_parallel_residual": False}}
FEW = 100
"""steps of all models together that one process trains alone"""


def drawn(family: str, vocab_size: int, seed: int) -> PreTrainedModel:
    """A randomly initialised model of one of SWITCHED; with the same seed, the two settings of the
    switch begin with the same weights."""
    if family not in SWITCHED:
        raise unknown("family", family, list(SWITCHED))
    torch.manual_seed(seed)
    config = dict(SWITCHED[family])
    special = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model(config.pop("model_type"), vocab_size=vocab_size, **special, **config)
    )


def trained_models(
    todo: Sequence[tuple[str, int]],
    data: Windows,
    held_out: Windows,
    tokenizer,
    steps: int,
    batch: int = 8,
) -> dict[tuple[str, int], Subject]:
    """One small model for each (family, seed), trained on windows `data`, `batch` of them a step;
    of one seed, all see the same windows in the same order.

    Without a GPU the models train side by side, one thread each. Each is cached when it is done.
    Raises InputError for an unknown family, or seeds and steps that do not fit.
    """
    for family, _ in todo:
        if family not in SWITCHED:
            raise unknown("family", family, list(SWITCHED))
    check_fits(steps, {seed for _, seed in todo})
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # A worker is a fresh process, which costs more than a few steps.
    one = device == "cuda" or steps * len(todo) < FEW
    workers = 1 if one else min(len(todo), joblib.cpu_count())
    items = []
    for family, seed in todo:
        run = TrainingRun(steps=steps, batch=batch, warmup=min(100, max(1, steps // 5)), seed=seed)
        key = {
            "family": SWITCHED[family],
            "text": [data.key, held_out.key],
            "run": digest(vars(run)),
            "vocab": len(tokenizer),
            "device": device,
        }
        items.append(Item(key, (family, data, held_out, len(tokenizer), run, device)))
    title, n = f"training small models, {workers} at a time", len(todo)
    states = each(_trained, items, total=n, desc=title, unit="model", workers=workers)
    return {
        (family, seed): _loaded(family, state, tokenizer, device)
        for (family, seed), state in zip(todo, states, strict=True)
    }


@cached
def _trained(work: tuple, tick: Callable[[int], None]) -> dict:
    family, data, held_out, vocab_size, run, device = work
    model = drawn(family, vocab_size, run.seed).to(device)
    train(model, data, held_out, run, every=run.steps, quiet=True)
    return {name: as_numpy(value) for name, value in model.state_dict().items()}


def _loaded(family: str, state: Mapping, tokenizer, device: str) -> Subject:
    model = drawn(family, len(tokenizer), 0)
    model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    return as_subject(model.to(device), tokenizer, family)
