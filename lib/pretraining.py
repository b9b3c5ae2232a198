"""Trained decoders and the set-up that the reports on allocation share (notebooks 17-21)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from lib.cache import cache_folder, step
from lib.decoder import Decoder, build_decoder
from lib.ngram import KneserNey
from lib.stats import over_seeds
from lib.swap import next_token_losses
from lib.text import Windows, cut_windows, load_corpus
from lib.train import train, train_tokenizer


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
    return {"test": read(model, test).numpy(), "loss": np.array(losses, np.float32)} | weights


@torch.no_grad()
def read(model: Decoder, data: Windows) -> torch.Tensor:
    """Each token's loss in nats, [n, seq_len - 1]."""
    batches = (tokens.to(model.device) for tokens in data.tokens.split(256))
    return torch.cat([next_token_losses(model(t).logits, t) for t in batches])


def trained_decoder(found: dict, widths, vocab, n_ctx, d, heads, kinds=None) -> Decoder:
    """The model that `fit_decoder` trained."""
    model = build_decoder(widths, d, heads, vocab, n_ctx, kinds=kinds)
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
