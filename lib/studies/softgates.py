"""Soft gates between an FFN and its map, trained after `finetune` (Balogh §4.9.6)."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import get_scheduler

from lib.errors import InputError
from lib.hooks import get_block, swap
from lib.keys import settings
from lib.models.blocks import Subject
from lib.models.parts import copy_of
from lib.store import kept
from lib.studies.finetune import FinetuneConfig, Finetuning, first_stage, measure
from lib.studies.replacements import replacement_for
from lib.swap.sweep import batch_size
from lib.text.windows import Windows


class SoftGate(nn.Module):
    """y = m(x) + g(x) (f(x) - m(x)), with f the FFN, m its map and g a gate in (0, 1), so that g
    weighs the FFN (Balogh Eq. 6). No gradient passes through the FFN, as in the author's code.

    The gate is d -> hidden -> 1 with ReLU, or, with 0 hidden units, one number; at first it is
    sigmoid(`bias`) everywhere. `mode`: "soft"; "cut", where g is 0 or 1; "open", where it is 1.
    """

    def __init__(self, ffn: nn.Module, affine: nn.Module, d_model: int, hidden: int, bias: float):
        super().__init__()
        self.ffn, self.affine, self.mode = ffn, affine, "soft"
        if hidden:
            last = nn.Linear(hidden, 1)
            nn.init.zeros_(last.weight)
            self.gate = nn.Sequential(nn.Linear(d_model, hidden), nn.ReLU(), last)
        else:
            last = OneNumber()
            self.gate = nn.Sequential(last)
        nn.init.constant_(last.bias, bias)
        self.opening: torch.Tensor = None
        """g of the last pass, [batch, position, 1]"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, position, d_model]
        with torch.no_grad():
            full = self.ffn(x)
        linear = self.affine(x)
        self.opening = torch.sigmoid(self.gate(x))
        weight = self.opening
        if self.mode == "cut":
            weight = (self.opening > 0.5).to(x.dtype)
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
class SoftGateConfig:
    """How soft gates are trained when all else is frozen (Balogh §4.9.6 and the author's code)."""

    steps: int = 150
    hidden: int = 32
    """units of each gate; 0: one number in its place"""
    bias: float = -3.0
    lr: float = 1e-3
    """falls to a tenth, as a cosine"""
    penalty: float = 0.1
    """on the mean gate, after the first tenth of the steps"""

    @property
    def provenance(self) -> dict[str, str]:
        """The training in words, for keys."""
        return settings(
            self,
            steps="steps of the gates",
            hidden="units of a gate",
            bias="first bias of the gates",
            lr="rate of the gates",
            penalty="penalty on open gates",
        )


def train_gates(
    training: Finetuning, gating: SoftGateConfig, blocks: Sequence[int]
) -> pd.DataFrame:
    """What soft gates on these blocks give after the first stage of a fine-tuning, one row a
    document: experiment, text, step, document, loss.

    An arm that replaced the blocks gets its original FFNs back behind the gates; one that did not
    has its trained FFNs there, and maps of them. Experiments: "soft"; and on the first of the test
    texts, unless the gate is one number, gates "cut" at a half, all FFNs "given back" without
    gates, "mean gate of block 13" and "share below a half of block 13", whose `loss` is that
    number. Windows are read in the arm's order again. Raises InputError for blocks without a map.
    """
    training.check()
    for block in blocks:
        get_block(training.subject, block)
    replaced = training.arm.replaced
    if replaced and not {*blocks} <= {*replaced}:
        raise InputError(
            f"gates on blocks {[*blocks]} need their maps, and the arm replaced {replaced}: "
            "name blocks among these, or an arm that replaced none."
        )
    found = _train_gates(training, gating, tuple(blocks))
    return found.rename(columns={"measured as": "experiment", "value": "loss"})


@kept("soft gates", 1, blocks="blocks with gates")
def _train_gates(
    training: Finetuning, gating: SoftGateConfig, blocks: tuple[int, ...]
) -> pd.DataFrame:
    """`train_gates` itself."""
    subject, arm, fit, data = training.subject, training.arm, training.fit, training.data
    before = first_stage(subject, arm, fit, data)
    copied = copy_of(subject)
    # Weights of the trained model; the FFNs that it does without keep the subject's.
    copied.model.load_state_dict(
        {name: torch.as_tensor(w) for name, w in before["weights"].items()}, strict=False
    )
    gates: dict[int, SoftGate] = {}
    maps = before["stand_ins"] or {b: replacement_for(copied, fit, b, "map") for b in blocks}
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        torch.manual_seed(arm.seed)
        for b in blocks:
            ffn, width = copied.blocks[b].ffn, copied.d_model
            gates[b] = SoftGate(ffn, maps[b], width, gating.hidden, gating.bias)
    with contextlib.ExitStack() as swaps:
        for b, gate in gates.items():
            swaps.enter_context(swap(copied.blocks[b], gate))
        _learn_gates(copied, gates, gating, data, arm)
        found = [
            measure(copied, windows).assign(experiment="soft", text=text)
            for text, windows in training.tests.items()
        ]
        if gating.hidden:
            found += _opened_and_cut(copied, gates, *next(iter(training.tests.items())))
    found = pd.concat(found, ignore_index=True).assign(step=arm.steps[0] + gating.steps)
    found = found.rename(columns={"experiment": "measured as", "loss": "value"})
    return found[["measured as", "text", "step", "document", "value"]]


@torch.enable_grad()
def _learn_gates(
    copied: Subject,
    gates: dict[int, SoftGate],
    gating: SoftGateConfig,
    data: Windows,
    arm: FinetuneConfig,
) -> None:
    """Train the gates in place, one window a step in the arm's order, and as precisely as it."""
    copied.model.requires_grad_(False)
    trained: list[nn.Parameter] = []
    for gate in gates.values():
        gate.gate.requires_grad_(True)
        trained += gate.gate.parameters()
    optimizer = torch.optim.Adam(trained, lr=gating.lr)
    schedule = get_scheduler(
        "cosine_with_min_lr",
        optimizer,
        0,
        gating.steps,
        scheduler_specific_kwargs={"min_lr_rate": 0.1},
    )
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(arm.seed))
    for n in tqdm(range(gating.steps), desc="gates", delay=2, leave=False):
        tokens = data.tokens[order[n % len(order)]][None].to(copied.device)
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=arm.bfloat16):
            logits = copied.model(tokens, use_cache=False).logits[:, copied.n_start : -1]
        predicted = tokens[:, 1 + copied.n_start :].flatten()
        loss = cross_entropy(logits.flatten(0, 1).float(), predicted)
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
    tables = []
    for experiment, mode in (("cut", "cut"), ("given back", "open")):
        for gate in gates.values():
            gate.mode = mode
        tables.append(measure(copied, windows).assign(experiment=experiment))
    for gate in gates.values():
        gate.mode = "soft"
    for b, opening in _openings(copied, gates, windows).items():
        mean_gate = _by_document(opening, windows)
        tables.append(mean_gate.assign(experiment=f"mean gate of block {b}"))
        below = _by_document(opening < 0.5, windows)
        tables.append(below.assign(experiment=f"share below a half of block {b}"))
    return [table.assign(text=text) for table in tables]


@torch.no_grad()
def _openings(
    copied: Subject, gates: dict[int, SoftGate], windows: Windows
) -> dict[int, torch.Tensor]:
    """{block: its gate at each position, [n, position]}."""
    batches: dict[int, list[torch.Tensor]] = {b: [] for b in gates}
    for tokens in windows.tokens.split(batch_size(copied, windows)):
        copied.model.base_model(tokens.to(copied.device), use_cache=False)
        for b, gate in gates.items():
            batches[b].append(gate.opening[..., 0].cpu())
    return {b: torch.cat(openings) for b, openings in batches.items()}


def _by_document(values: torch.Tensor, windows: Windows) -> pd.DataFrame:
    """Mean of values [n, position] by document, in the column `loss` that all measurements have."""
    rows = pd.DataFrame({"document": windows.document, "loss": values.float().mean(1).numpy()})
    return rows.groupby("document", as_index=False).loss.mean()
