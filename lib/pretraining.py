"""Trained decoders, and the set-up of the reports of the third edition (notebooks 17-21)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from tqdm import tqdm

from lib.cache import step
from lib.decoder import SILENT_STARTS, Decoder, Shape, build_decoder
from lib.files import cache_folder
from lib.ngram import KneserNey
from lib.runs import keep_rows, losses_by_half
from lib.stats import over_seeds
from lib.swap import next_token_losses
from lib.text import Windows, cut_windows, load_corpus
from lib.train import Recipe, train, train_tokenizer


@step(version=1)
def trunk(
    marks: tuple[int, ...],
    widths: list[int],
    shape: Shape,
    data: Windows,
    recipe: Recipe,
    start: str,
    compiled: bool = False,
) -> dict:
    """The state (see lib.train) of a decoder after marks[-1] steps at a constant rate; it goes on
    from the trunk of the marks before, so that each piece is trained once."""
    begin = None
    if len(marks) > 1:
        begin = trunk(marks[:-1], widths, shape, data, recipe, start, compiled)
    elif start in SILENT_STARTS and 0 < recipe.ffn_from <= marks[0]:
        begin = stem(len(widths), shape, data, recipe, start, compiled)
    return _state_at(marks[-1], widths, shape, data, recipe, start, begin, compiled)


@step(version=1)
def stem(
    n_layers: int, shape: Shape, data: Windows, recipe: Recipe, start: str, compiled: bool
) -> dict:
    """The state of a decoder, but for its FFNs, when these begin to learn. Until then they write
    nothing, so decoders of all widths share it, and it is trained with FFNs of one unit."""
    state = _state_at(recipe.ffn_from, [1] * n_layers, shape, data, recipe, start, None, compiled)
    return {name: value for name, value in state.items() if ".mlp." not in name}


def _state_at(
    n_steps: int,
    widths: list[int],
    shape: Shape,
    data: Windows,
    recipe: Recipe,
    start: str,
    begin: dict | None,
    compiled: bool,
) -> dict:
    """The state of a decoder after so many steps at a constant rate, from `begin` on."""
    model = build_decoder(widths, shape, start=start, seed=recipe.seed)
    states: list[dict] = []

    def keep(_, state: Callable[[], dict]) -> None:
        states.append(state())

    constant = replace(recipe, steps=n_steps, decay=0)
    train(model, data, constant, look=keep, at=(n_steps,), begin=begin, compiled=compiled)
    return states[-1]


@step(version=1)
def fit_decoder(
    widths: list[int],
    shape: Shape,
    data: Windows,
    test: Windows,
    recipe: Recipe,
    start: str = "zero",
    marks: tuple[int, ...] = (),
    kinds: list[str] | None = None,
) -> dict:
    """Train a decoder with these widths: its losses on `test` ("test", [n, seq_len - 1]), the
    training loss of each step ("loss") and its weights ("weight.…"). `marks`: branch from the
    `trunk` with these marks (WSD only)."""
    model = build_decoder(widths, shape, start=start, seed=recipe.seed, kinds=kinds)
    begin, folder = None, None
    if marks:
        begin = trunk(marks, widths, shape, data, recipe, start)
    if recipe.steps > 2_000:  # long enough to be killed in
        key = fit_decoder.recipe(widths, shape, data, test, recipe, start, marks, kinds)
        folder = cache_folder() / "training" / key if key else None
    losses = train(model, data, recipe, begin=begin, checkpoints=folder)
    test_losses = read(model, test).numpy()
    digest = fit_decoder.recipe(widths, shape, data, test, recipe, start, marks, kinds)
    setting = f"widths {' '.join(map(str, widths))}, start {start}, rate {recipe.lr:g}"
    row = dict(experiment="decoder", setting=setting, seed=recipe.seed, step=recipe.steps)
    keep_rows("decoder", digest, losses_by_half(test_losses, test, **row))
    weights = {f"weight.{name}": p for name, p in model.named_parameters()}
    return {"test": test_losses, "loss": np.array(losses, np.float32)} | weights


@torch.no_grad()
def read(model: Decoder, data: Windows) -> torch.Tensor:
    """Each token's loss in nats, [n, seq_len - 1]."""
    batches = (tokens.to(model.device) for tokens in data.tokens.split(256))
    return torch.cat([next_token_losses(model(t).logits, t) for t in batches])


def trained_decoder(found: dict, widths: list[int], shape: Shape, kinds=None) -> Decoder:
    """The model that `fit_decoder` trained."""
    model = build_decoder(widths, shape, kinds=kinds)
    state = {name: torch.as_tensor(found[f"weight.{name}"]) for name, _ in model.named_parameters()}
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

    @property
    def shape(self) -> Shape:
        return Shape(self.d, self.heads, self.vocab, self.n_ctx)

    def train(self, widths: list[int], seed: int, **changes) -> dict:
        """`fit_decoder` of these widths by this recipe, or by one changed in `changes` (lr, steps,
        batch, data; warmup and decay as shares of the steps; start, marks, kinds). It reads only as
        many windows as it has steps for, a random part of the text for each seed, and no token
        twice."""
        usual = dict(lr=self.lr, steps=self.steps, batch=self.batch, warmup=self.warmup)
        how = usual | dict(data=self.fit, decay=None, start="zero", marks=(), kinds=None) | changes
        warmed = how["marks"][0] if how["marks"] else how["steps"]
        recipe = Recipe(
            how["steps"],
            how["batch"],
            how["lr"],
            warmup=max(1, round(how["warmup"] * warmed)),
            decay=None if how["decay"] is None else round(how["decay"] * how["steps"]),
            seed=seed,
        )
        given = (how["start"], how["marks"], how["kinds"])
        return fit_decoder(widths, self.shape, how["data"], self.test, recipe, *given)

    def losses(self, widths: list[int] | Callable, seeds: Sequence[int], **changes) -> np.ndarray:
        """Mean test loss of each seed in nats a token, [seeds]; `widths` may be a function of the
        seed."""

        def of(seed):
            return widths(seed) if callable(widths) else widths

        bar = tqdm(seeds, desc="seeds", delay=2, leave=False)
        return np.array([self.train(of(s), s, **changes)["test"].mean() for s in bar])

    def gains(self, widths: list[int] | Callable, seeds: Sequence[int], **changes) -> np.ndarray:
        """By how much these widths lower uniform's test loss in nats a token, paired by seed."""
        return self.losses(self.uniform, seeds, **changes) - self.losses(widths, seeds, **changes)

    def model(self, widths: list[int], seed: int, **changes) -> Decoder:
        """The model that `train` trained."""
        found = self.train(widths, seed, **changes)
        return trained_decoder(found, widths, self.shape)

    def by_rate(self, rates: Sequence[float], seed: int, **changes) -> dict[float, float]:
        """Uniform's mean loss on `choose` at each learning rate."""
        models = {lr: self.model(self.uniform, seed, lr=lr, **changes) for lr in rates}
        return {lr: float(read(model, self.choose).mean()) for lr, model in models.items()}

    def counted(self) -> dict[str, float]:
        """Test loss of an n-gram (Kneser-Ney) counted on as many tokens as a model reads."""
        read = self.fit[: self.steps * self.batch].tokens.numpy()

        def ngram(k):
            return KneserNey(read, self.vocab, k).losses(self.test.tokens.numpy())

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

    def cut(part, name):
        return cut_windows(part, tokenizer, n_ctx, run.seed, name)

    most = run.pick(64, 256, 1_024, 4_096)
    choose, test = cut(unseen[::2], "choose")[:most], cut(unseen[1::2], "test")[:most]
    lr, warmup = run.pick(*[(1.5e-2, 0.5)] * 3, (3e-4, 0.05))
    shape = dict(d=d, heads=heads, d_ff=d_ff, steps=steps, lr=lr, batch=batch, warmup=warmup)
    return Setup(cut(fit, "fit"), choose, test, unseen[1::2], tokenizer, **shape)
