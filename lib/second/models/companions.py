"""Models to lay beside a subject: three of one size, the first two of one activation."""

from lib.second.base.names import RANDOM, TINY

PAPER = ("gpt2", "pythia-160m", "llama-160m")
"""the paper's subjects (Whipp §4): twelve blocks of width 768; GELU, GELU, SwiGLU"""


def companions(model: str) -> tuple[str, ...]:
    """Names of the three models to compare with each other: the paper's if `model` is one of them,
    else the small ones of this repository; with random weights if `model` has them."""
    null = model.endswith(RANDOM)
    three = PAPER if model.removesuffix(RANDOM) in PAPER else TINY
    return tuple(f"{name}{RANDOM}" for name in three) if null else three
