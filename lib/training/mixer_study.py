"""Mixers trained and compared: texts, one recipe, a rate for each model (notebooks 25-27)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.cache import cached
from lib.errors import InputError
from lib.kept import kept
from lib.swap.sweep import next_token_losses
from lib.text.corpora import load_corpus
from lib.text.ngram import KneserNey
from lib.text.windows import Windows, cut_windows
from lib.training.loop import Recipe, train, train_tokenizer
from lib.training.mixers import MODELS, check_model_kind
from lib.training.parallel import in_parallel, losses_by_half

MIXER = dict(
    kind="mixer",
    width="width",
    vocab="vocabulary",
    data="training text",
    tests="test texts",
    recipe="training",
    marks="read at steps",
)
"""what the arguments of a training are called in keys"""


@kept("mixers", 1, **MIXER)
def mixer_losses(
    kind: str,
    width: int,
    vocab: int,
    data: Windows,
    tests: dict[str, Windows],
    recipe: Recipe,
    marks: tuple[int, ...],
) -> pd.DataFrame:
    """What `train_mixer` gave: text, half of its documents, step, loss in nats a token."""
    return train_mixer(kind, width, vocab, data, tests, recipe, marks)["losses"]


@cached("mixer", 1, **MIXER)
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
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        torch.manual_seed(recipe.seed)
        model = MODELS[kind](vocab, data.tokens.shape[1], width)
    rows: list[dict] = []

    def look(at: int, _) -> None:
        device = next(model.parameters()).device
        for text, windows in tests.items():
            parts = []
            with torch.no_grad():
                for tokens in windows.tokens.to(device).split(64):
                    parts.append(next_token_losses(model(tokens).logits, tokens).cpu())
            found = losses_by_half(torch.cat(parts).numpy(), windows, step=at)
            rows.extend(one | {"text": text} for one in found)

    train(model, data, recipe, look=look, at=marks)
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
    bfloat16: bool = False
    """matrix products of trainings in bfloat16"""

    def train(self, kind: str, width: int, lr: float, seed: int, share: float = 1) -> pd.DataFrame:
        """What a training gave: text, half of its documents, step, loss in nats a token, after each
        third of its steps. What was trained earlier is kept."""
        return mixer_losses(*self._given(kind, width, lr, seed, share))

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
        """`losses` text by text, a row a seed and a column a text."""
        rows = [self._at(kind, width, lr, s, "odd", 1, third) for s in seeds]
        return pd.DataFrame(rows, index=[*seeds])[[*self.tests]]

    def counted(self, order: int) -> pd.Series:
        """Loss by text of an n-gram (Kneser-Ney) counted on the fit text, odd documents, nats a
        token."""
        ngram = KneserNey(self.fit.tokens.numpy(), self.vocab, order)
        found = {}
        for name, windows in self.tests.items():
            odd = windows[windows.document % 2 == 1].tokens.numpy()
            found[name] = float(ngram.losses(odd).mean())
        return pd.Series(found)

    def bytes_spelled(self, tokens: np.ndarray) -> np.ndarray:
        """How many bytes of text each token spells: a byte is one sign of a byte-level BPE."""
        names = self.tokenizer.convert_ids_to_tokens(range(self.vocab))
        return np.array([len(name) for name in names])[tokens]

    def bits_per_byte(self, nats: Mapping[str, float]) -> pd.Series:
        """Bits per byte of each text on the odd documents, from losses in nats a token: bytes are
        those that the predicted tokens spell."""
        found = {}
        for name, loss in nats.items():
            windows = self.tests[name]
            predicted = windows[windows.document % 2 == 1].tokens[:, 1:].numpy()
            n_bytes = self.bytes_spelled(predicted).sum()
            found[name] = loss * predicted.size / n_bytes / np.log(2)
        return pd.Series(found)

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
        half as much further while the best is at an end, `most` in all. Raises InputError for no
        rate."""
        if not rates:
            raise InputError("there is no learning rate to choose from: give at least one.")
        tried: dict[float, float] = {}
        new = list(rates)
        while new:
            for lr in new:
                tried[lr] = float(self._at(kind, width, lr, seed, "even", 0.25, 3).mean())
            best = min(tried, key=lambda lr: tried[lr])
            further = [lr for lr in (best / 2, best * 2) if lr not in tried]
            new = further[: max(0, most - len(tried))]
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
    some = {name: windows[:most] for name, windows in lab.tests.items()}
    check_halves(some)
    return replace(lab, tests=some)


def check_halves(tests: dict[str, Windows]) -> None:
    """Raise InputError for a test text without an even or without an odd document."""
    for name, windows in tests.items():
        if len({*windows.document % 2}) < 2:
            raise InputError(
                f"{name} has no even or no odd test document, to choose rates on and to report "
                "on: give a longer text."
            )


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
    check_halves(cut)
    windows = cut_windows(fit, tokenizer, n_ctx, run.seed, "the fit text")
    steps = run.pick(smoke=6, laptop=1_600, study=1_600, paper=20_000)
    half = run.profile == "paper"
    return MixerLab(windows, cut, tokenizer, vocab, steps, bfloat16=half)


def beginnings(lab: MixerLab, texts: Sequence[str], name: str) -> Windows:
    """The first window of every paragraph that is long enough, as the author cuts stories."""
    paragraphs = [paragraph for text in texts for paragraph in text.split("\n\n")]
    n_ctx = lab.fit.tokens.shape[1]
    windows = cut_windows(paragraphs, lab.tokenizer, n_ctx, None, name)
    first = np.unique(windows.document, return_index=True)[1]
    return windows[np.random.default_rng(0).permutation(first)]
