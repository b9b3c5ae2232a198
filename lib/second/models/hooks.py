"""Record, swap and resume on a live model: context managers that always restore."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral

import torch
from torch import nn

from lib.second.base.errors import InputError
from lib.second.models.blocks import Block, find_layers
from lib.second.models.checks import check_module
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows

OnFFN = Callable[[int, torch.Tensor, torch.Tensor], None]
OnResidual = Callable[[int, torch.Tensor], None]


@contextlib.contextmanager
def record(
    subject: Subject,
    on_ffn: OnFFN | None = None,
    on_residual: OnResidual | None = None,
    blocks: Sequence[int] | None = None,
) -> Iterator[None]:
    """While open, every forward pass hands over what passes through the chosen blocks (default:
    all).

    on_ffn(index, x, y): the FFN's input and output, each [batch, position, d_model]; clone what is
    kept, for some models (Falcon) go on to change the output in place. on_residual(index, h): the
    residual stream that enters the block, [batch, position, d_model].
    """
    chosen = range(len(subject)) if blocks is None else blocks
    handles = []
    try:
        for block in [get_block(subject, i) for i in chosen]:
            if on_ffn:
                hook = lambda _, args, y, i=block.index: on_ffn(i, args[0].detach(), y.detach())
                handles.append(block.ffn.register_forward_hook(hook))
            if on_residual:

                def pre(_, args: tuple, kwargs: dict, i: int = block.index) -> None:
                    on_residual(i, _hidden(args, kwargs).detach())

                handles.append(block.layer.register_forward_pre_hook(pre, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hidden(args: tuple, kwargs: dict) -> torch.Tensor:
    return args[0] if args else kwargs["hidden_states"]


@torch.no_grad()
def capture(
    subject: Subject, windows: Windows, blocks: Sequence[int], batch: int = 16
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """All (x, y) rows of a few blocks in memory, window by window.

    Returns {block: (X [n, seq_len, d], Y [n, seq_len, d])}, float32 on the CPU.

    For whole-model statistics use moments, which need no rows. Raises InputError for a block that
    does not exist.
    """
    subject.check(windows, batch)
    blocks = list(dict.fromkeys(blocks))
    for index in blocks:
        get_block(subject, index)
    rows: dict[int, list] = {i: [] for i in blocks}

    def keep(block: int, x: torch.Tensor, y: torch.Tensor) -> None:
        rows[block].append([side.to("cpu", copy=True) for side in (x, y)])
        if block == max(blocks):
            raise _Enough

    with record(subject, on_ffn=keep, blocks=blocks):
        for chunk in windows.tokens.split(batch):
            with contextlib.suppress(_Enough):
                forward_body(subject, chunk)
    return {i: tuple(torch.cat(side) for side in zip(*parts)) for i, parts in rows.items()}


class _Enough(Exception):
    """Leaves a forward pass where nobody wants the rest of it."""


def get_block(subject: Subject, index: int) -> Block:
    """Block `index`. Raises InputError if the subject has no such block."""
    if not isinstance(index, Integral) or not 0 <= index < len(subject):
        raise InputError(
            f"block {index!r} does not exist: {subject.name} has blocks 0 to {len(subject) - 1}."
        )
    return subject.blocks[index]


@torch.no_grad()
def forward_body(subject: Subject, tokens: torch.Tensor) -> None:
    """Run the blocks for their hooks alone: the language-model head is a fifth of a small
    model's work and is left out."""
    subject.model.base_model(tokens.to(subject.device), use_cache=False)


@contextlib.contextmanager
def swap(block: Block, module: nn.Module) -> Iterator[None]:
    """Put `module` in the place of the block's FFN; the original returns however the body ends.

    Raises InputError if `module` does not map the FFN's shape to itself.
    """
    original = block.ffn
    if module is not original:
        module = _fitting(block, module)
    setattr(block.layer, block.ffn_name, module)
    try:
        yield
    finally:
        setattr(block.layer, block.ffn_name, original)


def _fitting(block: Block, module: nn.Module) -> nn.Module:
    """`module` in eval mode on the block's device, once it has shown that it keeps [1, 2,
    d_model]."""
    check_module(module, block.index)
    like = next(block.layer.parameters())
    if not isinstance(module, nn.Module):
        raise InputError(
            f"block {block.index}: a {type(module).__name__} cannot be swapped in; give a "
            "torch.nn.Module."
        )
    module = module.to(like.device).eval()
    x = torch.zeros(1, 2, block.d_model, device=like.device, dtype=like.dtype)
    try:
        with torch.no_grad():
            y = module(x)
        why = (
            f"it maps {tuple(x.shape)} to {tuple(y.shape)}"
            if y.shape != x.shape
            else f"it gives {y.dtype}, not {x.dtype}"
            if y.dtype != x.dtype
            else ""
        )
    except Exception as error:  # whatever the reader's module raises is the reason
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
    if why:
        raise InputError(
            f"block {block.index}: {type(module).__name__} cannot stand in for an FFN of "
            f"width {block.d_model} ({why}): give one that maps {x.dtype} [.., {block.d_model}] "
            "to the same, such as with module.to(dtype)."
        )
    return module


class Replay(nn.Module):
    """Stands in for a decoder layer and hands on a given residual stream (or what it is given,
    if None)."""

    def __init__(self, layer: nn.Module, hidden: torch.Tensor | None, returns_tuple: bool):
        super().__init__()
        self.returns_tuple = returns_tuple
        # Models read attributes of their layers (Gemma and Qwen: attention_type); they find the
        # original's. Kept out of
        # the module tree, so that the state dict stays as it is.
        self.__dict__["stands_for"] = layer
        self.hidden = hidden

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["stands_for"], name)

    def forward(self, *args, **kwargs):
        hidden = _hidden(args, kwargs)
        if self.hidden is not None:
            hidden = _same_shape(self.hidden, hidden)
        return (hidden, None) if self.returns_tuple else hidden


def _same_shape(given: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    if given.shape != expected.shape:
        raise InputError(
            f"cannot resume from a residual stream of shape {tuple(given.shape)}: the tokens "
            f"given need {tuple(expected.shape)}."
        )
    return given


@contextlib.contextmanager
def resume(subject: Subject, start: int, hidden: torch.Tensor) -> Iterator[None]:
    """While open, a forward pass begins at block `start` with the residual stream `hidden` [batch,
    position, d_model].

    The blocks before it are replaced by modules that replay `hidden`; no architecture's own forward
    is touched. The tokens given to the model must be those that `hidden` was recorded on, for masks
    and positions are still made from them.
    """
    get_block(subject, start)
    layers = [b.layer for b in subject.blocks[:start]]
    container = find_layers(subject.model)

    def substitute(_, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        stream = _same_shape(hidden, _hidden(args, kwargs))
        return (
            ((stream, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": stream})
        )

    # No layer stands before block 0, so its own input is replaced.
    handle = (
        subject.blocks[0].layer.register_forward_pre_hook(substitute, with_kwargs=True)
        if start == 0
        else None
    )
    try:
        for i, layer in enumerate(layers):
            container[i] = Replay(layer, hidden if i == 0 else None, subject.layers_return_tuples)
        yield
    finally:
        for i, layer in enumerate(layers):
            container[i] = layer
        if handle is not None:
            handle.remove()
