"""Load a language model by name or path as a Subject: model, tokenizer and a uniform list of
blocks."""

import contextlib
import hashlib
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

import torch
import transformers
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from lib.base.errors import InputError, unknown
from lib.base.kept import committed
from lib.base.names import RANDOM, TINY
from lib.base.paths import DATA, sha256
from lib.models.blocks import Block, find_ffn, find_layers
from lib.models.embedded import smollm2_folder
from lib.models.null import draw
from lib.texts.windows import Windows

EMBEDDED = ("smollm2-135m", *TINY)
# Short names of the papers' subjects on the Hugging Face hub.
PRESETS = {
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


@dataclass(frozen=True, eq=False)
class Subject:
    """A frozen language model under study."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    blocks: tuple[Block, ...]
    loaded_key: str
    """digest of weights and configuration as they were loaded"""
    loaded_state: tuple
    """what the module tree looked like then: see `key`"""
    parallel: bool
    """whether attention and FFN read the same residual stream (GPT-NeoX, GPT-J) rather than one
    after the other"""
    layers_return_tuples: bool
    """whether a decoder layer returns (residual stream, ...) rather than the residual stream
    alone"""

    @property
    def d_model(self) -> int:
        return self.blocks[0].d_model

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    @property
    def key(self) -> str:
        """What a cached result of this subject depends on: the model as it stands now, with
        swaps and edits of weights."""
        if _state(self.model) == self.loaded_state:
            return self.loaded_key
        tree = hashlib.sha256(repr(self.model).encode()).hexdigest()[:8]
        return f"{_tensors_key(self.model)}-{tree}"

    def check(self, windows: Windows, batch: int = 1) -> None:
        """Raise InputError unless this model can read `windows`, `batch` of them at a time."""
        if not isinstance(batch, Integral) or batch < 1:
            raise InputError(
                f"{batch!r} windows in one pass are not possible: use a whole number from 1 up."
            )
        if not isinstance(windows, Windows):
            raise InputError(
                f"a {type(windows).__name__} is no sample of windows: cut one with cut_windows, or "
                "view a tensor of tokens [n, seq_len] with Windows.of."
            )
        tokens = windows.tokens
        if tokens.dim() != 2 or tokens.is_floating_point() or min(tokens.shape) < 1:
            raise InputError(
                f"windows of shape {tuple(tokens.shape)} and type {tokens.dtype} cannot be read: "
                "give integer tokens [n, seq_len], at least one window."
            )
        if tokens.shape[1] < 2:
            raise InputError("windows of one token have no next token: use two or more.")
        config = self.model.config.get_text_config()
        context = getattr(config, "max_position_embeddings", None) or getattr(
            config, "n_positions", None
        )
        if context and windows.seq_len > context:
            raise InputError(
                f"windows of {windows.seq_len} tokens exceed the context of {self.name}, "
                f"{context}: use a smaller seq_len."
            )
        vocabulary = self.model.get_input_embeddings().num_embeddings
        if tokens.min() < 0 or tokens.max() >= vocabulary:
            raise InputError(
                f"token {int(tokens.max())} is not in the {vocabulary:,} tokens of "
                f"{self.name}: use its own tokenizer."
            )

    def __len__(self) -> int:
        return len(self.blocks)

    def __repr__(self) -> str:
        n = sum(p.numel() for p in self.model.parameters())
        ffn = sum(b.n_params for b in self.blocks)
        return (
            f"Subject({self.name}: {type(self.model).__name__}, {len(self)} blocks, d_model "
            f"{self.d_model}, "
            f"{n / 1e6:.1f} M parameters, {ffn / n:.0%} of them in FFNs, "
            f"{'parallel' if self.parallel else 'sequential'})"
        )


def check_subject(name: str) -> None:
    """Raise InputError for a name that cannot be a model: neither embedded, nor a preset, a
    folder or `owner/name`; ":random" may follow."""
    if not isinstance(name, str):
        raise InputError(f"model {name!r} is no text: give a name or the path of a folder.")
    name = name.removesuffix(RANDOM)
    if name in EMBEDDED or name in PRESETS or (name and Path(name).is_dir()):
        return
    if name.startswith((".", "/", "~")):
        raise InputError(
            f"model {name!r} is no folder: give the path of a folder written by "
            "save_pretrained, or a name."
        )
    if name.count("/") != 1:
        raise unknown(
            "model", name, [*EMBEDDED, *PRESETS, "a folder", "owner/name on the Hugging Face hub"]
        )


def load_subject(
    name: str,
    device: str | None = None,
    dtype: torch.dtype = torch.float32,
    device_map=None,
    seed: int = 42,
) -> Subject:
    """Load a model: an embedded name, a preset, a local folder, or `owner/name` on the hub
    (safetensors, no remote code).

    With ":random" after the name it has random weights, drawn with `seed`: the null subject.
    `device` defaults to a GPU where there is one. `device_map="auto"` spreads a model over several
    (accelerate). Raises InputError for an unknown name, an unreachable hub, or an architecture that
    is not recognised.
    """
    check_subject(name)
    source, null = name.removesuffix(RANDOM), name.endswith(RANDOM)
    if null and device_map is not None:
        raise InputError(f"model {name!r} cannot be spread with device_map: give one device.")
    where = _locate(source)
    try:
        with _quiet():
            if null:
                model = draw(AutoConfig.from_pretrained(where), seed).to(dtype)
                loading = {}
            else:
                model, loading = AutoModelForCausalLM.from_pretrained(
                    where,
                    dtype=dtype,
                    device_map=device_map,
                    use_safetensors=True,
                    output_loading_info=True,
                )
            tokenizer = AutoTokenizer.from_pretrained(where)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        why = (
            str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        )
        way = (
            "save it again with save_pretrained (safetensors)"
            if Path(source).is_dir()
            else "check the name and the network"
        )
        raise InputError(
            f"model {name!r} could not be loaded ({why}): {way}, or use one of "
            f"{', '.join(EMBEDDED)}, which need no hub."
        ) from None
    lost = sorted(
        str(k) for kind in ("missing_keys", "mismatched_keys") for k in loading.get(kind, ())
    )
    if lost:
        raise InputError(
            f"model {name!r} lacks {len(lost)} of its weights ({lost[0]}, …), which would be "
            "random: save it again with save_pretrained."
        )
    if len(tokenizer) < 2:
        raise InputError(
            f"model {name!r} has no tokenizer beside its weights: save one into the same folder."
        )
    if device_map is None:
        model = model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    label = Path(source).name if Path(source).is_dir() else source
    if null:
        return as_subject(model, tokenizer, label + RANDOM)
    return as_subject(
        model, tokenizer, label, key=f"{_weights_key(where, model)}-{dtype}-{_config_key(model)}"
    )


def as_subject(
    model: PreTrainedModel, tokenizer=None, name: str = "model", key: str | None = None
) -> Subject:
    """View an already loaded model as a Subject. Raises InputError if its blocks or FFNs are not
    recognised."""
    model.eval().requires_grad_(False)
    broken = next((n for n, p in model.named_parameters() if not torch.isfinite(p).all()), None)
    if broken:
        raise InputError(
            f"weight {broken} of {name} is not finite: load the model in float32, or save "
            "its weights again."
        )
    layers, d_model = find_layers(model), model.get_input_embeddings().weight.shape[1]
    hidden = getattr(model.config.get_text_config(), "hidden_size", d_model)
    blocks = tuple(
        Block(i, layer, find_ffn(layer, hidden, i), hidden) for i, layer in enumerate(layers)
    )
    key = key or f"{_tensors_key(model)}-{model.dtype}-{_config_key(model)}"
    return Subject(name, model, tokenizer, blocks, key, _state(model), *_behaviour(model, blocks))


def _locate(name: str) -> str:
    if name == "smollm2-135m":
        return str(smollm2_folder())
    return str(committed(DATA / "models" / name)) if name in TINY else PRESETS.get(name, name)


def _state(model: PreTrainedModel) -> tuple:
    """Cheap witness of the module tree: types, and address and version (in-place edits count it
    up) of every tensor."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return tuple((n, type(m)) for n, m in model.named_modules()), tuple(
        (n, t.data_ptr(), t._version) for n, t in tensors
    )


def _config_key(model: PreTrainedModel) -> str:
    return hashlib.sha256(
        f"{type(model).__name__}{model.config.to_json_string()}".encode()
    ).hexdigest()[:8]


def _weights_key(where: str, model: PreTrainedModel) -> str:
    """Digest of the weights: of the files where they are local, else the hub's commit, else of
    the tensors."""
    files = sorted(Path(where).glob("*.safetensors"))
    if files:
        return hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()[:16]
    commit = getattr(model.config, "_commit_hash", None)
    if commit:
        return f"{where}@{commit}"
    return _tensors_key(model)


def _tensors_key(model: PreTrainedModel) -> str:
    state = hashlib.sha256()
    for tensor in model.state_dict().values():
        state.update(tensor.detach().cpu().float().numpy().tobytes())
    return state.hexdigest()[:16]


@torch.no_grad()
def _behaviour(model: PreTrainedModel, blocks: tuple[Block, ...]) -> tuple[bool, bool]:
    """(parallel, layers return tuples), seen in two tiny forward passes that also confirm that each
    FFN is what it seems.

    Parallel: the first FFN's input at a position ignores the positions before it, so it skipped
    attention. Raises InputError if calling a found FFN on its recorded input does not give its
    recorded output.
    """
    seen: dict[int, list] = {b.index: [] for b in blocks}
    returned = []
    # Cloned: Falcon adds its attention output to the FFN's output in place.
    handles = [
        b.ffn.register_forward_hook(
            lambda _, args, y, i=b.index: seen[i].append((args[0], y.clone()))
        )
        for b in blocks
    ]
    handles.append(
        blocks[0].layer.register_forward_hook(lambda _, args, out: returned.append(type(out)))
    )
    try:
        for first in (1, 2):
            model(
                torch.tensor([[first, 3, 4]], device=model.get_input_embeddings().weight.device),
                use_cache=False,
            )
    finally:
        for handle in handles:
            handle.remove()
    for block in blocks:
        if not seen[block.index] or not torch.equal(
            block.ffn(seen[block.index][0][0]), seen[block.index][0][1]
        ):
            raise InputError(
                f"block {block.index}: {type(block.layer).__name__}.{block.ffn_name} does "
                "not map its recorded input to its recorded "
                "output, so it is not the FFN alone; this architecture is not supported."
            )
    (x1, _), (x2, _) = seen[0]
    return torch.equal(x1[..., -1, :], x2[..., -1, :]), issubclass(returned[0], tuple)


@contextlib.contextmanager
def _quiet():
    """Loading without transformers' bars and advice, which would stand in every report."""
    level, bars = (
        transformers.logging.get_verbosity(),
        transformers.utils.logging.is_progress_bar_enabled(),
    )
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.utils.logging.enable_progress_bar()
