"""Fine-tuning a model some of whose FFNs are replaced, beside the same training of the whole one.

Balogh §4.9: some FFNs are replaced, the rest of the model is trained, and what results is compared
with the original. Here every such training is an `Arm`, and the same training without replacement
is one too. Nothing is done to the subject itself: a copy of its model is changed and trained.
"""

import contextlib
import copy
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from tqdm import tqdm
from transformers.pytorch_utils import Conv1D

from lib.affine import AffineMap, constant, svd_ridge
from lib.cache import cache_folder, pack, step, unpack
from lib.errors import InputError, unknown
from lib.files import whole
from lib.hooks import StandIn, block_pass, capture, capture_residual, forward, get_block, swap
from lib.linear import MASSIVE, repair
from lib.model import Subject, as_subject
from lib.moments import Moments
from lib.runs import keep_rows, kept_rows
from lib.sparse import parts
from lib.swap import batch_size, losses
from lib.text import Windows
from lib.train import Recipe, train

STAND_INS = ("none", "map", "repaired", "deleted", "narrow")
"""what takes an FFN's place: the FFN itself; its affine map, frozen; the map with the FFN kept on
massive activations; nothing; the FFN with as many parameters as the map, trained (in the first
stage its units are those of the intact model)"""
RIDGE = 0.01
"""of the maps, as Balogh Eq. 3"""
MEASURED = ["experiment", "text", "step", "document", "loss"]


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
class Arm:
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
    def words(self) -> str:
        """The arm in words, as data/runs/finetune.csv names it."""
        blocks = " + ".join(" ".join(map(str, stage)) for stage in self.stages if stage)
        steps = " ".join(map(str, self.steps))
        words = f"{self.stand_in} {blocks}, steps {steps}, rate {self.lr:g}"
        return f"{words}, bfloat16" if self.bfloat16 else words


@dataclass(frozen=True, eq=False)
class Tuned:
    """What a training gave."""

    losses: pd.DataFrame
    """experiment, text, step, document, loss: the mean over a document's predictions, nats"""
    weights: dict
    """{name: tensor} of the model after the first stage, empty unless asked for"""
    stand_ins: dict
    """{block: module} in the place of the FFNs, likewise"""


def fine_tune(
    subject: Subject,
    arm: Arm,
    fit: Windows,
    data: Windows,
    tests: Mapping[str, Windows],
    marks: Mapping[str, Sequence[int]],
    weights: bool = False,
) -> pd.DataFrame:
    """Losses of a copy of the model while an arm is trained, one row a document: text, step,
    document, loss (the mean over its predictions, nats).

    Stand-ins are fitted on `fit`; `data` are the windows to train on, one a step. Each text of
    `tests` is evaluated at its steps in `marks`; step 0 is after the first stage's replacement.
    `weights`: keep those after the first stage in the cache too, for lib.softgates. What was
    trained earlier comes from data/runs. Raises InputError for blocks that the model lacks and for
    text that does not suffice.
    """
    check_arm(subject, arm, data)
    given = (subject, arm, fit, data, dict(tests), dict(marks))
    found = kept_losses(_fine_tune.recipe(*given))
    return _fine_tune(*given, weights).losses if found is None else found


def tuned(
    subject: Subject,
    arm: Arm,
    fit: Windows,
    data: Windows,
    tests: Mapping[str, Windows],
    marks: Mapping[str, Sequence[int]],
) -> Tuned:
    """What `fine_tune` with the same arguments gave, with the weights after its first stage; it is
    trained again unless these are in the cache."""
    return _fine_tune(subject, arm, fit, data, dict(tests), dict(marks), weights=True)


def kept_losses(digest: str | None) -> pd.DataFrame | None:
    """The losses that data/runs has of a training, or None."""
    rows = kept_rows("finetune", digest) if digest else ()
    if not len(rows):
        return None
    document = rows.half.str.removeprefix("document ").astype(int)
    found = rows.assign(document=document)[MEASURED]
    found.attrs["trained"] = "earlier"
    return found


def keep_losses(digest: str | None, found: pd.DataFrame, arm: Arm, setting: str) -> None:
    """Leave a training's losses in data/runs."""
    half = "document " + found.document.astype(str)
    rows = found.assign(half=half, setting=setting, seed=arm.seed)
    keep_rows("finetune", digest, rows.to_dict("records"))


def check_arm(subject: Subject, arm: Arm, data: Windows) -> None:
    """Raises InputError for an arm that this model or text cannot have."""
    if arm.stand_in not in STAND_INS:
        raise unknown("stand-in", arm.stand_in, [*STAND_INS])
    for block in arm.replaced:
        get_block(subject, block)
    if len(arm.stages) != len(arm.steps):
        raise InputError(
            f"{len(arm.stages)} stages have {len(arm.steps)} numbers of steps: give one each."
        )
    if not arm.repeat and arm.n_steps > len(data):
        raise InputError(
            f"{arm.n_steps} steps of fresh text need as many windows, and {data.name} has "
            f"{len(data)}: train for fewer steps, give more text, or let it be repeated."
        )


@step(version=1)
def _fine_tune(
    subject: Subject,
    arm: Arm,
    fit: Windows,
    data: Windows,
    tests: dict,
    marks: dict,
    weights: bool = False,
) -> Tuned:
    """`fine_tune` itself; `weights`: whether those after the first stage come back too."""
    digest = _fine_tune.recipe(subject, arm, fit, data, tests, marks)
    with _folder(digest) as folder, contextlib.ExitStack() as swaps:
        copied = copy_of(subject)
        stand_ins: dict[int, nn.Module] = {}

        def put(block: int, module: nn.Module) -> None:
            stand_ins[block] = module
            swaps.enter_context(swap(copied.blocks[block], module))

        # A killed training goes on after its last whole stage, and within one from a checkpoint.
        done = len(list(folder.glob("stage-*.npz")))
        if done:
            state = _stage_of(folder, done - 1)
            for block, module in state["stand_ins"].items():
                put(block, module)
            copied.model.load_state_dict(state["weights"], strict=False)
        for k in range(done, len(arm.stages)):
            ready = _first_stand_ins(subject, fit, arm) if k == 0 else {}
            for block in arm.stages[k]:
                put(block, ready.get(block) or stand_in(copied, fit, block, arm.stand_in))
            _train_stage(copied, arm, k, data, tests, marks, folder)
            if k < len(arm.stages) - 1 or (weights and k == 0):
                state = {"weights": _weights(copied), "stand_ins": stand_ins}
                with whole(folder / f"stage-{k}.npz") as part, open(part, "wb") as file:
                    np.savez(file, **pack(state))
        found = pd.concat([pd.read_csv(path) for path in sorted(folder.glob("*.csv"))])
        found = found.sort_values(["text", "step", "document"], ignore_index=True)
        keep_losses(digest, found, arm, arm.words)
        if not weights:
            return Tuned(found, {}, {})
        first = _stage_of(folder, 0)
        return Tuned(found, first["weights"], first["stand_ins"])


def _stage_of(folder: Path, k: int) -> dict:
    """The weights and stand-ins after stage k of a training."""
    with np.load(folder / f"stage-{k}.npz", allow_pickle=False) as stored:
        return unpack(dict(stored), None)


def _first_stand_ins(subject: Subject, fit: Windows, arm: Arm) -> dict[int, nn.Module]:
    """{block: what takes its FFN's place} in an arm's first stage, where many are fitted at less
    cost than one by one; those that are missing are fitted one by one."""
    blocks = arm.stages[0]
    if not blocks or arm.stand_in in ("none", "deleted"):
        return {}
    if arm.stand_in == "narrow":
        return narrow_ffns(subject, fit, blocks)
    return _first_maps(subject, fit, blocks, arm.stand_in)


@step(version=2)
def _first_maps(subject: Subject, fit: Windows, blocks: tuple[int, ...], kind: str) -> dict:
    """{block: map} of an arm's first stage, which all orders of the text share: each fitted on the
    model in which the ones before stand."""
    if kind == "map" and [*blocks] == sorted(blocks):
        return _maps_by_depth(subject, fit, blocks)
    fitted: dict[int, nn.Module] = {}
    copied = copy_of(subject)
    with contextlib.ExitStack() as swaps:
        for block in blocks:
            fitted[block] = stand_in(copied, fit, block, kind)
            swaps.enter_context(swap(copied.blocks[block], fitted[block]))
    return fitted


@torch.no_grad()
def _maps_by_depth(subject: Subject, fit: Windows, blocks: Sequence[int]) -> dict[int, nn.Module]:
    """{block: map}, the blocks in order of depth: one walk down with the residual streams of all
    windows in memory, in the place of a forward pass for each block."""
    maps: dict[int, nn.Module] = {}
    first = subject.n_start
    batches = [slice(i, i + 16) for i in range(0, len(fit), 16)]
    streams = capture_residual(subject, fit, blocks[:1])[blocks[0]].to(subject.device)
    for block in tqdm(range(blocks[0], blocks[-1] + 1), desc="maps", delay=2, leave=False):
        module = subject.blocks[block].ffn
        if block in blocks:
            rows = [block_pass(subject, block, fit.tokens[b], streams[b])[:2] for b in batches]
            x, y = (torch.cat(side)[:, first:].flatten(0, 1) for side in zip(*rows))
            module = maps[block] = plain_map(x, y)
        # The block once more, as the model with its map has it.
        with swap(subject.blocks[block], module):
            for b in batches:
                *_, streams[b] = block_pass(subject, block, fit.tokens[b], streams[b])
    return maps


def _train_stage(
    copied: Subject, arm: Arm, k: int, data: Windows, tests: dict, marks: dict, folder: Path
) -> None:
    """Train stage k in place; what is measured on the way goes into `folder`."""
    before, n_steps = sum(arm.steps[:k]), arm.steps[k]
    _free(copied, arm.norms)
    windows = data
    if not arm.repeat:
        generator = torch.Generator().manual_seed(arm.seed)
        order = torch.randperm(len(data), generator=generator)
        windows = data[order[before : before + n_steps]]
    recipe = Recipe(
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
            if step_in_all in marks[text]:
                found = measure(copied, of_text).assign(text=text, step=step_in_all)
                found = found.assign(experiment="fine-tuned")
                with whole(folder / f"{text} at {step_in_all}.csv") as part:
                    found.to_csv(part, index=False)

    # The end of a stage belongs to it, not to the start of the next.
    first = 0 if k == 0 else 1
    at = {m - before for steps in marks.values() for m in steps if m - before >= first}
    checkpoints = folder / f"stage-{k}"
    train(copied.model, windows, recipe, look=look, at=at, checkpoints=checkpoints, every=100)
    copied.model.requires_grad_(False).eval()


def measure(subject: Subject, windows: Windows) -> pd.DataFrame:
    """The model's mean loss on each document, nats: document, loss."""
    size = batch_size(subject, windows)
    bar = tqdm(windows.tokens.split(size), desc="measuring", delay=2, leave=False)
    loss = torch.cat([losses(subject, tokens).mean(1) for tokens in bar]).cpu().numpy()
    rows = pd.DataFrame({"document": windows.document, "loss": loss})
    return rows.groupby("document", as_index=False).loss.mean()


def stand_in(subject: Subject, fit: Windows, block: int, kind: str) -> nn.Module:
    """What takes the place of a block's FFN (STAND_INS), fitted on the model as it stands."""
    if kind == "deleted":
        return constant(torch.zeros(subject.d_model))
    if kind == "narrow":
        return narrow_ffns(subject, fit, [block])[block]
    x, y = (rows.flatten(0, 1) for rows in capture(subject, fit, [block])[block])
    if kind == "repaired":
        norm = y.norm(dim=-1)
        massive = norm > MASSIVE * norm.median()
        if massive.any() and massive.sum() < len(y) / 10:
            return repair(Moments.of(x[~massive], y[~massive]), x[massive])
    return plain_map(x, y)


def plain_map(x: torch.Tensor, y: torch.Tensor) -> AffineMap:
    """The affine map of rows y [n, d] on x [n, d], as Balogh Eq. 3."""
    affine = svd_ridge(x, y, RIDGE)
    return AffineMap(affine.weight.float(), affine.bias.float())


def narrow_ffns(subject: Subject, fit: Windows, blocks: Sequence[int]) -> dict[int, nn.Module]:
    """{block: FFN} with as many hidden units as fill a map's parameters, the largest ones."""
    d_model = subject.d_model
    largest = largest_units(subject, fit, blocks)
    narrow = {}
    for block in blocks:
        ffn = subject.blocks[block].ffn
        of_unit = subject.blocks[block].n_params // len(unit_columns(ffn, d_model))
        n_units = (d_model * d_model + d_model) // of_unit
        narrow[block] = narrowed(ffn, d_model, largest[block][:n_units].sort().values)
    return narrow


def largest_units(subject: Subject, fit: Windows, blocks: Sequence[int]) -> dict[int, torch.Tensor]:
    """{block: its hidden units}, the one of largest mean absolute activation times output column
    norm first. One pass, on the model as it stands."""
    d_model = subject.d_model
    total = dict.fromkeys(blocks, 0.0)
    handles = []

    def adder(block: int) -> Callable:
        def add(_, args: tuple, __) -> None:
            activations = args[0][:, subject.n_start :]  # [batch, position, unit]
            total[block] = total[block] + activations.abs().double().sum((0, 1))

        return add

    try:
        for block in blocks:
            writer = parts(subject.blocks[block].ffn, d_model).writer
            handles.append(writer.register_forward_hook(adder(block)))
        # Nothing is kept of the FFNs, but they must be finite.
        forward(subject, fit, on_ffn=lambda *_: None, blocks=blocks, desc="hidden units")
    finally:
        for handle in handles:
            handle.remove()
    norms = {b: unit_columns(subject.blocks[b].ffn, d_model).norm(dim=1) for b in blocks}
    return {b: (total[b] * norms[b]).argsort(descending=True) for b in blocks}


def unit_columns(ffn: nn.Module, d_model: int) -> torch.Tensor:
    """What each hidden unit writes, [d_ff, d_model]."""
    writer = parts(ffn, d_model).writer
    return writer.weight if isinstance(writer, Conv1D) else writer.weight.T


def narrowed(ffn: nn.Module, d_model: int, units: torch.Tensor) -> nn.Module:
    """A copy of an FFN with these hidden units alone."""
    narrow = copy.deepcopy(ffn)
    found = parts(narrow, d_model)
    for matrix in found.readers:
        across = -1 if isinstance(matrix, Conv1D) else 0
        matrix.weight = nn.Parameter(matrix.weight.detach().index_select(across, units).clone())
        if matrix.bias is not None:
            matrix.bias = nn.Parameter(matrix.bias.detach()[units].clone())
        if isinstance(matrix, Conv1D):
            matrix.nf = len(units)
    across = 0 if isinstance(found.writer, Conv1D) else 1
    weight = found.writer.weight.detach().index_select(across, units).clone()
    found.writer.weight = nn.Parameter(weight)
    return narrow


def copy_of(subject: Subject) -> Subject:
    """The subject with a model of its own, which may be changed."""
    return as_subject(copy.deepcopy(subject.model), subject.tokenizer, subject.name)


def _weights(subject: Subject) -> dict[str, torch.Tensor]:
    """A copy of every parameter of the model as it stands."""
    return {name: p.detach().clone() for name, p in subject.model.named_parameters()}


def _free(subject: Subject, norms: bool) -> None:
    """Let everything be trained but stand-ins, FFNs that they keep on some positions, and, unless
    `norms`, the norms."""
    subject.model.requires_grad_(True)
    for module in subject.model.modules():
        if isinstance(module, StandIn):
            module.ffn.requires_grad_(False)
        if not norms and "norm" in type(module).__name__.lower():
            module.requires_grad_(False)


@contextlib.contextmanager
def _folder(digest: str | None) -> Iterator[Path]:
    """Where a training leaves what it needs to go on; it goes when the training is done."""
    made = cache_folder() / "training" / digest if digest else Path(tempfile.mkdtemp())
    made.mkdir(parents=True, exist_ok=True)
    yield made
    shutil.rmtree(made, ignore_errors=True)
