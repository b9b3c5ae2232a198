"""A language model as a Subject: its decoder blocks, each with its FFN, whatever the architecture.

Parts are found by structure and confirmed by behaviour (lib.models.trial), so a new architecture
needs no new line here: the decoder layers are the model's longest list of alike modules, and a
layer's FFN is its only child that maps [.., d] to [.., d] position by position.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from lib.errors import InputError
from lib.keys import fingerprint


@dataclass(frozen=True)
class Block:
    """One decoder block."""

    index: int
    layer: nn.Module
    """residual stream in, residual stream out"""
    ffn_name: str
    """attribute of `layer` that holds the FFN"""
    d_model: int
    original: nn.Module
    """the FFN itself"""
    n_start: int = 0
    """positions of start tokens at the start of every window; a swap keeps the FFN there"""

    @property
    def ffn(self) -> nn.Module:
        """The module that stands in the FFN's place now."""
        return getattr(self.layer, self.ffn_name)

    @property
    def n_params(self) -> int:
        return sum(p.numel() for p in self.ffn.parameters())


@dataclass(frozen=True, eq=False)
class Subject:
    """A frozen language model under study."""

    name: str
    model: PreTrainedModel
    tokenizer: object
    blocks: tuple[Block, ...]
    layers_return_tuples: bool
    loaded_as: str | None = None
    """which model it is, for keys; None for a model in memory"""
    loaded: str | None = None
    """its fingerprint when it was loaded (see `provenance`)"""
    start_tokens: tuple[int, ...] = ()
    """what its tokenizer by itself puts in front of a text (Gemma, Llama, Mistral: one token), and
    lib.text in front of every window; what is predicted there is not scored"""

    @property
    def provenance(self) -> str | None:
        """Which model it is, for keys; None for one in memory, and once anything was changed that
        decides what it computes: values, modules, hooks, settings, precision or mode."""
        if self.loaded_as is None:
            return None
        if self in _UNCHANGING:
            return self.loaded_as
        return self.loaded_as if fingerprint(self.model, whole=True) == self.loaded else None

    @contextlib.contextmanager
    def unchanging(self) -> Iterator[None]:
        """While open, the model is not looked at again: its weights are read once for many keys."""
        if self in _UNCHANGING or self.provenance is None:
            yield
            return
        _UNCHANGING.append(self)
        try:
            yield
        finally:
            _UNCHANGING.remove(self)

    @property
    def n_start(self) -> int:
        """Positions of start tokens in every window."""
        return len(self.start_tokens)

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def d_model(self) -> int:
        return self.blocks[0].d_model

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    def __repr__(self) -> str:
        n = sum(p.numel() for p in self.model.parameters())
        ffn = sum(b.n_params for b in self.blocks)
        tokens = " ".join(map(str, self.start_tokens))
        start = f", windows begin with start token {tokens}" if self.n_start else ""
        return (
            f"{self.name}: {type(self.model).__name__}, {len(self)} blocks of width "
            f"{self.d_model}, {n / 1e6:.1f} M parameters, {ffn / n:.0%} of them in FFNs{start}"
        )


_UNCHANGING: list[Subject] = []
"""those that a measurement is looking at, which does not change them"""


def find_layers(model: nn.Module) -> nn.ModuleList:
    """The list of decoder layers. Raises InputError if the model has none."""
    n = model.config.get_text_config().num_hidden_layers
    if n < 1:
        raise InputError(f"{type(model).__name__} has {n} layers: give a model with some.")
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == n]
    if not lists:
        raise InputError(
            f"no list of {n} decoder layers in {type(model).__name__}: only decoder language "
            "models whose layers stand in one list can be read."
        )
    return max(lists, key=lambda m: sum(p.numel() for p in m.parameters()))


def find_ffn(layer: nn.Module, d_model: int, index: int) -> str:
    """Name of the child of `layer` that is its FFN. Raises InputError unless there is just one."""
    found = [name for name, child in layer.named_children() if _is_position_wise(child, d_model)]
    if len(found) != 1:
        raise InputError(
            f"block {index}: {type(layer).__name__} has {len(found)} child modules that map each "
            f"position's {d_model} features by themselves, so its FFN cannot be taken out: choose "
            "an architecture whose FFN is one module (GPT-2, GPT-NeoX, Llama and their kin)."
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
            y, moved = module(x), module(x[:, order])
    except Exception:  # attention, which asks for masks or positions
        return False
    same = isinstance(y, torch.Tensor) and y.shape == x.shape
    return same and torch.allclose(y[:, order], moved, rtol=1e-2, atol=1e-4)


class Replay(nn.Module):
    """Stands in for a decoder layer and hands on `hidden`, or what it is given if None."""

    def __init__(self, layer: nn.Module, hidden: torch.Tensor | None, returns_tuple: bool):
        super().__init__()
        # Models read attributes of their layers (Gemma, Qwen: attention_type) and find the
        # original's; kept out of the module tree, so that the state dict stays as it is.
        self.__dict__["stands_for"] = layer
        self.hidden, self.returns_tuple = hidden, returns_tuple

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["stands_for"], name)

    def forward(self, *args, **kwargs):
        hidden = hidden_of(args, kwargs) if self.hidden is None else self.hidden
        return (hidden, None) if self.returns_tuple else hidden


@contextlib.contextmanager
def resume_at(
    model: nn.Module, layers: Sequence[nn.Module], start: int, hidden: torch.Tensor, tuples: bool
) -> Iterator[None]:
    """While open, a forward pass begins at layer `start` with the residual stream `hidden`.

    The layers before it are replaced by modules that replay `hidden`, so no architecture's own
    forward is touched.
    """
    container = find_layers(model)

    def first(_, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if args:
            return (hidden, *args[1:]), kwargs
        return args, kwargs | {"hidden_states": hidden}

    handle = None
    try:
        if start == 0:  # no layer stands before it, so its own input is replaced
            handle = layers[0].register_forward_pre_hook(first, with_kwargs=True)
        for i in range(start):
            container[i] = Replay(layers[i], None if i else hidden, tuples)
        yield
    finally:
        for i, layer in enumerate(layers):
            container[i] = layer
        if handle:
            handle.remove()


def hidden_of(args: tuple, kwargs: dict) -> torch.Tensor:
    """The residual stream among the arguments of a decoder layer."""
    return args[0] if args else kwargs["hidden_states"]
