"""The embedded language model, converted once from its package's GGUF."""

from pathlib import Path

from filelock import FileLock

from lib.base.paths import CACHE, sha256, whole
from lib.texts.assets import fetch

ORIGIN = {
    "smollm2-135m": "SmolLM2-135M-Instruct, 4-bit GGUF (Q4_1) dequantised to float32",
}
"""what the weights of an embedded model are, where its name does not say it"""


def smollm2_folder() -> Path:
    """Folder of smollm2-135m as float32 safetensors, dequantized from its GGUF once.

    Loading then takes a second. The folder's digest is checked, so a damaged conversion is made
    again.
    """
    folder = CACHE / "models" / "smollm2-135m"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        stamp, weights = folder / "SHA256", folder / "model.safetensors"
        if stamp.exists() and weights.exists() and stamp.read_text() == sha256(weights):
            return folder
        gguf = fetch("smollm2-135m.gguf")
        with whole(folder) as part:
            _dequantize(gguf, part)
            (part / "SHA256").write_text(sha256(part / "model.safetensors"))
    return folder


def _dequantize(gguf: Path, folder: Path) -> None:
    """Convert a GGUF file to a folder of float32 safetensors with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print("converting smollm2-135m to float32 safetensors (once, about 20 s)")
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    quantized = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = quantized.config
    # A model that came from GGUF refuses save_pretrained while its config carries the quantization
    # entry.
    del config.quantization_config
    config._name_or_path = "smollm2-135m"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantized.state_dict())
    model.save_pretrained(folder, max_shard_size="50GB")
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
