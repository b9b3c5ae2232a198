"""What a model is at this moment, so that no stored result is served for another.

PyTorch counts in-place edits of a tensor, but not those through `.data` or `.numpy()`, and nothing
counts an attribute that is set. So the bytes themselves are summed, each with a weight of its own:
about a hundredth of a forward pass. What cannot be seen in a model's modules is refused.
"""

import functools
import hashlib
from collections.abc import Callable

import torch
from torch import nn

from lib.second.base.errors import InputError

_OURS = ("transformers.", "accelerate.", "lib.second.models.behaviour", "lib.second.models.hooks record.")
"""where hooks come from that change nothing in what a model computes"""
_PLAIN = (bool, int, float, str, type(None))


def with_content(state: Callable[[nn.Module], tuple]) -> Callable[[nn.Module], tuple]:
    """`state(model)` with the digest of the model's content after it."""

    @functools.wraps(state)
    def whole(model: nn.Module) -> tuple:
        return *state(model), content(model)

    return whole


def exactly(key: Callable[[object], str]) -> Callable[[object], str]:
    """The key of a subject that is refused where its model does more than its modules say, and that
    holds the content of a changed model."""

    @functools.wraps(key)
    def whole(subject) -> str:
        check_as_it_stands(subject.model, subject.name)
        found = key(subject)
        return found if found == subject.loaded_key else f"{found}-{content(subject.model)}"

    return whole


@torch.no_grad()
def content(model: nn.Module) -> str:
    """Digest of all bytes of all parameters and buffers, and of the plain attributes of all modules
    and the configuration. A change of any one element is certain to be seen."""
    found = hashlib.sha256()
    sums: dict[torch.device, list] = {}  # fetched once from each device
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sums.setdefault(tensor.device, []).extend(_sums(tensor))
    for there in sums.values():
        found.update(torch.stack(there).cpu().numpy().tobytes() if there else b"")
    for name, module in model.named_modules():
        plain = [(k, v) for k, v in vars(module).items() if _counts(k) and isinstance(v, _PLAIN)]
        found.update(f"{name} {plain}\n".encode())
    if hasattr(model, "config"):
        found.update(model.config.to_json_string().encode())
    return found.hexdigest()[:16]


def _sums(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Σ number · weight mod 2⁶⁴ of each chunk, numbers of 32 bits (8 where these do not fit). The
    weights are odd, so no change of a single number is lost."""
    flat = tensor.detach().contiguous().reshape(-1)
    if not flat.numel() or flat.is_meta:
        return []
    fits = flat.numel() * flat.element_size() % 4 == 0 and flat.data_ptr() % 4 == 0
    numbers = flat.view(torch.uint8).view(torch.int32) if fits else flat.view(torch.uint8)
    weights = _weights(numbers.device)
    return [(part * weights[: len(part)]).sum() for part in numbers.split(len(weights))]


@functools.cache
def _weights(device: torch.device) -> torch.Tensor:
    # As many at once as a processor's cache holds, and as keep a GPU busy.
    n, generator = 2**17 if device.type == "cpu" else 2**22, torch.Generator().manual_seed(0)
    return (torch.randint(-(2**62), 2**62, (n,), generator=generator) | 1).to(device)


def _counts(attribute: str) -> bool:
    """Whether an attribute of a module says what it computes; what it notes for itself does not."""
    return not attribute.startswith("_") and "cached" not in attribute


def check_as_it_stands(model: nn.Module, name: str) -> None:
    """Raise InputError for what changes a model's results and is in none of its modules."""
    for place, module in model.named_modules():
        place = f"{place or 'the model'} of {name}"
        if "stands_for" in vars(module):
            raise InputError(
                f"{place} replays a given residual stream, which no stored result may depend on: "
                "measure outside of resume."
            )
        if module.training:
            raise InputError(
                f"{place} is in training mode, where results are not those of the model: call "
                "eval() on the model."
            )
        forward = vars(module).get("forward")
        if forward is not None and not _ours(forward):
            raise InputError(
                f"{place} has another forward than its class, which no stored result may depend "
                "on: write it as a torch.nn.Module and swap that in."
            )
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
            if not _ours(hook):
                raise InputError(
                    f"{place} has a forward hook ({_named(hook)}), which may change what it "
                    "computes: remove it, or write the change as a torch.nn.Module and swap that "
                    "in."
                )


def _ours(function: Callable) -> bool:
    return _named(function).startswith(_OURS)


def _named(function: Callable) -> str:
    function = getattr(function, "func", function)  # of a functools.partial
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '')} {name}"
