"""The FFN inputs that gates learn from, captured when they are asked for."""

from collections.abc import Sequence

import numpy as np

from lib.second.models.hooks import capture, get_block
from lib.second.models.subjects import Subject
from lib.second.texts.windows import Windows


class Inputs:
    """The FFN inputs x of `blocks` on `windows`: as many blocks in one pass, from the one that is
    asked for, as `limit` bytes hold.

    Nothing runs for blocks that nobody asks for, so a cached result costs no pass. Raises
    InputError for a block that does not exist.
    """

    def __init__(
        self, subject: Subject, windows: Windows, blocks: Sequence[int], limit: float = 4e9
    ):
        subject.check(windows)
        for index in blocks:
            get_block(subject, index)
        self.subject, self.windows, self.blocks = subject, windows, list(blocks)
        self.limit = limit
        self._held: dict[int, np.ndarray] = {}

    def key(self, block: int) -> dict:
        """What a cached result of these inputs depends on."""
        device = self.subject.device.type
        key = {"subject": self.subject.key, "windows": self.windows.key}
        return key | {"block": block, "device": device}

    def __call__(self, block: int) -> np.ndarray:
        """x of the positions that have a loss, float32 [n, seq_len-1, d_model]."""
        if block not in self._held:
            rest = self.blocks[self.blocks.index(block) :] if block in self.blocks else [block]
            # x and y are captured together, float32.
            size = self.windows.n_tokens * self.subject.d_model * 2 * 4
            self._held = {}
            rows = capture(self.subject, self.windows, rest[: max(1, int(self.limit / size))])
            self._held = {i: x[:, :-1].numpy() for i, (x, _) in rows.items()}
        return self._held[block]
