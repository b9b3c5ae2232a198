"""A decoder language model with an FFN width of its own in every layer.

A `transformers` model built from Llama's parts: `save_pretrained`, `from_pretrained`, AutoModel and
`generate` with a KV cache work as for any other, and with equal widths it is Llama, weight for
weight.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRMSNorm

from lib.cache import cache_folder, step
from lib.errors import InputError, unknown
from lib.stats import over_seeds
from lib.swap import next_token_losses
from lib.text import KneserNey, Windows, cut_windows, load_corpus
from lib.train import train, train_tokenizer

FFNS = {"swiglu": 3, "linear": 2}  # matrices of d × width in each kind
STARTS = ("zero", "llama")


class DecoderConfig(LlamaConfig):
    """Llama's, with `intermediate_sizes` (one width a layer, 0 for no FFN and no norm before it)
    and `ffn_kinds` (one of FFNS a layer; SwiGLU where nothing is said)."""

    model_type = "layerwise-decoder"
    intermediate_sizes: list[int] | None = None
    ffn_kinds: list[str] | None = None

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        n = self.num_hidden_layers
        self.intermediate_sizes = list(self.intermediate_sizes or [self.intermediate_size] * n)
        self.ffn_kinds = list(self.ffn_kinds or ["swiglu"] * n)
        if {len(self.intermediate_sizes), len(self.ffn_kinds)} != {n}:
            raise InputError(
                f"{n} layers were given {len(self.intermediate_sizes)} FFN widths and "
                f"{len(self.ffn_kinds)} kinds: give one a layer."
            )
        if min(self.intermediate_sizes) < 0:
            raise InputError(
                f"an FFN cannot be {min(self.intermediate_sizes)} wide: give 0 or more."
            )
        for kind in self.ffn_kinds:
            if kind not in FFNS:
                raise unknown("kind of FFN", kind, [*FFNS])


class FFN(nn.Module):
    """Down(SiLU(Gate x) · Up x); "linear": Down(Up x). x [..., d]."""

    def __init__(self, d: int, width: int, kind: str):
        super().__init__()
        self.gate_proj = nn.Linear(d, width, bias=False) if kind == "swiglu" else None
        self.up_proj = nn.Linear(d, width, bias=False)
        self.down_proj = nn.Linear(width, d, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up = self.up_proj(x)
        gated = up if self.gate_proj is None else nn.functional.silu(self.gate_proj(x)) * up
        return self.down_proj(gated)


class DecoderLayer(GradientCheckpointingLayer):
    """Llama's layer: attention, then the FFN if there is one, each after its norm."""

    def __init__(self, config: DecoderConfig, layer_idx: int):
        super().__init__()
        norm = lambda: LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.input_layernorm, self.self_attn = norm(), LlamaAttention(config, layer_idx)
        width, kind = config.intermediate_sizes[layer_idx], config.ffn_kinds[layer_idx]
        self.post_attention_layernorm = norm() if width else None
        self.mlp = FFN(config.hidden_size, width, kind) if width else None

    def forward(self, hidden_states: torch.Tensor, **kwargs) -> torch.Tensor:
        x = hidden_states
        x = x + self.self_attn(hidden_states=self.input_layernorm(x), **kwargs)[0]
        return x if self.mlp is None else x + self.mlp(self.post_attention_layernorm(x))


class Decoder(LlamaForCausalLM):
    """Llama with layers of DecoderLayer."""

    config_class = DecoderConfig
    _no_split_modules: ClassVar = ["DecoderLayer"]
    _can_record_outputs: ClassVar = {"hidden_states": DecoderLayer, "attentions": LlamaAttention}

    def __init__(self, config: DecoderConfig):
        super().__init__(config)
        n = config.num_hidden_layers
        self.model.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(n))
        self.post_init()


AutoConfig.register(DecoderConfig.model_type, DecoderConfig)
AutoModelForCausalLM.register(DecoderConfig, Decoder)


def build_decoder(
    widths: list[int],
    d: int,
    heads: int,
    vocab: int,
    n_ctx: int,
    start: str = "zero",
    seed: int = 42,
    kinds: list[str] | None = None,
) -> Decoder:
    """A decoder with these FFN widths, its weights drawn anew.

    `start`: "llama" draws every matrix with std 0.02; "zero" the embedding with std 0.1, all others
    with 1/√(inputs), and what writes to the stream or the logits is 0 (seeds agree better). Each
    parameter has a generator of its own, so models of one seed share the weights of all that they
    have in common: a wider FFN begins with the units of the narrower.
    """
    if start not in STARTS:
        raise unknown("start", start, STARTS)
    config = DecoderConfig(
        vocab_size=vocab,
        hidden_size=d,
        intermediate_size=max(widths),
        intermediate_sizes=list(widths),
        ffn_kinds=kinds,
        num_hidden_layers=len(widths),
        num_attention_heads=heads,
        max_position_embeddings=n_ctx,
        use_cache=False,
    )
    model = Decoder(config)
    writes = ("o_proj.weight", "down_proj.weight", "lm_head.weight")
    for name, p in model.named_parameters():
        if p.dim() < 2:
            continue  # the norms' ones
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        down = name.endswith("down_proj.weight")
        drawn = torch.randn(*(reversed(p.shape) if down else p.shape), generator=generator)
        if start == "llama":
            std = 0.02
        else:
            std = 0.1 if "embed" in name else 0.0 if name.endswith(writes) else p.shape[1] ** -0.5
        p.data.copy_((drawn.T if down else drawn) * std)
    return model


def count_params(config: DecoderConfig) -> int:
    """Parameters of a decoder: exact."""
    d, v = config.hidden_size, config.vocab_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    layers = config.num_hidden_layers * (2 * d * queries + 2 * d * keys + d)
    ffns = zip(config.intermediate_sizes, config.ffn_kinds, strict=True)
    ffn = sum(FFNS[kind] * d * width + d for width, kind in ffns if width)
    return v * d * (1 if config.tie_word_embeddings else 2) + d + layers + ffn


def flops_per_token(config: DecoderConfig, seq_len: int) -> int:
    """Floating-point operations of the matrix products of a forward pass, a token of `seq_len`:
    exact where attention computes the whole square of scores."""
    d, v = config.hidden_size, config.vocab_size
    embedding = v * d * (0 if config.tie_word_embeddings else 1)
    n_norms = 1 + config.num_hidden_layers + sum(w > 0 for w in config.intermediate_sizes)
    in_products = count_params(config) - embedding - n_norms * d
    scores = 2 * seq_len * config.num_attention_heads * config.head_dim * config.num_hidden_layers
    return 2 * (in_products + scores)


def _decoder(widths, data: Windows, vocab: int, d, heads, start, seed, kinds) -> Decoder:
    return build_decoder(widths, d, heads, vocab, data.tokens.shape[1], start, seed, kinds)


@step(version=1)
def trunk(
    marks: tuple[int, ...],
    widths: list[int],
    data: Windows,
    vocab: int,
    d: int,
    heads: int,
    lr: float,
    batch: int,
    warmup: int,
    start: str,
    seed: int,
) -> dict:
    """The state (see lib.train) of a decoder after marks[-1] steps at a constant rate; it goes on
    from the trunk of the marks before, so that each piece is trained once."""
    given = dict(d=d, heads=heads, lr=lr, batch=batch, warmup=warmup, start=start, seed=seed)
    begin = trunk(marks[:-1], widths, data, vocab, **given) if len(marks) > 1 else None
    model, found = _decoder(widths, data, vocab, d, heads, start, seed, None), {}
    keep = lambda _, state: found.update(state())
    how = dict(seed=seed, decay=0, look=keep, at=(marks[-1],), begin=begin)
    train(model, data, marks[-1], batch, lr, warmup, **how)
    return found


@step(version=1)
def fit_decoder(
    widths: list[int],
    data: Windows,
    test: Windows,
    vocab: int,
    d: int,
    heads: int,
    lr: float,
    steps: int,
    batch: int = 16,
    warmup: float = 0.1,
    start: str = "zero",
    seed: int = 42,
    decay: float | None = None,
    marks: tuple[int, ...] = (),
    kinds: list[str] | None = None,
) -> dict:
    """Train a decoder with these widths (lib.train; `warmup` and `decay` are shares of the steps):
    its losses on `test` ("test", [n, seq_len - 1]), the training loss of each step ("loss") and its
    weights ("weight.…"). `marks`: branch from the `trunk` with these marks (WSD only)."""
    given = locals()
    model = _decoder(widths, data, vocab, d, heads, start, seed, kinds)
    n_warmup = max(1, round(warmup * steps))
    n_decay = None if decay is None else round(decay * steps)
    begin, folder = None, None
    if marks:
        n_warmup = max(1, round(warmup * marks[0]))
        begin = trunk(marks, widths, data, vocab, d, heads, lr, batch, n_warmup, start, seed)
    if steps > 2_000:  # long enough to be killed in
        key = fit_decoder.recipe(**given)
        folder = cache_folder() / "training" / key if key else None
    how = dict(seed=seed, decay=n_decay, begin=begin, checkpoints=folder)
    losses = train(model, data, steps, batch, lr, n_warmup, **how)
    weights = {f"weight.{name}": p for name, p in model.named_parameters()}
    return {"test": read(model, test), "loss": np.array(losses, np.float32)} | weights


@torch.no_grad()
def read(model: Decoder, data: Windows) -> torch.Tensor:
    """Each token's loss in nats, [n, seq_len - 1]."""
    batches = (tokens.to(model.device) for tokens in data.tokens.split(256))
    return torch.cat([next_token_losses(model(t).logits, t) for t in batches])


def trained_decoder(found: dict, widths, vocab, n_ctx, d, heads, kinds=None) -> Decoder:
    """The model that `fit_decoder` trained."""
    model = build_decoder(widths, d, heads, vocab, n_ctx, kinds=kinds)
    state = {
        name: torch.from_numpy(found[f"weight.{name}"]) for name, _ in model.named_parameters()
    }
    model.load_state_dict(state)
    return model.requires_grad_(False).eval()


@dataclass(frozen=True)
class Setup:
    """What the reports on allocation share: a text, a model's shape and a recipe, fixed on uniform
    widths alone."""

    fit: Windows
    choose: Windows
    """for choosing a learning rate; other documents than `test`"""
    test: Windows
    unseen: list[str]
    """the documents of `test`"""
    tokenizer: object
    d: int
    heads: int
    d_ff: int
    steps: int
    n_layers: int = 12
    lr: float = 1.5e-2
    batch: int = 16
    warmup: float = 0.5
    """share of the steps"""

    @property
    def vocab(self) -> int:
        return len(self.tokenizer)

    @property
    def n_ctx(self) -> int:
        return self.fit.tokens.shape[1]

    @property
    def uniform(self) -> list[int]:
        return [self.d_ff] * self.n_layers

    def train(self, widths: list[int], seed: int, **changes) -> dict:
        """`fit_decoder` of these widths by this recipe, or by one changed in `changes`. It reads
        only as many windows as it has steps for, a random part of the text for each seed, and no
        token twice."""
        how = dict(d=self.d, heads=self.heads, lr=self.lr, steps=self.steps, batch=self.batch)
        how |= dict(data=self.fit, test=self.test, warmup=self.warmup) | changes
        return fit_decoder(widths, vocab=self.vocab, seed=seed, **how)

    def losses(self, widths: list[int] | Callable, seeds: Sequence[int], **changes) -> np.ndarray:
        """Mean test loss of each seed in nats a token, [seeds]; `widths` may be a function of the
        seed."""
        of = lambda seed: widths(seed) if callable(widths) else widths
        bar = tqdm(seeds, desc="seeds", delay=2, leave=False)
        return np.array([self.train(of(s), s, **changes)["test"].mean() for s in bar])

    def gains(self, widths: list[int] | Callable, seeds: Sequence[int], **changes) -> np.ndarray:
        """By how much these widths lower uniform's test loss in nats a token, paired by seed."""
        return self.losses(self.uniform, seeds, **changes) - self.losses(widths, seeds, **changes)

    def model(self, widths: list[int], seed: int, **changes) -> Decoder:
        """The model that `train` trained."""
        found = self.train(widths, seed, **changes)
        return trained_decoder(found, widths, self.vocab, self.n_ctx, self.d, self.heads)

    def by_rate(self, rates: Sequence[float], seed: int, **changes) -> dict[float, float]:
        """Uniform's mean loss on `choose` at each learning rate."""
        models = {lr: self.model(self.uniform, seed, lr=lr, **changes) for lr in rates}
        return {lr: float(read(model, self.choose).mean()) for lr, model in models.items()}

    def counted(self) -> dict[str, float]:
        """Test loss of an n-gram (Kneser-Ney) counted on as many tokens as a model reads."""
        read = self.fit[: self.steps * self.batch].tokens.numpy()
        ngram = lambda k: KneserNey(read, self.vocab, k).losses(self.test.tokens.numpy())
        return {name: float(ngram(k).mean()) for k, name in ((2, "bigram"), (3, "trigram"))}

    def passed(self, seeds: Sequence[int], **changes) -> bool:
        """Whether uniform's mean loss lies below that of a bigram counted on as many tokens; else
        nothing is judged. Prints what was compared."""
        found, counted = over_seeds(self.losses(self.uniform, seeds, **changes)), self.counted()
        there = found.value < counted["bigram"]
        told = ", ".join(f"{name} {value:.3f}" for name, value in counted.items())
        print(f"Uniform {found.value:.3f} [{found.low:.3f}, {found.high:.3f}], counted {told} nats "
              f"a token: {'judged' if there else 'not judged'}.")  # fmt: skip
        return there


def setup(run, corpus: str | None = None) -> Setup:
    """The set-up of a run's profile, on a mixture of three texts or on one `corpus`."""
    mixture = run.pick(["wikipedia-sample"], *[["wikipedia", "king-james", "python-docs"]] * 2,
                       ["fineweb-edu"])  # fmt: skip
    texts = [load_corpus(name) for name in ([corpus] if corpus else mixture)]
    fit, unseen = ([d for t in texts for d in getattr(t, part)] for part in ("fit", "test"))
    d, heads, d_ff, n_ctx, vocab, steps, batch = run.pick(
        (16, 2, 32, 16, 300, 3, 4),
        (48, 3, 128, 64, 512, 20, 16),
        (48, 3, 128, 64, 512, 500, 16),
        (1280, 20, 4480, 1024, 50_257, 20_000, 288),  # Ikeda's 285M
    )
    tokenizer = train_tokenizer(fit, vocab)
    cut = lambda part, name: cut_windows(part, tokenizer, n_ctx, run.seed, name)
    most = run.pick(64, 256, 1_024, 4_096)
    choose, test = cut(unseen[::2], "choose")[:most], cut(unseen[1::2], "test")[:most]
    lr, warmup = run.pick(*[(1.5e-2, 0.5)] * 3, (3e-4, 0.05))
    shape = dict(d=d, heads=heads, d_ff=d_ff, steps=steps, lr=lr, batch=batch, warmup=warmup)
    return Setup(cut(fit, "fit"), choose, test, unseen[1::2], tokenizer, **shape)
