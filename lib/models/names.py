"""What a reader may name: profiles, models, notebooks and a series of them. Checked without loading
torch, so that a command says in its first second what is wrong.
"""

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from lib.errors import InputError, unknown
from lib.files import DATA, ROOT
from lib.models.assets import EMBEDDED

# What several notebooks share; what one alone uses stands below its parameters, as run.pick(...).
PROFILES: dict[str, dict[str, Any]] = {
    "smoke": dict(
        model="tiny-gpt2", corpus="wikipedia-sample",
        seq_len=64, map_tokens=4_096, gate_tokens=2_048, test_documents=11, test_windows=2,
        most_documents=12,
    ),
    "laptop": dict(
        model="smollm2-135m", corpus="wikipedia",
        seq_len=128, map_tokens=6_144, gate_tokens=6_144, test_documents=6, test_windows=1,
    ),
    "study": dict(
        model="smollm2-135m", corpus="wikipedia",
        seq_len=256, map_tokens=122_880, gate_tokens=61_440, test_documents=53, test_windows=2,
    ),
    "paper": dict(
        model="gpt2", corpus="wikitext-2",
        seq_len=256, map_tokens=30_720, gate_tokens=30_720, test_documents=60, test_windows=2,
    ),
}  # fmt: skip
COMMITTED = ("smollm2-135m", "gemma-3-270m")
"""models whose runs are committed: the first one's pages, the others' tables beside them"""
MODEL_NOTES = {
    "smollm2-135m": "smollm2-135m (SmolLM2-135M-Instruct, read from a 4-bit file)",
    "gemma-3-270m": "gemma-3-270m (base model, read from a 4-bit file; every window begins with "
    "its start token, which is neither fitted nor scored)",
}
TINY = DATA / "models"
NOTEBOOKS = ROOT / "notebooks"
PAPERS = {
    "whipp": "01-07",
    "balogh": "08-16,28",
    "ikeda": "17-19",
    "tapered": "20-23",
    "badger": "25-27",
}
TRAINED_HERE = ("17", "18", "19", "20", "21", "22", "25", "26", "27", "28")
"""notebooks that take no pretrained model"""
SETTINGS = ("profile", "model", "corpus", "seed", "paper", "number")
RANDOM = ":random"
PRESETS = {
    "smollm2-135m-hub": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "pythia-160m": "EleutherAI/pythia-160m",
    "pythia-410m": "EleutherAI/pythia-410m",
    "pythia-1b": "EleutherAI/pythia-1b",
    "pythia-2.8b": "EleutherAI/pythia-2.8b",
    "llama-160m": "JackFram/llama-160m",
    "tinyllama-1.1b": "TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T",
}


def tiny_models() -> list[str]:
    """Names of the models that this repository trained, in data/models."""
    return sorted(p.name for p in TINY.iterdir() if (p / "config.json").is_file())


def models_known() -> list[str]:
    """Names that need no hub, and the presets."""
    return [*EMBEDDED, *tiny_models(), *PRESETS]


def model_folder(name: str) -> Path | None:
    """The reader's own folder that a model's name stands for; None for a known name, and for one of
    the hub. A known name is that model, whatever folders are here; ./name is the folder."""
    plain = str(name).removesuffix(RANDOM)
    if plain in models_known() or not os.path.isdir(plain):
        return None
    return Path(plain)


def check_model(name: str) -> None:
    """Raise InputError for a name that can be no model; loads nothing."""
    plain = str(name).removesuffix(RANDOM)
    if plain in models_known() or model_folder(plain):
        return
    if plain.endswith(".gguf") or os.path.isfile(plain):
        raise InputError(
            f"model {name!r} is a file: give the folder of a model saved with save_pretrained "
            "(a GGUF file is read by transformers' gguf_file= and saved from there)."
        )
    if plain.count("/") != 1 or plain.startswith((".", "/", "~")):
        raise unknown("model", name, [*models_known(), "a folder", "owner/name on the hub"])


def label(name: str) -> str:
    """A model's, corpus's or folder's name as part of a path: unlike for names that stand for
    different things, and without signs that a shell, a browser or Snakemake reads."""
    plain = name.removesuffix(RANDOM)
    path = Path(plain)
    shown = path.resolve().name if path.is_dir() else path.name.removesuffix(".txt")
    if plain in models_known():
        shown = plain
    elif path.exists():  # two files of one name are two texts
        shown += "-" + hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:6]
    elif "/" in plain:  # two owners' models of one name
        shown = plain.replace("/", "--")
    random = "~random" if name.endswith(RANDOM) else ""
    return re.sub(r"[^\w.~-]", "_", shown + random)


def notebooks(n: str = "", paper: str = "") -> list[str]:
    """Names of the notebooks of numbers such as "01,03-05", of a paper, or of both; all without
    either, 01 first and the tour 00 last. Raises InputError for one that is not there."""
    if paper and paper not in PAPERS:
        raise unknown("paper", paper, [*PAPERS])
    names = sorted(path.stem for path in NOTEBOOKS.glob("[0-9]*.ipynb"))
    known = [name[:2] for name in names]
    of_paper = _numbers(PAPERS[paper], known) if paper else known
    numbers = _numbers(n, known) if n else of_paper
    if other := sorted({*numbers} - {*of_paper}):
        raise InputError(
            f"notebook {other[0]} is not of PAPER={paper}: give N of {PAPERS[paper]}, or one of "
            "the two settings."
        )
    chosen = [name for name in names if name[:2] in numbers]
    return sorted(chosen, key=lambda name: (name.startswith("00"), name))


def _numbers(n: str, known: list[str]) -> list[str]:
    """What a list such as "01,03-05" names, two digits each; a range may have gaps. Raises
    InputError for another form and for what names no notebook."""
    numbers = []
    for part in re.split(r"[,\s]+", n.strip(", ")):
        span = re.fullmatch(r"(\d{1,2})(?:-(\d{1,2}))?", part)  # 03, or 03-05
        if span is None:
            raise InputError(f"N={n!r} is no list of notebooks: give for example N=01,03-05.")
        first, last = int(span[1]), int(span[2] or span[1])
        found = [number for number in known if first <= int(number) <= last]
        if not found:
            raise unknown("notebook", part, known)
        numbers += found
    return numbers


def plan(config: dict, here: str | Path = ROOT) -> dict[str, dict]:
    """{path of a report below runs/: parameters} for the settings of a series; MODEL and SEED may
    be lists, and a path begins in the folder `here`. Raises InputError for names that are not
    known."""
    for name in config:
        if name not in SETTINGS:
            raise unknown("setting", name, [*SETTINGS])
    profile = config.get("profile") or "laptop"
    if profile not in PROFILES:
        raise unknown("profile", profile, [*PROFILES])
    corpus = _from(here, str(config.get("corpus") or ""))
    if corpus and not os.path.isfile(corpus):
        from lib.text.corpora import check_corpus  # takes two seconds to load

        check_corpus(corpus)
    models = [_from(here, model) for model in _listed(config.get("model"), "")]
    names = notebooks(str(config.get("number", "")), config.get("paper") or "")
    reports = {}
    for model in models:
        for seed in _listed(config.get("seed"), "42"):
            if not seed.isdecimal() or int(seed) >= 2**32:
                raise InputError(f"SEED={seed!r} is no whole number below 2**32: give one like 42.")
            folder = [profile]
            parameters = {"profile": profile, "seed": int(seed)}
            if model:
                check_model(model)
                folder.append(label(model))
                parameters["model"] = model
            if corpus:
                folder.append(label(corpus))
                parameters["corpus"] = corpus
            if int(seed) != 42:
                folder.append(f"seed{int(seed)}")
            for name in names:
                reports[f"{'-'.join(folder)}/{name}"] = parameters
    return reports


def _from(here: str | Path, name: str) -> str:
    """A name as it is; the path of a file or folder that begins elsewhere than in the repository,
    absolute."""
    elsewhere = Path(here).resolve() != ROOT and (Path(here) / name).exists()
    return str(Path(here) / name) if name and elsewhere else name


def _listed(value, default: str) -> list[str]:
    """The parts of a comma-separated setting; `default` alone where it has none. A folder with a
    comma in its name is one."""
    if value and os.path.isdir(str(value)):
        return [str(value)]
    text = "" if value is None else str(value)  # 0 is a seed
    return [part for part in text.split(",") if part] or [default]
