"""What a reader may name: profiles and models. Checked without loading torch, so that a command
says in its first second what is wrong.
"""

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from lib.errors import InputError, unknown
from lib.models.assets import EMBEDDED
from lib.store import DATA

# What several notebooks share; what one alone uses stands below its parameters, as run.pick(...).
PROFILES: dict[str, dict[str, Any]] = {
    "smoke": dict(
        model="tiny-gpt2", corpus="wikipedia-sample",
        seq_len=64, map_tokens=4_096, gate_tokens=2_048, test_documents=11, test_windows=2,
        most_documents=12,
    ),
    "laptop": dict(
        model="smollm2-135m", corpus="wikipedia",
        seq_len=128, map_tokens=6_144, gate_tokens=6_144, test_documents=6, test_windows=1,
    ),
    "study": dict(
        model="smollm2-135m", corpus="wikipedia",
        seq_len=256, map_tokens=122_880, gate_tokens=61_440, test_documents=53, test_windows=2,
    ),
    "paper": dict(
        model="gpt2", corpus="wikitext-2",
        seq_len=256, map_tokens=30_720, gate_tokens=30_720, test_documents=60, test_windows=2,
    ),
}  # fmt: skip
COMMITTED = ("smollm2-135m", "gemma-3-270m")
"""models whose runs are committed: the first one's pages, the others' tables beside them"""
MODEL_NOTES = {
    "smollm2-135m": "smollm2-135m (SmolLM2-135M-Instruct, read from a 4-bit file)",
    "gemma-3-270m": "gemma-3-270m (base model, read from a 4-bit file; every window begins with "
    "its start token, which is neither fitted nor scored)",
}
TINY = DATA / "models"
RANDOM = ":random"
PRESETS = {
    "smollm2-135m-hub": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "pythia-160m": "EleutherAI/pythia-160m",
    "pythia-410m": "EleutherAI/pythia-410m",
    "pythia-1b": "EleutherAI/pythia-1b",
    "pythia-2.8b": "EleutherAI/pythia-2.8b",
    "llama-160m": "JackFram/llama-160m",
    "tinyllama-1.1b": "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T",
}


def tiny_models() -> list[str]:
    """Names of the models that this repository trained, in data/models."""
    return sorted(p.name for p in TINY.iterdir() if (p / "config.json").is_file())


def models_known() -> list[str]:
    """Names that need no hub, and the presets."""
    return [*EMBEDDED, *tiny_models(), *PRESETS]


def model_folder(name: str) -> Path | None:
    """The reader's own folder that a model's name stands for; None for a known name, and for one of
    the hub. A known name is that model, whatever folders are here; ./name is the folder."""
    plain = str(name).removesuffix(RANDOM)
    if plain in models_known() or not os.path.isdir(plain):
        return None
    return Path(plain)


def check_model(name: str) -> None:
    """Raise InputError for a name that can be no model; loads nothing."""
    plain = str(name).removesuffix(RANDOM)
    if plain in models_known() or model_folder(plain):
        return
    if plain.endswith(".gguf") or os.path.isfile(plain):
        raise InputError(
            f"model {name!r} is a file: give the folder of a model saved with save_pretrained "
            "(a GGUF file is read by transformers' gguf_file= and saved from there)."
        )
    if plain.count("/") != 1 or plain.startswith((".", "/", "~")):
        raise unknown("model", name, [*models_known(), "a folder", "owner/name on the hub"])


def label(name: str) -> str:
    """A model's, corpus's or folder's name as part of a path: unlike for names that stand for
    different things, and without signs that a shell, a browser or Snakemake reads."""
    plain = name.removesuffix(RANDOM)
    path = Path(plain)
    shown = path.resolve().name if path.is_dir() else path.name.removesuffix(".txt")
    if plain in models_known():
        shown = plain
    elif path.exists():  # two files of one name are two texts
        shown += "-" + hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:6]
    elif "/" in plain:  # two owners' models of one name
        shown = plain.replace("/", "--")
    random = "~random" if name.endswith(RANDOM) else ""
    return re.sub(r"[^\w.~-]", "_", shown + random)
