"""The trunks that trainings of one decoder share, and what a trained decoder reads."""

from collections.abc import Callable
from dataclasses import replace

import torch

from lib.cache import cached
from lib.swap.sweep import next_token_losses
from lib.text.windows import Windows
from lib.training.decoder import SILENT_STARTS, Decoder, Shape, build_decoder
from lib.training.loop import TrainConfig, train

DECODER = dict(
    widths="FFN widths",
    shape="shape",
    data="training text",
    recipe="training",
    start="start of the weights",
)
"""what the arguments of a training are called in keys"""


@cached("trunk of decoders", 1, branch_steps="states at steps", compiled="compiled", **DECODER)
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
    shape="shape",
    data="training text",
    recipe="training",
    start="start of the weights",
    compiled="compiled",
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


def trained_decoder(found: dict, widths: list[int], shape: Shape) -> Decoder:
    """The model that lab.train_decoder trained."""
    model = build_decoder(widths, shape)
    state = {name: torch.as_tensor(found[f"weight.{name}"]) for name, _ in model.named_parameters()}
    model.load_state_dict(state)
    return model.requires_grad_(False).eval()
