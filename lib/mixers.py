"""Linear language models (Badger): one mixing matrix over positions, one map from token to token.

A linear mixer gives O_n = H W Σ_{j≤n} c[n, j] t_j for one-hot tokens t_j: fully linear, without
norm, bias or residual, c lower triangular and shared by all channels.
"""

import copy
import functools

import numpy as np
import torch
from torch import nn
from torch.nn.functional import embedding, gelu
from transformers.modeling_outputs import CausalLMOutput

from lib.cache import step
from lib.errors import InputError, unknown
from lib.mixing import one_layer_llama, width_with
from lib.swap import next_token_losses
from lib.text import Windows
from lib.train import Recipe, train

LINEAR = ("linear", "direct", "last token", "noise", "convolutions", "modules", "pairs")
KINDS = (*LINEAR, "relu", "conv-gelu-conv", "ffn", "ffn, linear", "llama")


class Mixer(nn.Module):
    """A masked mixer: tokens [batch, n_ctx] -> next-token logits [batch, n_ctx, vocab].

    Fully linear: "linear" H (c (W t)), with `layers` - 1 more maps of `width` between W and H;
    "direct" Q (c t), the composed map trained itself; "last token" with c fixed to the identity;
    "noise" with c from noise alone; "convolutions" H (c2 (c1 (W t))); `layers` "modules" one after
    another; `layers` "pairs" of (c, H W) added. Nearly linear: "relu" H ReLU(c (W t));
    "conv-gelu-conv" H (c2 GELU(c1 (W t))). "ffn": `layers` of the masked mixer with norms,
    residuals and an FFN of 4 × width; "ffn, linear": the same without norms and activation.
    Elsewhere c starts at the identity plus noise, so that training begins at token pairs.
    """

    def __init__(self, vocab: int, n_ctx: int, width: int, kind: str = "linear", layers: int = 1):
        super().__init__()
        if kind not in KINDS[:-1]:
            raise unknown("kind of mixer", kind, KINDS[:-1])
        self.kind, self.n_ctx, n_mixings = kind, n_ctx, layers

        def matrix(rows, columns):
            return nn.Parameter(torch.randn(rows, columns) * columns**-0.5)

        w, h = (lambda: nn.Parameter(torch.randn(width, vocab) * width**-0.5)), (vocab, width)
        if kind == "direct":
            maps, n_mixings = [matrix(vocab, vocab)], 1
        elif kind in ("modules", "pairs"):
            maps = [m for _ in range(layers) for m in (w(), matrix(*h))]
        else:
            n_between = layers - 1 if kind in LINEAR else 0
            maps = [w(), *(matrix(width, width) for _ in range(n_between)), matrix(*h)]
            n_mixings = {
                "convolutions": 2,
                "conv-gelu-conv": 2,
                "ffn": layers,
                "ffn, linear": layers,
            }.get(kind, 1)
        self.maps = nn.ParameterList(maps)

        def noise():
            return 0.02 * torch.randn(n_ctx, n_ctx).tril()

        start = torch.zeros(n_ctx, n_ctx) if kind == "noise" else torch.eye(n_ctx)
        self.c = nn.ParameterList(start + noise() for _ in range(n_mixings))
        if kind == "last token":
            self.c[0] = nn.Parameter(torch.eye(n_ctx), requires_grad=False)
        if kind.startswith("ffn"):
            act, norm = (nn.GELU, nn.LayerNorm) if kind == "ffn" else (nn.Identity, nn.Identity)
            self.norms = nn.ModuleList(norm(width) for _ in range(2 * layers + 1))

            def ffn():
                return (nn.Linear(width, 4 * width), act(), nn.Linear(4 * width, width))

            self.ffns = nn.ModuleList(nn.Sequential(*ffn()) for _ in range(layers))

    @property
    def device(self) -> torch.device:
        return self.c[0].device

    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(Q [vocab, vocab], c [n_ctx, n_ctx]) of every term of a fully linear mixer: one, but for
        "pairs"."""
        maps, c = list(self.maps), [c.tril() for c in self.c]

        def product(matrices):
            return functools.reduce(lambda done, m: m @ done, matrices)

        if self.kind == "pairs":
            return [(h @ w, c_k) for w, h, c_k in zip(maps[::2], maps[1::2], c, strict=True)]
        return [(product(maps), product(c))]

    def forward(self, tokens: torch.Tensor, use_cache: bool = False) -> CausalLMOutput:
        n = tokens.shape[1]
        if n > self.n_ctx:
            raise InputError(f"{n} tokens exceed this mixer's context of {self.n_ctx}: give fewer.")

        def mix(c, x):
            return c[:n, :n].tril() @ x

        if self.kind in LINEAR:  # maps that compose cost no more than their product
            terms = [mix(c, embedding(tokens, q.T)) for q, c in self.pairs()]
            return CausalLMOutput(logits=sum(terms))
        x = embedding(tokens, self.maps[0].T)
        if self.kind == "relu":
            x = mix(self.c[0], x).relu()
        elif self.kind == "conv-gelu-conv":
            x = mix(self.c[1], gelu(mix(self.c[0], x)))
        else:
            for k, (c, ffn) in enumerate(zip(self.c, self.ffns, strict=True)):
                x = x + mix(c, self.norms[2 * k](x))
                x = x + ffn(self.norms[2 * k + 1](x))
            x = self.norms[-1](x)
        return CausalLMOutput(logits=x @ self.maps[-1].T)


def build(kind: str, vocab: int, n_ctx: int, width: int, layers: int = 1) -> nn.Module:
    """A Mixer, or for "llama" a one-layer Llama of four heads (its gated FFN has the parameters of
    one four times as wide)."""
    if kind != "llama":
        return Mixer(vocab, n_ctx, width, kind, layers)
    return one_layer_llama(vocab, n_ctx, width, 8 * width // 3)


def width_for(kind: str, vocab: int, n_ctx: int, params: int) -> int:
    """The width (a multiple of 8) at which a kind has about `params` parameters."""
    return width_with(functools.partial(build, kind, vocab, n_ctx), params)


@step(version=3)
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
    layers: int = 1,
) -> dict:
    """Train one model by the recipe of lib.train without weight decay: its weights ("state.…"), the
    training loss of each step ("loss"), and its losses on `test`, [n, seq_len - 1] ("test")."""
    torch.manual_seed(seed)
    model = build(kind, vocab, data.tokens.shape[1], width, layers)
    warmup = max(1, steps // 10)
    recipe = Recipe(steps, batch, lr, warmup, weight_decay=0.0, seed=seed)
    losses = train(model, data, recipe)
    with torch.no_grad():
        parts = [next_token_losses(model(t).logits, t) for t in test.tokens.split(256)]
    state = {f"state.{k}": v for k, v in model.state_dict().items()}
    return {"loss": np.array(losses, np.float32), "test": torch.cat(parts).numpy()} | state


def tune(
    kind: str,
    data: Windows,
    held: Windows,
    vocab: int,
    width: int,
    steps: int,
    seeds: list[int],
    layers: int = 1,
    exponents: tuple[float, ...] = (-3, -2.5, -2),
    most: int = 5,
) -> tuple[float, bool]:
    """The learning rate with the lowest mean loss on `held`, and whether it lies inside what was
    tried: 10^`exponents`, and half a decade further while the best is at an end, `most` in all."""
    if not seeds:
        raise InputError("no seed was given to search a learning rate with: give one, like [42].")
    tried, new = {}, list(exponents)
    while new:
        for e in new:
            runs = (fit_lm(kind, data, held, vocab, width, 10**e, steps, seed=s, layers=layers)
                    for s in seeds)  # fmt: skip
            tried[e] = float(np.mean([found["test"].mean() for found in runs]))
        best = min(tried, key=tried.get)
        new = [e for e in (best - 0.5, best + 0.5) if e not in tried and len(tried) < most]
    return 10**best, min(tried) < best < max(tried)


def trained(found: dict, kind: str, vocab: int, n_ctx: int, width: int, layers: int = 1):
    """The model that `fit_lm` trained."""
    model = build(kind, vocab, n_ctx, width, layers)
    state = {k.removeprefix("state."): torch.as_tensor(v) for k, v in found.items()
             if k.startswith("state.")}  # fmt: skip
    model.load_state_dict(state)
    return model.requires_grad_(False).eval()


def compose(model: Mixer) -> tuple[torch.Tensor, torch.Tensor]:
    """Q [vocab, vocab] and c [n_ctx, n_ctx] of a fully linear mixer, float64."""
    if model.kind not in LINEAR or model.kind == "pairs":
        raise InputError(f"a {model.kind} mixer is not one pair of Q and c: compose a linear one.")
    [(q, c)] = copy.deepcopy(model).double().requires_grad_(False).pairs()
    return q, c


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
