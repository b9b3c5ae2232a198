"""A model's files from the Hugging Face hub, each held against the digest that the hub gives."""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.utils import tqdm

from lib.second.base import hub
from lib.second.base.errors import InputError
from lib.second.base.paths import sha256

_WEIGHTS, _SHARD = "model.safetensors", re.compile(r"model-\d+-of-\d+\.safetensors")
_BESIDE = (".json", ".txt", ".model", ".jinja", ".tiktoken")
"""how the names of configuration and tokenizer files end"""
_REFUSED = (401, 403, 404)


def downloaded(name: str, instead: str, weights: bool = True) -> tuple[Path, str]:
    """Folder of the files of `owner/name`, as the hub has them, and their commit; without `weights`
    the configuration and tokenizer alone.

    Where the hub cannot be reached, what it gave before is taken. Raises InputError, which names
    `instead` as a way out, when a file cannot be had or comes otherwise than the hub says, twice.
    """
    try:
        digests, commit = _files(name)
        for file in _wanted(name, set(digests), weights, instead):
            path = _fetch(name, file, commit, digests[file], instead)
    except Exception as error:
        raise hub.refusal(f"model {name!r}", error, instead) from None
    return path.parent, commit


def _files(name: str) -> tuple[dict[str, str | None], str]:
    """Digest of each file (SHA-256 or git's SHA-1), and the commit: by the hub, or by what was
    stored of it."""
    try:
        info = hub.asked("model", name)
    except Exception as error:
        config = try_to_load_from_cache(name, "config.json")
        if hub.status(error) in _REFUSED or not isinstance(config, str):
            raise
        # A stored file is a link to one that is named by its digest.
        stored = {f.name: f for f in Path(config).parent.iterdir() if not f.is_dir()}
        links = {n: os.readlink(f) if f.is_symlink() else None for n, f in stored.items()}
        return {n: link and Path(link).name for n, link in links.items()}, Path(config).parent.name
    found = {s.rfilename: s.lfs.sha256 if s.lfs else s.blob_id for s in info.siblings or ()}
    return found, info.sha


def _wanted(name: str, files: set[str], weights: bool, instead: str) -> list[str]:
    """What is needed of all files of a model: safetensors, whole or in parts, and what stands
    beside them."""
    beside = sorted(f for f in files if "/" not in f and f.endswith(_BESIDE))
    tensors = [_WEIGHTS] if _WEIGHTS in files else sorted(filter(_SHARD.fullmatch, files))
    for missing, what in (
        ("config.json" not in files, "config.json"),
        (weights and not tensors, _WEIGHTS),
    ):
        if missing:
            raise InputError(
                f"model {name!r} has no {what} on the Hugging Face hub, and pickled weights are "
                f"never loaded: choose a model of transformers with safetensors, {instead}."
            )
    return beside + (tensors if weights else [])


def _fetch(name: str, file: str, commit: str, digest: str | None, instead: str) -> Path:
    """One file, whole: a damaged one is removed and fetched once more."""
    # Small pieces, so that a slow line is heard.
    constants.DOWNLOAD_CHUNK_SIZE = 2**16
    for again in (False, True):

        def step(heard: Callable[[], None], again: bool = again) -> str:
            class Heard(tqdm):
                come = most = 0

                def update(self, n: float | None = 1) -> bool | None:
                    self.come += n or 0
                    if self.come > self.most:  # what comes again, after a break, is not new
                        self.most = self.come
                        heard()
                    return super().update(n)

            # Asked for by its branch, the first file notes the commit, for when there is no hub.
            revision = None if file == "config.json" else commit
            return hf_hub_download(
                name, file, revision=revision, force_download=again, tqdm_class=Heard
            )

        path = Path(hub.limited(step))
        if digest is None or _digest(path, digest) == digest:
            return path
        with contextlib.suppress(OSError):
            path.resolve().unlink()
            path.unlink(missing_ok=True)
    raise InputError(
        f"file {file} of model {name!r} comes with another digest than the Hugging Face hub gives "
        f"for it ({digest[:12]}…), and was removed: try again later, {instead}."
    )


def _digest(path: Path, like: str) -> str:
    """SHA-256, or git's SHA-1 of a file that it holds itself."""
    if len(like) == 64:
        return sha256(path)
    body = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
