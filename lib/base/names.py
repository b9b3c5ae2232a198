"""Names of runs and of their folders."""

import hashlib
import re
from pathlib import Path

from lib.base.profiles import Profile

TINY = ("tiny-gpt2", "tiny-neox", "tiny-llama")
"""the committed fixture models, by name"""
RANDOM = ":random"
"""after the name of a model: its architecture with random weights, the null subject of a verdict"""


def label(profile: Profile, model: str, corpus: str, seed: int) -> str:
    """Folder name of a run: the model, and the corpus and seed where they are not the usual
    ones, so that no run overwrites another."""
    return (
        slugify(model)
        + (f"@{slugify(corpus)}" if corpus != profile.corpus else "")
        + (f"-seed{seed}" if seed != 42 else "")
    )


def slugify(name: str) -> str:
    """A name that can stand in a path; a folder or file gets a digest of its place, for two of
    them may share a name."""
    if name.endswith(RANDOM):  # no other name's slug has a tilde before this word
        return f"{slugify(name.removesuffix(RANDOM))}~random"
    path = Path(name)
    if path.exists() and name not in TINY:
        name = (
            f"{path.resolve().name}-{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:6]}"
        )
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "unnamed"
