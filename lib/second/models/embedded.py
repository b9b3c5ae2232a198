"""The embedded language model, converted once from its package's GGUF."""

import hashlib
from pathlib import Path

from lib.second.base.code import code_digest
from lib.second.base.kept import kept, seal, unlike
from lib.second.base.paths import CACHE
from lib.second.texts.assets import ASSETS, fetch

GGUF = "smollm2-135m.gguf"
ORIGIN = {
    "smollm2-135m": "SmolLM2-135M-Instruct, 4-bit GGUF (Q4_1) dequantised to float32",
}
"""what the weights of an embedded model are, where its name does not say it"""


def smollm2_folder() -> Path:
    """Folder of smollm2-135m as float32 safetensors, dequantized from its GGUF once.

    Loading then takes a second. It is sealed: where a file is not as it was made it is made again.
    What another version of the code or of its libraries made stands beside it, for another checkout
    may be using that. Raises InputError where it cannot be fetched or written.
    """
    made_of = {"asset": ASSETS[GGUF].sha256, "code": code_digest(_dequantize)}
    version = hashlib.sha256("".join(made_of.values()).encode()).hexdigest()[:8]

    def make(part: Path) -> None:
        _dequantize(fetch(GGUF), part)
        seal(part, made_of)

    folder = CACHE / "models" / version / "smollm2-135m"
    return kept(folder, lambda made: unlike(made, made_of) is None, make)


def _dequantize(gguf: Path, folder: Path) -> None:
    """Convert a GGUF file to a folder of float32 safetensors with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print("converting smollm2-135m to float32 safetensors (once, about 20 s)")
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    source["trust_remote_code"] = False
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
