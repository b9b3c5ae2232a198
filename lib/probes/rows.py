"""Rows of an FFN's (x, y) for fits that need them one by one, split as recoverability splits its
moments."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lib.base.cache import digest
from lib.base.errors import InputError
from lib.linear.affine import AffineMap, Score
from lib.linear.moments import Moments
from lib.models.hooks import capture, get_block
from lib.models.subjects import Subject


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of one FFN: training rows, and the held-out tail window by window."""

    x: torch.Tensor
    """[n, d_in]"""
    y: torch.Tensor
    """[n, d_out]"""
    x_test: torch.Tensor
    """[n_windows, seq_len, d_in]"""
    y_test: torch.Tensor
    """[n_windows, seq_len, d_out]"""

    def closed_form(self) -> tuple[AffineMap, Score]:
        """The least-squares map of the training rows and its held-out score (Whipp §3.2)."""
        affine = Moments.of(self.x, self.y).fit()
        return affine, Moments.of(self.x_test.flatten(0, 1), self.y_test.flatten(0, 1)).score(
            affine
        )

    def deviation(self) -> torch.Tensor:
        """Σ‖y-ȳ‖² of each held-out window about the mean of all, [n_windows], float64: the
        denominator of R²."""
        y = self.y_test.double()
        return (y - y.mean((0, 1))).square().sum((1, 2))


class BlockRows:
    """Captures the rows of `blocks` when one is asked for: as many blocks in one pass, from that
    one on, as `limit` bytes hold.

    Nothing runs for blocks that nobody asks for, so a cached result costs no pass. The held-out
    tail is the last of `n_folds`
    contiguous folds of `windows` [n, seq_len], as in recoverability. Raises InputError for a block
    that does not exist.
    """

    def __init__(
        self,
        subject: Subject,
        windows: torch.Tensor,
        blocks: Sequence[int],
        n_folds: int = 5,
        limit: float = 6e9,
    ):
        subject.check(windows)
        if not isinstance(n_folds, int) or not 2 <= n_folds <= len(windows):
            raise InputError(
                f"{len(windows)} windows cannot be cut into {n_folds} folds: use at least 2 "
                "folds and no more than windows."
            )
        for index in blocks:
            get_block(subject, index)
        self.subject, self.windows, self.blocks, self.limit = subject, windows, list(blocks), limit
        self.n_held_out = len(windows.tensor_split(n_folds)[-1])
        self._held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._held_of = subject.key

    def key(self, block: int) -> dict:
        """What a cached result of these rows depends on."""
        return {
            "subject": self.subject.key,
            "windows": digest(self.windows),
            "held_out": self.n_held_out,
            "block": block,
            "device": self.subject.device.type,
        }

    def __call__(self, block: int) -> Split:
        if (
            block not in self._held or self._held_of != self.subject.key
        ):  # the model may have changed in between
            rest = self.blocks[self.blocks.index(block) :] if block in self.blocks else [block]
            at_once = max(
                1, int(self.limit / (self.windows.numel() * self.subject.d_model * 2 * 4))
            )
            self._held, self._held_of = (
                {},
                self.subject.key,
            )  # first let go of what is held, or two groups are in memory
            self._held = capture(self.subject, self.windows, rest[:at_once])
        x, y = (
            rows.view(*self.windows.shape, -1).to(self.subject.device) for rows in self._held[block]
        )
        cut = len(x) - self.n_held_out
        return Split(x[:cut].flatten(0, 1), y[:cut].flatten(0, 1), x[cut:], y[cut:])
