"""Rows of an FFN's (x, y) for fits that need them one by one, split by document."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lib.second.linear.affine import AffineMap, Score
from lib.second.linear.moments import Moments
from lib.second.models.hooks import capture, get_block
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of one FFN: training rows, and the held-out ones window by window."""

    x: torch.Tensor
    """[n, d_in]"""
    y: torch.Tensor
    """[n, d_out]"""
    x_test: torch.Tensor
    """[n_windows, seq_len, d_in]"""
    y_test: torch.Tensor
    """[n_windows, seq_len, d_out]"""
    document: np.ndarray
    """[n_windows]: the document of each held-out window"""

    def closed_form(self) -> tuple[AffineMap, Score]:
        """The least-squares map of the training rows and its held-out score (Whipp §3.2)."""
        affine = Moments.of(self.x, self.y).fit()
        held_out = Moments.of(self.x_test.flatten(0, 1), self.y_test.flatten(0, 1))
        return affine, held_out.score(affine)

    def deviation(self) -> torch.Tensor:
        """Σ‖y-ȳ‖² of each held-out window about the mean of all, [n_windows], float64: the
        denominator of R²."""
        y = self.y_test.double()
        return (y - y.mean((0, 1))).square().sum((1, 2))


class BlockRows:
    """Captures the rows of `blocks` when one is asked for: as many blocks in one pass, from that
    one on, as `limit` bytes hold.

    Nothing runs for blocks that nobody asks for, so a cached result costs no pass. Held out are the
    documents of the last of `n_folds` folds, as in recoverability. Raises InputError for a block
    that does not exist.
    """

    def __init__(
        self,
        subject: Subject,
        windows: Windows,
        blocks: Sequence[int],
        n_folds: int = 5,
        limit: float = 6e9,
    ):
        subject.check(windows)
        self.held_out = windows.held_out(n_folds)
        for index in blocks:
            get_block(subject, index)
        self.subject = subject
        self.windows = windows
        self.blocks = list(blocks)
        self.limit = limit
        self._held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._held_of = subject.key

    def key(self, block: int) -> dict:
        """What a cached result of these rows depends on."""
        return {
            "subject": self.subject.key,
            "windows": self.windows.key,
            "held_out": self.held_out.numpy(),
            "block": block,
            "device": self.subject.device.type,
        }

    def __call__(self, block: int) -> Split:
        # The model may have changed since the rows were captured.
        if block not in self._held or self._held_of != self.subject.key:
            rest = self.blocks[self.blocks.index(block) :] if block in self.blocks else [block]
            size = self.windows.n_tokens * self.subject.d_model * 2 * 4  # x and y, float32
            # First let go of what is held, or two groups are in memory.
            self._held = {}
            self._held = capture(self.subject, self.windows, rest[: max(1, int(self.limit / size))])
            self._held_of = self.subject.key
        x, y = (side.to(self.subject.device) for side in self._held[block])
        test = self.held_out.to(x.device)
        document = self.windows.document[self.held_out].numpy()
        train = (side[~test].flatten(0, 1) for side in (x, y))
        return Split(*train, x[test], y[test], document)
