"""Checks of models and of what they are given. They refuse and compute nothing, so no stored result
depends on them."""

import re
from collections.abc import Mapping

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from lib.second.base.errors import InputError

_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
_HARMLESS = re.compile(r"(attn|attention)\.(masked_)?bias$|_cached$|position_ids$|inv_freq$")
"""buffers that older checkpoints hold and models now make for themselves"""
_READABLE = (torch.uint8, torch.int32, torch.int64)


def check_config(config: PretrainedConfig, name: str) -> None:
    """Raise InputError for a configuration whose sizes no model has."""
    text = config.get_text_config()
    for size in _SIZES:
        value = getattr(text, size, 1)
        if not isinstance(value, int) or value < 1:
            raise InputError(
                f"model {name!r} has {size} = {value!r} in its config.json, and needs a whole "
                "number from 1 up: save it again with save_pretrained, or mend that line."
            )


def check_loaded(loading: Mapping, name: str) -> None:
    """Raise InputError for a model that differs from its weights, as transformers tells it."""
    again = "make config.json and weights those of one model, or save it again with save_pretrained"
    for key, given, wanted in sorted(loading.get("mismatched_keys", ()), key=str):
        raise InputError(
            f"model {name!r} has {key} in the shape {tuple(given)}, and its config.json says "
            f"{tuple(wanted)}: {again}."
        )
    lost = sorted(map(str, loading.get("missing_keys", ())))
    if lost:
        raise InputError(
            f"model {name!r} lacks {len(lost)} of its weights ({_listed(lost)}), which would be "
            "random: save it again with save_pretrained."
        )
    unused = [k for k in map(str, loading.get("unexpected_keys", ())) if not _HARMLESS.search(k)]
    if unused:
        raise InputError(
            f"model {name!r} leaves {len(unused)} of its weights unused ({_listed(sorted(unused))})"
            f", so its config.json describes another model: {again}."
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:1]) + (", …" if len(names) > 1 else "")


def check_model(model: PreTrainedModel, name: str) -> None:
    """Raise InputError unless `model` is a language model of transformers with its head and all
    its weights."""
    if not isinstance(model, PreTrainedModel):
        raise InputError(
            f"a {type(model).__name__} is no language model: name one to load_subject, or give "
            "what AutoModelForCausalLM.from_pretrained returns."
        )
    if model.get_output_embeddings() is None:
        raise InputError(
            f"{type(model).__name__} has no language-model head: load {name} with "
            "AutoModelForCausalLM."
        )
    if empty := _on_meta(model):
        raise InputError(
            f"weight {empty} of {name} is on the meta device, which holds no numbers: load the "
            "model onto a device that has room for it."
        )
    context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if isinstance(context, int) and context < 0:
        raise InputError(
            f"{type(model).__name__} states no context ({context}), as models do that read in both "
            "directions: choose a decoder language model (GPT-2, GPT-NeoX, Llama and their kin)."
        )


def check_readable(windows: object) -> None:
    """Raise InputError for windows whose tokens are no integers that an embedding takes."""
    tokens = getattr(windows, "tokens", None)
    if hasattr(windows, "seq_len") and not isinstance(tokens, torch.Tensor):
        raise InputError(
            f"windows of {type(tokens).__name__} cannot be read: give a tensor of integer tokens "
            "[n, seq_len]."
        )
    if isinstance(tokens, torch.Tensor) and tokens.dtype not in _READABLE:
        raise InputError(
            f"windows of shape {tuple(tokens.shape)} and type {tokens.dtype} cannot be read: give "
            "integer tokens [n, seq_len], int64 for example with tokens.long()."
        )


def check_module(module: object, block: int) -> None:
    """Raise InputError for a class in place of a module, and for a module without its numbers."""
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise InputError(
            f"block {block}: {module.__name__} is a class and cannot be swapped in; give a module "
            f"made of it, {module.__name__}(…)."
        )
    empty = _on_meta(module) if isinstance(module, nn.Module) else None
    if empty:
        raise InputError(
            f"block {block}: {empty} of {type(module).__name__} is on the meta device, which "
            "holds no numbers, and cannot be swapped in; give a module with weights."
        )


def _on_meta(module: nn.Module) -> str | None:
    tensors = (*module.named_parameters(), *module.named_buffers())
    return next((name for name, tensor in tensors if tensor.is_meta), None)
