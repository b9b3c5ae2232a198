"""What the reports on decoders share (notebooks 17-23, 28): texts, a recipe, decoders trained on
them, and what a gain is measured by."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from lib.errors import InputError
from lib.linear.regression import zero_ablation
from lib.models.blocks import Subject
from lib.models.trial import as_subject
from lib.store import cached, kept
from lib.swap.sweep import token_sweep
from lib.text.corpora import load_corpus
from lib.text.windows import Windows, cut_windows
from lib.training.batched import StackedDecoders, train_together
from lib.training.decoder import Decoder, Shape, build_decoder
from lib.training.loop import TrainConfig, train, train_tokenizer, worth_compiling
from lib.training.parallel import in_parallel
from lib.training.runs import Training, losses_by_token, shared_steps
from lib.training.study import Study, check_halves, losses_by_half, odd_windows, of_half

MIXTURE = ("wikipedia", "king-james", "python-docs")
MOST_PASSES = 2
"""over the text: a third pass would be memorized"""
MOST_MEASURED = 200
"""windows of each text on which FFNs of a trained model are taken out, replaced or routed"""
LOOK_EVERY = 50
"""steps over which a kept training curve is averaged"""
WIDTH_AT_ONCE = 4_096
"""widths of the streams, added up, of decoders that are trained at once on a GPU"""
Widths = Sequence[int] | Callable[[int], Sequence[int]]
"""an FFN width for each layer, or a function of the seed that gives them"""


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
        branch_steps = self._branch_steps(passes)
        return Training(
            [*widths],
            self.shape,
            self.fit,
            self.tests,
            recipe,
            self.start,
            branch_steps,
            self.curve,
        )

    def _steps(self, passes: float) -> int:
        return max(2, round(passes * self.steps_per_epoch))

    def _branch_steps(self, passes: float) -> tuple[int, ...]:
        """The steps at which trainings of half a pass, one, two and `passes` leave the trunk that
        they share, as far as `passes` reaches: there the rate begins to fall (WSD). None with a
        cosine, whose rate falls from the start."""
        if self.decay is None:
            return ()
        branches = set()
        for end in (0.5, 1, 2, passes):
            if end <= passes:
                steps = self._steps(end)
                branches.add(steps - round(self.decay * steps))
        return tuple(sorted(branches))


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
    shape, data, recipe, start = training.shape, training.data, training.recipe, training.start
    model = build_decoder(training.widths, shape, start=start, seed=recipe.seed)
    trunk, compiled = None, worth_compiling(recipe.steps)
    if branch_steps := training.branch_steps:
        # A trunk does not end: what it is cached under has no steps, so all branches share it.
        endless = replace(recipe, steps=0, decay=0)
        trunk = shared_steps(branch_steps, training.widths, shape, data, endless, start, compiled)
    own_losses = train(model, data, recipe, resume_from=trunk, compiled=compiled)
    test_losses = {
        text: losses_by_token(model, windows).numpy() for text, windows in training.tests.items()
    }
    curve = own_losses if training.curve else ()
    weights = {f"weight.{name}": p for name, p in model.named_parameters()}
    return {"losses": _losses(training.tests, recipe.steps, test_losses, curve)} | weights


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


def _losses(
    tests: Mapping[str, Windows],
    n_steps: int,
    test_losses: Mapping[str, np.ndarray],
    curve: Sequence[float],
) -> pd.DataFrame:
    """Losses by text and half of its documents, from each token's [n, seq_len - 1], and the
    training losses averaged over LOOK_EVERY steps of `curve`."""
    rows: list[dict] = []
    for text, windows in tests.items():
        rows += losses_by_half(test_losses[text], windows, text, n_steps)
    for first in range(0, len(curve) - LOOK_EVERY + 1, LOOK_EVERY):
        mean = float(np.mean(curve[first : first + LOOK_EVERY]))
        rows.append({"text": "training", "half": "", "step": first + LOOK_EVERY, "loss": mean})
    return pd.DataFrame(rows)[["text", "half", "step", "loss"]]


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
            added = float((swept.swapped[layer] - swept.base).mean())
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
"""a study, widths, a seed, and after how many passes a training ends, each a branch"""


def train_all(jobs: Sequence[Job]) -> None:
    """Train what is not kept yet: small decoders many at once on a GPU, else a process
    for each core; what is done stays when it is stopped."""
    missing = [job for job in jobs if not _is_trained(job)]
    gpu = torch.cuda.is_available()
    # Those that fill a GPU alone, and those with a memory, are not trained side by side.
    together = [job for job in missing if gpu and not (job[0].bfloat16 or job[0].shape.memory)]
    alone = [job for job in missing if job not in together]
    train_at_once(together)
    if alone:
        brief = max(study.steps_per_epoch for study, *_ in alone) < 100
        in_parallel(_train_one, alone, brief=brief)


def train_at_once(jobs: Sequence[Job]) -> None:
    """Train jobs of one text, length and shape side by side (`batched`), the widest last."""
    alike: dict[tuple, list[list[Training]]] = {}
    for study, widths, seed, passes in sorted(jobs, key=lambda job: max(job[1])):
        branches = [study.training(widths, seed, p) for p in sorted(passes)]
        schedule = [str(replace(branch.recipe, seed=0)) for branch in branches]
        texts = (study.fit.provenance, *(w.provenance for w in study.tests.values()))
        alike.setdefault((*texts, *schedule, study.shape, len(widths)), []).append(branches)
    for of_kind in alike.values():
        n_at_once = max(1, WIDTH_AT_ONCE // of_kind[0][0].shape.d)
        for first in range(0, len(of_kind), n_at_once):
            _train_side_by_side(of_kind[first : first + n_at_once])


def _train_side_by_side(jobs: Sequence[Sequence[Training]]) -> None:
    """Train jobs [model][branch] and keep their rows."""
    began = time.process_time()
    models = [
        build_decoder(first.widths, first.shape, start=first.start, seed=first.recipe.seed)
        for first, *_ in jobs
    ]
    data, tests = jobs[0][0].data, jobs[0][0].tests

    def keep(branch: int, decoders: StackedDecoders, losses: torch.Tensor) -> None:
        read = {text: decoders.read(windows.tokens) for text, windows in tests.items()}
        curves = losses.T.tolist()
        for k, branches in enumerate(jobs):
            training = branches[branch]
            of_model = {text: of_text[k].numpy() for text, of_text in read.items()}
            curve = curves[k] if training.curve else ()
            table = _losses(tests, training.recipe.steps, of_model, curve)
            seconds = (time.process_time() - began) / len(jobs)
            decoder_losses.keep(decoder_losses.key(training), table, seconds)

    schedules = [[branches[b].recipe for branches in jobs] for b in range(len(jobs[0]))]
    train_together(models, data, schedules, keep)


def _is_trained(job: Job) -> bool:
    """Whether each branch of a job is kept."""
    study, widths, seed, passes = job
    branches = [study.training(widths, seed, p) for p in passes]
    return all(decoder_losses.look_up(decoder_losses.key(b)) is not None for b in branches)


def _train_one(job: Job) -> None:
    study, widths, seed, passes = job
    for p in sorted(passes):
        study.train(widths, seed, p)


def scatter(gains: np.ndarray) -> float:
    """Standard deviation over seeds of a paired difference, [seeds]; nan for a single seed."""
    return float(np.std(gains, ddof=1)) if len(gains) > 1 else float("nan")


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
