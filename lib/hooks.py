"""Record, swap and resume on a live model: context managers that always restore."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from torch import nn
from tqdm import tqdm

from lib.errors import InputError
from lib.models.blocks import Block, Subject
from lib.text.windows import Windows

OnFFN = Callable[[int, torch.Tensor, torch.Tensor], None]
OnResidual = Callable[[int, torch.Tensor], None]


def get_block(subject: Subject, index: int) -> Block:
    """Block `index`. Raises InputError if the subject has no such block."""
    if index not in range(len(subject)):
        raise InputError(
            f"block {index!r} does not exist: {subject.name} has blocks 0 to {len(subject) - 1}."
        )
    return subject.blocks[index]


@contextlib.contextmanager
def record(
    subject: Subject,
    on_ffn: OnFFN | None = None,
    on_residual: OnResidual | None = None,
    blocks: Sequence[int] | None = None,
) -> Iterator[None]:
    """While open, every forward pass hands over what passes through `blocks` (default: all).

    on_ffn(index, x, y): input and output of the FFN, each [batch, position, d_model].
    on_residual(index, h): the residual stream that enters the block, of the same shape.
    """
    handles = []
    chosen = range(len(subject)) if blocks is None else blocks
    try:
        for block in [get_block(subject, index) for index in chosen]:
            if on_ffn:
                hook = _hand_over_ffn(block.index, on_ffn)
                handles.append(block.ffn.register_forward_hook(hook))
            if on_residual:
                hook = _hand_over_residual(block.index, on_residual)
                handles.append(block.layer.register_forward_pre_hook(hook, with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hand_over_ffn(index: int, on_ffn: OnFFN) -> Callable:
    """A forward hook that hands over x and y and changes nothing, whatever `on_ffn` returns."""

    def hook(_, args: tuple, y: torch.Tensor) -> None:
        on_ffn(index, args[0].detach(), y.detach())

    return hook


def _hand_over_residual(index: int, on_residual: OnResidual) -> Callable:
    """A forward pre-hook that hands over the residual stream and changes nothing."""

    def hook(_, args: tuple, kwargs: dict) -> None:
        on_residual(index, hidden_of(args, kwargs))

    return hook


@torch.no_grad()
def forward(
    subject: Subject,
    windows: Windows,
    on_ffn: OnFFN | None = None,
    on_residual: OnResidual | None = None,
    blocks: Sequence[int] | None = None,
    batch: int = 16,
    desc: str = "",
) -> None:
    """Run all windows through the blocks, without the language-model head (a fifth of a small
    model's work), and hand over what `record` hands over, batch after batch.

    A start token's position is not handed to `on_ffn`: it is neither fitted nor scored. Raises
    InputError where an FFN's input or output is not finite, or the model cannot read `windows`.
    """
    check_windows(subject, windows)
    first = subject.n_start

    def finite(i: int, x: torch.Tensor, y: torch.Tensor) -> None:
        if not torch.isfinite(y.sum() + x.sum()):
            raise InputError(
                f"block {i} of {subject.name}: the FFN's input or output is not finite; load the "
                "model in float32 or check its weights."
            )
        if on_ffn is not None:
            on_ffn(i, x[:, first:], y[:, first:])  # [batch, position, d_model]

    def enough(*_) -> None:
        raise _Enough

    last = get_block(subject, max(blocks) if blocks is not None else len(subject) - 1)
    bar = tqdm(total=len(windows), desc=desc, unit="window", delay=2, leave=False)
    with record(subject, on_ffn and finite, on_residual, blocks), bar:
        handle = last.layer.register_forward_hook(enough)
        try:
            for tokens in windows.tokens.split(batch):
                with contextlib.suppress(_Enough):
                    subject.model.base_model(tokens.to(subject.device), use_cache=False)
                bar.update(len(tokens))
        finally:
            handle.remove()


@torch.no_grad()
def block_pass(
    subject: Subject, index: int, tokens: torch.Tensor, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One block alone: x and y of its FFN and the residual stream that leaves it, from the stream
    `hidden` that enters it; all [batch, position, d_model]."""
    seen: dict = {}

    def leave(_, args, out):
        seen["out"] = out[0] if isinstance(out, tuple) else out
        raise _Enough

    def keep(_, x: torch.Tensor, y: torch.Tensor) -> None:
        seen.update(x=x, y=y.clone())  # Falcon's layer adds to it in place

    handle = get_block(subject, index).layer.register_forward_hook(leave)
    try:
        watched = record(subject, keep, blocks=[index])
        with resume(subject, index, hidden), watched, contextlib.suppress(_Enough):
            subject.model.base_model(tokens.to(subject.device), use_cache=False)
    finally:
        handle.remove()
    return seen["x"], seen["y"], seen["out"]


class _Enough(Exception):
    """Leaves a forward pass where nobody wants the rest of it."""


def check_windows(subject: Subject, windows: Windows) -> None:
    """Raise InputError unless the model can read `windows`."""
    if not windows.n_tokens:
        raise InputError(f"{windows.name} has no windows: give a longer text or shorter windows.")
    config, n = subject.model.config.get_text_config(), windows.tokens.shape[1]
    context = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", n)
    if n > context:
        raise InputError(
            f"windows of {n} tokens exceed the context of {subject.name}, {context}: cut shorter "
            "windows, or choose a model with a longer context."
        )
    start = torch.tensor(subject.start_tokens, dtype=windows.tokens.dtype)
    if not (windows.tokens[:, : len(start)] == start).all():
        raise InputError(
            f"{windows.name}: not every window begins with token "
            f"{' '.join(map(str, subject.start_tokens))}, which the tokenizer of "
            f"{subject.name} puts in front of a text: cut the windows with it."
        )
    if int(windows.tokens.max()) >= subject.model.get_input_embeddings().num_embeddings:
        raise InputError(
            f"token {int(windows.tokens.max())} is not in the vocabulary of {subject.name}: cut "
            "the windows with its own tokenizer."
        )


def capture(
    subject: Subject, windows: Windows, blocks: Sequence[int]
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """All rows of a few FFNs in memory, float32: {block: (x [n, position, d], y alike)}.

    For statistics of a whole model use lib.linear.moments, which needs no rows.
    """
    rows: dict[int, tuple[list, list]] = {i: ([], []) for i in blocks}

    def keep(i: int, x: torch.Tensor, y: torch.Tensor) -> None:
        for side, value in zip(rows[i], (x, y)):
            side.append(value.float().to("cpu", copy=True))

    forward(subject, windows, on_ffn=keep, blocks=blocks, desc="capturing rows")
    return {i: (torch.cat(x), torch.cat(y)) for i, (x, y) in rows.items()}


class Rows:
    """(x, y) rows of a few FFNs on fit and test windows, captured when first asked for."""

    def __init__(self, subject: Subject, fit: Windows, test: Windows, blocks: list[int]):
        self.subject, self.fit, self.test, self.blocks = subject, fit, test, blocks

    @property
    def provenance(self) -> dict[str, str] | None:
        """What the rows are of, for keys."""
        model = self.subject.provenance
        texts = {"fit text": self.fit.provenance, "test text": self.test.provenance}
        return {"model": model} | texts if model else None

    @cached_property
    def _all(self) -> tuple[dict, dict]:
        fit, test = (capture(self.subject, w, self.blocks) for w in (self.fit, self.test))
        return fit, test

    def __getitem__(self, block: int) -> tuple[torch.Tensor, ...]:
        """x [n, d], y [n, d] of the fit text; x [m, seq_len, d], y [m, seq_len, d] of the test."""
        fit, test = self._all
        x, y = fit[block]
        return x.flatten(0, 1), y.flatten(0, 1), *test[block]


def capture_residual(
    subject: Subject, windows: Windows, blocks: Sequence[int]
) -> dict[int, torch.Tensor]:
    """The residual stream that enters each of `blocks`: {block: [n, seq_len, d_model]}, on the
    CPU."""
    kept: dict[int, list] = {i: [] for i in blocks}

    def keep(index: int, hidden: torch.Tensor) -> None:
        kept[index].append(hidden.to("cpu", copy=True))

    forward(subject, windows, on_residual=keep, blocks=blocks, desc="residual streams")
    return {i: torch.cat(parts) for i, parts in kept.items()}


class FFNReplacement(nn.Module):
    """`module` in the place of `ffn`, which stays on a start token and wherever the module says so
    by a method `massive` (lib.linear.affine)."""

    def __init__(self, ffn: nn.Module, module: nn.Module, n_start: int):
        super().__init__()
        self.ffn, self.module, self.n_start = ffn, module, n_start

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, position, d_model]
        y = self.module(x)
        if hasattr(self.module, "massive"):
            stays = self.module.massive(x)  # [batch, position]
        else:
            stays = torch.zeros(x.shape[:-1], dtype=torch.bool, device=x.device)
        stays[:, : self.n_start] = True
        if stays.any():
            # As a batch of one: a mixture of experts reads three dimensions.
            y[stays] = self.ffn(x[stays][None])[0]
        return y


def check_replacement(block: Block, module: nn.Module) -> None:
    """Raise InputError unless `module` maps the FFN's shape to itself. The module is moved to the
    block's device and put into eval mode."""
    if module is block.ffn:
        return
    like = next(block.layer.parameters())
    x = torch.zeros(1, 2, block.d_model, device=like.device, dtype=like.dtype)
    try:
        y = module.to(like.device).eval()(x)
        if y.shape == x.shape:
            return
        why = f"it maps {tuple(x.shape)} to {tuple(y.shape)}"
    except Exception as error:  # whatever the reader's module raises is the reason
        why = (str(error).splitlines() or [type(error).__name__])[0]
    raise InputError(
        f"block {block.index}: {type(module).__name__} cannot stand in for an FFN of width "
        f"{block.d_model} ({why}): give a module that maps [.., {block.d_model}] to the same."
    )


@contextlib.contextmanager
def swap(block: Block, module: nn.Module) -> Iterator[None]:
    """Put `module` in the place of the block's FFN; the original returns however the body ends.

    The module is moved to the block's device, in eval mode. The FFN stays at the first position of
    a model whose windows begin with a start token, and where the module says `massive`. Raises
    InputError if `module` does not map the FFN's shape to itself.
    """
    check_replacement(block, module)
    original = block.ffn
    placed = module
    keeps_some = block.n_start > 0 or hasattr(module, "massive")
    if keeps_some and module is not original:
        placed = FFNReplacement(original, module, block.n_start)
    setattr(block.layer, block.ffn_name, placed)
    try:
        yield
    finally:
        setattr(block.layer, block.ffn_name, original)


@torch.no_grad()
def advance(
    subject: Subject, windows: Windows, index: int, module: nn.Module, streams: torch.Tensor
) -> None:
    """Let the residual streams of all windows, [n, position, d_model], pass block `index` with
    `module` in its FFN's place: what entered is overwritten by what leaves."""
    for rows in slices(len(windows)):
        with swap(get_block(subject, index), for_windows(module, rows)):
            _, _, leaving = block_pass(subject, index, windows.tokens[rows], streams[rows])
        streams[rows] = leaving


def for_windows(module: nn.Module, rows: slice) -> nn.Module:
    """A module as it stands on some of the windows: one that is told something about every window
    (lib.gating.gates.Routed) is cut to them by its `at`."""
    return module.at(rows) if hasattr(module, "at") else module


def slices(n: int, size: int = 16) -> list[slice]:
    """n windows in batches of `size`."""
    return [slice(start, start + size) for start in range(0, n, size)]


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
def resume(subject: Subject, start: int, hidden: torch.Tensor) -> Iterator[None]:
    """While open, a forward pass begins at block `start` with the residual stream `hidden` [batch,
    position, d_model]. The tokens given to the model must be those `hidden` was recorded on.

    The layers before it are replaced by modules that replay `hidden`, so no architecture's own
    forward is touched.
    """
    begins = get_block(subject, start).layer

    def first(_, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if args:
            return (hidden, *args[1:]), kwargs
        return args, kwargs | {"hidden_states": hidden}

    handle = None
    try:
        if start == 0:  # no layer stands before it, so its own input is replaced
            handle = begins.register_forward_pre_hook(first, with_kwargs=True)
        for block in subject.blocks[:start]:
            replayed = None if block.index else hidden
            stands_in = Replay(block.layer, replayed, subject.layers_return_tuples)
            subject.layers[block.index] = stands_in
        yield
    finally:
        for block in subject.blocks:
            subject.layers[block.index] = block.layer
        if handle:
            handle.remove()


def hidden_of(args: tuple, kwargs: dict) -> torch.Tensor:
    """The residual stream among the arguments of a decoder layer."""
    return args[0] if args else kwargs["hidden_states"]
