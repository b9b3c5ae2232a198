"""Linear and nearly linear language models as their author codes them (Badger): one mixing of
positions, the same for all channels, and at most one nonlinearity."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import gelu
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from lib.errors import InputError, unknown


class Mixing(nn.Module):
    """C x + b over positions, for x [batch, position, channel]: C [n_ctx, n_ctx] is lower
    triangular and the same for all channels, b is one number a position. Without `mixes` C stays
    0."""

    def __init__(self, n_ctx: int, mixes: bool = True):
        super().__init__()
        bound = n_ctx**-0.5
        c = torch.empty(n_ctx, n_ctx).uniform_(-bound, bound)
        if mixes:
            self.c = nn.Parameter(c)
        else:
            self.register_buffer("c", torch.zeros_like(c), persistent=False)
        self.b = nn.Parameter(torch.empty(n_ctx).uniform_(-bound, bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, n_ctx = x.shape[1], len(self.b)
        if n > n_ctx:
            raise InputError(f"{n} tokens exceed this mixer's context of {n_ctx}: give fewer.")
        return self.c[:n, :n].tril() @ x + self.b[:n, None]


class LinearMixer(nn.Module):
    """H M … M (x + C x + b) of embedded tokens x: tokens [batch, position] -> logits.

    `blocks` of x + C x + b one after another; `maps` - 1 matrices M between the last and the head
    H. Without `mixes` a position sees its own token and place alone.
    """

    def __init__(
        self, vocab: int, n_ctx: int, width: int, blocks: int = 1, maps: int = 1, mixes: bool = True
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.mixings = nn.ModuleList(Mixing(n_ctx, mixes) for _ in range(blocks))
        between = [nn.Linear(width, width, bias=False) for _ in range(maps - 1)]
        for matrix in between:
            nn.init.orthogonal_(matrix.weight)  # the size of what passes stays
        self.between = nn.Sequential(*between)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: torch.Tensor, use_cache: bool = False) -> CausalLMOutput:
        x = self.embedding(tokens)
        for mixing in self.mixings:
            x = x + mixing(x)
        return CausalLMOutput(logits=self.head(self.within(self.between(x))))

    def within(self, x: torch.Tensor) -> torch.Tensor:
        """What a nearly linear model does to each position before the head."""
        return x


class ReluMixer(LinearMixer):
    """H ReLU(x + C x + b)."""

    def within(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu()


class GeluMixer(LinearMixer):
    """H (x + C₂ GELU(C₁ x + b₁) + b₂), the post's conv → GELU → conv."""

    def __init__(self, vocab: int, n_ctx: int, width: int):
        super().__init__(vocab, n_ctx, width, blocks=2)

    def forward(self, tokens: torch.Tensor, use_cache: bool = False) -> CausalLMOutput:
        x = self.embedding(tokens)
        first, second = self.mixings
        return CausalLMOutput(logits=self.head(x + second(gelu(first(x)))))


class ChannelMixer(LinearMixer):
    """H (x + C x + b) with a matrix C of its own for each channel: linear, and not shared."""

    def __init__(self, vocab: int, n_ctx: int, width: int):
        super().__init__(vocab, n_ctx, width, mixes=False)
        bound = n_ctx**-0.5
        self.c = nn.Parameter(torch.empty(width, n_ctx, n_ctx).uniform_(-bound, bound))

    def forward(self, tokens: torch.Tensor, use_cache: bool = False) -> CausalLMOutput:
        n = tokens.shape[1]
        x = self.embedding(tokens)
        mixed = torch.einsum("cij,bjc->bic", self.c[:, :n, :n].tril(), x)
        return CausalLMOutput(logits=self.head(x + mixed + self.mixings[0](x)))


class LagMixer(LinearMixer):
    """H (W₀ t_i + … + W₃ t_(i-3) + C x + b): linear, with a map of its own for each of the last
    `lags` tokens t beside the one, x = W t, that C shares among all. It starts as a linear mixer.
    """

    def __init__(self, vocab: int, n_ctx: int, width: int, lags: int = 4):
        super().__init__(vocab, n_ctx, width)
        self.of_lag = nn.ModuleList(nn.Embedding(vocab, width) for _ in range(lags))
        self.of_lag[0].weight.data.copy_(self.embedding.weight)
        for embedding in self.of_lag[1:]:
            nn.init.zeros_(embedding.weight)

    def forward(self, tokens: torch.Tensor, use_cache: bool = False) -> CausalLMOutput:
        x = self.mixings[0](self.embedding(tokens))
        for lag, embedding in enumerate(self.of_lag):
            later = nn.functional.pad(embedding(tokens), (0, 0, lag, 0))
            x = x + later[:, : tokens.shape[1]]
        return CausalLMOutput(logits=self.head(x))


class OneLayerMixer(LinearMixer):
    """H (y + FFN(y)) with y = x + C x + b: an FFN with GELU, as wide as the stream, biases and
    no norms."""

    def __init__(self, vocab: int, n_ctx: int, width: int):
        super().__init__(vocab, n_ctx, width)
        self.ffn = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def within(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.ffn(x)


def one_layer_llama(vocab: int, n_ctx: int, width: int) -> LlamaForCausalLM:
    """transformers' Llama with one layer, four heads and a gated FFN four times as wide as
    the stream."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=1,
            num_attention_heads=4,
            max_position_embeddings=n_ctx,
            use_cache=False,
        )
    )


MODELS: dict[str, Callable[..., nn.Module]] = {
    "linear": LinearMixer,
    "no mixing": functools.partial(LinearMixer, mixes=False),
    "three maps": functools.partial(LinearMixer, maps=3),
    "three blocks": functools.partial(LinearMixer, blocks=3),
    "C by channel": ChannelMixer,
    "map by lag": LagMixer,
    "current-token map": functools.partial(LagMixer, lags=1),
    "ReLU": ReluMixer,
    "conv-GELU-conv": GeluMixer,
    "one-layer mixer": OneLayerMixer,
    "Llama": one_layer_llama,
}
"""by name: vocab, n_ctx, width -> a language model"""


OURS = dict(MODELS)


@dataclass(frozen=True)
class Kind:
    """A kind of model by its name. One that a reader added or replaced has no words for keys: it is
    trained each time."""

    name: str

    @property
    def provenance(self) -> str | None:
        return self.name if MODELS.get(self.name) is OURS.get(self.name) else None


def check_model_kind(kind: str) -> None:
    """Raises InputError for a name that is not among MODELS."""
    if kind not in MODELS:
        raise unknown("kind of model", kind, [*MODELS])


def matched_width(kind: str, vocab: int, n_ctx: int, params: int) -> int:
    """The width (a multiple of 8) at which a kind has about `params` parameters."""
    check_model_kind(kind)
    return width_with(functools.partial(MODELS[kind], vocab, n_ctx), params)


def width_with(build: Callable[[int], nn.Module], params: int) -> int:
    """The width (a multiple of 8) at which what `build` makes has about `params` parameters."""
    sizes = {}
    for width in range(8, 8_193, 8):
        with torch.device("meta"):
            model = build(width)
        sizes[width] = sum(p.numel() for p in model.parameters())
        if sizes[width] > params:
            break
    return min(sizes, key=lambda w: abs(sizes[w] - params))


def composed(model: LinearMixer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A fully linear mixer as logits_n = Q Σ_{j≤n} c[n, j] t_j + offset[n] for one-hot tokens t_j:
    Q [vocab, vocab], c [n_ctx, n_ctx] and offset [n_ctx, vocab], float64."""
    if type(model) is not LinearMixer:
        raise InputError("only a linear mixer is one pair of Q and c: compose a LinearMixer.")
    head = model.head.weight.double()
    for matrix in reversed(model.between):
        head = head @ matrix.weight.double()
    n_ctx = len(model.mixings[0].b)
    c = torch.eye(n_ctx, dtype=torch.float64)
    b = torch.zeros(n_ctx, dtype=torch.float64)
    for mixing in model.mixings:
        whole = torch.eye(n_ctx, dtype=torch.float64) + mixing.c.double().tril()
        c, b = whole @ c, whole @ b + mixing.b.double()
    return head @ model.embedding.weight.double().T, c, b[:, None] * head.sum(1)
