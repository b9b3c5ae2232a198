"""A model's blocks and FFNs, found by structure and tried once, so that a new architecture needs no
line here: the decoder layers are the model's longest list of alike modules, and a layer's FFN is
its only child that maps [.., d] to [.., d] position by position."""

import copy
from dataclasses import replace

import torch
from torch import nn
from transformers import PreTrainedModel

from lib.errors import InputError
from lib.hooks import record, resume
from lib.models.blocks import Block, Subject
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
    blocks, layers = [], find_layers(model)
    for index, layer in enumerate(layers):
        ffn_name = find_ffn(layer, d, index)
        blocks.append(Block(index, layer, ffn_name, d, getattr(layer, ffn_name), len(start)))
    for block in blocks[1:]:
        first = next(b for b in blocks if b.original is block.original)
        if first is not block:
            raise InputError(
                f"blocks {first.index} and {block.index} of {name} share one FFN, so neither can "
                "be measured alone: choose a model whose blocks have an FFN each."
            )
    return _confirmed(
        Subject(name, model, tokenizer, tuple(blocks), layers, False, start_tokens=start)
    )


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
def _confirmed(subject: Subject) -> Subject:
    """The subject, with whether its layers return tuples, after a tiny pass that confirms what
    every measurement takes for granted. Raises InputError where an FFN called on its recorded input
    does not give its recorded output, where later tokens change earlier predictions, or where a
    pass resumed at a block does not end as a whole one."""
    model, blocks, tokens = subject.model, subject.blocks, trial_tokens(subject.model)
    seen, streams, returned = {}, {}, []

    def keep(index: int):
        def hook(_, args: tuple, y: torch.Tensor) -> None:
            # One that is called twice, or by name, is not confirmed. Falcon adds to y in place.
            seen[index] = (args[0], y.clone()) if args and index not in seen else None

        return hook

    def entering(index: int, hidden: torch.Tensor) -> None:
        streams[index] = copy.deepcopy(hidden)

    handles = [b.ffn.register_forward_hook(keep(b.index)) for b in blocks]
    handles.append(blocks[0].layer.register_forward_hook(lambda _, a, out: returned.append(out)))
    try:
        with record(subject, on_residual=entering):
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
    subject = replace(subject, layers_return_tuples=isinstance(returned[0], tuple))
    _confirm_causal(model, tokens, found.logits)
    # Layers share with the one before, with the first, or all later ones with one in the middle.
    n = len(blocks)
    for start in sorted({1, 2, n // 2, n // 2 + 1, n - 2, n - 1} & {*range(1, n)}):
        with resume(subject, start, streams[start]):
            resumed = model(tokens, use_cache=False).logits
        if not _alike(resumed, found.logits):
            raise InputError(
                f"block {start} of {type(model).__name__} reads more of earlier blocks than the "
                "residual stream (their keys and values, say), so a pass cannot be resumed there: "
                "choose another model."
            )
    return subject


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
