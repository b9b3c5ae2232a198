"""A hub that serves, refuses, stalls and lies: a model comes whole and as the hub has it, or one
sentence says why not, in bounded time; code that comes with a model is never run."""

import hashlib
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys

import pytest
from hub import COMMIT, running

from lib.base import DATA, ROOT, InputError
from lib.models import load_subject

LIMIT = 4
"""seconds without a byte that these tests allow; a reader, sixty"""
BAD = {
    "missing": r"\(404, it has nothing of that name\): check the name, and log in",
    "private": r"\(401, it has nothing of that name, or only for who is logged in\): check",
    "busy": r"\(429, too many requests\): wait a few minutes",
    "broken": r"\(500, it failed\): try again later",
    "drops": r"\(500, it failed\): try again later",
    "silent": rf"\(no byte for {LIMIT} seconds\): check the network",
    "stalls": rf"\(no byte for {LIMIT} seconds\): check the network",
    "cut": r"\(.*(of size|received|no byte).*\): check the network",
    "flipped": r"model.safetensors of .* another digest than .* and was removed: try again later",
    "flipped-config": r"config.json of .* another digest than .* and was removed",
    "pickled": r"has no model.safetensors on the Hugging Face hub, and pickled weights are never",
}
GOOD = ("good", "slow", "flipped-once")
# Everything in one process, for each takes seconds to start. The hub's address is read once.
DRIVER = """
import json, sys, time, warnings
import torch
from huggingface_hub import constants
from lib.base import hub
from lib.models import load_subject
from lib.texts.hub import hub as dataset

torch.set_num_threads(1)
hub.SECONDS = float(sys.argv[1])
cases = {name: lambda name=name: load_subject(f"{name}/tiny") for name in sys.argv[2].split(",")}
cases |= {n: lambda f=f: load_subject(f) for n, f in json.loads(sys.argv[4]).items()}
cases |= {f"{n}-dataset": dataset(f"{n}/texts") for n in sys.argv[3].split(",")}

def look(case, call):
    begun = time.perf_counter()
    try:
        found = call()
        said = {"key": found.key, "name": found.name}
    except Exception as error:
        said = {"error": str(error), "kind": type(error).__name__}
    print(json.dumps({"case": case, "seconds": time.perf_counter() - begun, **said}), flush=True)

for case, call in cases.items():
    look(case, call)
constants.ENDPOINT = "http://127.0.0.1:9"
look("refused", lambda: load_subject("nobody/tiny"))
look("refused-dataset", dataset("nobody/texts"))
look("kept", lambda: load_subject("good/tiny"))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """{case: what came of it}, and "served": how often each repository's weights were asked for."""
    home = tmp_path_factory.mktemp("hub")
    with running(DATA / "models" / "tiny-gpt2") as hub:
        env = {
            **{k: v for k, v in os.environ.items() if "proxy" not in k.lower()},
            "HF_HOME": str(home),
            "HF_ENDPOINT": hub.url,
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_OFFLINE": "0",
            "OMP_NUM_THREADS": "1",
        }
        folders, marker = hostile(home)
        cases = [",".join([*GOOD, *BAD]), "missing,silent,busy"]
        more = json.dumps({name: str(folder) for name, folder in folders.items()})
        command = [sys.executable, "-c", DRIVER, str(LIMIT), *cases, more]
        master, terminal = pty.openpty()
        os.write(master, b"y\n" * 20)
        done = subprocess.run(
            command,
            env=env,
            cwd=ROOT,
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=300,
        )
        os.close(terminal)
        os.close(master)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    blobs = [p for p in home.rglob("blobs/*") if p.is_file()]
    return {f["case"]: f for f in found} | {
        "served": hub.served,
        "blobs": blobs,
        "marker": marker,
    }


@pytest.mark.parametrize("case", GOOD)
def test_a_hub_that_serves_is_read_end_to_end(told, case, tiny_gpt2):
    assert "error" not in told[case], told[case]
    kind, config = tiny_gpt2.key.split("-", 1)[1].rsplit("-", 1)
    assert told[case]["key"] == f"{case}/tiny@{COMMIT}-{kind}-{config}"
    assert told[case]["name"] == f"{case}/tiny"
    assert told["served"][case] == (2 if case == "flipped-once" else 1)


@pytest.mark.parametrize(("case", "says"), BAD.items())
def test_a_hub_that_does_not_is_told_in_one_sentence(told, case, says):
    said = told[case]
    assert said["kind"] == "InputError" and re.search(says, said["error"]), said
    assert f"{case}/tiny" in said["error"] and "or use one of smollm2-135m" in said["error"]
    assert said["error"].count("\n") == 0 and said["error"].endswith(".")
    assert said["seconds"] < 15


def test_what_was_damaged_on_the_way_is_not_kept(told):
    weights = [p for p in told["blobs"] if len(p.name) == 64]
    assert weights and all(hashlib.sha256(p.read_bytes()).hexdigest() == p.name for p in weights)


def test_without_a_hub_what_it_gave_before_is_taken(told):
    assert told["kept"]["key"] == told["good"]["key"]
    assert "Connection refused" in told["refused"]["error"]


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("missing-dataset", "404, it has nothing of that name"),
        ("busy-dataset", "429, too many requests"),
        ("silent-dataset", f"no byte for {LIMIT} seconds"),
        ("refused-dataset", "Connection refused"),
    ],
)
def test_datasets_too(told, case, says):
    said = told[case]
    assert said["kind"] == "InputError" and says in said["error"], said
    assert "or use corpus='wikipedia'" in said["error"] and "\n" not in said["error"]
    assert said["seconds"] < 15


def hostile(tmp_path):
    """Folders with code of an unknown type of model, of a known one, and of a tokenizer; and the
    file that the code would write."""
    marker, folders = tmp_path / "ran", {}
    for kind in ("unknown", "known", "tokenizer"):
        folder = folders[f"hostile-{kind}"] = tmp_path / kind
        shutil.copytree(DATA / "models" / "tiny-gpt2", folder)
        (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n")
        file = folder / ("tokenizer_config.json" if kind == "tokenizer" else "config.json")
        said = json.loads(file.read_text())
        if kind == "tokenizer":
            said["auto_map"] = {"AutoTokenizer": ["evil.Evil", None]}
            said["tokenizer_class"] = "EvilTokenizer"
        else:
            said["auto_map"] = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
        if kind == "unknown":
            said["model_type"] = "evil"
        file.write_text(json.dumps(said))
    return folders, marker


NEVER = "code that comes with a model is never run"


def test_code_that_comes_with_a_model_is_never_run(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    folders, marker = hostile(tmp_path)
    with pytest.raises(InputError, match=NEVER) as caught:
        load_subject(str(folders["hostile-unknown"]))
    assert "\n" not in str(caught.value)
    for kind in ("known", "tokenizer"):
        assert len(load_subject(str(folders[f"hostile-{kind}"]))) == 6
    assert not marker.exists()


def test_nor_at_a_terminal_where_someone_says_yes(told):
    assert NEVER in told["hostile-unknown"]["error"]
    assert told["hostile-known"]["key"] and told["hostile-tokenizer"]["key"]
    assert not told["marker"].exists()
