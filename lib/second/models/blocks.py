"""One uniform view of a decoder block, whatever the architecture.

Parts are found by structure and confirmed by behaviour, so a new architecture needs no new line
here: the decoder layers are the model's longest list of alike modules, and a layer's FFN is its
only child that maps [.., d] to [.., d] position by position.
"""

from dataclasses import dataclass

import torch
from torch import nn

from lib.second.base.errors import InputError


@dataclass(frozen=True)
class Block:
    """One decoder block."""

    index: int
    layer: nn.Module
    """the decoder layer: residual stream in, residual stream out"""
    ffn_name: str
    """attribute of `layer` that holds the FFN"""
    d_model: int

    @property
    def ffn(self) -> nn.Module:
        """The module that stands in the FFN's place now."""
        return getattr(self.layer, self.ffn_name)

    @property
    def n_params(self) -> int:
        """Parameters of the FFN."""
        return sum(p.numel() for p in self.ffn.parameters())

    def __repr__(self) -> str:
        kind = type(self.layer).__name__
        return (
            f"Block({self.index}: {kind}.{self.ffn_name} = {type(self.ffn).__name__}, "
            f"{self.n_params:,} parameters)"
        )


def find_layers(model: nn.Module) -> nn.ModuleList:
    """The list of decoder layers. Raises InputError if the model has none."""
    n_layers = model.config.get_text_config().num_hidden_layers
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == n_layers]
    if not lists:
        raise InputError(
            f"no list of {n_layers} decoder layers in {type(model).__name__}: only decoder "
            "language models whose layers stand in one list can be read."
        )
    return max(lists, key=lambda m: sum(p.numel() for p in m.parameters()))


def find_ffn(layer: nn.Module, d_model: int, index: int) -> str:
    """Name of the child of `layer` that is its FFN. Raises InputError if there is not exactly
    one."""
    found = [name for name, child in layer.named_children() if _is_position_wise(child, d_model)]
    if len(found) != 1:
        children = ", ".join(name for name, _ in layer.named_children())
        raise InputError(
            f"block {index}: {type(layer).__name__} has {'no' if not found else len(found)} "
            "child modules that map each "
            f"position's {d_model} features to {d_model} features alone (children: "
            f"{children}), so its FFN cannot be taken out; "
            "architectures whose FFN is one module (GPT-2, GPT-NeoX, Llama and their kin) work."
        )
    return found[0]


def _is_position_wise(module: nn.Module, d_model: int) -> bool:
    """Whether `module` has weight matrices and maps [1, t, d] to [1, t, d], each position by
    itself."""
    weights = [p for p in module.parameters() if p.dim() >= 2]
    if not weights:
        return False  # a norm or an activation
    x = torch.randn(1, 5, d_model, generator=torch.Generator().manual_seed(0)).to(weights[0])
    order = torch.tensor([3, 1, 4, 0, 2])
    try:
        with torch.no_grad():
            y, y_reordered = module(x), module(x[:, order])
    except (
        Exception
    ):  # attention, which asks for masks or positions; an FFN that also takes the residual stream
        return False
    return (
        isinstance(y, torch.Tensor)
        and y.shape == x.shape
        and torch.allclose(y[:, order], y_reordered, rtol=1e-2, atol=1e-4)
    )
