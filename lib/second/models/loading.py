"""Load a language model by name or path: safetensors only, and never code that came with it."""

import contextlib
import hashlib
import os
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from lib.second.base.errors import InputError, reason
from lib.second.base.kept import committed
from lib.second.base.names import RANDOM, TINY
from lib.second.base.paths import DATA, sha256
from lib.second.models.checks import check_config, check_loaded
from lib.second.models.download import downloaded
from lib.second.models.embedded import smollm2_folder
from lib.second.models.keys import _config_key, _tensors_key
from lib.second.models.names import EMBEDDED, PRESETS, check_subject
from lib.second.models.null import draw
from lib.second.models.subjects import Subject, as_subject

CLOSED = {"trust_remote_code": False, "local_files_only": True}
"""what every from_pretrained is told: all files are here by now, and no code among them is run"""
INSTEAD = f"or use one of {', '.join(EMBEDDED)}, which need no hub"


def load_subject(
    name: str,
    device: str | None = None,
    dtype: torch.dtype = torch.float32,
    device_map=None,
    seed: int = 42,
) -> Subject:
    """Load a model: an embedded name, a preset, a local folder, or `owner/name` on the hub
    (safetensors, no remote code).

    With ":random" after the name it has random weights, drawn with `seed`: the null subject.
    `device` defaults to a GPU where there is one. `device_map="auto"` spreads a model over several
    (accelerate). Raises InputError for an unknown name, an unreachable hub, or an architecture that
    is not recognised.
    """
    check_subject(name)
    source, null = name.removesuffix(RANDOM), name.endswith(RANDOM)
    if null and device_map is not None:
        raise InputError(f"model {name!r} cannot be spread with device_map: give one device.")
    where, commit = _locate(source, weights=not null)
    try:
        with _quiet():
            config = AutoConfig.from_pretrained(where, **CLOSED)
            check_config(config, name)
            if null:
                model, loading = draw(config, seed).to(dtype), {}
            else:
                model, loading = AutoModelForCausalLM.from_pretrained(
                    where,
                    dtype=dtype,
                    device_map=device_map,
                    use_safetensors=True,
                    # Told below, by name, in place of a report on the terminal.
                    ignore_mismatched_sizes=True,
                    output_loading_info=True,
                    **CLOSED,
                )
            check_loaded(loading, name)
            tokenizer = AutoTokenizer.from_pretrained(where, **CLOSED)
    except (InputError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # what configurations and weights may lead to, anywhere
        raise InputError(
            f"model {name!r} could not be loaded ({_why(error)}): save it again with "
            f"save_pretrained (safetensors), {INSTEAD}."
        ) from None
    if len(tokenizer) < 2:
        raise InputError(
            f"model {name!r} has no tokenizer beside its weights: save one into the same folder."
        )
    if device_map is None:
        model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    label = Path(source).name if os.path.isdir(source) else source
    if null:
        return as_subject(model, tokenizer, label + RANDOM)
    weights = commit or _weights_key(where, model)
    return as_subject(model, tokenizer, label, key=f"{weights}-{dtype}-{_config_key(model)}")


def _locate(name: str, weights: bool) -> tuple[str, str | None]:
    """The folder of a model; and of one from the hub its name there with the commit."""
    if name == "smollm2-135m":
        return str(smollm2_folder()), None
    if name in TINY:
        return str(committed(DATA / "models" / name)), None
    if os.path.isdir(name):
        return name, None
    name = PRESETS.get(name, name)
    folder, commit = downloaded(name, INSTEAD, weights)
    return str(folder), f"{name}@{commit}"


def _why(error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return "it is known by code of its own alone, and code that comes with a model is never run"
    return reason(error)


def _weights_key(where: str, model: PreTrainedModel) -> str:
    """Digest of the weights: of their files, or of the tensors."""
    files = sorted(Path(where).glob("*.safetensors"))
    if files:
        return hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()[:16]
    return _tensors_key(model)


@contextlib.contextmanager
def _quiet():
    """Loading without transformers' bars and advice, which would stand in every report."""
    level, bars = (
        transformers.logging.get_verbosity(),
        transformers.utils.logging.is_progress_bar_enabled(),
    )
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()
