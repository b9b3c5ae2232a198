"""A language model as a Subject: model, tokenizer and a uniform list of blocks."""

import hashlib
from dataclasses import dataclass
from numbers import Integral

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lib.second.base.errors import InputError
from lib.second.models.behaviour import _behaviour
from lib.second.models.blocks import Block, find_ffn, find_layers
from lib.second.models.checks import check_model, check_readable
from lib.second.models.keys import _config_key, _state, _tensors_key
from lib.second.models.witness import exactly
from lib.second.texts.windows import Windows


@dataclass(frozen=True, eq=False)
class Subject:
    """A frozen language model under study."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    blocks: tuple[Block, ...]
    loaded_key: str
    """digest of weights and configuration as they were loaded"""
    loaded_state: tuple
    """what the module tree looked like then: see `key`"""
    parallel: bool
    """whether attention and FFN read the same residual stream (GPT-NeoX, GPT-J) rather than one
    after the other"""
    layers_return_tuples: bool
    """whether a decoder layer returns (residual stream, ...) rather than the residual stream
    alone"""

    @property
    def d_model(self) -> int:
        return self.blocks[0].d_model

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    @property
    @exactly
    def key(self) -> str:
        """What a cached result of this subject depends on: the model as it stands now, with
        swaps, and edits of weights by whatever road. Raises InputError where what it computes is
        not all in its modules: hooks, replaced methods, training mode, a resumed pass."""
        if _state(self.model) == self.loaded_state:
            return self.loaded_key
        tree = hashlib.sha256(repr(self.model).encode()).hexdigest()[:8]
        return f"{_tensors_key(self.model)}-{tree}"

    def check(self, windows: Windows, batch: int = 1) -> None:
        """Raise InputError unless this model can read `windows`, `batch` of them at a time."""
        check_readable(windows)
        if not isinstance(batch, Integral) or batch < 1:
            raise InputError(
                f"{batch!r} windows in one pass are not possible: use a whole number from 1 up."
            )
        if not isinstance(windows, Windows):
            raise InputError(
                f"a {type(windows).__name__} is no sample of windows: cut one with cut_windows, or "
                "view a tensor of tokens [n, seq_len] with Windows.of."
            )
        tokens = windows.tokens
        if tokens.dim() != 2 or tokens.is_floating_point() or min(tokens.shape) < 1:
            raise InputError(
                f"windows of shape {tuple(tokens.shape)} and type {tokens.dtype} cannot be read: "
                "give integer tokens [n, seq_len], at least one window."
            )
        if tokens.shape[1] < 2:
            raise InputError("windows of one token have no next token: use two or more.")
        config = self.model.config.get_text_config()
        context = getattr(config, "max_position_embeddings", None) or getattr(
            config, "n_positions", None
        )
        if context and windows.seq_len > context:
            raise InputError(
                f"windows of {windows.seq_len} tokens exceed the context of {self.name}, "
                f"{context}: cut windows of at most {context} tokens, or choose a model with a "
                "longer context (a notebook's windows are as long as its profile says)."
            )
        vocabulary = self.model.get_input_embeddings().num_embeddings
        if tokens.min() < 0 or tokens.max() >= vocabulary:
            raise InputError(
                f"token {int(tokens.max())} is not in the {vocabulary:,} tokens of "
                f"{self.name}: use its own tokenizer."
            )

    def __len__(self) -> int:
        return len(self.blocks)

    def __repr__(self) -> str:
        n = sum(p.numel() for p in self.model.parameters())
        ffn = sum(b.n_params for b in self.blocks)
        return (
            f"Subject({self.name}: {type(self.model).__name__}, {len(self)} blocks, d_model "
            f"{self.d_model}, "
            f"{n / 1e6:.1f} M parameters, {ffn / n:.0%} of them in FFNs, "
            f"{'parallel' if self.parallel else 'sequential'})"
        )


def as_subject(
    model: PreTrainedModel, tokenizer=None, name: str = "model", key: str | None = None
) -> Subject:
    """View an already loaded model as a Subject. Raises InputError for what is no language model
    with its head, and if its blocks or FFNs are not recognised."""
    check_model(model, name)
    model.eval().requires_grad_(False)
    broken = next((n for n, p in model.named_parameters() if not torch.isfinite(p).all()), None)
    if broken:
        raise InputError(
            f"weight {broken} of {name} is not finite: load the model in float32, or save "
            "its weights again."
        )
    layers, d_model = find_layers(model), model.get_input_embeddings().weight.shape[1]
    hidden = getattr(model.config.get_text_config(), "hidden_size", d_model)
    blocks = tuple(
        Block(i, layer, find_ffn(layer, hidden, i), hidden) for i, layer in enumerate(layers)
    )
    key = key or f"{_tensors_key(model)}-{model.dtype}-{_config_key(model)}"
    return Subject(name, model, tokenizer, blocks, key, _state(model), *_behaviour(model, blocks))
