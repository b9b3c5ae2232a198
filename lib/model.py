"""A language model as a Subject: its decoder blocks, each with its FFN, whatever the architecture.

Parts are found by structure and confirmed by behaviour, so a new architecture needs no new line
here: the decoder layers are the model's longest list of alike modules, and a layer's FFN is its
only child that maps [.., d] to [.., d] position by position.
"""

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from lib.assets import EMBEDDED, embedded_folder
from lib.errors import InputError
from lib.keys import fingerprint, own
from lib.names import PRESETS, RANDOM, TINY, check_model
from lib.text import start_token


@dataclass(frozen=True)
class Block:
    """One decoder block."""

    index: int
    layer: nn.Module
    """residual stream in, residual stream out"""
    ffn_name: str
    """attribute of `layer` that holds the FFN"""
    d_model: int
    original: nn.Module
    """the FFN itself"""
    n_start: int = 0
    """positions of a start token at the start of every window; a swap keeps the FFN there"""

    @property
    def ffn(self) -> nn.Module:
        """The module that stands in the FFN's place now."""
        return getattr(self.layer, self.ffn_name)

    @property
    def n_params(self) -> int:
        return sum(p.numel() for p in self.ffn.parameters())


@dataclass(frozen=True, eq=False)
class Subject:
    """A frozen language model under study."""

    name: str
    model: PreTrainedModel
    tokenizer: object
    blocks: tuple[Block, ...]
    layers_return_tuples: bool
    loaded_as: str | None = None
    """which model it is, for keys; None for a model in memory"""
    loaded: str | None = None
    """its fingerprint when it was loaded (see `provenance`)"""
    start_token: int | None = None
    """what its tokenizer by itself puts in front of a text (Gemma, Llama, Mistral), and lib.text in
    front of every window; its prediction is not scored"""

    @property
    def provenance(self) -> str | None:
        """Which model it is, for keys; None for one in memory, and once anything was changed that
        decides what it computes: values, modules, hooks, settings, precision or mode."""
        if self.loaded_as is None:
            return None
        if self in _UNCHANGING:
            return self.loaded_as
        return self.loaded_as if fingerprint(self.model, whole=True) == self.loaded else None

    @contextlib.contextmanager
    def unchanging(self) -> Iterator[None]:
        """While open, the model is not looked at again: its weights are read once for many keys."""
        if self in _UNCHANGING or self.provenance is None:
            yield
            return
        _UNCHANGING.append(self)
        try:
            yield
        finally:
            _UNCHANGING.remove(self)

    @property
    def n_start(self) -> int:
        """Positions of a start token in every window: 0 or 1."""
        return int(self.start_token is not None)

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def d_model(self) -> int:
        return self.blocks[0].d_model

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    def __repr__(self) -> str:
        n = sum(p.numel() for p in self.model.parameters())
        ffn = sum(b.n_params for b in self.blocks)
        start = f", windows begin with start token {self.start_token}" if self.n_start else ""
        return (
            f"{self.name}: {type(self.model).__name__}, {len(self)} blocks of width "
            f"{self.d_model}, {n / 1e6:.1f} M parameters, {ffn / n:.0%} of them in FFNs{start}"
        )


_UNCHANGING: list[Subject] = []
"""those that a measurement is looking at, which does not change them"""


def load_subject(
    name: str, device: str | None = None, dtype: torch.dtype = torch.float32, seed: int = 42
) -> Subject:
    """Load a model: an embedded name, a preset, a local folder, or owner/name on the hub
    (safetensors only, no remote code).

    ":random" after the name draws its weights anew with `seed`: the same architecture, untrained.
    Raises InputError for an unknown name, an unreachable hub, or an architecture that is not
    recognised.
    """
    name = str(name)
    check_model(name)
    plain, untrained = name.removesuffix(RANDOM), name.endswith(RANDOM)
    misfit: list[str] = []
    try:
        folder = _folder(plain)
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            if untrained:
                model = _draw(folder, seed).to(dtype)
            else:
                model, loading = AutoModelForCausalLM.from_pretrained(
                    folder,
                    dtype=dtype,
                    use_safetensors=True,
                    trust_remote_code=False,
                    output_loading_info=True,
                )
                misfit = _misfit(loading)
        model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except InputError:
        raise
    except Exception as error:  # what configurations, weights and devices may lead to, anywhere
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise InputError(
            f"model {name!r} could not be loaded ({why}): save it again with save_pretrained "
            "(safetensors), or use smollm2-135m."
        ) from None
    if misfit:
        raise InputError(
            f"model {name!r}: {len(misfit)} weights of its files do not fit its configuration "
            f"({misfit[0]}), and random ones would stand in their place: save model and "
            "configuration together with save_pretrained."
        )
    if not tokenizer("word")["input_ids"]:
        raise InputError(
            f"the tokenizer of model {name!r} knows no tokens: put its tokenizer.json beside the "
            "weights."
        )
    subject = as_subject(model, tokenizer, Path(plain).name + (RANDOM if untrained else ""))
    loaded = fingerprint(model, whole=True)
    precision = "" if dtype == torch.float32 else f" in {dtype}".replace("torch.", "")
    loaded_as = f"{_which(plain, folder, loaded)}{precision}"
    if untrained:
        loaded_as += f", weights drawn with seed {seed}"
    for block in subject.blocks:
        own(block.original, f"FFN of block {block.index} of {loaded_as}")
    return replace(subject, loaded_as=loaded_as, loaded=loaded)


def _draw(folder: Path, seed: int) -> PreTrainedModel:
    """A model of a folder's configuration with random weights."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, trust_remote_code=False
        )


def _misfit(loading: dict) -> list[str]:
    """Weights that are missing, left over or of another shape, in words; transformers leaves out
    those that are tied."""
    kinds = {"missing_keys": "missing", "unexpected_keys": "unexpected", "mismatched_keys": "shape"}
    return [
        f"{words}: {key if isinstance(key, str) else key[0]}"
        for kind, words in kinds.items()
        for key in sorted(loading[kind], key=str)
    ]


def _which(name: str, folder: Path, loaded: str | None) -> str:
    """Which model it is, the same on every machine: what comes out of a pinned package is known by
    its name, one of the hub by its commit, any other folder by what is in it."""
    if name in EMBEDDED:
        return name
    if folder.parent.name == "snapshots":  # models--owner--name/snapshots/commit
        owner_and_name = folder.parents[1].name.removeprefix("models--").replace("--", "/")
        return f"{owner_and_name} at {folder.name}"
    return f"{folder.name} {loaded}"


def _folder(name: str) -> Path:
    if name in EMBEDDED:
        return embedded_folder(name)
    for folder in (TINY / name, Path(name)):
        if folder.is_dir():
            return folder
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.txt", "*.model", "*.safetensors"]
    try:
        return Path(snapshot_download(PRESETS.get(name, name), allow_patterns=wanted))
    except Exception as error:  # the hub's client raises a dozen kinds
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(
            f"model {name!r} could not be had from the Hugging Face hub ({why}): check name and "
            "network, or use smollm2-135m or a local folder, which need no hub."
        ) from None


@contextlib.contextmanager
def _quiet():
    """Loading without transformers' bars and advice, which would stand in every report."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        transformers.utils.logging.enable_progress_bar()


def as_subject(model: PreTrainedModel, tokenizer=None, name: str = "model") -> Subject:
    """View an already loaded model as a Subject. Raises InputError if its weights are not finite,
    or its blocks or FFNs are not recognised."""
    model.eval().requires_grad_(False)
    broken = next((n for n, p in model.named_parameters() if not torch.isfinite(p).all()), None)
    if broken:
        raise InputError(f"weight {broken} of {name} is not finite: save the model's weights anew.")
    n_vocabulary, d = model.get_input_embeddings().weight.shape
    start = start_token(tokenizer) if tokenizer is not None else None
    if start is not None and start >= n_vocabulary:
        raise InputError(
            f"start token {start} of the tokenizer of {name} is not among the model's "
            f"{n_vocabulary} tokens: give the tokenizer that the model was trained with."
        )
    n_start = int(start is not None)
    blocks = []
    for index, layer in enumerate(find_layers(model)):
        ffn_name = find_ffn(layer, d, index)
        blocks.append(Block(index, layer, ffn_name, d, getattr(layer, ffn_name), n_start))
    tuples = _confirm(model, blocks)
    return Subject(name, model, tokenizer, tuple(blocks), tuples, start_token=start)


def copy_of(subject: Subject) -> Subject:
    """The subject with a model of its own, which may be changed."""
    return as_subject(copy.deepcopy(subject.model), subject.tokenizer, subject.name)


def find_layers(model: nn.Module) -> nn.ModuleList:
    """The list of decoder layers. Raises InputError if the model has none."""
    n = model.config.get_text_config().num_hidden_layers
    if n < 1:
        raise InputError(f"{type(model).__name__} has {n} layers: give a model with some.")
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == n]
    if not lists:
        raise InputError(
            f"no list of {n} decoder layers in {type(model).__name__}: only decoder language "
            "models whose layers stand in one list can be read."
        )
    return max(lists, key=lambda m: sum(p.numel() for p in m.parameters()))


def find_ffn(layer: nn.Module, d_model: int, index: int) -> str:
    """Name of the child of `layer` that is its FFN. Raises InputError unless there is just one."""
    found = [name for name, child in layer.named_children() if _is_position_wise(child, d_model)]
    if len(found) != 1:
        raise InputError(
            f"block {index}: {type(layer).__name__} has {len(found)} child modules that map each "
            f"position's {d_model} features by themselves, so its FFN cannot be taken out: choose "
            "an architecture whose FFN is one module (GPT-2, GPT-NeoX, Llama and their kin)."
        )
    return found[0]


def _is_position_wise(module: nn.Module, d_model: int) -> bool:
    """Whether `module` has weight matrices and maps [1, t, d] to [1, t, d], each position by
    itself."""
    weights = [p for p in module.parameters() if p.dim() >= 2]
    if not weights:
        return False  # a norm or an activation
    x = torch.randn(1, 5, d_model, generator=torch.Generator().manual_seed(0)).to(weights[0])
    order = torch.tensor([3, 1, 4, 0, 2])
    try:
        with torch.no_grad():
            y, moved = module(x), module(x[:, order])
    except Exception:  # attention, which asks for masks or positions
        return False
    same = isinstance(y, torch.Tensor) and y.shape == x.shape
    return same and torch.allclose(y[:, order], moved, rtol=1e-2, atol=1e-4)


@torch.no_grad()
def _confirm(model: PreTrainedModel, blocks: Sequence[Block]) -> bool:
    """Whether layers return tuples, seen in a tiny pass that confirms each FFN: calling it on its
    recorded input gives its recorded output. Raises InputError where it does not."""
    seen, returned = {}, []

    def keep(index: int):
        return lambda _, args, y: seen.update({index: (args[0], y.clone())})  # Falcon adds in place

    handles = [b.ffn.register_forward_hook(keep(b.index)) for b in blocks]
    handles.append(blocks[0].layer.register_forward_hook(lambda _, a, out: returned.append(out)))
    try:
        tokens = torch.tensor([[1, 3, 4]], device=model.get_input_embeddings().weight.device)
        model(tokens, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    for b in blocks:
        if b.index not in seen or not torch.equal(b.ffn(seen[b.index][0]), seen[b.index][1]):
            raise InputError(
                f"block {b.index}: {type(b.layer).__name__}.{b.ffn_name} does not map its recorded "
                "input to its recorded output, so it is not the FFN alone: choose another model."
            )
    if not isinstance(returned[0], torch.Tensor | tuple):
        raise InputError(
            f"layers of {type(model).__name__} return a {type(returned[0]).__name__}, no tensor or "
            "tuple, so a pass cannot be resumed at a block: choose another model."
        )
    return isinstance(returned[0], tuple)
