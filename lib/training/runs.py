"""The trunks that trainings of one decoder share, and what a trained decoder reads."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from lib.keys import in_one
from lib.store import cached
from lib.swap.sweep import next_token_losses
from lib.text.windows import Windows
from lib.training.decoder import SILENT_STARTS, Decoder, Shape, build_decoder
from lib.training.loop import TrainConfig, train

DECODER = dict(
    widths="FFN widths",
    data="training text",
    recipe="training",
    start="start of the weights",
)
"""what the arguments of a training are called in keys"""


@dataclass(frozen=True, eq=False)
class Training:
    """All that decides how a decoder is trained, and the texts it is tested on."""

    widths: list[int]
    """of FFNs, one a layer"""
    shape: Shape
    data: Windows
    tests: dict[str, Windows]
    recipe: TrainConfig
    start: str
    """of the weights, one of STARTS"""
    branch_steps: tuple[int, ...] = ()
    """where it and shorter trainings leave the trunk that they share (WSD only)"""
    curve: bool = False
    """whether its own loss is kept along the way"""

    @property
    def provenance(self) -> dict[str, str]:
        """The training in words, for keys."""
        words = {DECODER["widths"]: str(in_one(self.widths))}
        words |= self.shape.provenance
        words |= {DECODER["data"]: self.data.provenance}
        words |= self.recipe.provenance
        words |= {DECODER["start"]: self.start, "test texts": str(in_one(self.tests))}
        # What is usual says nothing, so that it changes no key.
        if self.branch_steps:
            words["left the shared trunk at"] = str(in_one(self.branch_steps))
        if self.curve:
            words["own curve"] = "True"
        return words


@cached("trunk of decoders", 1, branch_steps="states at steps", **DECODER)
def shared_steps(
    branch_steps: tuple[int, ...],
    widths: list[int],
    shape: Shape,
    data: Windows,
    recipe: TrainConfig,
    start: str,
    compiled: bool = False,
) -> dict:
    """The state (see `train`) of a decoder after branch_steps[-1] steps at a constant rate; it
    goes on from the shared steps before, so that each piece is trained once."""
    resume_from = None
    if len(branch_steps) > 1:
        resume_from = shared_steps(branch_steps[:-1], widths, shape, data, recipe, start, compiled)
    elif start in SILENT_STARTS and 0 < recipe.ffn_unfreeze_step <= branch_steps[0]:
        resume_from = steps_before_ffns(len(widths), shape, data, recipe, start, compiled)
    return _state_at(branch_steps[-1], widths, shape, data, recipe, start, resume_from, compiled)


@cached(
    "decoders before their FFNs learn",
    1,
    n_layers="layers",
    data="training text",
    recipe="training",
    start="start of the weights",
)
def steps_before_ffns(
    n_layers: int, shape: Shape, data: Windows, recipe: TrainConfig, start: str, compiled: bool
) -> dict:
    """The state of a decoder, but for its FFNs, when these begin to learn. Until then they write
    nothing, so decoders of all widths share it, and it is trained with FFNs of one unit."""
    state = _state_at(
        recipe.ffn_unfreeze_step, [1] * n_layers, shape, data, recipe, start, None, compiled
    )
    return {name: value for name, value in state.items() if ".mlp." not in name}


def _state_at(
    n_steps: int,
    widths: list[int],
    shape: Shape,
    data: Windows,
    recipe: TrainConfig,
    start: str,
    resume_from: dict | None,
    compiled: bool,
) -> dict:
    """The state of a decoder after so many steps at a constant rate, from `resume_from` on."""
    model = build_decoder(widths, shape, start=start, seed=recipe.seed)
    states: list[dict] = []

    def keep(_, state: Callable[[], dict]) -> None:
        states.append(state())

    constant = replace(recipe, steps=n_steps, decay=0)
    train(
        model,
        data,
        constant,
        callback=keep,
        callback_steps=(n_steps,),
        resume_from=resume_from,
        compiled=compiled,
    )
    return states[-1]


@torch.no_grad()
def losses_by_token(model: Decoder, data: Windows) -> torch.Tensor:
    """Each token's loss in nats, [n, seq_len - 1]."""
    batches = (tokens.to(model.device) for tokens in data.tokens.split(256))
    return torch.cat([next_token_losses(model(t).logits, t) for t in batches])
