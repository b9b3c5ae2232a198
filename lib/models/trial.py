"""Whether the parts that were found by structure behave as blocks and FFNs do, tried
once a model."""

import copy
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from lib.errors import InputError
from lib.models.blocks import (
    Block,
    Subject,
    find_ffn,
    find_layers,
    hidden_of,
    resume_at,
)
from lib.text.windows import start_tokens


def as_subject(model: PreTrainedModel, tokenizer=None, name: str = "model") -> Subject:
    """View an already loaded model as a Subject. Raises InputError if its weights are not in memory
    or not finite, if its blocks or FFNs are not recognised, or if it is not causal."""
    _check_weights(model, name)
    model.eval().requires_grad_(False)
    broken = next((n for n, p in model.named_parameters() if not torch.isfinite(p).all()), None)
    if broken:
        raise InputError(f"weight {broken} of {name} is not finite: save the model's weights anew.")
    n_vocabulary, d = model.get_input_embeddings().weight.shape
    start = start_tokens(tokenizer) if tokenizer is not None else ()
    if max(start, default=0) >= n_vocabulary:
        raise InputError(
            f"start token {max(start)} of the tokenizer of {name} is not among the model's "
            f"{n_vocabulary} tokens: give the tokenizer that the model was trained with."
        )
    blocks = []
    for index, layer in enumerate(find_layers(model)):
        ffn_name = find_ffn(layer, d, index)
        blocks.append(Block(index, layer, ffn_name, d, getattr(layer, ffn_name), len(start)))
    for block in blocks[1:]:
        first = next(b for b in blocks if b.original is block.original)
        if first is not block:
            raise InputError(
                f"blocks {first.index} and {block.index} of {name} share one FFN, so neither can "
                "be measured alone: choose a model whose blocks have an FFN each."
            )
    tuples = _confirm(model, blocks)
    return Subject(name, model, tokenizer, tuple(blocks), tuples, start_tokens=start)


def _check_weights(model: nn.Module, name: str) -> None:
    """Raise InputError for a model whose weights cannot be read or measured as they are."""
    if not hasattr(model, "get_input_embeddings"):
        raise InputError(
            f"{name} is a {type(model).__name__}, no transformers model: give the model that it "
            "wraps (of DataParallel, its .module)."
        )
    if torch.get_default_dtype() != torch.float32:
        raise InputError(
            f"torch's default precision is {torch.get_default_dtype()}: set it back with "
            "torch.set_default_dtype(torch.float32); statistics are in float64 all the same."
        )
    for weight, p in model.named_parameters():
        if p.is_meta:
            raise InputError(
                f"weight {weight} of {name} is not in memory (on the meta device, or offloaded): "
                "load the whole model onto one device, without device_map."
            )
        if p.is_inference():
            raise InputError(
                f"weight {weight} of {name} was made in torch.inference_mode, where nothing can be "
                "trained or differentiated: load the model outside of it."
            )
        if not p.is_floating_point():
            raise InputError(
                f"weight {weight} of {name} is {p.dtype}, a quantized one: load the model without "
                "quantization, in float32."
            )


def copy_of(subject: Subject) -> Subject:
    """The subject with a model of its own, which may be changed."""
    return as_subject(copy.deepcopy(subject.model), subject.tokenizer, subject.name)


def trial_tokens(model: nn.Module) -> torch.Tensor:
    """Three tokens to try a model on, [1, 3]."""
    embedding = model.get_input_embeddings().weight
    return torch.tensor([[1, 3, 4]], device=embedding.device) % len(embedding)


@torch.no_grad()
def _confirm(model: PreTrainedModel, blocks: Sequence[Block]) -> bool:
    """Whether layers return tuples, seen in a tiny pass that confirms what every measurement takes
    for granted. Raises InputError where an FFN called on its recorded input does not give its
    recorded output, where later tokens change earlier predictions, or where a pass resumed at a
    block does not end as a whole one."""
    seen, streams, returned = {}, {}, []

    def keep(index: int):
        def hook(_, args: tuple, y: torch.Tensor) -> None:
            # One that is called twice, or by name, is not confirmed. Falcon adds to y in place.
            seen[index] = (args[0], y.clone()) if args and index not in seen else None

        return hook

    def entering(index: int):
        return lambda _, args, kwargs: streams.update(
            {index: copy.deepcopy(hidden_of(args, kwargs))}
        )

    handles = [b.ffn.register_forward_hook(keep(b.index)) for b in blocks]
    handles += [
        b.layer.register_forward_pre_hook(entering(b.index), with_kwargs=True) for b in blocks
    ]
    handles.append(blocks[0].layer.register_forward_hook(lambda _, a, out: returned.append(out)))
    tokens = trial_tokens(model)
    try:
        found = model(tokens, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(getattr(found, "logits", None), torch.Tensor):
        raise InputError(
            f"{type(model).__name__} has no language-model head, so it has no losses: load it with "
            "AutoModelForCausalLM."
        )
    for b in blocks:
        x, y = seen.get(b.index) or (None, None)
        if x is None or x.shape[:2] != tokens.shape or not torch.equal(b.ffn(x), y):
            raise InputError(
                f"block {b.index}: {type(b.layer).__name__}.{b.ffn_name} does not map its recorded "
                "input to its recorded output, so it is not the FFN alone: choose another model."
            )
    if not isinstance(returned[0], torch.Tensor | tuple):
        raise InputError(
            f"layers of {type(model).__name__} return a {type(returned[0]).__name__}, no tensor or "
            "tuple, so a pass cannot be resumed at a block: choose another model."
        )
    tuples = isinstance(returned[0], tuple)
    _confirm_causal(model, tokens, found.logits)
    layers, n = [b.layer for b in blocks], len(blocks)
    # Layers share with the one before, with the first, or all later ones with one in the middle.
    for start in sorted({1, 2, n // 2, n // 2 + 1, n - 2, n - 1} & {*range(1, n)}):
        with resume_at(model, layers, start, streams[start], tuples):
            resumed = model(tokens, use_cache=False).logits
        if not _alike(resumed, found.logits):
            raise InputError(
                f"block {start} of {type(model).__name__} reads more of earlier blocks than the "
                "residual stream (their keys and values, say), so a pass cannot be resumed there: "
                "choose another model."
            )
    return tuples


def _confirm_causal(model: nn.Module, tokens: torch.Tensor, logits: torch.Tensor) -> None:
    """Raise InputError if another last token changes what is predicted before it."""
    other = tokens.clone()
    other[0, -1] = tokens[0, 0]
    changed = model(other, use_cache=False).logits
    if not _alike(changed[:, :-1], logits[:, :-1]):
        raise InputError(
            f"{type(model).__name__} sees later tokens (its attention is bidirectional), so its "
            "perplexity would mean nothing: choose a causal language model."
        )


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two passes gave the same but for rounding."""
    a, b = a.float(), b.float()
    rounding = 1e-4 if a.dtype == b.dtype == torch.float32 else 1e-2
    return bool((a - b).abs().max() <= rounding * (1 + b.abs().max()))
