"""Small decoders trained on the spot, and how their recoverability develops along training
(Whipp §5.2)."""

from lib.training.development import develop, untrained
from lib.training.loop import FAMILIES, TrainingRun, build, make_fixture, train, train_tokenizer

__all__ = [
    "FAMILIES",
    "TrainingRun",
    "build",
    "develop",
    "make_fixture",
    "train",
    "train_tokenizer",
    "untrained",
]
