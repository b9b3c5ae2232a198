"""What goes into a measurement, in words: what the keys of lib.store are made of.

A key says what was measured: which model, on which text, with what in which block's place and how
that was made. It holds no number that was computed (another processor's last digit differs) and no
name of a function, class or field, so that code can be renamed. A module stands for its words only
while it computes what it did when they were given to it (`seal`): who changes it in place, copies
and changes it, hooks it or switches dropout on has a module without words, and what is measured
with it is kept nowhere.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

import numpy as np
import torch
import transformers
from torch import nn

PLAIN = (str, int, float, bool, type(None))
OF_LIBRARIES = ("lib", "torch", "transformers")
"""where the classes of modules come from that may have words; a notebook's own have none"""
NO_SETTINGS = ("training", "forward", "name_or_path")
HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def describe(value) -> str | dict | None:
    """An input in words, or in several with a name each; None where it cannot be said."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return value
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, nn.Module):
        return words_of(value)
    if hasattr(value, "provenance"):
        return value.provenance
    if isinstance(value, Mapping):
        named = {k: words for k, v in value.items() if (words := in_one(v)) is not None}
        if len(named) < len(value):
            return None
        of_blocks = all(isinstance(k, int) for k in named)
        parts = _by_block(named) if of_blocks else named
        return "; ".join(f"{k}: {v}" for k, v in parts.items())
    if isinstance(value, Sequence):
        said = [in_one(v) for v in value]
        return None if None in said else f"({', '.join(map(str, said))})"
    return None


def _by_block(named: Mapping[int, str]) -> dict[str, str]:
    """What stands in the place of each block's FFN, {block: words}, as {"blocks 0-29": words}:
    blocks in whose places alike things stand are said together."""
    alike: dict[str, list[int]] = {}
    for b, words in named.items():
        alike.setdefault(re.sub(rf"\bblock {b}\b", "its block", words), []).append(b)
    return {f"blocks {_in_words(blocks)}": words for words, blocks in alike.items()}


def _in_words(blocks: Sequence[int]) -> str:
    """Numbers of blocks as 0-1, 3-27, 29."""
    runs: list[list[int]] = []
    for b in sorted(blocks):
        if runs and b == runs[-1][-1] + 1:
            runs[-1].append(b)
        else:
            runs.append([b])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def in_one(value) -> str | None:
    """An input in words, those with a name each joined."""
    words = describe(value)
    if isinstance(words, Mapping):
        return ", ".join(f"{name} {said}" for name, said in words.items())
    return words


def all_said(parts: Mapping) -> dict[str, str] | None:
    """Several inputs in words, {what each is called: words}; one that has names of its own says
    them. None where one has no words."""
    said: dict[str, str] = {}
    for name, part in parts.items():
        words = describe(part)
        if words is None:
            return None
        words = words if isinstance(words, Mapping) else {name: words}
        if twice := said.keys() & words.keys():
            raise TypeError(f"two arguments say {sorted(twice)} in the key")
        said |= words
    return said


def settings(config, **names: str) -> dict[str, str]:
    """The fields of a dataclass in words, {what `names` calls a field: its value}; what stands at
    its default is left out, so that a new field with a default changes no key."""
    usual = {f.name: f.default for f in fields(config)}
    given = {field: getattr(config, field) for field in names}
    return {names[f]: str(in_one(v)) for f, v in given.items() if v != usual[f]}


def digest(words: str) -> str:
    """Sixteen signs that stand for words."""
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def seal(module: nn.Module, *parts) -> nn.Module:
    """The module, which stands for these words (or those of modules that it is made of) as long as
    it computes what it computes now. It has none where a part has none, or a part of it is defined
    in a notebook and may change unseen: then it is measured each time."""
    said = [in_one(part) if part is not None else None for part in parts]
    mark = None if None in said else fingerprint(module)
    module.__dict__.update(_words=mark and " ".join(map(str, said)), _as_sealed=mark)
    return module


def words_of(module: nn.Module) -> str | None:
    """What a module was sealed as; None if it never was or is no longer what it was. A class of
    lib may say so itself (lib.lazy.LazyModule)."""
    if _says_itself(module):
        hooked = any(getattr(module, hooks) for hooks in HOOKS)
        return None if hooked else module.provenance
    if _is_own(module):
        return vars(module)["_own"][1]
    words = vars(module).get("_words")
    if words is None or vars(module)["_as_sealed"] != fingerprint(module):
        return None
    return words


def own(part: nn.Module, words: str) -> None:
    """Let a part of a model stand for these words in what holds it, which then need not look at its
    weights: the model's own fingerprint covers them."""
    part.__dict__["_own"] = id(part), words  # a copy carries the number of what it was copied from


def _says_itself(module: nn.Module) -> bool:
    """Whether its class has words of its own, which do not change when it is made."""
    return hasattr(type(module), "provenance") and type(module).__module__.startswith("lib.")


def _is_own(module: nn.Module) -> bool:
    return vars(module).get("_own", (None, ""))[0] == id(module)


def fingerprint(module: nn.Module, whole: bool = False) -> str | None:
    """A digest of all that decides what a module computes: the classes of its parts, their values
    and settings, hooks and mode. None where a part's class is defined outside of libraries. Weights
    are read once, at about two gigabytes a second; unless `whole`, those of a model's own parts are
    not read."""
    parts: list[str] = []
    seen: dict[int, str] = {}  # settings that parts share, such as a model's configuration
    skipped: tuple[str, ...] = ()
    for name, part in module.named_modules():
        if skipped and name.startswith(skipped):
            continue
        kind = type(part)
        if kind.__module__.split(".")[0] not in OF_LIBRARIES:
            return None
        parts.append(f"{name} {kind.__qualname__}")
        if _says_itself(part) and (words := words_of(part)) is not None:
            skipped = (*skipped, f"{name}." if name else "")
            parts.append(words)
            continue
        if whole:  # what replaces an FFN is put into eval mode wherever it is used
            parts.append(f"mode {part.training}")
        if not whole and _is_own(part):
            skipped = (*skipped, f"{name}.")
            parts.append("the model's own")
            continue
        for hooks in HOOKS:
            # Those of transformers itself note hidden states and change nothing.
            own_hooks = [h for h in getattr(part, hooks).values() if not _of_transformers(h)]
            parts += [f"{hooks} {id(hook)}" for hook in own_hooks]
        if "forward" in vars(part):  # put in the place of its class's own
            parts.append(f"forward {id(vars(part)['forward'])}")
        for setting, value in vars(part).items():
            # Where a model was loaded from (name_or_path) says nothing of what it computes.
            if not setting.startswith("_") and setting not in NO_SETTINGS:
                parts.append(f"{setting} {_setting(value, seen)}")
        tensors = (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False))
        parts += [f"{tensor} {_checksum(value)}" for tensor, value in tensors]
    return digest("\n".join(parts))


def _of_transformers(hook: Callable) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("transformers.")


def _setting(value, seen: dict[int, str]) -> str:
    """What an attribute of a module says of what it computes; tensors that a pass left behind say
    nothing."""
    if isinstance(value, PLAIN) and value is not None:
        return repr(value)
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {zlib.crc32(np.ascontiguousarray(value).data)}"
    if isinstance(value, tuple | list):
        return str([_setting(v, seen) for v in value])
    if isinstance(value, Mapping):
        return str([f"{k} {_setting(v, seen)}" for k, v in value.items()])
    if isinstance(value, transformers.PreTrainedConfig):
        if id(value) not in seen:
            told = value.to_dict()
            for name in ("_name_or_path", "transformers_version"):
                told.pop(name, None)
            seen[id(value)] = json.dumps(told, sort_keys=True, default=str)
        return seen[id(value)]
    if callable(value) and not isinstance(value, nn.Module):
        return getattr(value, "__qualname__", type(value).__qualname__)
    return ""


def _checksum(tensor: torch.Tensor) -> str:
    if tensor.is_meta:
        return f"{tensor.dtype} {tuple(tensor.shape)} meta"
    flat = tensor.detach().cpu().contiguous().view(-1)
    data = flat.view(torch.uint8).numpy().data if flat.numel() else b""
    return f"{tensor.dtype} {tuple(tensor.shape)} {zlib.crc32(data)}"
