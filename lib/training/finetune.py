"""Fine-tuning a model some of whose FFNs are replaced, beside the same training of the whole one.

Balogh §4.9: some FFNs are replaced, the rest of the model is trained, and what results is compared
with the original. Here every such training is a `FinetuneConfig`, and the same training without
replacement is one too. Nothing is done to the subject itself: a copy of its model is trained.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from filelock import FileLock
from torch import nn
from tqdm import tqdm

from lib.errors import InputError, unknown
from lib.hooks import FFNReplacement, get_block, swap
from lib.keys import settings
from lib.models.blocks import Subject
from lib.models.trial import copy_of
from lib.store import atomic_write, cache_folder, cached, kept, load, pack, unpack
from lib.swap.sweep import batch_size, token_losses
from lib.text.windows import Windows
from lib.training.loop import TrainConfig, train
from lib.training.replacements import REPLACEMENTS, replacement_for, replacements_of

FINETUNED = dict(
    arm="training",
    fit="text of the maps",
    data="training text",
    tests="test texts",
    eval_steps="read at steps",
)
"""what the arguments of a training are called in keys"""


def centre_out(n_blocks: int) -> list[int]:
    """The middle half of the blocks in the order in which Balogh §4.9.1 replaces them: nearest to
    block n_blocks // 2 first, the lower one first. Raises InputError for fewer than six blocks."""
    if n_blocks < 6:
        raise InputError(
            f"a model of {n_blocks} blocks has no middle half to replace from its centre: give one "
            "of at least 6."
        )
    first, centre = n_blocks // 6, n_blocks // 2
    middle = range(first, first + n_blocks // 2)
    return sorted(middle, key=lambda b: (abs(b - centre), b))


@dataclass(frozen=True)
class FinetuneConfig:
    """One training: which FFNs are replaced, in stages, and how the rest is trained."""

    stand_in: str = "none"
    stages: tuple[tuple[int, ...], ...] = ((),)
    """the blocks replaced at the start of each stage, in this order, each stand-in fitted on the
    model as it then is"""
    steps: tuple[int, ...] = (200,)
    """of each stage, one window a step; each stage begins with a new optimizer"""
    lr: float = 2e-5
    constant: bool = False
    """the rate stays; else it falls to a tenth, as a cosine"""
    norms: bool = True
    """whether the norms are trained too"""
    repeat: bool = False
    """whether each stage reads from the whole text again; else no window is read twice"""
    seed: int = 0
    """of the order of the windows"""
    bfloat16: bool = False
    """matrix products of the training in bfloat16; what is measured is in float32"""

    @property
    def replaced(self) -> list[int]:
        return [b for stage in self.stages for b in stage]

    @property
    def n_steps(self) -> int:
        return sum(self.steps)

    @property
    def provenance(self) -> dict[str, str]:
        """The training in words, for keys."""
        return settings(
            self,
            stand_in="in the FFNs' place",
            stages="blocks replaced, by stage",
            steps="steps of each stage",
            lr="rate",
            constant="rate is constant",
            norms="norms are trained",
            repeat="text is read again",
            seed="order of the text",
            bfloat16="products in bfloat16",
        )


@dataclass(frozen=True, eq=False)
class FinetuneResult:
    """What a training gave."""

    losses: pd.DataFrame
    """text, step, document, loss: the mean over a document's predictions, nats"""
    weights: dict
    """{name: tensor} of the model after the first stage, empty unless asked for"""
    stand_ins: dict
    """{block: module} in the place of the FFNs, likewise"""


def fine_tune(
    subject: Subject,
    arm: FinetuneConfig,
    fit: Windows,
    data: Windows,
    tests: Mapping[str, Windows],
    eval_steps: Mapping[str, Sequence[int]],
    weights: bool = False,
) -> pd.DataFrame:
    """Losses of a copy of the model while an arm is trained, one row a document: experiment
    (always "fine-tuned"), text, step, document, loss (the mean over its predictions, nats).

    Stand-ins are fitted on `fit`; `data` are the windows to train on, one a step. Each text of
    `tests` is evaluated at its `eval_steps`; step 0 is after the first stage's replacement.
    `weights`: keep those after the first stage in the cache too, for soft gates. What was trained
    earlier is kept. Raises InputError for blocks that the model lacks and for
    text that does not suffice.
    """
    check_config(subject, arm, data, tests, eval_steps)
    if weights:
        _check_kept(arm)
    given = (subject, arm, fit, data, dict(tests), dict(eval_steps))
    return finetuned_losses(*given, weights).assign(experiment="fine-tuned")


def tuned(
    subject: Subject,
    arm: FinetuneConfig,
    fit: Windows,
    data: Windows,
    tests: Mapping[str, Windows],
    eval_steps: Mapping[str, Sequence[int]],
) -> FinetuneResult:
    """What `fine_tune` with the same arguments gave, with the weights after its first stage; it is
    trained again unless these are in the cache. Raises InputError for narrow FFNs, which no cache
    keeps."""
    _check_kept(arm)
    return _fine_tune(subject, arm, fit, data, dict(tests), dict(eval_steps), weights=True)


def _check_kept(arm: FinetuneConfig) -> None:
    if arm.stand_in == "narrow":
        raise InputError("the weights of narrow FFNs are not kept: use fine_tune for their losses.")


@kept("fine-tuned models", 1, **FINETUNED, helpers=("weights",))
def finetuned_losses(
    subject: Subject,
    arm: FinetuneConfig,
    fit: Windows,
    data: Windows,
    tests: dict,
    eval_steps: dict,
    weights: bool = False,
) -> pd.DataFrame:
    """What `_fine_tune` gave: text, step, document, loss (the mean over its predictions, nats)."""
    return _fine_tune(subject, arm, fit, data, tests, eval_steps, weights).losses


def check_config(
    subject: Subject,
    arm: FinetuneConfig,
    data: Windows,
    tests: Mapping[str, Windows],
    eval_steps: Mapping[str, Sequence[int]],
) -> None:
    """Raises InputError for an arm that this model or text cannot have, and for texts that are not
    evaluated."""
    if arm.stand_in not in REPLACEMENTS:
        raise unknown("stand-in", arm.stand_in, [*REPLACEMENTS])
    if arm.stand_in == "none" and arm.replaced:
        raise InputError(f"nothing replaces blocks {arm.replaced}: name a stand-in, or no blocks.")
    if arm.stand_in == "narrow" and any(arm.stages[:-1]):
        raise InputError("narrow FFNs are put in at one stage only: give one stage of blocks.")
    for block in arm.replaced:
        get_block(subject, block)
    if len(arm.stages) != len(arm.steps):
        raise InputError(
            f"{len(arm.stages)} stages have {len(arm.steps)} numbers of steps: give one each."
        )
    if min(arm.steps) < 1:
        raise InputError(f"a stage of {min(arm.steps)} steps trains nothing: give 1 or more.")
    for text in tests:
        reached = [step for step in eval_steps.get(text, ()) if 0 <= step <= arm.n_steps]
        if not reached:
            raise InputError(
                f"{text} is never evaluated: give it a step from 0 to {arm.n_steps} in eval_steps."
            )
    if not arm.repeat and arm.n_steps > len(data):
        raise InputError(
            f"{arm.n_steps} steps of fresh text need as many windows, and {data.name} has "
            f"{len(data)}: train for fewer steps, give more text, or let it be repeated."
        )


@cached("fine-tuned model", 1, **FINETUNED, weights="weights are kept")
def _fine_tune(
    subject: Subject,
    arm: FinetuneConfig,
    fit: Windows,
    data: Windows,
    tests: dict,
    eval_steps: dict,
    weights: bool = False,
) -> FinetuneResult:
    """`fine_tune` itself; `weights`: whether those after the first stage come back too."""
    key = _fine_tune.key(subject, arm, fit, data, tests, eval_steps, weights)
    with _folder(key and key.digest) as folder, contextlib.ExitStack() as swaps:
        if (of_another := load(key)) is not None:  # that trained it while this one waited
            return of_another
        copied = copy_of(subject)
        placed: dict[int, nn.Module] = {}

        def put(block: int, module: nn.Module) -> None:
            placed[block] = module
            swaps.enter_context(swap(copied.blocks[block], module))

        # A killed training goes on after its last whole stage, and within one from a checkpoint.
        done = len(list(folder.glob("stage-*.safetensors")))
        if done:
            state = _stage_of(folder, done - 1)
            for block, module in state["stand_ins"].items():
                put(block, module)
            copied.model.load_state_dict(state["weights"], strict=False)
        for k in range(done, len(arm.stages)):
            kind = arm.stand_in
            ready = replacements_of(subject, fit, arm.stages[0], kind) if k == 0 else {}
            for block in arm.stages[k]:
                put(block, ready[block] if k == 0 else replacement_for(copied, fit, block, kind))
            _train_stage(copied, arm, k, data, tests, eval_steps, folder)
            if k < len(arm.stages) - 1 or (weights and k == 0):
                state = {"weights": _weights(copied), "stand_ins": placed}
                with atomic_write(folder / f"stage-{k}.safetensors") as part:
                    part.write_bytes(pack(state))
        # A text may be called 2024 or NA.
        as_text = dict(dtype={"text": str}, keep_default_na=False)
        found = pd.concat([pd.read_csv(path, **as_text) for path in sorted(folder.glob("*.csv"))])
        found = found.sort_values(["text", "step", "document"], ignore_index=True)
        if not weights:
            return FinetuneResult(found, {}, {})
        first = _stage_of(folder, 0)
        return FinetuneResult(found, first["weights"], first["stand_ins"])


def _stage_of(folder: Path, k: int) -> dict:
    """The weights and stand-ins after stage k of a training."""
    return unpack((folder / f"stage-{k}.safetensors").read_bytes())


def _train_stage(
    copied: Subject,
    arm: FinetuneConfig,
    k: int,
    data: Windows,
    tests: dict,
    eval_steps: dict,
    folder: Path,
) -> None:
    """Train stage k in place; what is measured on the way goes into `folder`."""
    before, n_steps = sum(arm.steps[:k]), arm.steps[k]
    _free(copied, arm.norms)
    windows = data
    if not arm.repeat:
        generator = torch.Generator().manual_seed(arm.seed)
        order = torch.randperm(len(data), generator=generator)
        windows = data[order[before : before + n_steps]]
    recipe = TrainConfig(
        steps=n_steps,
        batch=1,
        lr=arm.lr,
        warmup=0,
        decay=0 if arm.constant else None,
        weight_decay=0.01,
        beta2=0.999,
        seed=1_000 * arm.seed + k,
        bfloat16=arm.bfloat16,
    )

    def look(local: int, _) -> None:
        step_in_all = before + local
        for text, of_text in tests.items():
            if step_in_all in eval_steps[text]:
                found = measure(copied, of_text).assign(text=text, step=step_in_all)
                found = found[["text", "step", "document", "loss"]]
                with atomic_write(folder / f"{text} at {step_in_all}.csv") as part:
                    found.to_csv(part, index=False)

    # The end of a stage belongs to it, not to the start of the next.
    first = 0 if k == 0 else 1
    at = {m - before for steps in eval_steps.values() for m in steps if m - before >= first}
    checkpoints = folder / f"stage-{k}"
    train(
        copied.model,
        windows,
        recipe,
        callback=look,
        callback_steps=at,
        checkpoints=checkpoints,
        checkpoint_every=100,
    )
    copied.model.requires_grad_(False).eval()


def measure(subject: Subject, windows: Windows) -> pd.DataFrame:
    """The model's mean loss on each document, nats: document, loss."""
    size = batch_size(subject, windows)
    bar = tqdm(windows.tokens.split(size), desc="measuring", delay=2, leave=False)
    loss = torch.cat([token_losses(subject, tokens).mean(1) for tokens in bar]).cpu().numpy()
    rows = pd.DataFrame({"document": windows.document, "loss": loss})
    return rows.groupby("document", as_index=False).loss.mean()


def _weights(subject: Subject) -> dict[str, torch.Tensor]:
    """A copy of every parameter of the model as it stands."""
    return {name: p.detach().clone() for name, p in subject.model.named_parameters()}


def _free(subject: Subject, norms: bool) -> None:
    """Let everything be trained but stand-ins, FFNs that they keep on some positions, and, unless
    `norms`, the norms."""
    subject.model.requires_grad_(True)
    for module in subject.model.modules():
        if isinstance(module, FFNReplacement):
            module.ffn.requires_grad_(False)
        if not norms and "norm" in type(module).__name__.lower():
            module.requires_grad_(False)


@contextlib.contextmanager
def _folder(digest: str | None) -> Iterator[Path]:
    """Where a training leaves what it needs to go on; it goes when the training is done. Another
    process with the same training waits."""
    made = cache_folder() / "training" / digest if digest else Path(tempfile.mkdtemp())
    made.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{made}.lock"):
        made.mkdir(exist_ok=True)  # another one may have finished and taken it away
        yield made
        shutil.rmtree(made, ignore_errors=True)
