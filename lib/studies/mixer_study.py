"""Mixers trained and compared: texts, one recipe, a rate for each model (notebooks 25-27)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.errors import InputError
from lib.keys import in_one
from lib.store import cached, kept
from lib.studies.study import Study, check_halves, losses_by_half, of_half
from lib.swap.sweep import next_token_losses
from lib.text.corpora import load_corpus
from lib.text.windows import Windows, cut_windows
from lib.training.loop import TrainConfig, train, train_tokenizer
from lib.training.mixers import MODELS, Kind, check_model_kind
from lib.training.parallel import in_parallel


@dataclass(frozen=True, eq=False)
class MixerTraining:
    """All that decides how a mixer is trained, and the texts it is tested on."""

    kind: Kind
    width: int
    vocab: int
    data: Windows
    tests: dict[str, Windows]
    recipe: TrainConfig
    eval_steps: tuple[int, ...]
    """steps after which it is tested"""

    @property
    def provenance(self) -> dict[str, str] | None:
        """The training in words, for keys; None for a reader's own kind."""
        if self.kind.provenance is None:
            return None
        words = {"mixer": self.kind.name, "width": str(self.width), "vocabulary": str(self.vocab)}
        words |= {"training text": self.data.provenance, "test texts": str(in_one(self.tests))}
        return words | self.recipe.provenance | {"read at steps": str(in_one(self.eval_steps))}


@kept("mixers", 1)
def mixer_losses(training: MixerTraining) -> pd.DataFrame:
    """What `train_mixer` gave: text, half of its documents, step, loss in nats a token."""
    return train_mixer(training)["losses"]


@cached("mixer", 1)
def train_mixer(training: MixerTraining) -> dict:
    """Train one model: "losses" (text, half, step, loss) after each step of `eval_steps`, and its
    weights ("weight.…")."""
    kind, data = training.kind.name, training.data
    check_model_kind(kind)
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they are
        torch.manual_seed(training.recipe.seed)
        model = MODELS[kind](training.vocab, data.tokens.shape[1], training.width)
    rows: list[dict] = []

    def look(at: int) -> None:
        device = next(model.parameters()).device
        for text, windows in training.tests.items():
            parts = []
            with torch.no_grad():
                for tokens in windows.tokens.to(device).split(64):
                    parts.append(next_token_losses(model(tokens).logits, tokens).cpu())
            rows.extend(losses_by_half(torch.cat(parts).numpy(), windows, text, at))

    train(model, data, training.recipe, callback=look, callback_steps=training.eval_steps)
    weights = {f"weight.{name}": p for name, p in model.named_parameters()}
    return {"losses": pd.DataFrame(rows)[["text", "half", "step", "loss"]]} | weights


@dataclass(frozen=True, eq=False, kw_only=True)
class MixerStudy(Study):
    """Mixers and their rivals, by kind, width and rate."""

    vocab: int
    steps: int

    @property
    def vocabulary(self) -> int:
        return self.vocab

    def train(self, kind: str, width: int, lr: float, seed: int, share: float = 1) -> pd.DataFrame:
        """What a training gave: text, half of its documents, step, loss in nats a token, after each
        third of its steps. What was trained earlier is kept."""
        return mixer_losses(self.training(kind, width, lr, seed, share))

    def model(self, kind: str, width: int, lr: float, seed: int) -> nn.Module:
        """The model that `train` trained; it is trained again unless it is in the cache."""
        found = train_mixer(self.training(kind, width, lr, seed))
        model = MODELS[kind](self.vocab, self.fit.tokens.shape[1], width)
        state = {
            name.removeprefix("weight."): torch.as_tensor(w)
            for name, w in found.items()
            if name.startswith("weight.")
        }
        model.load_state_dict(state, strict=False)  # a tied or a fixed tensor is no parameter
        return model.requires_grad_(False).eval()

    def by_text(
        self, kind: str, width: int, lr: float, seeds: Sequence[int], third: int = 3
    ) -> pd.DataFrame:
        """Test losses on the odd documents after a third, two or all of the steps, a row a seed and
        a column a text, nats a token."""
        rows = []
        for seed in seeds:
            found = self.train(kind, width, lr, seed)
            rows.append(of_half(found, "odd", sorted(found.step.unique())[third - 1]))
        return pd.DataFrame(rows, index=[*seeds])[[*self.tests]]

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
                found = self.train(kind, width, lr, seed, share=0.25)
                tried[lr] = float(of_half(found, "even").mean())
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
        """`rate` of each (kind, width), a process for each core where something is not kept."""
        ours = [m for m in models if Kind(m[0]).provenance]
        missing = [m for m in ours if not all(self._is_kept(*m, lr, seed, 0.25) for lr in rates)]
        jobs = [(self, *model, seed, rates, most) for model in missing]
        in_parallel(_search, jobs, brief=self.steps < 100)
        return {model: self.rate(*model, seed, rates, most) for model in models}

    def train_all(self, jobs: Sequence[tuple[str, int, float, int]]) -> None:
        """Train each (kind, width, rate, seed) that is not kept, a process for each core; a kind of
        a reader's own is trained when it is asked for, in this process, which alone knows it."""
        missing = [(self, *job) for job in jobs if Kind(job[0]).provenance]
        missing = [job for job in missing if not self._is_kept(*job[1:])]
        in_parallel(_train_one, missing, brief=self.steps < 100)

    def _is_kept(self, kind: str, width: int, lr: float, seed: int, share: float = 1) -> bool:
        key = mixer_losses.key(self.training(kind, width, lr, seed, share))
        return mixer_losses.look_up(key) is not None

    def training(
        self, kind: str, width: int, lr: float, seed: int, share: float = 1
    ) -> MixerTraining:
        """All that decides such a training: the rate rises linearly, then falls linearly to 0."""
        steps = max(3, round(share * self.steps))
        warmup = max(1, steps // 100)
        recipe = TrainConfig(
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
        return MixerTraining(Kind(kind), width, self.vocab, self.fit, self.tests, recipe, thirds)


def _search(job: tuple) -> None:
    study, *given = job
    study.rate(*given)


def _train_one(job: tuple) -> None:
    study, *given = job
    study.train(*given)


def mixer_study(run, corpus: str | None = None) -> MixerStudy:
    """The texts, vocabulary, context and length of training of a run's profile."""
    both = ("wikipedia", "king-james")
    names = run.pick(["wikipedia-sample"], both, both, ["tinystories"])
    texts = [load_corpus(name) for name in ([corpus] if corpus else names)]
    study = cut_mixer_study(
        run,
        fit=[d for text in texts for d in text.fit],
        tests={text.name: text.test for text in texts},
        vocab=run.pick(smoke=320, laptop=512, study=512, paper=4_096),
        n_ctx=run.pick(smoke=16, laptop=128, study=128, paper=128),
    )
    most = run.pick(smoke=16, laptop=400, study=400, paper=2_000)
    some = {name: windows[:most] for name, windows in study.tests.items()}
    check_halves(some)
    return replace(study, tests=some)


def cut_mixer_study(
    run, fit: Sequence[str], tests: dict[str, Sequence[str]], vocab: int, n_ctx: int
) -> MixerStudy:
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
    return MixerStudy(
        fit=windows,
        tests=cut,
        tokenizer=tokenizer,
        vocab=vocab,
        steps=steps,
        bfloat16=run.profile == "paper",
    )


def beginnings(study: MixerStudy, texts: Sequence[str], name: str) -> Windows:
    """The first window of every paragraph that is long enough, as the author cuts stories."""
    paragraphs = [paragraph for text in texts for paragraph in text.split("\n\n")]
    n_ctx = study.fit.tokens.shape[1]
    windows = cut_windows(paragraphs, study.tokenizer, n_ctx, None, name)
    first = np.unique(windows.document, return_index=True)[1]
    return windows[np.random.default_rng(0).permutation(first)]
