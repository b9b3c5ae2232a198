"""Last words and made-up facts, told to a model that learns them; lm-eval's own LM."""

import pytest
import torch

from lib.decoder import Shape, build_decoder
from lib.errors import InputError
from lib.model import load_subject
from lib.tasks import LM, answer_words, facts, last_words, recall, told
from lib.text import cut_windows, load_corpus
from lib.train import Recipe, train


@pytest.fixture(scope="module")
def tokenizer():
    return load_subject("tiny-gpt2").tokenizer


@pytest.fixture(scope="module")
def learned(tokenizer):
    """Twelve facts, told often to a small decoder."""
    known = facts(12, 4)
    data = cut_windows(told(known, 200), tokenizer, 24)
    model = build_decoder([64] * 2, Shape(48, 2, len(tokenizer), 64))
    train(model, data, Recipe(150, 16, 1e-2, 20))
    return known, model


def test_told_facts_are_recalled_and_permuted_ones_are_not(tokenizer, learned):
    known, model = learned
    lm = LM(model, tokenizer)
    right = recall(lm, known)
    assert right["first"].mean() > 0.9 and right.tokens.mean() > 0.9 and len(right) == 12
    swapped = [(q, known[(i + 1) % 12][1]) for i, (q, _) in enumerate(known)]
    other = [known[i][1] != swapped[i][1] for i in range(12)]
    assert recall(lm, swapped)["first"][other].mean() < 0.5
    untold = build_decoder([64] * 2, Shape(48, 2, len(tokenizer), 64), start="llama")
    assert recall(LM(untold, tokenizer), known)["first"].mean() < 0.3


def test_facts_are_distinct_and_told_as_often_as_asked():
    known = facts(100, 10)
    assert len({q for q, _ in known}) == 100 and len({a for _, a in known}) == 10
    documents = told(known, 3)
    assert len(documents) == 3 and len({*documents}) == 3
    for q, a in known:
        assert sum(d.count(f"{q}{a}.") for d in documents) == 3


def test_log_probabilities_are_those_of_the_model(tokenizer, learned):
    _, model = learned
    lm = LM(model, tokenizer, batch=2)
    items = [
        ("the house of the", " king"),
        ("a", " very long continuation indeed"),
        ("one two", " one"),
    ]
    got = answer_words(lm, items)
    for (context, word), row in zip(items, got.itertuples(), strict=True):
        ids = torch.tensor([lm.tok_encode(context) + lm.tok_encode(word)])
        p = model(ids).logits.double().log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
        assert row.nats == pytest.approx(
            p[len(lm.tok_encode(context)) - 1 :].sum().item(), abs=1e-5
        )


def test_last_words_stand_in_their_context():
    text = load_corpus("wikipedia-sample")
    items = last_words(text.test, 20)
    for context, word in items:
        assert word.strip() in context.split() and len(context.split()) == 19
    with pytest.raises(InputError, match="ask for fewer than 5000"):
        last_words(text.test, 5_000)


def test_lm_evals_own_model_gives_the_same(tokenizer, learned):
    lm_eval = pytest.importorskip("lm_eval.models.huggingface")
    known, model = learned
    theirs = lm_eval.HFLM(pretrained=model, tokenizer=tokenizer, batch_size=8, device="cpu")
    ours = LM(model, tokenizer)
    assert recall(theirs, known).equals(recall(ours, known))
    items = last_words(load_corpus("wikipedia-sample").test, 20)
    a, b = answer_words(theirs, items), answer_words(ours, items)
    assert (a.nats - b.nats).abs().max() < 1e-3 and (a.right == b.right).all()
