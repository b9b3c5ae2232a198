"""Masked mixers, linear and nearly linear, and a one-layer Llama beside them (Badger, "Linear Mixer
Architecture", "Nearly Linear Models").

A mixer sees position j from position i ≥ j through one number, the same for all channels: a lower
triangular matrix over positions. The linear mixer is O_i = H W Σ_j c_ij t_j with one-hot tokens t_j
(W [m, |t|] is read as a table, so W t costs nothing), and has no bias, norm or residual path: a
residual path would be a diagonal in c.
"""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from lib.second.base.errors import InputError, unknown

KINDS = {
    "linear": "linear mixer",
    "direct": "Q trained directly",
    "relu": "ReLU after mixing",
    "convolutions": "conv, GELU, conv",
    "mixer": "one-layer mixer, FFN",
    "llama": "one-layer Llama",
}
LINEAR = ("linear", "direct")


@dataclass(frozen=True)
class Mixer:
    """Which model: one of KINDS, and its sizes."""

    kind: str
    width: int
    """hidden dimension m"""
    vocab: int
    """|t|"""
    context: int
    """positions of the mixing matrix"""
    modules: int = 1
    """linear mixer: how many times mixing and a linear map follow each other"""
    maps: int = 1
    """linear mixer: linear maps between token and head, W and further ones of m by m"""

    @property
    def label(self) -> str:
        """The model in words, without its width."""
        extra = f", {self.modules} modules" * (self.modules > 1)
        return KINDS[self.kind] + extra + f", {self.maps} maps" * (self.maps > 1)

    @property
    def parameters(self) -> int:
        """Numbers that are trained; of a mixing matrix, those on and below the diagonal."""
        m, table = self.width, self.width * self.vocab
        mixing = self.context * (self.context + 1) // 2
        return {
            "linear": 2 * table + (self.modules + self.maps - 2) * m * m + self.modules * mixing,
            "direct": self.vocab**2 + mixing,
            "relu": 2 * table + mixing,
            "convolutions": 2 * table + 2 * mixing,
            "mixer": 2 * table + 8 * m * m + 6 * m + mixing,
            "llama": 2 * table + 4 * m * m + 3 * m * _inner(m) + 3 * m,
        }[self.kind]

    @property
    def flops(self) -> float:
        """Of one token in a full window, forward: two for each multiplication. Tables cost
        nothing, nor do activations and norms."""
        m, seen = self.width, (self.context + 1) / 2
        head, mixing = self.vocab * m, seen * m
        products = {
            "linear": head + self.modules * mixing + (self.modules + self.maps - 2) * m * m,
            "direct": seen * self.vocab,
            "relu": head + mixing,
            "convolutions": head + 2 * mixing,
            "mixer": head + mixing + 8 * m * m,
            "llama": head + 2 * mixing + 4 * m * m + 3 * m * _inner(m),
        }
        return 2 * products[self.kind]


def _inner(width: int) -> int:
    """Width of Llama's gated FFN, whose three matrices hold about what two of four times the
    width would."""
    return 8 * round(width / 3)


class Mixing(nn.Module):
    """x [batch, n, m] → Σ_{j≤i} c_ij x_j, the same c for every channel.

    c begins as PyTorch begins a convolution over as many positions, and (`own`) with 1 added where
    a position sees itself: without a residual path the last token is else hard to find.
    """

    def __init__(self, context: int, own: bool):
        super().__init__()
        bound = context**-0.5
        weight = torch.empty(context, context).uniform_(-bound, bound)
        self.weight = nn.Parameter(weight + own * torch.eye(context))

    @property
    def matrix(self) -> torch.Tensor:
        """[context, context], lower triangular"""
        return self.weight.tril()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        if n > len(self.weight):
            raise InputError(
                f"a context of {n} tokens is longer than the mixing matrix, which has "
                f"{len(self.weight)} positions: give fewer tokens, or train a longer one."
            )
        return self.matrix[:n, :n] @ x


class MixerLM(nn.Module):
    """A language model of one of KINDS but "llama": tokens [batch, n] → logits [batch, n, |t|]."""

    def __init__(self, spec: Mixer):
        super().__init__()
        self.spec, m, context = spec, spec.width, spec.context
        out = spec.vocab if spec.kind == "direct" else m
        self.table = nn.Embedding(spec.vocab, out)
        nn.init.normal_(self.table.weight, std=out**-0.5)
        self.mixing = nn.ModuleList(
            Mixing(context, own=spec.kind != "mixer")
            for _ in range(2 if spec.kind == "convolutions" else spec.modules)
        )
        extra = spec.modules + spec.maps - 2
        self.maps = nn.ModuleList(nn.Linear(m, m, bias=False) for _ in range(extra))
        self.head = None if spec.kind == "direct" else nn.Linear(m, spec.vocab, bias=False)
        if spec.kind == "mixer":
            self.before, self.after, self.last = (nn.LayerNorm(m) for _ in range(3))
            self.ffn = nn.Sequential(
                nn.Linear(m, 4 * m, bias=False), nn.GELU(), nn.Linear(4 * m, m, bias=False)
            )

    @property
    def device(self) -> torch.device:
        return self.table.weight.device

    def forward(self, tokens: torch.Tensor, use_cache: bool = False) -> CausalLMOutput:
        """`use_cache` is there for the training loop, and nothing is cached."""
        return CausalLMOutput(logits=self.body(self.table(tokens)))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """All after the table: x [batch, n, m] → logits [batch, n, |t|]."""
        first, *more = self.mixing
        match self.spec.kind:
            case "relu":
                x = first(x).relu()
            case "convolutions":
                x = more[0](nn.functional.gelu(first(x)))
            case "mixer":
                x = x + first(self.before(x))
                x = self.last(x + self.ffn(self.after(x)))
            case _:
                for mixing in self.mixing:
                    x = mixing(x)
                for linear in self.maps:  # they act on channels, and mixing on positions
                    x = linear(x)
        return x if self.head is None else self.head(x)


def build_mixer(spec: Mixer, seed: int) -> nn.Module:
    """A randomly initialised model. Raises InputError for an unknown kind, or sizes that are
    none."""
    if spec.kind not in KINDS:
        raise unknown("kind of mixer", spec.kind, list(KINDS))
    sizes = {name: getattr(spec, name) for name in ("width", "vocab", "context", "modules", "maps")}
    for name, value in sizes.items():
        if type(value) is not int or value < 1:
            raise InputError(f"{name} {value!r} is not possible: use a whole number from 1 up.")
    if spec.kind != "linear" and spec.modules + spec.maps > 2:
        raise InputError(f"a mixer of kind {spec.kind!r} is not stacked: use one module, one map.")
    torch.manual_seed(seed)
    if spec.kind != "llama":
        return MixerLM(spec)
    config = LlamaConfig(
        vocab_size=spec.vocab,
        hidden_size=spec.width,
        intermediate_size=_inner(spec.width),
        num_hidden_layers=1,
        num_attention_heads=max(1, spec.width // 32),
        max_position_embeddings=spec.context,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)
