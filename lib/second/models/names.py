"""The models that can be named: embedded ones, the papers' subjects, folders, the hub's."""

import os
import re

from lib.second.base.errors import InputError, unknown
from lib.second.base.names import RANDOM, TINY

EMBEDDED = ("smollm2-135m", *TINY)
# Short names of the papers' subjects on the Hugging Face hub.
PRESETS = {
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

# What the hub allows: no mark at the ends of a part, nor two hyphens or dots in a row.
_PART = r"(?!.*(?:--|\.\.))[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_HUB_NAME = re.compile(rf"{_PART}/{_PART}", re.ASCII)


def check_subject(name: str) -> None:
    """Raise InputError for a name that cannot be a model: neither embedded, nor a preset, a
    folder or `owner/name`; ":random" may follow."""
    if not isinstance(name, str):
        raise InputError(f"model {name!r} is no text: give a name or the path of a folder.")
    shown, name = _short(name), name.removesuffix(RANDOM)
    if not name.strip():
        raise InputError(
            f"model {shown} is blank: name one of {', '.join(EMBEDDED)}, or give the path of a "
            "folder."
        )
    if name in EMBEDDED or name in PRESETS or os.path.isdir(name):
        return
    if os.path.exists(name):
        raise InputError(
            f"model {shown} is a file: give the folder that save_pretrained has written it into."
        )
    if name.startswith((".", "/", "~")):
        raise InputError(
            f"model {shown} is no folder: give the path of a folder written by "
            "save_pretrained, or a name."
        )
    if name.count("/") != 1 or len(name) > 200:
        raise unknown(
            "model", name, [*EMBEDDED, *PRESETS, "a folder", "owner/name on the Hugging Face hub"]
        )
    if not _HUB_NAME.fullmatch(name):
        raise InputError(
            f"model {shown} is no folder, and no name that the Hugging Face hub allows: give "
            "owner/name in letters, digits, and single hyphens, dots or underscores."
        )


def _short(name: str) -> str:
    return repr(name if len(name) <= 100 else f"{name[:80]}…")
