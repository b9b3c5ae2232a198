"""What the reports on allocation share (notebooks 17-21): texts, a recipe, decoders trained on
them, and what a gain is measured by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from tqdm import tqdm

from lib.cache import step
from lib.decoder import Decoder, Shape, build_decoder
from lib.errors import InputError
from lib.ngram import KneserNey
from lib.pretraining import read, trained_decoder, trunk
from lib.runs import in_parallel, keep_rows, kept_rows, losses_by_half
from lib.stats import Interval, over_seeds
from lib.text import Windows, cut_windows, load_corpus
from lib.train import Recipe, train, train_tokenizer, worth_compiling

MIXTURE = ("wikipedia", "king-james", "python-docs")
MOST_PASSES = 2
"""over the text: a third pass would be memorized"""
LOOK_EVERY = 50
"""steps over which a kept training curve is averaged"""
Widths = Sequence[int] | Callable[[int], Sequence[int]]
"""an FFN width for each layer, or a function of the seed that gives them"""


@dataclass(frozen=True, eq=False)
class Lab:
    """What the reports on allocation share: texts, a model's shape and a recipe. Another recipe is
    dataclasses.replace(lab, lr=…)."""

    fit: Windows
    tests: dict[str, Windows]
    """by text: rates are chosen on the even documents, reports are on the odd ones"""
    tokenizer: object
    shape: Shape
    d_ff: int
    one_pass: int
    """steps for one pass over the text"""
    n_layers: int = 12
    lr: float = 6e-3
    batch: int = 16
    """windows a step"""
    warmup: float = 0.05
    """share of one pass"""
    decay: float | None = 0.4
    """share of the steps in which the rate falls to 0; None: a cosine to a tenth"""
    start: str = "looking-back"
    curve: bool = False
    """whether a training's own loss is kept along the way"""

    @property
    def uniform(self) -> list[int]:
        return [self.d_ff] * self.n_layers

    @property
    def doubled(self) -> list[int]:
        return [2 * self.d_ff] * self.n_layers

    def train(self, widths: Sequence[int], seed: int, passes: float = 1) -> pd.DataFrame:
        """What a training gave: text, half of its documents, step, loss in nats a token. What was
        trained earlier comes from data/runs. Raises InputError for more passes than MOST_PASSES."""
        given = self._given(widths, seed, passes)
        digest = train_decoder.recipe(*given)
        rows = kept_rows("decoder", digest) if digest else ()
        if len(rows):
            return rows[["text", "half", "step", "loss"]]
        return train_decoder(*given)["losses"]

    def model(self, widths: Sequence[int], seed: int, passes: float = 1) -> Decoder:
        """The model that `train` trained; it is trained again unless it is in the cache."""
        found = train_decoder(*self._given(widths, seed, passes))
        return trained_decoder(found, list(widths), self.shape)

    def loss(
        self, widths: Sequence[int], seed: int, passes: float = 1, half: str = "odd"
    ) -> pd.Series:
        """Test loss by text, nats a token, over the odd documents or the even ones."""
        found = self.train(widths, seed, passes)
        return found[found.half == half].set_index("text").loss[[*self.tests]]

    def losses(
        self, widths: Widths, seeds: Sequence[int], passes: float = 1, half: str = "odd"
    ) -> np.ndarray:
        """The mean over the texts for each seed, [seeds], nats a token."""
        return self.by_text(widths, seeds, passes, half).mean(axis=1).to_numpy()

    def by_text(
        self, widths: Widths, seeds: Sequence[int], passes: float = 1, half: str = "odd"
    ) -> pd.DataFrame:
        """Test losses, a row a seed and a column a text, nats a token."""
        bar = tqdm(seeds, desc="seeds", delay=2, leave=False)
        rows = [self.loss(_widths_of(widths, s), s, passes, half) for s in bar]
        return pd.DataFrame(rows, index=[*seeds])

    def gains(self, widths: Widths, seeds: Sequence[int], passes: float = 1) -> np.ndarray:
        """By how much these widths lower uniform's test loss, nats a token, paired by seed."""
        return self.losses(self.uniform, seeds, passes) - self.losses(widths, seeds, passes)

    def counted(self) -> dict[str, float]:
        """Test loss of n-grams (Kneser-Ney) counted on the same text, mean over the texts."""
        found = {}
        for order, name in ((2, "bigram"), (3, "trigram")):
            ngram = KneserNey(self.fit.tokens.numpy(), self.shape.vocab, order)
            odd = [w[w.document % 2 == 1].tokens.numpy() for w in self.tests.values()]
            found[name] = float(np.mean([ngram.losses(tokens).mean() for tokens in odd]))
        return found

    def _given(self, widths: Sequence[int], seed: int, passes: float) -> tuple:
        """The arguments of `train_decoder`."""
        if not 0 < passes <= MOST_PASSES:
            raise InputError(
                f"{passes} passes over {self.fit.name} are not trained here: give a number above "
                f"0 and at most {MOST_PASSES}, or a longer text."
            )
        if len(widths) != self.n_layers:
            raise InputError(f"{self.n_layers} layers were given {len(widths)} widths: one each.")

        def steps_of(share: float) -> int:
            return max(2, round(share * self.one_pass))

        def branches_at(share: float) -> int:
            return steps_of(share) - round(self.decay * steps_of(share))

        n_steps = steps_of(passes)
        recipe = Recipe(
            n_steps,
            self.batch,
            self.lr,
            warmup=max(1, round(self.warmup * self.one_pass)),
            decay=None if self.decay is None else round(self.decay * n_steps),
            seed=seed,
        )
        marks: tuple[int, ...] = ()
        if self.decay is not None:  # WSD: shorter trainings branch off the trunk of longer ones
            shares = sorted({0.5, 1, 2, passes})
            marks = tuple(sorted({branches_at(share) for share in shares if share <= passes}))
        return [*widths], self.shape, self.fit, self.tests, recipe, self.start, marks, self.curve


def _widths_of(widths: Widths, seed: int) -> Sequence[int]:
    return widths(seed) if callable(widths) else widths


@step(version=1)
def train_decoder(
    widths: list[int],
    shape: Shape,
    data: Windows,
    tests: dict[str, Windows],
    recipe: Recipe,
    start: str,
    marks: tuple[int, ...] = (),
    curve: bool = False,
) -> dict:
    """Train a decoder with these widths: "losses" (text, half, step, loss), and its weights
    ("weight.…"). `marks`: branch from the `trunk` with these marks (WSD only)."""
    model = build_decoder(widths, shape, start=start, seed=recipe.seed)
    begin, compiled = None, worth_compiling(recipe.steps)
    if marks:
        # A trunk does not end: what it is cached under has no steps, so all branches share it.
        endless = replace(recipe, steps=0, decay=0)
        begin = trunk(marks, widths, shape, data, endless, start, compiled)
    trained = train(model, data, recipe, begin=begin, compiled=compiled)
    setting = f"widths {' '.join(map(str, widths))}, start {start}, rate {recipe.lr:g}"
    setting += ", cosine" if recipe.decay is None else ""
    row = dict(experiment="decoder", setting=setting, seed=recipe.seed)
    rows: list[dict] = []
    for text, windows in tests.items():
        of_text = losses_by_half(read(model, windows).numpy(), windows, step=recipe.steps, **row)
        rows += [one | {"text": text} for one in of_text]
    if curve:
        for first in range(0, recipe.steps - LOOK_EVERY + 1, LOOK_EVERY):
            mean = float(np.mean(trained[first : first + LOOK_EVERY]))
            what = {"text": "training", "half": "", "step": first + LOOK_EVERY, "loss": mean}
            rows.append(row | what)
    digest = train_decoder.recipe(widths, shape, data, tests, recipe, start, marks, curve)
    keep_rows("decoder", digest, rows)
    weights = {f"weight.{name}": p for name, p in model.named_parameters()}
    losses = pd.DataFrame(rows)[["text", "half", "step", "loss"]]
    return {"losses": losses} | weights


Job = tuple[Lab, Sequence[int], int, Sequence[float]]
"""a lab, widths, a seed, and after how many passes over the text a training ends, each a branch"""


def train_all(jobs: Sequence[Job]) -> None:
    """Train what data/runs does not have yet, a process for each core; what is done stays when it
    is stopped."""
    missing = [job for job in jobs if not _has_rows(job)]
    if missing:
        in_parallel(_train_one, missing, brief=max(lab.one_pass for lab, *_ in missing) < 100)


def _has_rows(job: Job) -> bool:
    """Whether data/runs has every branch of a job."""
    lab, widths, seed, passes = job
    digests = [train_decoder.recipe(*lab._given(widths, seed, p)) for p in passes]
    known = set(kept_rows("decoder").digest)
    return all(digest in known for digest in digests)


def _train_one(job: Job) -> None:
    lab, widths, seed, passes = job
    for p in sorted(passes):
        lab.train(widths, seed, p)


class Yardstick:
    """What doubling all widths gains, by which a report on allocation judges. Nothing is judged
    unless that is ten times the scatter over seeds of a paired difference."""

    def __init__(self, lab: Lab, seeds: Sequence[int]):
        self.gains = lab.gains(lab.doubled, seeds)
        """nats a token, [seeds], one pass"""
        self.gain = float(self.gains.mean())
        self.scatter = float(self.gains.std(ddof=1)) if len(seeds) > 1 else float("nan")
        self.sees = bool(self.gain >= 10 * self.scatter)

    def __str__(self) -> str:
        return (
            f"doubling all widths gains {self.gain:.3f} nats, SD over seeds {self.scatter:.4f}: "
            f"{'judged' if self.sees else 'not judged'}"
        )

    def over(self, values: np.ndarray) -> Interval:
        """Mean over seeds with its t-interval; none where nothing can be judged."""
        return over_seeds(values if self.sees else [np.mean(values)])

    def judge(
        self,
        run,
        id: str,
        here: np.ndarray,
        control: np.ndarray,
        others: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Judge a row by a gain: the control's losses [seeds] less those here. `others`: the same
        gain under other recipes, {name: [seeds]}; the row says where its sign turns."""
        gain = self.over(control - here)
        elsewhere = {name: self.over(values) for name, values in (others or {}).items()}
        note = sign_turns(gain, elsewhere)
        run.compare(id, gain, self.over(control), gain, note=note)


def sign_turns(gain: Interval, others: Mapping[str, Interval]) -> str:
    """The words "the sign turns with …" and the other recipes under which a gain excludes 0 on the
    other side; empty where there are none."""
    sign = np.sign(gain.value)
    turned = [name for name, i in others.items() if max(sign * i.low, sign * i.high) < 0]
    return f"the sign turns with {', '.join(turned)}" if turned else ""


def open_lab(run, corpus: str | None = None) -> Lab:
    """The texts, shape and recipe of a run's profile: on a mixture of three texts, or on one
    `corpus`. The laptop profile has what `study` has, for it reads the rows in data/runs; on
    another corpus it trains briefly."""
    brief = run.profile == "laptop" and corpus is not None
    mixture = run.pick(["wikipedia-sample"], MIXTURE, MIXTURE, ["fineweb-edu"])
    texts = [load_corpus(name) for name in ([corpus] if corpus else mixture)]
    documents = [d for text in texts for d in text.fit]
    d, heads, d_ff, n_ctx, vocab, batch = run.pick(
        smoke=(16, 2, 32, 16, 300, 4),
        laptop=(32, 2, 80, 64, 512, 16),
        study=(32, 2, 80, 64, 512, 16),
        paper=(1_280, 20, 4_480, 1_024, 50_257, 288),  # Ikeda's 285M
    )
    tokenizer = train_tokenizer(documents, vocab)
    fit = cut_windows(documents, tokenizer, n_ctx, run.seed, "the fit text")
    most = run.pick(smoke=32, laptop=1_600, study=1_600, paper=4_096)
    tests = {}
    for text in texts:
        windows = cut_windows(text.test, tokenizer, n_ctx, run.seed, text.name)
        tests[text.name] = windows[:most]
    one_pass = len(fit) // batch
    one_pass = run.pick(smoke=6, laptop=40 if brief else one_pass, study=one_pass, paper=20_000)
    shape, lr = Shape(d, heads, vocab, n_ctx), run.pick(6e-3, 6e-3, 6e-3, 3e-4)
    return Lab(fit, tests, tokenizer, shape, d_ff, one_pass, lr=lr, batch=batch)
