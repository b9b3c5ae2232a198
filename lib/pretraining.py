"""Trained decoders and the set-up that the reports on allocation share (notebooks 17-21)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from lib.cache import cache_folder, step
from lib.decoder import Decoder, Shape, build_decoder
from lib.errors import InputError
from lib.ngram import KneserNey
from lib.runs import in_parallel, keep_rows, kept_rows, losses_by_half
from lib.stats import Interval, over_seeds
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
) -> dict:
    """The state (see lib.train) of a decoder after marks[-1] steps at a constant rate; it goes on
    from the trunk of the marks before, so that each piece is trained once."""
    begin = trunk(marks[:-1], widths, shape, data, recipe, start) if len(marks) > 1 else None
    model = build_decoder(widths, shape, start=start, seed=recipe.seed)
    states: list[dict] = []

    def keep(_, state: Callable[[], dict]) -> None:
        states.append(state())

    constant = replace(recipe, steps=marks[-1], decay=0)
    train(model, data, constant, look=keep, at=(marks[-1],), begin=begin)
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
    begin = trunk(marks, widths, shape, data, recipe, start) if marks else None
    trained = train(model, data, recipe, begin=begin)
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
