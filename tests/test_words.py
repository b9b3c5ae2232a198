"""What is said of tokens, and gates of every block beside it."""

import numpy as np
import pytest
import torch

from lib.gates import depth, labels
from lib.gates.features import describe
from lib.gates.printed import off_by
from lib.gates.words import TYPES, frequent_words, parts_of_speech, pieces, types_of
from lib.models import load_subject
from lib.stats import Interval
from lib.swaps import token_losses
from lib.texts import Windows, cut_windows, load_corpus


@pytest.fixture(scope="module")
def windows():
    def of(subject, n=640, seq_len=32):
        text = load_corpus("wikipedia-sample")
        return cut_windows(text.eval, subject.tokenizer, seq_len).take(n)

    return of


def test_words_have_types_and_parts_of_speech():
    tokenizer = load_subject("tiny-gpt2").tokenizer
    ids = tokenizer("The railway was not extensively promoted in 1948, by the regimes.")[
        "input_ids"
    ]
    found = pieces(tokenizer, Windows.of(torch.tensor([ids])))
    assert [w for w in found.words[0] if w.isalpha()][:3] == ["The", "railway", "was"]
    _, function = parts_of_speech(found)
    kinds = types_of(found, function)
    named = {}
    for text, kind, starts in zip(found.text[0], kinds[0], found.starts[0], strict=True):
        named.setdefault(text if starts else "+", TYPES[kind])
    assert named["The"] == named["was"] == named["not"] == named["by"] == "function word"
    assert named[","] == named["."] == "punctuation" and named["+"] in ("subword", "number")
    assert "number" in {TYPES[k] for k in kinds[0]} and "content word" in {
        TYPES[k] for k in kinds[0]
    }
    assert tokenizer.decode(frequent_words(tokenizer, Windows.of(torch.tensor([ids])), 1)).strip()


def test_thirteen_features_of_a_model_s_positions(windows):
    subject = load_subject("tiny-gpt2")
    sample = windows(subject, 256)
    losses = token_losses(subject, sample).numpy()
    said = describe(subject, sample, losses)
    assert len(said.table.columns) == 13 and len(said.table) == losses.size
    assert np.isfinite(said.table.to_numpy()).all()
    surprisal = said.table.surprisal.to_numpy().reshape(losses.shape)
    np.testing.assert_allclose(surprisal[:, 1:], losses[:, :-1])
    with torch.no_grad():
        logits = subject.model(sample.tokens[:1]).logits[0, 5].double()
    entropy = torch.distributions.Categorical(logits=logits).entropy().item()
    got = said.table["next-token entropy"].to_numpy().reshape(losses.shape)[0, 5]
    assert got == pytest.approx(entropy, abs=1e-4)
    repeated = said.table.repeated.to_numpy().reshape(losses.shape)
    tokens = sample.tokens.numpy()
    assert repeated[0, 9] == (tokens[0, 9] in tokens[0, :9])


def test_the_best_gate_is_chosen_on_one_half_and_read_on_the_other():
    rng = np.random.default_rng(0)
    delta, document = rng.normal(size=(40, 16)), np.repeat(np.arange(10), 4)
    scores = {
        (0, "linear"): -delta + rng.normal(size=delta.shape),
        (0, "mlp"): rng.normal(size=delta.shape),
    }
    kinds, rows = depth.best_area_rows(scores, {0: labels(delta)}, {0: delta}, document)
    assert kinds == {0: "linear"} and rows[0].mean() > 0.75
    noise = {(0, f"gate {k}"): rng.normal(size=delta.shape) for k in range(30)}
    _, rows = depth.best_area_rows(noise, {0: labels(delta)}, {0: delta}, document)
    assert abs(rows[0].mean() - 0.5) < 0.08


def test_a_correlation_that_stays_and_one_that_goes():
    rng = np.random.default_rng(1)
    document, rows = np.repeat(np.arange(20), 50), {}
    for block, sign in ((0, 1), (1, -1)):
        rows[block] = sign * (0.4 + 0.3 * rng.normal(size=1000))
    stays = depth.kept_elsewhere(rows, {b: r * 0.9 for b, r in rows.items()}, (document, document))
    gone = depth.kept_elsewhere(rows, {b: r * 0 for b, r in rows.items()}, (document, document))
    assert stays.low > 0.5 and gone.value == 0
    assert depth.median_rows(depth.sized(rows)).mean() == pytest.approx(0.4, abs=0.03)


def test_off_by_is_the_largest_difference():
    found = [Interval(0.5, 0.4, 0.6), Interval(0.7, 0.69, 0.71), Interval(9, 9, 9)]
    worst = off_by(found, (0.55, 0.6))
    assert worst.value == pytest.approx(0.1) and worst.high == pytest.approx(0.15)
