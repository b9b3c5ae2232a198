"""Linear language models (Badger): one mixing matrix over positions, one map from token to token.

A linear mixer gives O_n = H W Σ_{j≤n} c[n, j] t_j for one-hot tokens t_j: fully linear, without
norm, bias or residual, c lower triangular and shared by all channels.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn.functional import embedding, gelu
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from lib.cache import step
from lib.errors import InputError, unknown
from lib.runs import in_parallel, keep_rows, kept_rows, losses_by_half
from lib.swap import next_token_losses
from lib.text import Windows, cut_windows, load_corpus
from lib.train import Recipe, train, train_tokenizer

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
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=width,
            intermediate_size=8 * width // 3,
            num_hidden_layers=layers,
            num_attention_heads=4,
            max_position_embeddings=n_ctx,
        )
    )


def width_for(kind: str, vocab: int, n_ctx: int, params: int) -> int:
    """The width (a multiple of 8) at which a kind has about `params` parameters."""
    sizes = {}
    for width in range(8, 8_193, 8):
        with torch.device("meta"):
            sizes[width] = sum(p.numel() for p in build(kind, vocab, n_ctx, width).parameters())
        if sizes[width] > params:
            break
    return min(sizes, key=lambda w: abs(sizes[w] - params))


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


# The models as their author codes them (notebooks 25-27); what stands above goes with the old ones.


class Mixing(nn.Module):
    """C x + b over positions, for x [batch, position, channel]: C [n_ctx, n_ctx] is lower
    triangular and the same for all channels, b is one number a position."""

    def __init__(self, n_ctx: int):
        super().__init__()
        bound = n_ctx**-0.5
        self.c = nn.Parameter(torch.empty(n_ctx, n_ctx).uniform_(-bound, bound))
        self.b = nn.Parameter(torch.empty(n_ctx).uniform_(-bound, bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, n_ctx = x.shape[1], len(self.b)
        if n > n_ctx:
            raise InputError(f"{n} tokens exceed this mixer's context of {n_ctx}: give fewer.")
        return self.c[:n, :n].tril() @ x + self.b[:n, None]


class LinearMixer(nn.Module):
    """H M … M (x + C x + b) of embedded tokens x: tokens [batch, position] -> logits.

    `blocks` of x + C x + b one after another; `maps` - 1 matrices M between the last and the head
    H. Without `mixes` a position sees its own token alone.
    """

    def __init__(
        self, vocab: int, n_ctx: int, width: int, blocks: int = 1, maps: int = 1, mixes: bool = True
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.mixings = nn.ModuleList(Mixing(n_ctx) for _ in range(blocks if mixes else 0))
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


class OneLayerMixer(LinearMixer):
    """H (y + FFN(y)) with y = x + C x + b: an FFN with GELU, `expansion` times as wide, biases and
    no norms."""

    def __init__(self, vocab: int, n_ctx: int, width: int, expansion: int = 1):
        super().__init__(vocab, n_ctx, width)
        inner = expansion * width
        self.ffn = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def within(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.ffn(x)


def one_layer_llama(vocab: int, n_ctx: int, width: int) -> LlamaForCausalLM:
    """transformers' Llama with one layer, four heads and a gated FFN of four widths."""
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
    "last token": functools.partial(LinearMixer, mixes=False),
    "three maps": functools.partial(LinearMixer, maps=3),
    "three blocks": functools.partial(LinearMixer, blocks=3),
    "ReLU": ReluMixer,
    "conv-GELU-conv": GeluMixer,
    "one-layer mixer": OneLayerMixer,
    "Llama": one_layer_llama,
}
"""by name: vocab, n_ctx, width -> a language model"""


def check_model_kind(kind: str) -> None:
    if kind not in MODELS:
        raise unknown("kind of model", kind, [*MODELS])


def matched_width(kind: str, vocab: int, n_ctx: int, params: int) -> int:
    """The width (a multiple of 8) at which a kind has about `params` parameters."""
    check_model_kind(kind)
    sizes = {}
    for width in range(8, 8_193, 8):
        with torch.device("meta"):
            model = MODELS[kind](vocab, n_ctx, width)
        sizes[width] = sum(p.numel() for p in model.parameters())
        if sizes[width] > params:
            break
    return min(sizes, key=lambda w: abs(sizes[w] - params))


@step(version=1)
def train_mixer(
    kind: str,
    width: int,
    vocab: int,
    data: Windows,
    tests: dict[str, Windows],
    recipe: Recipe,
    marks: tuple[int, ...],
) -> dict:
    """Train one model: "losses" (text, half, step, loss) after each step of `marks`, and its
    weights ("weight.…")."""
    check_model_kind(kind)
    torch.manual_seed(recipe.seed)
    model = MODELS[kind](vocab, data.tokens.shape[1], width)
    digest = train_mixer.recipe(kind, width, vocab, data, tests, recipe, marks)
    row = dict(experiment="mixer", setting=f"{kind}, width {width}, rate {recipe.lr:.2g}")
    row["seed"] = recipe.seed
    rows: list[dict] = []

    def look(at: int, _) -> None:
        for text, windows in tests.items():
            with torch.no_grad():
                parts = [next_token_losses(model(t).logits, t) for t in windows.tokens.split(64)]
            found = losses_by_half(torch.cat(parts).numpy(), windows, step=at, **row)
            rows.extend(one | {"text": text} for one in found)

    train(model, data, recipe, look=look, at=marks)
    keep_rows("mixer", digest, rows)
    weights = {f"weight.{name}": p for name, p in model.named_parameters()}
    return {"losses": pd.DataFrame(rows)[["text", "half", "step", "loss"]]} | weights


@dataclass(frozen=True, eq=False)
class MixerLab:
    """What the models of a report are trained and read on, and for how long. Another length or text
    is dataclasses.replace(lab, steps=…)."""

    fit: Windows
    tests: dict[str, Windows]
    """by text: rates are chosen on the even documents, reports are on the odd ones"""
    tokenizer: object
    vocab: int
    steps: int
    batch: int = 16
    """windows a step"""
    bfloat16: bool = True
    """matrix products of the training in bfloat16 (the author's in float16)"""

    def train(self, kind: str, width: int, lr: float, seed: int, share: float = 1) -> pd.DataFrame:
        """What a training gave: text, half of its documents, step, loss in nats a token, after each
        third of its steps. What was trained earlier comes from data/runs."""
        given = self._given(kind, width, lr, seed, share)
        digest = train_mixer.recipe(*given)
        rows = kept_rows("mixer", digest) if digest else ()
        if len(rows):
            return rows[["text", "half", "step", "loss"]]
        return train_mixer(*given)["losses"]

    def model(self, kind: str, width: int, lr: float, seed: int) -> nn.Module:
        """The model that `train` trained; it is trained again unless it is in the cache."""
        found = train_mixer(*self._given(kind, width, lr, seed, 1))
        model = MODELS[kind](self.vocab, self.fit.tokens.shape[1], width)
        state = {
            name.removeprefix("weight."): torch.as_tensor(w)
            for name, w in found.items()
            if name.startswith("weight.")
        }
        model.load_state_dict(state, strict=False)  # a tied or a fixed tensor is no parameter
        return model.requires_grad_(False).eval()

    def losses(
        self, kind: str, width: int, lr: float, seeds: Sequence[int], third: int = 3
    ) -> np.ndarray:
        """Test loss on the odd documents for each seed, [seeds], mean over the texts, nats a
        token, after a third, two or all of the steps."""
        return self.by_text(kind, width, lr, seeds, third).mean(axis=1).to_numpy()

    def by_text(
        self, kind: str, width: int, lr: float, seeds: Sequence[int], third: int = 3
    ) -> pd.DataFrame:
        """The same, a row a seed and a column a text."""
        rows = [self._at(kind, width, lr, s, "odd", 1, third) for s in seeds]
        return pd.DataFrame(rows, index=[*seeds])[[*self.tests]]

    def _at(
        self, kind: str, width: int, lr: float, seed: int, half: str, share: float, third: int
    ) -> pd.Series:
        """Test loss by text over half of the documents."""
        found = self.train(kind, width, lr, seed, share)
        step_there = sorted(found.step.unique())[third - 1]
        there = found[(found.half == half) & (found.step == step_there)]
        return there.set_index("text").loss

    def rate(
        self, kind: str, width: int, seed: int, rates: Sequence[float], most: int = 6
    ) -> tuple[float, bool]:
        """The learning rate with the lowest loss on the even documents after a quarter of the
        steps, and whether it lies inside what was tried: `rates`, each twice the last, and twice or
        half as much further while the best is at an end, `most` in all."""
        tried: dict[float, float] = {}
        new = list(rates)
        while new:
            for lr in new:
                tried[lr] = float(self._at(kind, width, lr, seed, "even", 0.25, 3).mean())
            best = min(tried, key=lambda lr: tried[lr])
            new = [lr for lr in (best / 2, best * 2) if lr not in tried and len(tried) < most]
        return best, min(tried) < best < max(tried)

    def rates(
        self,
        models: Sequence[tuple[str, int]],
        seed: int,
        rates: Sequence[float],
        most: int = 6,
    ) -> dict[tuple[str, int], tuple[float, bool]]:
        """`rate` of each (kind, width), a process for each core."""
        jobs = [(self, *model, seed, rates, most) for model in models]
        in_parallel(_search, jobs, brief=self.steps < 100)
        return {model: self.rate(*model, seed, rates, most) for model in models}

    def train_all(self, jobs: Sequence[tuple[str, int, float, int]]) -> None:
        """Train each (kind, width, rate, seed), a process for each core."""
        in_parallel(_train_one, [(self, *job) for job in jobs], brief=self.steps < 100)

    def _given(self, kind: str, width: int, lr: float, seed: int, share: float) -> tuple:
        """The arguments of `train_mixer`: a linear rise of the rate, then a linear fall to 0."""
        steps = max(3, round(share * self.steps))
        warmup = max(1, steps // 100)
        recipe = Recipe(
            steps,
            self.batch,
            lr,
            warmup,
            decay=steps - warmup,
            weight_decay=0.0,
            seed=seed,
            beta2=0.999,
            bfloat16=self.bfloat16,
        )
        thirds = tuple(sorted({steps // 3, 2 * steps // 3, steps}))
        return kind, width, self.vocab, self.fit, self.tests, recipe, thirds


def _search(job: tuple) -> None:
    lab, *given = job
    lab.rate(*given)


def _train_one(job: tuple) -> None:
    lab, *given = job
    lab.train(*given)


def composed(model: LinearMixer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A fully linear mixer as logits_n = Q Σ_{j≤n} c[n, j] t_j + offset[n] for one-hot tokens t_j:
    Q [vocab, vocab], c [n_ctx, n_ctx] and offset [n_ctx, vocab], float64."""
    if type(model) is not LinearMixer or not model.mixings:
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


def open_mixer_lab(run, corpus: str | None = None) -> MixerLab:
    """The texts, vocabulary, context and length of training of a run's profile."""
    both = ("wikipedia", "king-james")
    names = run.pick(["wikipedia-sample"], both, both, ["tinystories"])
    texts = [load_corpus(name) for name in ([corpus] if corpus else names)]
    lab = cut_mixer_lab(
        run,
        fit=[d for text in texts for d in text.fit],
        tests={text.name: text.test for text in texts},
        vocab=run.pick(smoke=320, laptop=512, study=512, paper=4_096),
        n_ctx=run.pick(smoke=16, laptop=128, study=128, paper=128),
    )
    most = run.pick(smoke=16, laptop=400, study=400, paper=2_000)
    return replace(lab, tests={name: windows[:most] for name, windows in lab.tests.items()})


def cut_mixer_lab(
    run, fit: Sequence[str], tests: dict[str, Sequence[str]], vocab: int, n_ctx: int
) -> MixerLab:
    """Documents to train on and to test on (by text) in windows of a tokenizer of their own. Raises
    InputError for a vocabulary that the text does not fill, and for a context of one token."""
    if n_ctx < 2:
        raise InputError(f"a context of {n_ctx} token has nothing to predict: give at least 2.")
    tokenizer = train_tokenizer(list(fit), vocab)
    if len(tokenizer) < vocab:
        raise InputError(
            f"the text fills a vocabulary of {len(tokenizer)} tokens, not of {vocab}: give a "
            "smaller one, or more text."
        )
    cut = {name: cut_windows(d, tokenizer, n_ctx, run.seed, name) for name, d in tests.items()}
    windows = cut_windows(fit, tokenizer, n_ctx, run.seed, "the fit text")
    steps = run.pick(smoke=6, laptop=1_600, study=1_600, paper=20_000)
    return MixerLab(windows, cut, tokenizer, vocab, steps)


def beginnings(lab: MixerLab, texts: Sequence[str], name: str) -> Windows:
    """The first window of every paragraph that is long enough, as the author cuts stories."""
    paragraphs = [paragraph for text in texts for paragraph in text.split("\n\n")]
    n_ctx = lab.fit.tokens.shape[1]
    windows = cut_windows(paragraphs, lab.tokenizer, n_ctx, None, name)
    first = np.unique(windows.document, return_index=True)[1]
    return windows[np.random.default_rng(0).permutation(first)]
