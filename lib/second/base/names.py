"""Names of runs and of their folders."""

import hashlib
import os
import re
from pathlib import Path

from lib.second.base.profiles import Profile

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
        + (f"+seed={seed}" if seed != 42 else "")
    )


def slugify(name: str) -> str:
    """A name that can stand in a path, and no other name's: `owner/name` becomes `owner--name`
    (the hub allows no two hyphens in a row); a name that must change further, and a folder or
    file, for two of them may share a name, gets a tilde and a digest."""
    if name.endswith(RANDOM):  # no other name's slug has a tilde before this word
        return f"{slugify(name.removesuffix(RANDOM))}~random"
    if os.path.exists(name) and name not in TINY:
        place = str(Path(name).resolve())
        return f"{_plain(Path(place).name)}~{_digest(place)}"
    plain = _plain(name.replace("/", "--"))
    whole = plain.replace("--", "/") == name or (plain == name and "--" not in name)
    return plain if whole else f"{plain}~{_digest(name)}"


def _plain(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.")[:80] or "unnamed"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
