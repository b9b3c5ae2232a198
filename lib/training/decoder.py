"""A decoder language model with an FFN width, and a kind of FFN, of its own in every layer.

A `transformers` model built from Llama's parts: `save_pretrained`, `from_pretrained`, AutoModel and
`generate` with a KV cache work as for any other, and with equal widths it is Llama, weight for
weight.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRMSNorm

from lib.errors import InputError, unknown

STARTS = ("plain", "looking-back", "scaled", "scaled, looking-back", "llama")
ATTENTIONS = ("softmax", "gated")
"""how a layer's attention mixes tokens: see GatedAttention"""


class DecoderConfig(LlamaConfig):
    """Llama's, with `intermediate_sizes`: one width a layer, 0 for no FFN and no norm before it;
    `ffn_kinds`: one of KINDS a layer; `parallel`: attention and FFN both read the stream that
    enters the layer, each after its norm, as in GPT-NeoX; `attention`: one of ATTENTIONS."""

    model_type = "layerwise-decoder"
    intermediate_sizes: list[int] = None  # type: ignore[assignment]  # one a layer
    ffn_kinds: list[str] = None  # type: ignore[assignment]  # one a layer
    parallel: bool = False
    attention: str = "softmax"

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        n = self.num_hidden_layers
        self.intermediate_sizes = list(self.intermediate_sizes or [self.intermediate_size] * n)
        if len(self.intermediate_sizes) != n:
            raise InputError(
                f"{n} layers were given {len(self.intermediate_sizes)} FFN widths: give one each."
            )
        self.ffn_kinds = list(self.ffn_kinds or ["swiglu"] * n)
        if len(self.ffn_kinds) != n:
            raise InputError(f"{n} layers were given {len(self.ffn_kinds)} kinds: give one each.")
        for kind in self.ffn_kinds:
            if kind not in KINDS:
                raise unknown("kind of FFN", kind, [*KINDS])
        if self.attention not in ATTENTIONS:
            raise unknown("attention", self.attention, ATTENTIONS)
        if min(self.intermediate_sizes) < 0:
            raise InputError(
                f"an FFN cannot be {min(self.intermediate_sizes)} wide: give 0 or more."
            )


class FFN(nn.Module):
    """Down(SiLU(Gate x) · Up x), x [..., d]."""

    def __init__(self, d: int, width: int):
        super().__init__()
        self.gate_proj = nn.Linear(d, width, bias=False)
        self.up_proj = nn.Linear(d, width, bias=False)
        self.down_proj = nn.Linear(width, d, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class GeluFFN(nn.Module):
    """Down(GELU(Up x)), x [..., d], as in GPT-2 but without biases."""

    def __init__(self, d: int, width: int):
        super().__init__()
        self.up_proj = nn.Linear(d, width, bias=False)
        self.down_proj = nn.Linear(width, d, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.gelu(self.up_proj(x)))


class Affine(nn.Linear):
    """Wx + b in an FFN's place."""

    def __init__(self, d: int, width: int = 0):
        super().__init__(d, d)


class Hybrid(nn.Module):
    """Wx + b, and a small FFN beside it (Balogh §5.7.3, Eq. 7)."""

    def __init__(self, d: int, width: int):
        super().__init__()
        self.affine, self.ffn = Affine(d), FFN(d, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.affine(x) + self.ffn(x)


class Gated(nn.Module):
    """g(x) · FFN(x) + (1 - g(x)) · (Wx + b) with g = sigmoid(u·x + c), all learned together
    (Balogh §5.7.2, Eq. 6). After a pass `opening` is g, [batch, position, 1]."""

    def __init__(self, d: int, width: int):
        super().__init__()
        self.affine, self.ffn, self.gate = Affine(d), FFN(d, width), nn.Linear(d, 1)
        self.opening: torch.Tensor = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.opening = self.gate(x).sigmoid()
        linear = self.affine(x)
        return linear + self.opening * (self.ffn(x) - linear)


KINDS: dict[str, type[nn.Module]] = {
    "swiglu": FFN,
    "gelu": GeluFFN,
    "affine": Affine,
    "hybrid": Hybrid,
    "gated": Gated,
}
"""{what stands in a layer's FFN's place: its class, made by (d, width)}; a kind of your own is one
more entry. Its start goes by names (`_std`): the matrix that writes to the stream is `down_proj`"""


class GatedProjection(nn.Linear):
    """A projection of what heads read, times an opening that is set before each pass."""

    opening: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x * self.opening)


class GatedAttention(LlamaAttention):
    """Llama's attention whose heads' output is multiplied, entry by entry, by sigmoid(G x) before
    it is projected (Qiu et al. 2025)."""

    def __init__(self, config: DecoderConfig, layer_idx: int):
        super().__init__(config, layer_idx)
        d, inside = config.hidden_size, config.num_attention_heads * config.head_dim
        self.gate_proj = nn.Linear(d, inside, bias=False)
        self.o_proj = GatedProjection(inside, d, bias=False)

    def forward(self, hidden_states: torch.Tensor, *args, **kwargs):
        self.o_proj.opening = self.gate_proj(hidden_states).sigmoid()
        return super().forward(hidden_states, *args, **kwargs)


class DecoderLayer(GradientCheckpointingLayer):
    """Llama's layer: attention, then the FFN if there is one, each after its norm."""

    def __init__(self, config: DecoderConfig, layer_idx: int):
        super().__init__()

        def norm():
            return LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

        attention = GatedAttention if config.attention == "gated" else LlamaAttention
        self.input_layernorm, self.self_attn = norm(), attention(config, layer_idx)
        width, kind = config.intermediate_sizes[layer_idx], config.ffn_kinds[layer_idx]
        there = width > 0 or kind == "affine"
        self.parallel = config.parallel
        self.post_attention_layernorm = norm() if there else None
        self.mlp = KINDS[kind](config.hidden_size, width) if there else None

    def forward(self, hidden_states: torch.Tensor, **kwargs) -> torch.Tensor:
        entering = hidden_states
        normed = self.input_layernorm(entering)
        x = entering + self.self_attn(hidden_states=normed, **kwargs)[0]
        if self.mlp is None or self.post_attention_layernorm is None:
            return x
        return x + self.mlp(self.post_attention_layernorm(entering if self.parallel else x))


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


@dataclass(frozen=True)
class Shape:
    """What decoders of one experiment share, whatever the widths of their FFNs."""

    d: int
    heads: int
    vocab: int
    n_ctx: int
    kinds: tuple[str, ...] = ()
    """of KINDS, one a layer; none: SwiGLU in all"""
    parallel: bool = False
    """attention and FFN side by side"""
    attention: str = "softmax"
    """one of ATTENTIONS"""

    @property
    def provenance(self) -> dict[str, str] | None:
        """The shape in words, for keys; None with a kind of FFN that lib does not have."""
        made_by = [KINDS[kind].__module__ for kind in self.kinds if kind in KINDS]
        if any(not module.startswith("lib.") for module in made_by):
            return None
        words = {
            "residual width": str(self.d),
            "heads": str(self.heads),
            "vocabulary": str(self.vocab),
            "context": str(self.n_ctx),
        }
        # What is usual says nothing, so that the keys of usual decoders stay.
        words |= {"kinds of FFNs": ", ".join(self.kinds)} if self.kinds else {}
        words |= {"attention and FFN": "side by side"} if self.parallel else {}
        words |= {"attention": self.attention} if self.attention != "softmax" else {}
        return words


def build_decoder(
    widths: Sequence[int],
    shape: Shape,
    *,
    start: str = "plain",
    seed: int = 42,
) -> Decoder:
    """A decoder with these FFN widths, its weights drawn anew.

    `start`: "plain" draws the embedding with std 1, matrices with 1/√(inputs), and what writes to
    the stream or the logits is 0; "looking-back" is plain with one head of the first layer that
    attends to the token before; "scaled" lets what writes to the stream begin with 1/√(inputs · 2
    layers) and the logits with 0.02; "scaled, looking-back" is that with the same head; "llama"
    draws every matrix with std 0.02. Each parameter has a generator of its own, so models of one
    seed share the weights of all that they have in common: a wider FFN begins with the units of the
    narrower.
    """
    if start not in STARTS:
        raise unknown("start", start, STARTS)
    config = DecoderConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.d,
        intermediate_size=max(widths),
        intermediate_sizes=list(widths),
        ffn_kinds=list(shape.kinds) or None,
        parallel=shape.parallel,
        attention=shape.attention,
        num_hidden_layers=len(widths),
        num_attention_heads=shape.heads,
        max_position_embeddings=shape.n_ctx,
        use_cache=False,
    )
    model = Decoder(config)
    for name, p in model.named_parameters():
        if p.dim() < 2:
            if name.endswith("bias"):
                p.data.zero_()
            continue  # the norms' ones
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        down = name.endswith("down_proj.weight")
        drawn = torch.randn(*(reversed(p.shape) if down else p.shape), generator=generator)
        p.data.copy_((drawn.T if down else drawn) * _std(name, p, start, len(widths)))
    if start.endswith("looking-back"):
        _look_back(model)
    return model


def _std(name: str, p: torch.Tensor, start: str, n_layers: int) -> float:
    """The standard deviation with which a matrix is drawn."""
    plain = p.shape[1] ** -0.5
    scaled = start.startswith("scaled")
    if start == "llama":
        return 0.02
    if "embed" in name:
        return 1.0
    if name.endswith("gate.weight"):
        return 0.0  # all gates begin half open
    if name.endswith("lm_head.weight"):
        return 0.02 if scaled else 0.0
    if name.endswith(("o_proj.weight", "down_proj.weight", "affine.weight", "mlp.weight")):
        return plain / (2 * n_layers) ** 0.5 if scaled else 0.0
    return plain


@torch.no_grad()
def _look_back(model: Decoder, sharpness: float = 4.0) -> None:
    """Let the first head of the first layer attend to the token before, whatever the tokens are.

    One entry of every embedding becomes 1. Queries and keys of the head read it, and each pair of
    their entries is turned so that, after the rotary embedding, the score of a key Δ positions back
    is sharpness² · Σ cos(θ (Δ - 1)) over the frequencies θ: largest at Δ = 1.
    """
    attention = model.model.layers[0].self_attn
    model.model.embed_tokens.weight[:, 0] = 1.0
    frequencies = model.model.rotary_emb.inv_freq
    half = len(frequencies)
    queries, keys = attention.q_proj.weight[: 2 * half], attention.k_proj.weight[: 2 * half]
    # What the tokens say to this head stays, but small.
    queries.mul_(0.1)
    keys.mul_(0.1)
    queries[:half, 0], queries[half:, 0] = sharpness, 0.0
    keys[:half, 0] = sharpness * frequencies.cos()
    keys[half:, 0] = sharpness * frequencies.sin()
