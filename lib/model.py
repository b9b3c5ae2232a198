"""A language model as a Subject: its decoder blocks, each with its FFN, whatever the architecture.

Parts are found by structure and confirmed by behaviour, so a new architecture needs no new line
here: the decoder layers are the model's longest list of alike modules, and a layer's FFN is its
only child that maps [.., d] to [.., d] position by position.
"""

import contextlib
import copy
import importlib.util
import json
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
from lib.names import PRESETS, RANDOM, TINY, check_model, label, model_folder, tiny_models
from lib.text import start_tokens


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
    """positions of start tokens at the start of every window; a swap keeps the FFN there"""

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
    start_tokens: tuple[int, ...] = ()
    """what its tokenizer by itself puts in front of a text (Gemma, Llama, Mistral: one token), and
    lib.text in front of every window; what is predicted there is not scored"""

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
        """Positions of start tokens in every window."""
        return len(self.start_tokens)

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
        tokens = " ".join(map(str, self.start_tokens))
        start = f", windows begin with start token {tokens}" if self.n_start else ""
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
    subject = as_subject(model, tokenizer, label(plain) + (RANDOM if untrained else ""))
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
    if name in tiny_models() or model_folder(name):
        return f"{folder.resolve().name} {loaded}"
    return f"{PRESETS.get(name, name)} at {folder.name}"  # …/snapshots/commit


def _folder(name: str) -> Path:
    """Where a model's files lie, fetched where they are not here."""
    if name in EMBEDDED:
        return embedded_folder(name)
    if name in tiny_models():
        return TINY / name
    if folder := model_folder(name):
        return _checked(folder)
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.txt", "*.model", "*.safetensors"]
    try:
        fetched = Path(snapshot_download(PRESETS.get(name, name), allow_patterns=wanted))
    except Exception as error:  # the hub's client raises a dozen kinds
        why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(
            f"model {name!r} could not be had from the Hugging Face hub ({why}): check name and "
            "network, or use smollm2-135m or a local folder, which need no hub."
        ) from None
    return _checked(fetched)


def _checked(folder: Path) -> Path:
    """A folder that holds a language model as it is saved by save_pretrained. Raises InputError for
    what transformers would load as something else, or refuse with another reason."""
    adapter = (folder / "adapter_config.json").is_file()
    if not (folder / "config.json").is_file():
        holds = "an adapter without its base model" if adapter else "no config.json"
        raise InputError(
            f"folder {folder} has {holds}, so it is no model: give one that was saved with "
            "save_pretrained (an adapter after merge_and_unload)."
        )
    if adapter and importlib.util.find_spec("peft") is None:
        raise InputError(
            f"folder {folder} has an adapter beside its base model, which would be left out: "
            "install peft, or save the model merged (merge_and_unload, save_pretrained)."
        )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "quantization_config" in config:
        raise InputError(
            f"the model in {folder} is quantized, and its FFNs cannot be measured so: give it in "
            "float32, dequantized and saved anew."
        )
    if "vision_config" in config or "audio_config" in config:
        raise InputError(
            f"the model in {folder} reads more than text: give its language model alone, saved "
            "with save_pretrained."
        )
    return folder


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
    """View an already loaded model as a Subject. Raises InputError if its weights are not in memory
    or not finite, if its blocks or FFNs are not recognised, or if it is not causal."""
    _check_weights(model, name)
    model.eval().requires_grad_(False)
    broken = next((n for n, p in model.named_parameters() if not torch.isfinite(p).all()), None)
    if broken:
        raise InputError(f"weight {broken} of {name} is not finite: save the model's weights anew.")
    n_vocabulary, d = model.get_input_embeddings().weight.shape
    start = start_tokens(tokenizer) if tokenizer is not None else ()
    if max(start, default=0) >= n_vocabulary:
        raise InputError(
            f"start token {max(start)} of the tokenizer of {name} is not among the model's "
            f"{n_vocabulary} tokens: give the tokenizer that the model was trained with."
        )
    blocks = []
    for index, layer in enumerate(find_layers(model)):
        ffn_name = find_ffn(layer, d, index)
        blocks.append(Block(index, layer, ffn_name, d, getattr(layer, ffn_name), len(start)))
    for block in blocks[1:]:
        first = next(b for b in blocks if b.original is block.original)
        if first is not block:
            raise InputError(
                f"blocks {first.index} and {block.index} of {name} share one FFN, so neither can "
                "be measured alone: choose a model whose blocks have an FFN each."
            )
    tuples = _confirm(model, blocks)
    return Subject(name, model, tokenizer, tuple(blocks), tuples, start_tokens=start)


def _check_weights(model: nn.Module, name: str) -> None:
    """Raise InputError for a model whose weights cannot be read or measured as they are."""
    if not hasattr(model, "get_input_embeddings"):
        raise InputError(
            f"{name} is a {type(model).__name__}, no transformers model: give the model that it "
            "wraps (of DataParallel, its .module)."
        )
    if torch.get_default_dtype() != torch.float32:
        raise InputError(
            f"torch's default precision is {torch.get_default_dtype()}: set it back with "
            "torch.set_default_dtype(torch.float32); statistics are in float64 all the same."
        )
    for weight, p in model.named_parameters():
        if p.is_meta:
            raise InputError(
                f"weight {weight} of {name} is not in memory (on the meta device, or offloaded): "
                "load the whole model onto one device, without device_map."
            )
        if p.is_inference():
            raise InputError(
                f"weight {weight} of {name} was made in torch.inference_mode, where nothing can be "
                "trained or differentiated: load the model outside of it."
            )
        if not p.is_floating_point():
            raise InputError(
                f"weight {weight} of {name} is {p.dtype}, a quantized one: load the model without "
                "quantization, in float32."
            )


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


def trial_tokens(model: nn.Module) -> torch.Tensor:
    """Three tokens to try a model on, [1, 3]."""
    embedding = model.get_input_embeddings().weight
    return torch.tensor([[1, 3, 4]], device=embedding.device) % len(embedding)


@torch.no_grad()
def _confirm(model: PreTrainedModel, blocks: Sequence[Block]) -> bool:
    """Whether layers return tuples, seen in a tiny pass that confirms what every measurement takes
    for granted. Raises InputError where an FFN called on its recorded input does not give its
    recorded output, where later tokens change earlier predictions, or where a pass resumed at a
    block does not end as a whole one."""
    seen, streams, returned = {}, {}, []

    def keep(index: int):
        def hook(_, args: tuple, y: torch.Tensor) -> None:
            # One that is called twice, or by name, is not confirmed. Falcon adds to y in place.
            seen[index] = (args[0], y.clone()) if args and index not in seen else None

        return hook

    def entering(index: int):
        return lambda _, args, kwargs: streams.update(
            {index: copy.deepcopy(hidden_of(args, kwargs))}
        )

    handles = [b.ffn.register_forward_hook(keep(b.index)) for b in blocks]
    handles += [
        b.layer.register_forward_pre_hook(entering(b.index), with_kwargs=True) for b in blocks
    ]
    handles.append(blocks[0].layer.register_forward_hook(lambda _, a, out: returned.append(out)))
    tokens = trial_tokens(model)
    try:
        found = model(tokens, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(getattr(found, "logits", None), torch.Tensor):
        raise InputError(
            f"{type(model).__name__} has no language-model head, so it has no losses: load it with "
            "AutoModelForCausalLM."
        )
    for b in blocks:
        x, y = seen.get(b.index) or (None, None)
        if x is None or x.shape[:2] != tokens.shape or not torch.equal(b.ffn(x), y):
            raise InputError(
                f"block {b.index}: {type(b.layer).__name__}.{b.ffn_name} does not map its recorded "
                "input to its recorded output, so it is not the FFN alone: choose another model."
            )
    if not isinstance(returned[0], torch.Tensor | tuple):
        raise InputError(
            f"layers of {type(model).__name__} return a {type(returned[0]).__name__}, no tensor or "
            "tuple, so a pass cannot be resumed at a block: choose another model."
        )
    tuples = isinstance(returned[0], tuple)
    _confirm_causal(model, tokens, found.logits)
    layers, n = [b.layer for b in blocks], len(blocks)
    # Layers share with the one before, with the first, or all later ones with one in the middle.
    for start in sorted({1, 2, n // 2, n // 2 + 1, n - 2, n - 1} & {*range(1, n)}):
        with resume_at(model, layers, start, streams[start], tuples):
            resumed = model(tokens, use_cache=False).logits
        if not _alike(resumed, found.logits):
            raise InputError(
                f"block {start} of {type(model).__name__} reads more of earlier blocks than the "
                "residual stream (their keys and values, say), so a pass cannot be resumed there: "
                "choose another model."
            )
    return tuples


def _confirm_causal(model: nn.Module, tokens: torch.Tensor, logits: torch.Tensor) -> None:
    """Raise InputError if another last token changes what is predicted before it."""
    other = tokens.clone()
    other[0, -1] = tokens[0, 0]
    changed = model(other, use_cache=False).logits
    if not _alike(changed[:, :-1], logits[:, :-1]):
        raise InputError(
            f"{type(model).__name__} sees later tokens (its attention is bidirectional), so its "
            "perplexity would mean nothing: choose a causal language model."
        )


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two passes gave the same but for rounding."""
    a, b = a.float(), b.float()
    rounding = 1e-4 if a.dtype == b.dtype == torch.float32 else 1e-2
    return bool((a - b).abs().max() <= rounding * (1 + b.abs().max()))


class Replay(nn.Module):
    """Stands in for a decoder layer and hands on `hidden`, or what it is given if None."""

    def __init__(self, layer: nn.Module, hidden: torch.Tensor | None, returns_tuple: bool):
        super().__init__()
        # Models read attributes of their layers (Gemma, Qwen: attention_type) and find the
        # original's; kept out of the module tree, so that the state dict stays as it is.
        self.__dict__["stands_for"] = layer
        self.hidden, self.returns_tuple = hidden, returns_tuple

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["stands_for"], name)

    def forward(self, *args, **kwargs):
        hidden = hidden_of(args, kwargs) if self.hidden is None else self.hidden
        return (hidden, None) if self.returns_tuple else hidden


@contextlib.contextmanager
def resume_at(
    model: nn.Module, layers: Sequence[nn.Module], start: int, hidden: torch.Tensor, tuples: bool
) -> Iterator[None]:
    """While open, a forward pass begins at layer `start` with the residual stream `hidden`.

    The layers before it are replaced by modules that replay `hidden`, so no architecture's own
    forward is touched.
    """
    container = find_layers(model)

    def first(_, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if args:
            return (hidden, *args[1:]), kwargs
        return args, kwargs | {"hidden_states": hidden}

    handle = None
    try:
        if start == 0:  # no layer stands before it, so its own input is replaced
            handle = layers[0].register_forward_pre_hook(first, with_kwargs=True)
        for i in range(start):
            container[i] = Replay(layers[i], None if i else hidden, tuples)
        yield
    finally:
        for i, layer in enumerate(layers):
            container[i] = layer
        if handle:
            handle.remove()


def hidden_of(args: tuple, kwargs: dict) -> torch.Tensor:
    """The residual stream among the arguments of a decoder layer."""
    return args[0] if args else kwargs["hidden_states"]
