"""Fine-tuning a model some of whose FFNs are replaced, and soft gates between map and FFN.

Balogh §4.9: some FFNs are replaced, the rest of the model is trained, and what results is compared
with the original. Here every such training is an `Arm`, and the same training without replacement
is one too. Nothing is done to the subject itself: a copy of its model is changed and trained.
"""

import contextlib
import copy
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import get_scheduler
from transformers.pytorch_utils import Conv1D

from lib.affine import AffineMap, constant, svd_ridge
from lib.cache import cache_folder, pack, step, unpack
from lib.errors import InputError, unknown
from lib.files import whole
from lib.hooks import StandIn, capture, get_block, swap
from lib.linear import MASSIVE, repair
from lib.model import Subject, as_subject
from lib.moments import Moments
from lib.runs import keep_rows, kept_rows
from lib.sparse import parts
from lib.swap import batch_size, losses
from lib.text import Windows
from lib.train import Recipe, train

STAND_INS = ("none", "map", "repaired", "deleted", "narrow")
"""what takes an FFN's place: the FFN itself; its affine map; the map with the FFN kept on massive
activations; nothing; the FFN with as many parameters as the map"""
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
        return f"{self.stand_in} {blocks}, steps {' '.join(map(str, self.steps))}, rate {self.lr:g}"


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
    `weights`: keep those after the first stage in the cache too, for `train_gates`. What was
    trained earlier comes from data/runs. Raises InputError for blocks that the model lacks and for
    text that does not suffice.
    """
    _check(subject, arm, data)
    given = (subject, arm, fit, data, dict(tests), dict(marks))
    found = _kept(_fine_tune.recipe(*given))
    return _fine_tune(*given, weights).losses if found is None else found


def _kept(digest: str | None) -> pd.DataFrame | None:
    """The losses that data/runs has of a training, or None."""
    rows = kept_rows("finetune", digest) if digest else ()
    if not len(rows):
        return None
    document = rows.half.str.removeprefix("document ").astype(int)
    found = rows.assign(document=document)[MEASURED]
    found.attrs["trained"] = "earlier"
    return found


def _keep(digest: str | None, found: pd.DataFrame, arm: Arm, setting: str) -> None:
    """Leave a training's losses in data/runs."""
    half = "document " + found.document.astype(str)
    rows = found.assign(half=half, setting=setting, seed=arm.seed)
    keep_rows("finetune", digest, rows.to_dict("records"))


def _check(subject: Subject, arm: Arm, data: Windows) -> None:
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
        copied = _copy_of(subject)
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
            fitted = _first_maps(subject, fit, arm.stages[0], arm.stand_in) if k == 0 else {}
            for block in arm.stages[k]:
                module = fitted.get(block)
                put(block, module or stand_in(copied, fit, block, arm.stand_in))
            _train_stage(copied, arm, k, data, tests, marks, folder)
            if k < len(arm.stages) - 1 or (weights and k == 0):
                state = {"weights": _weights(copied), "stand_ins": stand_ins}
                with whole(folder / f"stage-{k}.npz") as part, open(part, "wb") as file:
                    np.savez(file, **pack(state))
        found = pd.concat([pd.read_csv(path) for path in sorted(folder.glob("*.csv"))])
        found = found.sort_values(["text", "step", "document"], ignore_index=True)
        _keep(digest, found, arm, arm.words)
        if not weights:
            return Tuned(found, {}, {})
        first = _stage_of(folder, 0)
        return Tuned(found, first["weights"], first["stand_ins"])


def _stage_of(folder: Path, k: int) -> dict:
    """The weights and stand-ins after stage k of a training."""
    with np.load(folder / f"stage-{k}.npz", allow_pickle=False) as stored:
        return unpack(dict(stored), None)


@step(version=1)
def _first_maps(subject: Subject, fit: Windows, blocks: tuple[int, ...], kind: str) -> dict:
    """{block: map} of an arm's first stage, which all orders of the text share; empty where maps
    are not what is put in."""
    found: dict[int, nn.Module] = {}
    if kind not in ("map", "repaired"):
        return found
    copied = _copy_of(subject)
    with contextlib.ExitStack() as swaps:
        for block in blocks:
            found[block] = stand_in(copied, fit, block, kind)
            swaps.enter_context(swap(copied.blocks[block], found[block]))
    return found


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
    )

    def look(local: int, _) -> None:
        for text, windows in tests.items():
            if before + local in marks[text] and (local or not k):
                found = measure(copied, windows).assign(text=text, step=before + local)
                found = found.assign(experiment="fine-tuned")
                with whole(folder / f"{text} at {before + local}.csv") as part:
                    found.to_csv(part, index=False)

    at = {m - before for steps in marks.values() for m in steps}
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
    ffn, d_model = subject.blocks[block].ffn, subject.d_model
    if kind == "deleted":
        return constant(torch.zeros(d_model))
    if kind == "narrow":
        # As many as fill the map's parameters, each with those that one unit has.
        of_unit = subject.blocks[block].n_params // len(unit_columns(ffn, d_model))
        n_units = (d_model * d_model + d_model) // of_unit
        return narrowed(ffn, d_model, largest_units(subject, fit, block, n_units))
    x, y = (rows.flatten(0, 1) for rows in capture(subject, fit, [block])[block])
    if kind == "repaired":
        norm = y.norm(dim=-1)
        massive = norm > MASSIVE * norm.median()
        if massive.any() and massive.sum() < len(y) / 10:
            return repair(Moments.of(x[~massive], y[~massive]), x[massive])
    found = svd_ridge(x, y, RIDGE)
    return AffineMap(found.weight.float(), found.bias.float())


def largest_units(subject: Subject, fit: Windows, block: int, n: int) -> torch.Tensor:
    """The n hidden units [n] of largest mean absolute activation times output column norm."""
    writer = parts(subject.blocks[block].ffn, subject.d_model).writer
    total = 0.0

    def add(_, args: tuple, __) -> None:
        nonlocal total
        total = total + args[0][:, subject.n_start :].abs().double().sum((0, 1))

    handle = writer.register_forward_hook(add)
    try:
        capture(subject, fit, [block])
    finally:
        handle.remove()
    columns = unit_columns(subject.blocks[block].ffn, subject.d_model)
    return (total * columns.norm(dim=1)).topk(n).indices.sort().values


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


def _copy_of(subject: Subject) -> Subject:
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


class SoftGate(nn.Module):
    """y = m(x) + g(x) (f(x) - m(x)), with f the FFN, m its map and g a gate in (0, 1), so that g
    weighs the FFN (Balogh Eq. 6). No gradient passes through the FFN, as in the author's code.

    The gate is d -> hidden -> 1 with ReLU, or, with 0 hidden units, one number; at first it is
    sigmoid(`bias`) everywhere. `mode`: "soft"; "cut", where g is 0 or 1; "open", where it is 1.
    """

    def __init__(self, ffn: nn.Module, affine: nn.Module, d_model: int, hidden: int, bias: float):
        super().__init__()
        self.ffn, self.affine, self.mode = ffn, affine, "soft"
        last = nn.Linear(hidden, 1) if hidden else OneNumber()
        nn.init.constant_(last.bias, bias)
        if hidden:
            nn.init.zeros_(last.weight)
        first = [nn.Linear(d_model, hidden), nn.ReLU()] if hidden else []
        self.gate = nn.Sequential(*first, last)
        self.opening = None
        """g of the last pass, [batch, position, 1]"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, position, d_model]
        with torch.no_grad():
            full = self.ffn(x)
        linear = self.affine(x)
        self.opening = torch.sigmoid(self.gate(x))
        weight = self.opening
        if self.mode == "cut":
            weight = (weight > 0.5).to(x.dtype)
        if self.mode == "open":
            weight = torch.ones_like(weight)
        return linear + weight * (full - linear)


class OneNumber(nn.Module):
    """The same number at every position."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., d_model] -> [..., 1]
        return self.bias.expand(*x.shape[:-1], 1)


@dataclass(frozen=True)
class Gating:
    """How soft gates are trained when all else is frozen (Balogh §4.9.6 and the author's code)."""

    steps: int = 150
    hidden: int = 32
    """units of each gate; 0: one number in its place"""
    bias: float = -3.0
    lr: float = 1e-3
    """falls to a tenth, as a cosine"""
    penalty: float = 0.1
    """on the mean gate, after the first tenth of the steps"""


def train_gates(
    subject: Subject,
    gating: Gating,
    blocks: Sequence[int],
    arm: Arm,
    fit: Windows,
    data: Windows,
    tests: Mapping[str, Windows],
    marks: Mapping[str, Sequence[int]],
) -> pd.DataFrame:
    """What soft gates on these blocks give after the first stage of `fine_tune` with the same
    arguments, one row a document: experiment, text, step, document, loss.

    An arm that replaced the blocks gets its original FFNs back behind the gates; one that did not
    has its trained FFNs there, and maps of them. Experiments: "soft"; and on the first of `tests`,
    unless the gate is one number, gates "cut" at a half, all FFNs "given back" without gates, "mean
    gate of block 13" and "share below a half of block 13", whose `loss` is that number. Windows are
    read in the arm's order again.
    """
    _check(subject, arm, data)
    given = (subject, gating, tuple(blocks), arm, fit, data, dict(tests), dict(marks))
    found = _kept(_train_gates.recipe(*given))
    return _train_gates(*given) if found is None else found


@step(version=1)
def _train_gates(
    subject: Subject,
    gating: Gating,
    blocks: tuple[int, ...],
    arm: Arm,
    fit: Windows,
    data: Windows,
    tests: dict,
    marks: dict,
) -> pd.DataFrame:
    """`train_gates` itself."""
    tuned = _fine_tune(subject, arm, fit, data, tests, marks, weights=True)
    copied = _copy_of(subject)
    # Weights of the trained model; the FFNs that it does without keep the subject's.
    copied.model.load_state_dict(
        {name: torch.as_tensor(w) for name, w in tuned.weights.items()}, strict=False
    )
    torch.manual_seed(arm.seed)
    gates: dict[int, SoftGate] = {}
    maps = tuned.stand_ins or {b: stand_in(copied, fit, b, "map") for b in blocks}
    with contextlib.ExitStack() as swaps:
        for b in blocks:
            ffn, width = copied.blocks[b].ffn, copied.d_model
            gates[b] = SoftGate(ffn, maps[b], width, gating.hidden, gating.bias)
            swaps.enter_context(swap(copied.blocks[b], gates[b]))
        _learn_gates(copied, gates, gating, data, arm.seed)
        found = [
            measure(copied, windows).assign(experiment="soft", text=text)
            for text, windows in tests.items()
        ]
        if gating.hidden:
            found += _opened_and_cut(copied, gates, *next(iter(tests.items())))
    found = pd.concat(found, ignore_index=True).assign(step=arm.steps[0] + gating.steps)[MEASURED]
    digest = _train_gates.recipe(subject, gating, blocks, arm, fit, data, tests, marks)
    kind = f"gates of {gating.hidden} units" if gating.hidden else "one number a block"
    _keep(digest, found, arm, f"{arm.words}; then {kind} on {' '.join(map(str, blocks))}")
    return found


def _learn_gates(
    copied: Subject, gates: dict[int, SoftGate], gating: Gating, data: Windows, seed: int
) -> None:
    """Train the gates in place, one window a step in the arm's order."""
    copied.model.requires_grad_(False)
    trained = [p.requires_grad_(True) for g in gates.values() for p in g.gate.parameters()]
    optimizer = torch.optim.Adam(trained, lr=gating.lr)
    schedule = get_scheduler(
        "cosine_with_min_lr",
        optimizer,
        0,
        gating.steps,
        scheduler_specific_kwargs={"min_lr_rate": 0.1},
    )
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    for n in tqdm(range(gating.steps), desc="gates", delay=2, leave=False):
        tokens = data.tokens[order[n % len(order)]][None].to(copied.device)
        logits = copied.model(tokens, use_cache=False).logits[:, copied.n_start : -1]
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1 + copied.n_start :].flatten())
        if n >= gating.steps // 10:
            mean_opening = torch.stack([g.opening.mean() for g in gates.values()]).mean()
            loss = loss + gating.penalty * mean_opening
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()


def _opened_and_cut(
    copied: Subject, gates: dict[int, SoftGate], text: str, windows: Windows
) -> list[pd.DataFrame]:
    """Losses with each gate cut at a half, and with each open; how far they are open, soft."""
    found = []
    for name, mode in {"cut": "cut", "given back": "open"}.items():
        for gate in gates.values():
            gate.mode = mode
        found.append(measure(copied, windows).assign(experiment=name))
    kept: dict[int, list] = {b: [] for b in gates}
    for gate in gates.values():
        gate.mode = "soft"
    with torch.no_grad():
        for tokens in windows.tokens.split(batch_size(copied, windows)):
            copied.model.base_model(tokens.to(copied.device), use_cache=False)
            for b, gate in gates.items():
                kept[b].append(gate.opening[..., 0].cpu())
    for b, openings in kept.items():
        opening = torch.cat(openings)  # [n, position]
        for name, value in {"mean gate": opening, "share below a half": opening < 0.5}.items():
            of_window = value.float().mean(1).numpy()
            rows = pd.DataFrame({"document": windows.document, "loss": of_window})
            rows = rows.groupby("document", as_index=False).loss.mean()
            found.append(rows.assign(experiment=f"{name} of block {b}"))
    return [rows.assign(text=text) for rows in found]


@torch.no_grad()
def _openings(copied: Subject, gates: dict[int, SoftGate], windows: Windows) -> pd.DataFrame:
    """Each gate's mean, and the share of positions where it is below a half, by document."""
    for gate in gates.values():
        gate.mode = "soft"
    kept: dict[int, list] = {b: [] for b in gates}
    for tokens in windows.tokens.split(batch_size(copied, windows)):
        copied.model.base_model(tokens.to(copied.device), use_cache=False)
        for b, gate in gates.items():
            kept[b].append(gate.opening[..., 0].cpu())
    rows = []
    for b, parts_of_block in kept.items():
        opening = torch.cat(parts_of_block)  # [n, position]
        by_name = {"mean gate": opening, "share below a half": (opening < 0.5).float()}
        for name, value in by_name.items():
            rows.append(
                pd.DataFrame({"document": windows.document, "loss": value.mean(1).numpy()})
                .groupby("document", as_index=False)
                .loss.mean()
                .assign(experiment=f"{name} of block {b}")
            )
    return pd.concat(rows)
