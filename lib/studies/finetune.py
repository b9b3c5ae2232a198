"""Fine-tuning a model some of whose FFNs are replaced, beside the same training of the whole one.

Balogh §4.9: some FFNs are replaced, the rest of the model is trained, and what results is compared
with the original. Here every such training is a `FinetuneConfig`, and the same training without
replacement is one too. Nothing is done to the subject itself: a copy of its model is trained.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from filelock import FileLock
from torch import nn
from tqdm import tqdm

from lib.errors import InputError, unknown
from lib.files import atomic_write, cache_folder
from lib.hooks import FFNReplacement, get_block, swap
from lib.keys import all_said, settings
from lib.models.blocks import Subject
from lib.models.parts import copy_of
from lib.store import cached, kept, pack, save, unpack
from lib.studies.replacements import REPLACEMENTS, replacement_for, replacements_of
from lib.swap.losses import Losses
from lib.swap.sweep import batch_size, token_losses
from lib.text.windows import Windows
from lib.training.loop import TrainConfig, train


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
class Finetuning:
    """One training of a copy of a model, and the texts that it is read on."""

    subject: Subject
    arm: FinetuneConfig
    fit: Windows
    """to fit stand-ins on"""
    data: Windows
    """to train on, a window a step"""
    tests: Mapping[str, Windows]
    eval_steps: Mapping[str, Sequence[int]]
    """steps at which each text is read; step 0 is after the first stage's replacement"""

    @property
    def provenance(self) -> dict[str, str] | None:
        """The training in words, for keys."""
        parts: dict = {"model": self.subject, "": self.arm, "text of the maps": self.fit}
        parts |= {"training text": self.data, "test texts": self.tests}
        parts |= {"read at steps": self.eval_steps}
        return all_said(parts)

    def unchanging(self):
        """While open, the model is not looked at again (see Subject)."""
        return self.subject.unchanging()

    def check(self) -> None:
        """Raises InputError for an arm that this model or text cannot have, and for texts that are
        not evaluated."""
        arm = self.arm
        if arm.stand_in not in REPLACEMENTS:
            raise unknown("stand-in", arm.stand_in, [*REPLACEMENTS])
        if arm.stand_in == "none" and arm.replaced:
            raise InputError(
                f"nothing replaces blocks {arm.replaced}: name a stand-in, or no blocks."
            )
        if arm.stand_in == "narrow" and any(arm.stages[:-1]):
            raise InputError("narrow FFNs are put in at one stage only: give one stage of blocks.")
        for block in arm.replaced:
            get_block(self.subject, block)
        if len(arm.stages) != len(arm.steps):
            raise InputError(
                f"{len(arm.stages)} stages have {len(arm.steps)} numbers of steps: give one each."
            )
        if min(arm.steps) < 1:
            raise InputError(f"a stage of {min(arm.steps)} steps trains nothing: give 1 or more.")
        for text in self.tests:
            if not [s for s in self.eval_steps.get(text, ()) if 0 <= s <= arm.n_steps]:
                raise InputError(
                    f"{text} is never evaluated: give it a step from 0 to {arm.n_steps} in "
                    "eval_steps."
                )
        if not arm.repeat and arm.n_steps > len(self.data):
            raise InputError(
                f"{arm.n_steps} steps of fresh text need as many windows, and {self.data.name} has "
                f"{len(self.data)}: train for fewer steps, give more text, or let it be repeated."
            )


def fine_tune(training: Finetuning, weights: bool = False) -> pd.DataFrame:
    """Losses of a copy of the model while it is trained, one row a document: experiment (always
    "fine-tuned"), text, step, document, loss (the mean over its predictions, nats).

    `weights`: leave what `first_stage` asks for in the cache, for soft gates. What was trained
    earlier is kept; a killed training goes on after its last whole stage. Raises InputError for
    blocks that the model lacks and for text that does not suffice.
    """
    training.check()
    if weights and training.arm.stand_in == "narrow":
        raise InputError("the weights of narrow FFNs are not kept: use fine_tune for their losses.")
    return finetuned_losses(training, weights).assign(experiment="fine-tuned")


@kept("fine-tuned models", 1, helpers=("weights",))
def finetuned_losses(training: Finetuning, weights: bool = False) -> pd.DataFrame:
    """`fine_tune` itself: text, step, document, loss."""
    found: list[pd.DataFrame] = []
    of_model = training.subject, training.arm, training.fit, training.data

    def read(model: Subject, step: int) -> None:
        for text, windows in training.tests.items():
            if step in training.eval_steps[text]:
                found.append(measure(model, windows).assign(text=text, step=step))

    at = {step for steps in training.eval_steps.values() for step in steps}
    key = finetuned_losses.key(training)
    with _checkpoint(key and key.digest) as path:
        if (by_another := finetuned_losses.look_up(key)) is not None:  # while this one waited
            return by_another
        for k, state in _stages(*of_model, read, at, found, path):
            if weights and k == 0:
                save(first_stage.key(*of_model), state())
    losses = pd.concat(found)[["text", "step", "document", "loss"]]
    return losses.sort_values(["text", "step", "document"], ignore_index=True)


@cached("first stage of a fine-tuning", 1, arm="training", fit="text of the maps")
def first_stage(subject: Subject, arm: FinetuneConfig, fit: Windows, data: Windows) -> dict:
    """The model after an arm's first stage: "weights" by name, and "stand_ins" by block. It is
    trained anew unless `fine_tune` left it in the cache."""
    first = replace(arm, stages=arm.stages[:1], steps=arm.steps[:1])
    ((_, state),) = _stages(subject, first, fit, data)
    return state()


def _stages(
    subject: Subject,
    arm: FinetuneConfig,
    fit: Windows,
    data: Windows,
    read: Callable[[Subject, int], None] | None = None,
    at: Collection[int] = (),
    found: list[pd.DataFrame] | None = None,
    path: Path | None = None,
) -> Iterator[tuple[int, Callable[[], dict]]]:
    """Train a copy of the model, stage by stage; after each (its number, its state). `read` is
    called with the model at the steps `at`. After each stage but the last, the state and what was
    `found` so far go to `path`, from where a killed training goes on."""
    copied, found = copy_of(subject), [] if found is None else found
    placed: dict[int, nn.Module] = {}
    with contextlib.ExitStack() as swaps:

        def put(block: int, module: nn.Module) -> None:
            placed[block] = module
            swaps.enter_context(swap(copied.blocks[block], module))

        def state() -> dict:
            weights = {name: p.detach().clone() for name, p in copied.model.named_parameters()}
            return {"weights": weights, "stand_ins": dict(placed)}

        done = 0
        if path and path.exists():
            before = unpack(path.read_bytes())
            for block, module in before["stand_ins"].items():
                put(block, module)
            copied.model.load_state_dict(before["weights"], strict=False)
            found[:], done = before["found"], before["stages"]
        for k in range(done, len(arm.stages)):
            kind, blocks = arm.stand_in, arm.stages[k]
            ready = replacements_of(subject, fit, blocks, kind) if k == 0 else {}
            for b in blocks:
                put(b, ready[b] if k == 0 else replacement_for(copied, fit, b, kind))
            _train_stage(copied, arm, k, data, read, at)
            yield k, state
            if path and k < len(arm.stages) - 1:
                with atomic_write(path) as part:
                    part.write_bytes(pack(state() | {"found": found, "stages": k + 1}))


def _train_stage(
    copied: Subject,
    arm: FinetuneConfig,
    k: int,
    data: Windows,
    read: Callable[[Subject, int], None] | None,
    at: Collection[int],
) -> None:
    """Train stage k in place."""
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
    # The end of a stage belongs to it, not to the start of the next.
    steps = {step - before for step in at if step - before >= min(k, 1)}

    def look(step: int) -> None:
        if read:
            read(copied, before + step)

    train(copied.model, windows, recipe, callback=look, callback_steps=steps)
    copied.model.requires_grad_(False).eval()


def together(tables: Mapping[tuple[str, int], pd.DataFrame]) -> pd.DataFrame:
    """Losses of {(arm, order of the text): table} below each other, with columns arm and order."""
    return pd.concat(tables, names=["arm", "order", "row"]).reset_index(["arm", "order"])


def by_arm(losses: pd.DataFrame, text: str, before: tuple[str, int]) -> Losses:
    """Losses by document of each (arm, step) on a text, mean over the orders that it has, each
    document weighing alike; `before`: the arm and step of the model to compare with."""
    of_text = losses[losses.text == text]
    mean = of_text.groupby(["arm", "step", "document"]).loss.mean().unstack()
    changed: dict = dict(zip(mean.index, mean.to_numpy()))
    return Losses(mean.columns.to_numpy(), np.ones(mean.shape[1]), changed[before], changed)


def measure(subject: Subject, windows: Windows) -> pd.DataFrame:
    """The model's mean loss on each document, nats: document, loss."""
    size = batch_size(subject, windows)
    bar = tqdm(windows.tokens.split(size), desc="measuring", delay=2, leave=False)
    loss = torch.cat([token_losses(subject, tokens).mean(1) for tokens in bar]).cpu().numpy()
    rows = pd.DataFrame({"document": windows.document, "loss": loss})
    return rows.groupby("document", as_index=False).loss.mean()


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
def _checkpoint(digest: str | None) -> Iterator[Path | None]:
    """Where a training leaves what it needs to go on; it goes when the training is done. Another
    process with the same training waits."""
    if digest is None:
        yield None
        return
    path = cache_folder() / "training" / f"{digest}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        yield path
        path.unlink(missing_ok=True)
