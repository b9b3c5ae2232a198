"""What decoders retrieve, against a model that looks needles up."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lib.studies.decoder_study import DecoderStudy
from lib.studies.retrieval import ASKED, retrieval, retrieval_study, share_retrieved
from lib.text.needles import hide, key_value_pairs
from lib.text.windows import Windows
from lib.training.decoder import Shape

VOCAB = 11


@pytest.fixture(scope="module")
def study():
    tokens = torch.randint(VOCAB, (40, 64), generator=torch.Generator().manual_seed(0))
    text = Windows(tokens, np.arange(40), "a text")
    return DecoderStudy(
        fit=text,
        tests={"a text": text},
        tokenizer=None,
        shape=Shape(16, 2, VOCAB, 64),
        d_ff=24,
        steps_per_epoch=4,
        n_layers=2,
        batch=4,
        start="scaled, looking-back",
        ffn_frozen_share=0.0,
    )


class LooksUp:
    """Says after each token what followed it, and the token before it, last."""

    device = torch.device("cpu")

    def __call__(self, tokens):
        logits = torch.zeros(*tokens.shape, 64)
        for n, row in enumerate(tokens.tolist()):
            for t in range(1, len(row)):
                for s in range(1, t):
                    of_key = row[s] == row[t] and row[s - 1] == VOCAB
                    of_value = row[s - 1 : s + 1] == row[t - 1 : t + 1]
                    if of_key or of_value:
                        logits[n, t, row[s + 1]] = s
        return SimpleNamespace(logits=logits)


def test_who_looks_needles_up_retrieves_what_is_hidden_and_no_more(study):
    text = study.tests["a text"]
    pairs = key_value_pairs(len(text), VOCAB, 16, 16, 1, 4)
    assert share_retrieved(LooksUp(), hide(text, pairs)) == 1
    assert share_retrieved(LooksUp(), hide(text, pairs, withheld=True)) < 0.2


def test_a_trained_decoder_is_asked_each_question(study):
    with_needles = retrieval_study(study)
    assert with_needles.shape.vocab == VOCAB + 2 + 32
    # What it is asked has the same text, as often as it is asked.
    longer = {"a text": study.tests["a text"]}
    found = retrieval(with_needles, with_needles.uniform, [1, 2], longer)
    assert found.seed.tolist() == [1] * len(ASKED) + [2] * len(ASKED)
    assert [*zip(found.symbols, found.needles)][: len(ASKED)] == [*ASKED]
    # Values of eight symbols are guessed by no untrained model, of one by some.
    assert (found[found.symbols == 8][["hidden", "withheld"]] == 0).all(axis=None)
    assert found[["hidden", "withheld"]].lt(0.5).all(axis=None)
