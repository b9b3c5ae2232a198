"""A language model as a Subject: its decoder blocks, each with its FFN."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

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
    layers: nn.ModuleList
    """where the model looks for its layers"""
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
