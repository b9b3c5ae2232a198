"""Small tasks for small models, behind lm-eval's model interface.

A task asks an `lm` for `_loglikelihood_tokens`, as lm-eval's own do: pass `LM(model, tokenizer)`,
or lm-eval's `HFLM(pretrained=model, tokenizer=tokenizer)` (`pip install -e '.[tasks]'`), with which
the papers' tasks run too where the Hugging Face hub can be reached (`lm_eval.simple_evaluate`).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from lib.errors import InputError


class LM:
    """The part of lm-eval's interface that scores continuations, for a causal LM and tokenizer."""

    def __init__(self, model, tokenizer, batch: int = 256):
        self.model, self.tokenizer, self.batch = model, tokenizer, batch

    def tok_encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    @torch.no_grad()
    def _loglikelihood_tokens(self, requests) -> list[tuple[float, bool]]:
        """For each (names, context ids, continuation ids): the log-probability of the continuation
        in nats, and whether greedy decoding would write it. Contexts are cut on the left to the
        model's length."""
        found, most = [], self.model.config.max_position_embeddings
        for at in range(0, len(requests), self.batch):
            rows = [(*c, *t)[-most - 1 :] for _, c, t in requests[at : at + self.batch]]
            sizes = [len(t) for _, _, t in requests[at : at + self.batch]]
            padded = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
            for row, ids in zip(padded, rows, strict=True):  # causal: what follows does no harm
                row[: len(ids)] = torch.tensor(ids)
            padded = padded.to(self.model.device)
            logits = self.model(padded[:, :-1]).logits.double().log_softmax(-1)
            for ids, n, row in zip(rows, sizes, logits, strict=True):
                target = torch.tensor(ids[-n:], device=row.device)
                said = row[len(ids) - 1 - n : len(ids) - 1]
                greedy = bool((said.argmax(-1) == target).all())
                found.append((said.gather(1, target[:, None]).sum().item(), greedy))
        return found


def last_words(
    documents: Sequence[str], n: int, n_words: int = 20, seed: int = 42
) -> list[tuple[str, str]]:
    """LAMBADA's question for any text: (context, last word) of `n` passages of `n_words` words
    whose last word has at least four letters and stands earlier in the passage too."""
    found = []
    for text in documents:
        words = text.split()
        for at in range(0, len(words) - n_words, n_words):
            *context, last = words[at : at + n_words]
            if len(last) > 3 and last.isalpha() and last in context:
                found.append((" ".join(context), f" {last}"))
    if len(found) < n:
        raise InputError(
            f"the text has {len(found)} passages for last words: ask for fewer than {n}."
        )
    order = np.random.default_rng(seed).permutation(len(found))[:n]
    return [found[i] for i in order]


def answer_words(lm, items: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """Log-probability in nats ("nats") and greedy hit ("right") of each item's word."""
    asked = [((c, w), lm.tok_encode(c), lm.tok_encode(w)) for c, w in items]
    return pd.DataFrame(lm._loglikelihood_tokens(asked), columns=["nats", "right"])


def facts(n: int, n_answers: int = 100, seed: int = 42) -> list[tuple[str, str]]:
    """`n` made-up (question, answer) pairs, like those of zsRE: no name stands twice, and each of
    `n_answers` places is the answer of about as many."""
    rng, syllables = np.random.default_rng(seed), [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    names: dict[str, None] = {}
    while len(names) < n + n_answers:
        names["".join(rng.choice(syllables, 3)).capitalize()] = None
    people, places = [*names][:n], [*names][n:]
    answers = rng.permutation([places[i % n_answers] for i in range(n)])
    return [(f"{p} lives in", f" {a}") for p, a in zip(people, answers, strict=True)]


def told(known: Sequence[tuple[str, str]], times: int, seed: int = 42) -> list[str]:
    """Documents that tell every fact `times` times, each time in another order."""
    rng = np.random.default_rng(seed)

    def tell(order):
        return "".join(f"{known[i][0]}{known[i][1]}.\n" for i in order)

    return [tell(rng.permutation(len(known))) for _ in range(times)]


def recall(lm, known: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """zsRE's protocol (Ikeda App. D): the share of an answer's tokens that greedy decoding gives,
    each after the question and the true tokens before it ("tokens"); whether it gives the first
    ("first"). A row a fact."""
    asked, owner = [], []
    for k, (question, answer) in enumerate(known):
        context, target = lm.tok_encode(question), lm.tok_encode(answer)
        for j, token in enumerate(target):
            asked.append(((question, answer), context + target[:j], [token]))
            owner.append((k, j))
    right = np.array([greedy for _, greedy in lm._loglikelihood_tokens(asked)], float)
    rows = pd.DataFrame(owner, columns=["fact", "token"]).assign(right=right)
    tokens = rows.groupby("fact").right.mean()
    return pd.DataFrame({"tokens": tokens, "first": rows[rows.token == 0].set_index("fact").right})
