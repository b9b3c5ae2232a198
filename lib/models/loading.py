"""Load a language model: from the hub, a folder, or a file that the project has."""

import contextlib
import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)

from lib.errors import InputError
from lib.keys import fingerprint, own
from lib.models.assets import EMBEDDED, embedded_folder
from lib.models.blocks import (
    Subject,
)
from lib.models.names import PRESETS, RANDOM, TINY, check_model, label, model_folder, tiny_models
from lib.models.parts import (
    as_subject,
)


def load_subject(
    name: str, device: str | None = None, dtype: torch.dtype = torch.float32, seed: int = 42
) -> Subject:
    """Load a model: an embedded name, a preset, a local folder, or owner/name on the hub
    (safetensors only, no remote code).

    ":random" after the name draws its weights anew with `seed`: the same architecture, untrained.
    Raises InputError for an unknown name, an unreachable hub, or an architecture that is not
    recognised.
    """
    name = str(name)
    check_model(name)
    plain, untrained = name.removesuffix(RANDOM), name.endswith(RANDOM)
    missing: list[str] = []
    left_over: list[str] = []
    try:
        folder = _folder(plain)
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            if untrained:
                model = _draw(folder, seed).to(dtype)
            else:
                model, loading = AutoModelForCausalLM.from_pretrained(
                    folder,
                    config=_config(folder),
                    dtype=dtype,
                    use_safetensors=True,
                    trust_remote_code=False,
                    output_loading_info=True,
                )
                missing, left_over = _misfit(loading)
        model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except InputError:
        raise
    except Exception as error:  # what configurations, weights and devices may lead to, anywhere
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise InputError(
            f"model {name!r} could not be loaded ({why}): save it again with save_pretrained "
            "(safetensors), or use smollm2-135m."
        ) from None
    if missing:
        raise InputError(
            f"model {name!r}: {len(missing)} weights of its configuration are not in its files "
            f"({missing[0]}), and random ones would stand in their place: save model and "
            "configuration together with save_pretrained."
        )
    if left_over:
        print(
            f"{label(plain)}: {len(left_over)} weights of its files are no part of the language "
            f"model and are left out ({left_over[0]})"
        )
    subject = as_subject(model, tokenizer, label(plain) + (RANDOM if untrained else ""))
    loaded = fingerprint(model, whole=True)
    precision = "" if dtype == torch.float32 else f" in {dtype}".replace("torch.", "")
    loaded_as = f"{_which(plain, folder, loaded)}{precision}"
    if untrained:
        loaded_as += f", weights drawn with seed {seed}"
    for block in subject.blocks:
        own(block.original, f"FFN of block {block.index} of {loaded_as}")
    return replace(subject, loaded_as=loaded_as, loaded=loaded)


def _config(folder: Path) -> PreTrainedConfig:
    """The configuration of a folder; a quantization by nothing ({}) is none."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if not getattr(config, "quantization_config", True):
        del config.quantization_config
    return config


def _draw(folder: Path, seed: int) -> PreTrainedModel:
    """A model of a folder's configuration with random weights."""
    config = _config(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )


def _misfit(loading: dict) -> tuple[list[str], list[str]]:
    """Weights that are missing or of another shape, in words, and those that are left over;
    transformers leaves out those that are tied."""
    kinds = {"missing_keys": "missing", "mismatched_keys": "of another shape"}
    missing = [
        f"{words}: {key if isinstance(key, str) else key[0]}"
        for kind, words in kinds.items()
        for key in sorted(loading[kind], key=str)
    ]
    return missing, sorted(loading["unexpected_keys"])


def _which(name: str, folder: Path, loaded: str | None) -> str:
    """Which model it is, the same on every machine: what comes out of a pinned package is known by
    its name, one of the hub by its commit, any other folder by what is in it."""
    if name in EMBEDDED:
        return name
    if name in tiny_models() or model_folder(name):
        return f"{folder.resolve().name} {loaded}"
    return f"{PRESETS.get(name, name)} at {folder.name}"  # …/snapshots/commit


def _folder(name: str) -> Path:
    """Where a model's files lie, fetched where they are not here."""
    if name in EMBEDDED:
        return embedded_folder(name)
    if name in tiny_models():
        return TINY / name
    if folder := model_folder(name):
        return _checked(folder)
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.txt", "*.model", "*.safetensors"]
    try:
        fetched = Path(snapshot_download(PRESETS.get(name, name), allow_patterns=wanted))
    except Exception as error:  # the hub's client raises a dozen kinds
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(
            f"model {name!r} could not be had from the Hugging Face hub ({why}): check name and "
            "network, or use smollm2-135m or a local folder, which need no hub."
        ) from None
    return _checked(fetched)


def _checked(folder: Path) -> Path:
    """A folder that holds a language model as it is saved by save_pretrained. Raises InputError for
    what transformers would load as something else, or refuse with another reason."""
    adapter = (folder / "adapter_config.json").is_file()
    if not (folder / "config.json").is_file():
        holds = "an adapter without its base model" if adapter else "no config.json"
        raise InputError(
            f"folder {folder} has {holds}, so it is no model: give one that was saved with "
            "save_pretrained (an adapter after merge_and_unload)."
        )
    if adapter and importlib.util.find_spec("peft") is None:
        raise InputError(
            f"folder {folder} has an adapter beside its base model, which would be left out: "
            "install peft, or save the model merged (merge_and_unload, save_pretrained)."
        )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config.get("quantization_config"):
        raise InputError(
            f"the model in {folder} is quantized, and its FFNs cannot be measured so: give it in "
            "float32, dequantized and saved anew."
        )
    if config.get("vision_config") or config.get("audio_config"):
        raise InputError(
            f"the model in {folder} reads more than text: give its language model alone, saved "
            "with save_pretrained."
        )
    return folder


@contextlib.contextmanager
def _quiet():
    """Loading without transformers' bars and advice, which would stand in every report."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        transformers.utils.logging.enable_progress_bar()
