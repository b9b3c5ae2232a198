"""What is committed in data/measured: whole, found by its words, and enough for every page."""

import re
from pathlib import Path

import pytest

from lib import tables
from lib.store import Key

MEASURED = Path(__file__).parents[1] / "data/measured"
RECIPE = [
    "steps",
    "windows a step",
    "rate",
    "steps of warm-up",
    "last steps, in which the rate falls to 0",
    "weight decay",
    "order of the text",
    "beta 2",
    "first step at which FFNs learn",
    "products in bfloat16",
    "penalty of the gates' mean opening",
]
DECODER = [
    "FFN widths",
    "residual width",
    "heads",
    "vocabulary",
    "context",
    "kinds of FFNs",
    "attention and FFN",
    "attention",
    "window of attention",
    "memory in layers",
    "tokens a chunk",
    "training text",
    *RECIPE,
    "start of the weights",
    "test texts",
    "own curve",
]
FINETUNED = [
    "model",
    "in the FFNs' place",
    "blocks replaced, by stage",
    "steps of each stage",
    "rate",
    "rate is constant",
    "norms are trained",
    "text is read again",
    "order of the text",
    "products in bfloat16",
    "text of the maps",
    "training text",
    "test texts",
    "read at steps",
]
ORDER = {
    "mixers": ["mixer", "width", "vocabulary", "training text", "test texts", *RECIPE],
    "errors of probes": [
        *("model", "fit text", "test text", "block", "affine map", "kind", "steps"),
        *("seed", "start", "planted share", "checkpoint"),
    ],
    "fine tuned models": FINETUNED,
    "soft gates": [
        *FINETUNED,
        "steps of the gates",
        "units of a gate",
        "first bias of the gates",
        "rate of the gates",
        "penalty on open gates",
        "blocks with gates",
    ],
}
"""in which order the code says the inputs of a key; other families' as in their file, or DECODER"""
FRACTIONS = ("weight decay", "planted share")
NAMED = {"fine tuned models": "fine-tuned models"}
"""families whose name is not that of their file"""


@pytest.fixture(autouse=True)
def committed(no_writing, monkeypatch):
    """What is read here is the repository's own, which other tests never see."""
    monkeypatch.setattr(tables, "MEASURED", MEASURED)


def words_of(row: dict[str, str], family: str) -> dict[str, str]:
    """What a row of a file says of its inputs, in the code's order."""
    names = tables.read(family).inputs
    order = ORDER.get(family, DECODER if "FFN widths" in names else [])
    names = [n for n in order if n in names] + [n for n in names if n not in order]
    # An earlier edition read whole numbers with blanks as fractions, and wrote 526.0 for 526.
    return {n: row[n] if n in FRACTIONS else row[n].removesuffix(".0") for n in names if row[n]}


def families() -> list[str]:
    return [path.stem.replace("-", " ") for path in sorted(MEASURED.glob("*.csv"))]


def test_every_key_is_the_digest_of_its_words():
    """Keys can be made anew only by a script that reproduces all of the old ones first."""
    found: dict[str, bool] = {}
    for family in families():
        for digest, (row, *_) in tables.read(family).entries.items():
            name = NAMED.get(family, family)
            key = Key(name, int(row["version"]), words_of(row, family))
            found[digest] = key.digest == digest
    wrong = [digest for digest, is_right in found.items() if not is_right]
    assert len(found) >= 2_735 and not wrong, f"{len(wrong)} of {len(found)}: {wrong[:5]}"


@pytest.mark.parametrize("family", families())
def test_a_file_is_whole_of_no_test_and_written_back_to_the_letter(family, monkeypatch, tmp_path):
    path = tables.path_of(family)
    text = path.read_text(encoding="utf-8")
    found, is_whole = tables.parsed(text)
    assert is_whole and path.stat().st_size < 30e6
    for digest in found.entries:
        assert tables.entry(family, digest) is not None
    words = {row[name] for row, *_ in found.entries.values() for name in found.inputs}
    assert not any(re.search(r"walk|\btest, ", said) for said in words)
    monkeypatch.setattr(tables, "MEASURED", tmp_path)
    tables.write(family, found)
    assert tables.path_of(family).read_text(encoding="utf-8") == text
