"""Linear language models (Badger): one mixing matrix over positions, one map from token to token.

A linear mixer gives O_n = H W Σ_{j≤n} c[n, j] t_j for one-hot tokens t_j: fully linear, without
norm, bias or residual, c lower triangular and shared by all channels.
"""

import numpy as np
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from lib.cache import step
from lib.errors import InputError, unknown
from lib.swap import next_token_losses
from lib.text import Windows
from lib.train import train

KINDS = ("linear", "direct", "relu", "conv-gelu-conv", "ffn", "ffn, linear", "llama")


class Mixer(nn.Module):
    """A one-layer masked mixer: tokens [batch, n_ctx] -> next-token logits [batch, n_ctx, vocab].

    "linear": H (c (W t)); "direct": Q (c t), the composed map trained itself; "relu": H ReLU(c (W
    t)); "conv-gelu-conv": H (c2 GELU(c1 (W t))); "ffn": the masked mixer with norms, residuals and
    an FFN of 4 × width; "ffn, linear": the same without norms and activation. `layers` more linear
    maps of that width follow the mixing of a "linear" one. c starts at the identity plus noise, so
    that training begins at token pairs (a residual by initialisation, not in the model).
    """

    def __init__(self, vocab: int, n_ctx: int, width: int, kind: str = "linear", layers: int = 0):
        super().__init__()
        if kind not in KINDS[:-1]:
            raise unknown("kind of mixer", kind, KINDS[:-1])
        self.kind, self.n_ctx, self.vocab = kind, n_ctx, vocab
        width = vocab if kind == "direct" else width
        self.w = None if kind == "direct" else nn.Embedding(vocab, width)
        mixing = lambda: nn.Parameter(torch.eye(n_ctx) + 0.02 * torch.randn(n_ctx, n_ctx).tril())
        self.c = mixing()
        self.c2 = mixing() if kind == "conv-gelu-conv" else None
        self.h = nn.Linear(width, vocab, bias=False)
        self.maps = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        if kind.startswith("ffn"):
            act, norm = (nn.GELU, nn.LayerNorm) if kind == "ffn" else (nn.Identity, nn.Identity)
            self.norms = nn.ModuleList([norm(width), norm(width), norm(width)])
            up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.ffn = nn.Sequential(up, act(), down)
        for m in self.modules():
            if isinstance(m, nn.Embedding | nn.Linear):
                nn.init.normal_(m.weight, std=m.weight.shape[1] ** -0.5)

    @property
    def device(self) -> torch.device:
        return self.c.device

    def forward(self, tokens: torch.Tensor, use_cache: bool = False) -> CausalLMOutput:
        n = tokens.shape[1]
        if n > self.n_ctx:
            raise InputError(f"{n} tokens exceed this mixer's context of {self.n_ctx}: give fewer.")
        mix = lambda c, x: torch.einsum("nj,bjd->bnd", c[:n, :n].tril(), x)
        x = (
            nn.functional.one_hot(tokens, self.vocab).to(self.c)
            if self.w is None
            else self.w(tokens)
        )
        if self.kind.startswith("ffn"):
            x = x + mix(self.c, self.norms[0](x))
            x = x + self.ffn(self.norms[1](x))
            return CausalLMOutput(logits=self.h(self.norms[2](x)))
        x = mix(self.c, x)
        if self.kind == "relu":
            x = x.relu()
        elif self.kind == "conv-gelu-conv":
            x = mix(self.c2, nn.functional.gelu(x))
        for layer in self.maps:
            x = layer(x)
        return CausalLMOutput(logits=self.h(x))


def build(kind: str, vocab: int, n_ctx: int, width: int, layers: int = 0) -> nn.Module:
    """A Mixer, or for "llama" a one-layer Llama whose FFN is four times as wide."""
    if kind != "llama":
        return Mixer(vocab, n_ctx, width, kind, layers)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=width,
            intermediate_size=8 * width // 3,
            num_hidden_layers=1,
            num_attention_heads=max(1, width // 32),
            max_position_embeddings=n_ctx,
        )
    )


def width_for(kind: str, vocab: int, n_ctx: int, params: int) -> int:
    """The width (a multiple of 32) at which a kind has about `params` parameters."""
    sizes = {}
    for width in range(32, 4_097, 32):
        with torch.device("meta"):
            sizes[width] = sum(p.numel() for p in build(kind, vocab, n_ctx, width).parameters())
        if sizes[width] > 2 * params:
            break
    return min(sizes, key=lambda w: abs(sizes[w] - params))


@step(version=1)
def fit_lm(
    kind: str,
    data: Windows,
    test: Windows,
    vocab: int,
    width: int,
    lr: float,
    steps: int,
    batch: int = 64,
    seed: int = 42,
    layers: int = 0,
) -> dict:
    """Train one model by the recipe of lib.train without weight decay: its weights ("state.…"), the
    training loss of each step ("loss"), and its losses on `test`, [n, seq_len - 1] ("test")."""
    torch.manual_seed(seed)
    model = build(kind, vocab, data.tokens.shape[1], width, layers)
    warmup = max(1, steps // 10)
    losses = train(model, data, steps, batch, lr, warmup, weight_decay=0.0, seed=seed)
    with torch.no_grad():
        parts = [next_token_losses(model(t).logits, t) for t in test.tokens.split(256)]
    state = {f"state.{k}": v for k, v in model.state_dict().items()}
    return {"loss": np.array(losses, np.float32), "test": torch.cat(parts)} | state


def trained(found: dict, kind: str, vocab: int, n_ctx: int, width: int, layers: int = 0):
    """The model that `fit_lm` trained."""
    model = build(kind, vocab, n_ctx, width, layers)
    state = {k.removeprefix("state."): torch.from_numpy(v) for k, v in found.items()
             if k.startswith("state.")}  # fmt: skip
    model.load_state_dict(state)
    return model.requires_grad_(False).eval()


def compose(model: Mixer) -> tuple[torch.Tensor, torch.Tensor]:
    """Q = H W [vocab, vocab] and c [n_ctx, n_ctx] of a fully linear mixer, float64."""
    if model.kind not in ("linear", "direct"):
        raise InputError(f"a {model.kind} mixer is not linear: compose a linear one.")
    q = model.h.weight.detach().double()
    for layer in reversed(model.maps):
        q = q @ layer.weight.detach().double()
    if model.w is not None:
        q = q @ model.w.weight.detach().double().T
    return q, model.c.detach().double().tril()


def rollout(q: torch.Tensor, c: torch.Tensor, first: torch.Tensor, n: int) -> torch.Tensor:
    """The post's recurrence, one vector after another: t_k = Q Σ_{j<k} c[k-1, j] t_j from t_0 =
    `first` [vocab]; [n + 1, vocab]. Output vectors are fed back as they are, not tokens."""
    t = torch.zeros(n + 1, len(first), dtype=q.dtype)
    t[0] = first
    for k in range(1, n + 1):
        t[k] = q @ (c[k - 1, :k] @ t[:k])
    return t


def path_coefficients(c: torch.Tensor, n: int) -> torch.Tensor:
    """p [n + 1, n + 1] with t_k = Σ_i p[k, i] Q^i t_0 (the post's polynomial; its t_2 and t_3 each
    lack a factor): p[k, i] = Σ_{j<k} c[k-1, j] p[j, i-1]."""
    p = torch.zeros(n + 1, n + 1, dtype=c.dtype)
    p[0, 0] = 1.0
    for k in range(1, n + 1):
        p[k, 1:] = c[k - 1, :k] @ p[:k, :-1]
    return p


def powers(q: torch.Tensor, first: torch.Tensor, n: int) -> torch.Tensor:
    """Q^i t_0 for i = 0 to n, one product after another, [n + 1, vocab]."""
    found = [first]
    for _ in range(n):
        found.append(q @ found[-1])
    return torch.stack(found)


def powers_by_doubling(q: torch.Tensor, first: torch.Tensor, n: int) -> torch.Tensor:
    """The same by log2 n squarings: what is there is multiplied by Q^(what is there)."""
    found, square = first[:, None], None
    while found.shape[1] <= n:
        square = q if square is None else square @ square
        found = torch.cat([found, square @ found], 1)
    return found[:, : n + 1].T


def bits_per_byte(loss: float, n_tokens: int, n_bytes: int) -> float:
    """Mean loss in nats of n_tokens predicted tokens that spell n_bytes bytes."""
    return n_tokens / n_bytes * loss / float(np.log(2))
