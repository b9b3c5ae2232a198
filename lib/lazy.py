"""Modules that are made when they are first used, each of which is what its words say.

Fits, gates, probes and healed layers stand in kept tables: who asks for one gets its words at once,
and its weights only if something has to be measured with it.
"""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from lib.errors import InputError
from lib.keys import describe, fingerprint, seal, words_of


class LazyModule(nn.Module):
    """A replacement for an FFN that is made when it is first used (called, moved, or asked for a
    weight); until then only its words are there, by which kept losses are found."""

    def __init__(self, words: str | None, make: Callable[[], nn.Module]):
        super().__init__()
        self.__dict__.update(_said=words, _make=make)

    @classmethod
    def of(cls, module: nn.Module) -> "LazyModule":
        """One that is made already."""
        lazy = cls(words_of(module), lambda: module)
        lazy._modules["made"] = module
        return lazy

    def __deepcopy__(self, memo: dict) -> "LazyModule":
        if "made" in self._modules:
            return LazyModule.of(copy.deepcopy(self.module, memo))
        return LazyModule(self._said, self._make)  # which makes one of its own

    def __reduce__(self) -> tuple:
        return LazyModule.of, (self.module,)

    @property
    def provenance(self) -> str | None:
        """Its words, as long as it is what they say."""
        if "made" not in self._modules:
            return self._said
        return words_of(self._modules["made"])

    @property
    def module(self) -> nn.Module:
        """What it stands for, made now if it was not before."""
        if "made" not in self._modules:
            self._modules["made"] = seal(self._make(), self._said)
        return self._modules["made"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., d] -> [..., d]
        return self.module(x)

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return getattr(self.module, name)

    def __setattr__(self, name: str, value) -> None:
        """What is set is set on the module; the mode (train, eval) on both."""
        if not name.startswith("_") and name != "training":
            return setattr(self.module, name, value)
        super().__setattr__(name, value)

    # Whoever asks for what is in it, to move, read or change it, has it made.

    def _apply(self, *args, **kwargs) -> "LazyModule":
        _ = self.module
        return super()._apply(*args, **kwargs)

    def _named_members(self, *args, **kwargs):
        _ = self.module
        return super()._named_members(*args, **kwargs)

    def state_dict(self, *args, **kwargs):
        _ = self.module
        return super().state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args, **kwargs) -> None:
        _ = self.module
        super()._load_from_state_dict(*args, **kwargs)

    def apply(self, change: Callable) -> "LazyModule":
        _ = self.module
        return super().apply(change)


def lazily(
    words: Mapping[Any, str | None],
    compute: Callable[[], Mapping],
    make: Callable[[Any, Any], nn.Module] = lambda part, _: part,
    **inputs,
) -> dict[Any, LazyModule]:
    """{name: module}, each with its words at once; all are computed when one is first used.

    A module is `make(part, name)` of a copy of its part of what `compute` gives, so that nothing
    done to one is done to another. `inputs` are named as a reader would name them: InputError is
    raised at the first use where one of them was changed meanwhile, for then what comes would not
    be what was asked for.
    """
    asked_for = {name: _as_it_is(value) for name, value in inputs.items()}
    computed: list[Mapping] = []

    def made_now(name) -> nn.Module:
        if not computed:
            for of, value in inputs.items():
                if _as_it_is(value) != asked_for[of]:
                    raise InputError(
                        f"the {of} changed between asking for this and its first use: ask for it "
                        "again, or use it once before you change them."
                    )
            computed.append(compute())
        return make(copy.deepcopy(computed[0][name]), name)

    return {name: LazyModule(said, partial(made_now, name)) for name, said in words.items()}


def _as_it_is(value) -> str | dict | None:
    """What tells that an input changed; a model in memory has no words, but weights."""
    if hasattr(type(value), "unchanging") and value.loaded_as is None:
        return fingerprint(value.model, whole=True)
    return describe(value)


def for_maps(words: str | None, maps: Mapping[int, nn.Module]) -> dict[int, str | None]:
    """{block: words}, with what is said of the block's map in the place of their {}."""
    of_map = {b: words_of(affine) for b, affine in maps.items()}
    return {b: words and said and words.replace("{}", said) for b, said in of_map.items()}


def made(module: nn.Module) -> nn.Module:
    """What a lazy module stands for, made now if it was not before; another module as it is."""
    return module.module if isinstance(module, LazyModule) else module
