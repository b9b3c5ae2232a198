"""What a report trains models on and reads them on: texts cut by one tokenizer, half of the test
documents to choose a rate on (even), half to report on (odd)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import InputError
from lib.text.ngram import KneserNey
from lib.text.windows import Windows


@dataclass(frozen=True, eq=False, kw_only=True)
class Study:
    """Texts and batches that its trainings share. What is trained, and for how long, is a matter of
    decoder_study and mixer_study; another length or rate is dataclasses.replace(study, …)."""

    fit: Windows
    tests: dict[str, Windows]
    """by text: rates are chosen on the even documents, reports are on the odd ones"""
    tokenizer: Any
    batch: int = 16
    """windows a step"""
    bfloat16: bool = False
    """matrix products of trainings in bfloat16: for models that fill a GPU alone"""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        raise NotImplementedError

    def by_text(self, *trained, **how) -> pd.DataFrame:
        """Test losses of what is trained, a row a seed and a column a text, nats a token."""
        raise NotImplementedError

    def losses(self, *trained, **how) -> np.ndarray:
        """`by_text` in the mean over the texts, [seeds], nats a token."""
        return self.by_text(*trained, **how).mean(axis=1).to_numpy()

    def counted(self, order: int) -> pd.Series:
        """Loss by text of an n-gram (Kneser-Ney) counted on the fit text, odd documents, nats a
        token."""
        ngram = KneserNey(self.fit.tokens.numpy(), self.vocabulary, order)
        return pd.Series(
            {
                name: float(ngram.losses(odd_windows(w).tokens.numpy()).mean())
                for name, w in self.tests.items()
            }
        )

    def bits_per_byte(self, nats: Mapping[str, float]) -> pd.Series:
        """Bits per byte of each text on the odd documents, from losses in nats a token: bytes are
        those that the predicted tokens spell."""
        found = {}
        for name, loss in nats.items():
            predicted = odd_windows(self.tests[name]).tokens[:, 1:].numpy()
            n_bytes = self.bytes_spelled(predicted).sum()
            found[name] = loss * predicted.size / n_bytes / np.log(2)
        return pd.Series(found)

    def bytes_spelled(self, tokens: np.ndarray) -> np.ndarray:
        """How many bytes of text each token spells: a byte is one sign of a byte-level BPE."""
        names = self.tokenizer.convert_ids_to_tokens(range(self.vocabulary))
        return np.array([len(name) for name in names])[tokens]


def odd_windows(windows: Windows, most: int | None = None) -> Windows:
    """The windows of the odd documents, on which reports are; up to `most` of them, evenly."""
    odd = windows[windows.document % 2 == 1]
    if most is None:
        return odd
    return odd[:: max(1, len(odd) // most)][:most]


def check_halves(tests: dict[str, Windows]) -> None:
    """Raise InputError for a test text without an even or without an odd document."""
    for name, windows in tests.items():
        if len({*windows.document % 2}) < 2:
            raise InputError(
                f"{name} has no even or no odd test document, to choose rates on and to report "
                "on: give a longer text."
            )


def losses_by_half(losses: np.ndarray, windows: Windows, text: str, step: int) -> list[dict]:
    """Rows of the mean of losses [n, predictions] over the even and the odd documents: text, half,
    step, loss."""
    odd = windows.document % 2 == 1
    halves = {"even": losses[~odd], "odd": losses[odd]}
    return [
        {"text": text, "half": half, "step": step, "loss": float(part.mean())}
        for half, part in halves.items()
        if len(part)
    ]


def of_half(table: pd.DataFrame, half: str, step: int | None = None) -> pd.Series:
    """Test loss by text over the odd documents or the even ones, from a training's table (text,
    half, step, loss); of its last step unless another is named."""
    there = table[table.half == half]
    step = there.step.max() if step is None else step
    return there[there.step == step].set_index("text").loss
