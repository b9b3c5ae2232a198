"""FFNs that leave out small entries: what saves the arithmetic of routing without any map.

TEAL (Liu et al. 2025, arXiv 2408.14690) zeroes small entries of what each matrix of the FFN reads.
CATS (Lee et al. 2024, arXiv 2404.08763) zeroes hidden units of a small gate activation; in an FFN
without a gate it is the unit's own activation. A threshold is a quantile of magnitudes on fit text,
by block and matrix.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from lib.errors import InputError
from lib.hooks import forward
from lib.keys import seal
from lib.lazy import LazyModule, lazily
from lib.models.blocks import Subject
from lib.store import cached
from lib.text.windows import Windows

EVERY = 32
"""magnitudes are read at every 32nd position, from the 16th on"""


class Parts(NamedTuple):
    """What an FFN is made of."""

    readers: list[nn.Module]
    """matrices that read x: one, or a gate and an up projection"""
    activation: nn.Module
    """its output is [..., d_ff]: of the hidden units, or of their gates"""
    writer: nn.Module
    """the matrix that reads the hidden units"""


def parts(ffn: nn.Module, d_model: int) -> Parts:
    """The matrices and the activation of an FFN, by their shapes. Raises InputError for an FFN of
    another make."""
    matrices = [m for m in ffn.modules() if isinstance(m, nn.Linear | Conv1D)]
    readers = [m for m in matrices if _shape(m)[0] == d_model]
    writers = [m for m in matrices if _shape(m)[1] == d_model and m not in readers]
    leaves = [m for m in ffn.modules() if not [*m.children()] and m not in matrices]
    activations = [m for m in leaves if not isinstance(m, nn.Dropout)]
    if len(activations) != 1 or len(writers) != 1 or len(readers) not in (1, 2):
        raise InputError(
            f"{type(ffn).__name__} has {len(readers)} matrices that read its input, "
            f"{len(activations)} activations and {len(writers)} matrices that write its output: "
            "small entries can be left out of an FFN of one or two, one and one."
        )
    return Parts(readers, activations[0], writers[0])


def _shape(matrix: nn.Module) -> tuple[int, int]:
    """(in, out) of a matrix."""
    shape = tuple(matrix.weight.shape)
    return shape if isinstance(matrix, Conv1D) else shape[::-1]


@cached("magnitudes", 2)
def magnitudes(subject: Subject, windows: Windows, levels: tuple[float, ...]) -> dict:
    """Quantiles at `levels` of the magnitudes in each block's FFN, {name: [blocks, levels]}:
    "input", "hidden" (what the writer reads) and "gate" (the activation's output)."""
    kept: dict = {name: [[] for _ in subject.blocks] for name in ("input", "hidden", "gate")}
    n_text = windows.tokens.shape[1] - subject.n_start
    # From the middle of the first stretch: the first positions are unlike the rest.
    first = subject.n_start + min(EVERY, n_text) // 2
    handles = []

    def watch(module: nn.Module, values: list[np.ndarray], of_output: bool) -> None:
        """Add to `values` the magnitudes of what a module gives, or else of what it reads."""

        def hook(_, args: tuple, out: torch.Tensor) -> None:
            value = out if of_output else args[0]
            some = value[:, first::EVERY]
            values.append(some.abs().float().cpu().numpy().ravel())

        handles.append(module.register_forward_hook(hook))

    try:
        for block in subject.blocks:
            ffn = parts(block.ffn, block.d_model)
            watch(ffn.readers[0], kept["input"][block.index], of_output=False)
            watch(ffn.writer, kept["hidden"][block.index], of_output=False)
            watch(ffn.activation, kept["gate"][block.index], of_output=True)
        forward(subject, windows, desc="magnitudes")
    finally:
        for handle in handles:
            handle.remove()
    quantiles = {}
    for name, by_block in kept.items():
        rows = [np.quantile(np.concatenate(values), levels) for values in by_block]
        quantiles[name] = np.stack(rows)
    return quantiles


class SparseFFN(nn.Module):
    """An FFN without its small entries: those below `cuts` ("input", "hidden", "gate") are zero.

    After a pass, `saved` [batch, position] is the share of the FFN's multiplications left out.
    """

    def __init__(
        self, ffn: nn.Module, d_model: int, cuts: dict[str, float], words: str | None = None
    ):
        super().__init__()
        self.ffn, self.cuts = ffn, cuts
        self.__dict__["parts"] = parts(ffn, d_model)  # not registered a second time
        self.saved: torch.Tensor = None
        seal(self, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, position, d_model]
        self.saved = torch.zeros(x.shape[:-1])
        with self._without_small():
            return self.ffn(x)

    @contextlib.contextmanager
    def _without_small(self) -> Iterator[None]:
        """While open, the FFN's matrices read zeros for small entries, and `saved` grows."""
        readers, activation, writer = self.parts
        # What one zero saves of all multiplications: a row of each matrix that it meets.
        total = sum(matrix.weight.numel() for matrix in (*readers, writer))
        saved_by_input = _shape(readers[0])[1] / total  # counted once for each reader
        saved_by_hidden = _shape(writer)[1] / total
        saved_by_gate = saved_by_hidden
        if len(readers) == 2:  # the up projection need not compute that unit either
            saved_by_gate += _shape(readers[-1])[0] / total

        def without(name: str, value: torch.Tensor, saved_by_zero: float) -> torch.Tensor:
            small = value.abs() < self.cuts[name]
            self.saved += saved_by_zero * small.sum(-1).cpu()
            return value.masked_fill(small, 0.0)

        def thin_input(value: torch.Tensor) -> torch.Tensor:
            return without("input", value, saved_by_input)

        def thin_hidden(value: torch.Tensor) -> torch.Tensor:
            return without("hidden", value, saved_by_hidden)

        def thin_gate(_, __, out: torch.Tensor) -> torch.Tensor:
            return without("gate", out, saved_by_gate)

        handles = []
        if "input" in self.cuts:
            for reader in readers:
                handles.append(reader.register_forward_pre_hook(_on_input(thin_input)))
        if "hidden" in self.cuts:
            handles.append(writer.register_forward_pre_hook(_on_input(thin_hidden)))
        if "gate" in self.cuts:
            handles.append(activation.register_forward_hook(thin_gate))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _on_input(change: Callable) -> Callable:
    """A forward pre-hook that changes what a module reads."""

    def hook(_, args: tuple) -> tuple:
        return (change(args[0]), *args[1:])

    return hook


def teal(subject: Subject, windows: Windows, share: float) -> dict[int, LazyModule]:
    """{block: FFN} that leaves out about `share` of the multiplications: the smallest entries of
    what each matrix reads, the same share for every matrix (TEAL's uniform sparsity)."""
    return _thinned(subject, windows, share, {"input": share, "hidden": share}, "teal")


def cats(subject: Subject, windows: Windows, share: float) -> dict[int, LazyModule]:
    """{block: FFN} that leaves out about `share` of the multiplications: hidden units of the
    smallest gate activations. At most two thirds can be saved in an FFN with a gate (the gate is
    computed), half in one without."""
    n_readers = len(parts(subject.blocks[0].ffn, subject.d_model).readers)
    most = n_readers / (n_readers + 1)
    if share > most:
        computed = "gate" if n_readers == 2 else "first matrix"
        raise InputError(
            f"CATS cannot save a share of {share} here, for the {computed} is always computed: "
            f"give at most {most:.2f}."
        )
    return _thinned(subject, windows, share, {"gate": share / most}, "cats")


def _thinned(
    subject: Subject, windows: Windows, share: float, level_of: dict[str, float], how: str
) -> dict[int, LazyModule]:
    if not 0 <= share <= 1:
        raise InputError(f"a share of {share} is not possible: give one from 0 to 1.")
    levels = tuple(level_of.values())

    def cuts() -> dict[int, dict[str, float]]:
        of_all = magnitudes(subject, windows, levels)
        return {
            b: {
                name: float(of_all[name][b, k]) if level > 0 else 0.0
                for k, (name, level) in enumerate(level_of.items())
            }
            for b in range(len(subject))
        }

    def thinned(of_block: dict[str, float], b: int) -> SparseFFN:
        return SparseFFN(subject.blocks[b].original, subject.d_model, of_block)

    said = subject.provenance and f"{how}, share {share!r} by {windows.provenance}"
    words = dict.fromkeys(range(len(subject)), said)
    return lazily(words, cuts, thinned, model=subject, text=windows)
