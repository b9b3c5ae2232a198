"""What libraries raise about bad models, modules, windows and names, told in one line each: the
value, the reason and a way out."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import GPT2Config, GPT2Model, XLNetConfig, XLNetLMHeadModel

from lib.base import DATA, InputError, get_profile
from lib.base.errors import reason
from lib.linear import domain_profiles, recoverability
from lib.models import as_subject, capture, check_subject, load_subject, swap
from lib.swaps import swap_sweep, token_losses
from lib.texts import Windows, cut_windows, load_corpus


@pytest.fixture
def folder(tmp_path):
    """A copy of tiny-gpt2 whose files may be changed."""
    shutil.copytree(DATA / "models" / "tiny-gpt2", tmp_path / "mine")
    return tmp_path / "mine"


CONFIGS = {
    "bitsandbytes": (
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        "bitsandbytes",
    ),
    "gptq": ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "(?i)gptq"),
    "dtype": ({"dtype": "foo"}, "foo"),
    "no heads": ({"n_head": 0}, "num_attention_heads = 0"),
    "no layers": ({"n_layer": 0}, "num_hidden_layers = 0"),
    "no width": ({"n_embd": 0}, "hidden_size = 0"),
    "fewer layers than weights": (
        {"n_layer": 4},
        r"leaves 22 of its weights unused \(trans.*h.4",
    ),
    "more layers than weights": ({"n_layer": 8}, r"lacks 24 of its weights"),
    "another width": ({"n_embd": 64}, r"in the shape \(\d+.*\), and its config.json says \(192"),
    "heads that do not divide": ({"n_head": 3}, "divisible|embed_dim"),
    "text for a number": ({"n_embd": "wide"}, "(?i)n_embd|hidden_size"),
    "a list for a number": ({"vocab_size": [4096]}, "vocab_size"),
    "unknown activation": ({"activation_function": "foo"}, "foo"),
    "unknown type": ({"model_type": "foo"}, "foo"),
    "no decoder": ({"model_type": "t5"}, "(?i)t5"),
}


@pytest.mark.parametrize(("changes", "says"), CONFIGS.values(), ids=CONFIGS)
def test_a_configuration_that_makes_no_model(folder, changes, says):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    one_line(lambda: load_subject(str(folder)), says, str(folder), "save_pretrained")


FILES = {
    "config a list": ("config.json", "[]"),
    "config no json": ("config.json", "{"),
    "config empty": ("config.json", ""),
    "tokenizer_config a list": ("tokenizer_config.json", "[]"),
    "tokenizer_config text": ("tokenizer_config.json", '"x"'),
    "tokenizer a list": ("tokenizer.json", "[]"),
    "tokenizer no json": ("tokenizer.json", "{"),
    "weights empty": ("model.safetensors", ""),
    "weights text": ("model.safetensors", "weights" * 9),
}


@pytest.mark.parametrize(("name", "content"), FILES.values(), ids=FILES)
def test_a_file_that_is_no_such_thing(folder, name, content):
    (folder / name).write_text(content)
    one_line(lambda: load_subject(str(folder)), "could not be loaded", str(folder), "use one of")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_file_that_is_missing(folder, name):
    (folder / name).unlink()
    one_line(lambda: load_subject(str(folder)), "model|tokenizer", str(folder))


NAMES = {
    "long": ("x" * 256, "unknown model"),
    "long with a slash": ("owner/" + "x" * 256, "unknown model"),
    "a long path": ("/" + "x" * 5000, "is no folder"),
    "blank": ("", "is blank: name one of smollm2-135m"),
    "spaces": ("  \t", "is blank"),
    "blank with random weights": (":random", "is blank"),
    "a space inside": ("a b/c", "no name that the Hugging Face hub allows: give owner/name"),
    "two hyphens": ("a/b--c", "no name that the Hugging Face hub allows"),
    "up and away": ("../..x", "is no folder"),
    "a null": ("a\0b/c", "no name that the Hugging Face hub allows"),
    "bytes": (b"tiny-gpt2", "is no text"),
    "a list": (["tiny-gpt2"], "is no text"),
    "none": (None, "is no text"),
    "a number": (5, "is no text"),
    "a file": (__file__, "is a file: give the folder"),
}


@pytest.mark.parametrize(("name", "says"), NAMES.values(), ids=NAMES)
def test_what_names_no_model(name, says):
    for call in (check_subject, load_subject):
        one_line(lambda call=call: call(name), says, most=700)


MODELS = {
    "none": (lambda: None, "a NoneType is no language model: name one to load_subject"),
    "a name": (lambda: "tiny-gpt2", "a str is no language model"),
    "a layer": (lambda: nn.Linear(2, 2), "a Linear is no language model"),
    "a class": (lambda: GPT2Model, "a type is no language model"),
    "no head": (
        lambda: GPT2Model(small()),
        "GPT2Model has no language-model head: .*Auto",
    ),
    "no numbers": (lambda: on_meta(), "is on the meta device, which holds no numbers"),
    "no context": (
        lambda: XLNetLMHeadModel(XLNetConfig(vocab_size=9, d_model=8, n_layer=1, n_head=2)),
        r"XLNetLMHeadModel states no context \(-1\).* choose a decoder",
    ),
}


def small():
    return GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9, n_positions=8)


def on_meta():
    from transformers import GPT2LMHeadModel

    with torch.device("meta"):
        return GPT2LMHeadModel(small())


@pytest.mark.parametrize(("make", "says"), MODELS.values(), ids=MODELS)
def test_what_is_no_subject(make, says):
    one_line(lambda: as_subject(make()), says)


MODULES = {
    "a lambda": (lambda x: x, "a function cannot be swapped in; give a torch.nn.Module"),
    "text": ("identity", "a str cannot be swapped in"),
    "none": (None, "a NoneType cannot be swapped in"),
    "a class": (nn.Identity, "Identity is a class and cannot be swapped in; give a module made of"),
    "bfloat16": (nn.Linear(128, 128).bfloat16(), "cannot stand in for .* torch.float32"),
    "meta": (nn.Linear(128, 128, device="meta"), "weight of Linear is on the meta device"),
    "another width": (nn.Linear(128, 64), "it maps .* give one that maps"),
    "lazy": (nn.LazyLinear(64), "cannot stand in|cannot be swapped"),
}


@pytest.mark.parametrize(("module", "says"), MODULES.values(), ids=MODULES)
def test_what_cannot_be_swapped_in(tiny_gpt2, tiny_windows, module, says):
    def swapped():
        with swap(tiny_gpt2.blocks[1], module):
            pass

    one_line(swapped, says, "block 1")
    one_line(lambda: swap_sweep(tiny_gpt2, tiny_windows[:2], {1: module}), says, "block 1")


def tokens(dtype):
    return Windows.of(torch.ones(2, 8, dtype=dtype))


WINDOWS = {
    "int16": (lambda: tokens(torch.int16), r"type torch.int16 cannot be read: .* tokens.long\(\)"),
    "bool": (lambda: tokens(torch.bool), "type torch.bool cannot be read"),
    "float": (lambda: tokens(torch.float32), "type torch.float32 cannot be read"),
    "a number": (lambda: 1.5, "a float is no sample of windows: cut one with cut_windows"),
    "text": (lambda: "windows", "a str is no sample of windows"),
    "none": (lambda: None, "a NoneType is no sample of windows"),
    "of a number": (lambda: Windows.of(1.5), "1.5 are no windows of tokens"),
    "of text": (lambda: Windows.of("text"), "'text' are no windows of tokens"),
    "of none": (lambda: Windows.of(None), "None are no windows of tokens"),
    "too long": (
        lambda: Windows.of(torch.ones(1, 300, dtype=torch.long)),
        "exceed the context of tiny-gpt2, 256: cut windows of at most 256 tokens",
    ),
}


@pytest.mark.parametrize(("make", "says"), WINDOWS.values(), ids=WINDOWS)
def test_what_cannot_be_read(tiny_gpt2, make, says):
    for call in (
        lambda: recoverability(tiny_gpt2, make()),
        lambda: capture(tiny_gpt2, make(), [0]),
        lambda: token_losses(tiny_gpt2, make()),
    ):
        one_line(call, says)


CALLS = {
    "no tokenizer": (lambda s: cut_windows("text", None, 8), "without a tokenizer: give the"),
    "bytes": (lambda s: cut_windows(b"bytes", s.tokenizer, 8), "is a bytes, which is no text"),
    "list of bytes": (lambda s: cut_windows([b"b"], s.tokenizer, 8), "holds a bytes, which is no"),
    "list of none": (lambda s: cut_windows([None], s.tokenizer, 8), "holds a NoneType"),
    "no text": (lambda s: cut_windows(None, s.tokenizer, 8), "is a NoneType, which is no text"),
    "float length": (lambda s: cut_windows("text", s.tokenizer, 8.0), "windows of 8.0 tokens"),
    "none taken": (lambda s: tokens(torch.long).take(None), "None tokens are not possible"),
    "text taken": (lambda s: tokens(torch.long).take("9"), "'9' tokens are not possible"),
    "domains a number": (lambda s: domain_profiles(s, 5), "domains 5 are no samples by name"),
    "domains a list": (lambda s: domain_profiles(s, []), r"domains \[\] are no samples by name"),
    "profile a list": (lambda s: get_profile(["smoke"]), r"unknown profile \['smoke'\].*known are"),
    "profile none": (lambda s: get_profile(None), "unknown profile None"),
    "corpus bytes": (lambda s: load_corpus(b"wikipedia"), "is no text"),
    "corpus long": (lambda s: load_corpus("x" * 5000), "unknown corpus"),
}


@pytest.mark.parametrize(("call", "says"), CALLS.values(), ids=CALLS)
def test_calls(tiny_gpt2, call, says):
    one_line(lambda: call(tiny_gpt2), says)


def test_buffers_of_older_checkpoints_are_no_weights(folder):
    """GPT-2 on the hub holds the masks that its blocks once kept, and names without a prefix."""
    file = folder / "model.safetensors"
    tensors = {k.removeprefix("transformer."): v for k, v in load_file(file).items()}
    for block in range(6):
        tensors[f"h.{block}.attn.bias"] = torch.ones(1, 1, 256, 256)
        tensors[f"h.{block}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, file, metadata={"format": "pt"})
    assert len(load_subject(str(folder))) == 6


def test_random_weights_of_what_is_no_decoder_are_refused(folder):
    """Also where its own code is named, which drawing weights would otherwise ask to run."""
    said = {"model_type": "t5", "auto_map": {"AutoModelForCausalLM": "evil.Evil"}}
    (folder / "config.json").write_text(json.dumps(said))
    one_line(lambda: load_subject(f"{folder}:random"), "is never run", str(folder))


def test_reasons_are_whole_sentences():
    long = ValueError("It failed. " + "So it is. " * 60 + "The end")
    assert reason(long).endswith("So it is") and len(reason(long)) <= 410
    assert reason(ValueError("x" * 900)) == "x" * 900
    assert reason(ZeroDivisionError("by zero")) == "ZeroDivisionError: by zero"
    assert reason(KeyError("n_head")) == "KeyError: 'n_head'"
    assert reason(AssertionError()) == "AssertionError"
    assert reason(OSError("Red\x1b[31m one.\nFor details look at the above report!")) == "Red one"


def one_line(call, says, *parts, most=600):
    """`call` raises InputError in one line that says this, holds the parts and ends well."""
    with pytest.raises(InputError) as caught:
        call()
    told = str(caught.value)
    assert re.search(says, told), told
    assert all(part in told for part in parts), told
    assert "\n" not in told and len(told) <= most and told.endswith((".", "file")), told
