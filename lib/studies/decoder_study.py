"""What the reports on decoders share (notebooks 17-23, 28): texts, a recipe, decoders trained on
them, and what a gain is measured by."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from lib.errors import InputError
from lib.keys import in_one
from lib.linear.regression import zero_ablation
from lib.models.blocks import Subject
from lib.models.parts import as_subject
from lib.store import cached, kept
from lib.studies.study import Study, check_halves, losses_by_half, odd_windows, of_half
from lib.swap.sweep import next_token_losses, token_sweep
from lib.text.corpora import load_corpus
from lib.text.windows import Windows, cut_windows
from lib.training.decoder import Decoder, Shape, build_decoder
from lib.training.loop import TrainConfig, train, train_tokenizer, worth_compiling
from lib.training.parallel import in_parallel

MIXTURE = ("wikipedia", "king-james", "python-docs")
MOST_PASSES = 2
"""over the text: a third pass would be memorized"""
MOST_MEASURED = 200
"""windows of each text on which FFNs of a trained model are taken out, replaced or routed"""
LOOK_EVERY = 50
"""steps over which a kept training curve is averaged"""
Widths = Sequence[int] | Callable[[int], Sequence[int]]
"""an FFN width for each layer, or a function of the seed that gives them"""


@dataclass(frozen=True, eq=False)
class Training:
    """All that decides how a decoder is trained, and the texts it is tested on."""

    widths: list[int]
    """of FFNs, one a layer"""
    shape: Shape
    data: Windows
    tests: dict[str, Windows]
    recipe: TrainConfig
    start: str
    """of the weights, one of STARTS"""
    curve: bool = False
    """whether its own loss is kept along the way"""

    @property
    def provenance(self) -> dict[str, str] | None:
        """The training in words, for keys; None with a reader's own kind of FFN."""
        of_shape = self.shape.provenance
        if of_shape is None:
            return None
        words = {"FFN widths": str(in_one(self.widths))} | of_shape
        words |= {"training text": self.data.provenance}
        words |= self.recipe.provenance
        words |= {"start of the weights": self.start, "test texts": str(in_one(self.tests))}
        # What is usual says nothing, so that it changes no key.
        if self.curve:
            words["own curve"] = "True"
        return words


@dataclass(frozen=True, eq=False, kw_only=True)
class DecoderStudy(Study):
    """Decoders of one shape, trained with one recipe. Another recipe is
    dataclasses.replace(study, lr=…)."""

    shape: Shape
    d_ff: int
    steps_per_epoch: int
    """steps for one pass over the text"""
    n_layers: int = 12
    lr: float = 6e-3
    warmup: float = 0.05
    """share of one pass"""
    decay: float | None = 0.4
    """share of the steps in which the rate falls to 0; None: a cosine to a tenth"""
    start: str = "looking-back"
    ffn_frozen_share: float = 0.2
    """share of one pass after which FFNs begin to learn"""
    gate_penalty: float = 0.0
    """times the mean opening of gated FFNs, added to a training's loss"""
    curve: bool = False
    """whether a training's own loss is kept along the way"""

    @property
    def vocabulary(self) -> int:
        return self.shape.vocab

    @property
    def uniform(self) -> list[int]:
        return [self.d_ff] * self.n_layers

    @property
    def doubled(self) -> list[int]:
        return [2 * self.d_ff] * self.n_layers

    @property
    def twice_as_wide(self) -> "DecoderStudy":
        """The same with twice the width of the stream and of FFNs, and twice the heads."""
        d, heads = 2 * self.shape.d, 2 * self.shape.heads
        return replace(self, shape=replace(self.shape, d=d, heads=heads), d_ff=2 * self.d_ff)

    def train(self, widths: Sequence[int], seed: int, passes: float = 1) -> pd.DataFrame:
        """What a training gave: text, half of its documents, step, loss in nats a token. What was
        trained earlier is kept. Raises InputError for more passes than MOST_PASSES."""
        return decoder_losses(self.training(widths, seed, passes))

    def model(self, widths: Sequence[int], seed: int, passes: float = 1) -> Decoder:
        """The model that `train` trained; it is trained again unless it is in the cache."""
        return trained(self.training(widths, seed, passes))

    def ablations(self, widths: Sequence[int], seed: int, passes: float = 1) -> np.ndarray:
        """What taking out the FFN of each layer alone adds to the loss of a trained model (zero
        ablation), [layers], mean over the texts, nats a token, on up to MOST_MEASURED odd windows
        of each."""
        added = ablated_decoder(self.training(widths, seed, passes), MOST_MEASURED)
        return added.groupby("layer").added_loss.mean().to_numpy()

    def by_text(
        self, widths: Widths, seeds: Sequence[int], passes: float = 1, half: str = "odd"
    ) -> pd.DataFrame:
        """Test losses over the odd documents or the even ones, a row a seed and a column a text,
        nats a token. What was trained earlier is kept. Raises InputError for more passes than
        MOST_PASSES."""
        rows = []
        for seed in tqdm(seeds, desc="seeds", delay=2, leave=False):
            found = decoder_losses(self.training(_widths_of(widths, seed), seed, passes))
            rows.append(of_half(found, half)[[*self.tests]])
        return pd.DataFrame(rows, index=[*seeds])

    def gains(self, widths: Widths, seeds: Sequence[int], passes: float = 1) -> np.ndarray:
        """By how much these widths lower uniform's test loss, nats a token, paired by seed."""
        uniform, here = (self.by_text(w, seeds, passes) for w in (self.uniform, widths))
        return (uniform - here).mean(axis=1).to_numpy()

    def training(self, widths: Sequence[int], seed: int, passes: float = 1) -> Training:
        """All that decides such a training. Raises InputError for more passes than MOST_PASSES and
        for widths of another number of layers, and for a penalty on gates that are not there."""
        if not 0 < passes <= MOST_PASSES:
            raise InputError(
                f"{passes} passes over {self.fit.name} are not trained here: give a number above "
                f"0 and at most {MOST_PASSES}, or a longer text."
            )
        if len(widths) != self.n_layers:
            raise InputError(f"{self.n_layers} layers were given {len(widths)} widths: one each.")
        if self.gate_penalty and "gated" not in self.shape.kinds:
            raise InputError(
                f"a penalty of {self.gate_penalty} falls on the gates of FFNs, and none has one: "
                "make layers gated, or leave the penalty at 0."
            )

        steps = self._steps(passes)
        recipe = TrainConfig(
            steps=steps,
            batch=self.batch,
            lr=self.lr,
            warmup=max(1, round(self.warmup * self.steps_per_epoch)),
            decay=None if self.decay is None else round(self.decay * steps),
            seed=seed,
            ffn_unfreeze_step=round(self.ffn_frozen_share * self.steps_per_epoch),
            bfloat16=self.bfloat16,
            gate_penalty=self.gate_penalty,
        )
        return Training([*widths], self.shape, self.fit, self.tests, recipe, self.start, self.curve)

    def _steps(self, passes: float) -> int:
        return max(2, round(passes * self.steps_per_epoch))


def _widths_of(widths: Widths, seed: int) -> Sequence[int]:
    return widths(seed) if callable(widths) else widths


@kept("decoders", 1)
def decoder_losses(training: Training) -> pd.DataFrame:
    """What `train_decoder` gave: text, half of its documents, step, loss in nats a token; with
    `curve` also the training's own loss along the way, of no half."""
    return train_decoder(training)["losses"]


@cached("decoder", 1)
def train_decoder(training: Training) -> dict:
    """Train a decoder: "losses" (text, half, step, loss), and its weights ("weight.…")."""
    recipe, tests = training.recipe, training.tests
    model = build_decoder(training.widths, training.shape, start=training.start, seed=recipe.seed)
    own_losses = train(model, training.data, recipe, compiled=worth_compiling(recipe.steps))
    rows: list[dict] = []
    for text, windows in tests.items():
        losses = losses_by_token(model, windows).numpy()
        rows += losses_by_half(losses, windows, text, recipe.steps)
    if training.curve:
        for first in range(0, len(own_losses) - LOOK_EVERY + 1, LOOK_EVERY):
            mean = float(np.mean(own_losses[first : first + LOOK_EVERY]))
            rows.append({"text": "training", "half": "", "step": first + LOOK_EVERY, "loss": mean})
    weights = {f"weight.{name}": p for name, p in model.named_parameters()}
    return {"losses": pd.DataFrame(rows)[["text", "half", "step", "loss"]]} | weights


@torch.no_grad()
def losses_by_token(model: Decoder, data: Windows) -> torch.Tensor:
    """Each token's loss in nats, [n, seq_len - 1]."""
    batches = (tokens.to(model.device) for tokens in data.tokens.split(256))
    return torch.cat([next_token_losses(model(t).logits, t) for t in batches])


def trained(training: Training) -> Decoder:
    """The model that `train_decoder` trained; it is trained again unless it is in the cache."""
    found = train_decoder(training)
    model = build_decoder(training.widths, training.shape)
    state = {name: torch.as_tensor(found[f"weight.{name}"]) for name, _ in model.named_parameters()}
    model.load_state_dict(state)
    return model.requires_grad_(False).eval()


def trained_subject(training: Training) -> Subject:
    """`trained`, to be measured."""
    return as_subject(trained(training), name="a trained decoder")


@kept("ablated FFNs of decoders", 1, most="windows of each text at most")
def ablated_decoder(training: Training, most: int) -> pd.DataFrame:
    """Losses that zero ablation of each FFN of a trained decoder adds, on up to `most` odd windows
    of each text: layer, text, added_loss in nats a token."""
    subject = trained_subject(training)
    nothing = zero_ablation(subject)
    rows: list[dict] = []
    for text, windows in training.tests.items():
        swept = token_sweep(subject, odd_windows(windows, most), nothing)
        for layer in nothing:
            added = float((swept[layer] - swept[None]).mean())
            rows.append({"layer": layer, "text": text, "added_loss": added})
    return pd.DataFrame(rows)


def tables_of_seeds(seeds: Sequence[int], table_of: Callable[[int], pd.DataFrame]) -> pd.DataFrame:
    """The table of each seed, below each other, with a column `seed`. Raises InputError for no
    seeds."""
    if not len(seeds):
        raise InputError("there are no seeds: give at least one.")
    tables = [
        table_of(seed).assign(seed=seed) for seed in tqdm(seeds, "seeds", delay=2, leave=False)
    ]
    return pd.concat(tables, ignore_index=True)


Job = tuple[DecoderStudy, Sequence[int], int, Sequence[float]]
"""a study, widths, a seed, and after how many passes a training ends, each a training"""


def train_all(jobs: Sequence[Job]) -> None:
    """Train what is not kept yet, a process for each core; what is done stays when it is
    stopped. With a kind of FFN of a reader's own it is trained when it is asked for, in this
    process, which alone knows it."""
    missing = [job for job in jobs if job[0].shape.provenance and not _is_trained(job)]
    if missing:
        brief = max(study.steps_per_epoch for study, *_ in missing) < 100
        in_parallel(_train_one, missing, brief=brief)


def _is_trained(job: Job) -> bool:
    """Whether each training of a job is kept."""
    study, widths, seed, passes = job
    keys = [decoder_losses.key(study.training(widths, seed, p)) for p in passes]
    return all(decoder_losses.look_up(key) is not None for key in keys)


def _train_one(job: Job) -> None:
    study, widths, seed, passes = job
    for p in sorted(passes):
        study.train(widths, seed, p)


@dataclass(frozen=True)
class _Size:
    """What a profile fixes of a decoder, its tokenizer and its batches."""

    d: int
    heads: int
    d_ff: int
    n_ctx: int
    vocab: int
    batch: int


def decoder_study(run, corpus: str | None = None, n_ctx: int | None = None) -> DecoderStudy:
    """The texts, shape and recipe of a run's profile: on a mixture of three texts, or on one
    `corpus`. The laptop profile has what `study` has, for it finds what is kept; on
    another corpus it trains briefly. `n_ctx`: windows of so many tokens, as many tokens a step."""
    tiny = _Size(d=16, heads=2, d_ff=32, n_ctx=16, vocab=300, batch=4)
    small = _Size(d=32, heads=2, d_ff=80, n_ctx=64, vocab=512, batch=16)
    ikeda = _Size(d=1_280, heads=20, d_ff=4_480, n_ctx=1_024, vocab=50_257, batch=288)  # 285M
    size = run.pick(smoke=tiny, laptop=small, study=small, paper=ikeda)
    if n_ctx is not None:
        size = replace(size, n_ctx=n_ctx, batch=max(1, size.batch * size.n_ctx // n_ctx))
    # Texts, and a tokenizer of their own.
    names = run.pick(
        smoke=["wikipedia-sample"], laptop=MIXTURE, study=MIXTURE, paper=["fineweb-edu"]
    )
    texts = [load_corpus(name) for name in ([corpus] if corpus else names)]
    documents = [document for text in texts for document in text.fit]
    tokenizer = train_tokenizer(documents, size.vocab)
    fit = cut_windows(documents, tokenizer, size.n_ctx, run.seed, "the fit text")
    most = run.pick(smoke=32, laptop=1_600, study=1_600, paper=4_096)
    tests = {}
    for text in texts:
        windows = cut_windows(text.test, tokenizer, size.n_ctx, run.seed, text.name)
        tests[text.name] = windows[:most]
    check_halves(tests)
    # Length and rate of a training.
    whole_text = len(fit) // size.batch
    brief = run.profile == "laptop" and corpus is not None
    of_laptop = 40 if brief else whole_text
    steps_per_epoch = run.pick(smoke=6, laptop=of_laptop, study=whole_text, paper=20_000)
    lr = run.pick(smoke=6e-3, laptop=6e-3, study=6e-3, paper=3e-4)
    shape = Shape(size.d, size.heads, size.vocab, size.n_ctx)
    return DecoderStudy(
        fit=fit,
        tests=tests,
        tokenizer=tokenizer,
        shape=shape,
        d_ff=size.d_ff,
        steps_per_epoch=steps_per_epoch,
        lr=lr,
        batch=size.batch,
        bfloat16=run.profile == "paper",
    )
