"""Byte-level tokenizers, n-gram models and bits per byte, each by another road."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.base import InputError
from lib.models import Mixer, build_mixer
from lib.texts import byte_bpe, count_ngrams, cut_windows, token_bytes
from lib.training import bits

TEXT = ["the cat sat on the mat and the dog sat on the log, naïve café 東京 – 😀\n"] * 4


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    from lib.base import cache

    before, cache.CACHE = cache.CACHE, tmp_path_factory.mktemp("bpe")
    yield byte_bpe(TEXT, 290)
    cache.CACHE = before


@settings(max_examples=60)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_what_is_encoded_is_decoded_and_every_byte_is_counted(tokenizer, text):
    ids = tokenizer([text], add_special_tokens=False)["input_ids"][0]
    assert tokenizer.decode(ids) == text
    assert token_bytes(tokenizer)[ids].sum() == len(text.encode())


def test_vocabularies_have_their_size(tokenizer):
    assert len(tokenizer) == 290 and len(byte_bpe(TEXT, 256)) == 256
    assert token_bytes(byte_bpe(TEXT, 256)).tolist() == [1] * 256


def test_bits_per_byte_by_two_roads_and_8_for_a_uniform_byte_model():
    assert bits.bits_per_byte(math.log(256), 1, 1) == pytest.approx(8)
    plain = byte_bpe(TEXT, 256)
    windows = cut_windows(TEXT, plain, 16)

    class Uniform(torch.nn.Module):
        device = torch.device("cpu")

        def forward(self, tokens, use_cache=False):
            return type("Out", (), {"logits": torch.zeros(*tokens.shape, 256)})

    assert bits.two_roads(Uniform(), windows, plain) == (pytest.approx(8), pytest.approx(8))


def test_two_roads_meet_and_bytes_are_those_of_the_predicted_tokens(tokenizer):
    windows = cut_windows(TEXT, tokenizer, 8)
    first, second = bits.two_roads(build_mixer(Mixer("relu", 9, 290, 8), 1), windows, tokenizer)
    assert first == pytest.approx(second, rel=1e-12) and first > 0
    size = token_bytes(tokenizer)
    assert bits.bytes_of(windows, tokenizer) == sum(
        size[t] for row in windows.tokens.tolist() for t in row[1:]
    )


def by_hand(train, vocab, order, context, token):
    """Witten-Bell from the top down, by counting in Python."""
    p = 1 / vocab
    for k in range(1, order + 1):
        h = tuple(context[len(context) - k + 1 :]) if k > 1 else ()
        if len(h) < k - 1:
            break
        after = [
            row[i + k - 1]
            for row in train
            for i in range(len(row) - k + 1)
            if tuple(row[i : i + k - 1]) == h
        ]
        if after:
            kinds = len(set(after))
            p = (after.count(token) + kinds * p) / (len(after) + kinds)
    return p


@settings(max_examples=25)
@given(st.integers(2, 5), st.integers(1, 4), st.integers(0, 999))
def test_ngrams_are_those_counted_by_hand_and_sum_to_one(vocab, order, seed):
    rng = np.random.default_rng(seed)
    train, test = rng.integers(vocab, size=(4, 6)), rng.integers(vocab, size=(2, 5))
    model = count_ngrams(train, vocab, order)
    found = np.exp(-model.losses(test))
    for row, values in zip(test.tolist(), found, strict=True):
        for i, value in enumerate(values, 1):
            wanted = by_hand(train.tolist(), vocab, order, row[:i], row[i])
            assert value == pytest.approx(wanted, rel=1e-12)
    ends = np.array([[*test[0, :4], t] for t in range(vocab)])
    assert np.exp(-model.losses(ends))[:, -1].sum() == pytest.approx(1)


def test_a_smaller_ngram_model_keeps_the_frequent_and_still_sums_to_one():
    train = np.random.default_rng(0).integers(4, size=(30, 8)) // 2 * 2
    model, whole = (count_ngrams(train, 4, 3, size) for size in (5, None))
    assert model.size == 5 < whole.size and len(model.grams[0]) == 2
    ends = np.array([[0, 2, t] for t in range(4)])
    assert np.exp(-model.losses(ends))[:, -1].sum() == pytest.approx(1)


def test_compressors_gain_from_text_they_have_seen():
    table = bits.compressed(TEXT[:1], TEXT * 20).pivot(
        index="compressor", columns="given", values="bits_per_byte"
    )
    assert (table.text < table.nothing).all() and len(table) == 3


def test_saturation_is_told_from_steady_gain():
    import pandas as pd

    rng = np.random.default_rng(0)
    noise = lambda: rng.normal(0, 0.002, 4)
    table = lambda values: pd.DataFrame({256 * 2**k: v + noise() for k, v in enumerate(values)})
    saturated, steady = table([3, 2.6, 2.55]), table([3, 2.8, 2.6])
    assert bits.saturation(saturated).high < 0 < bits.saturation(steady).low
    assert bits.saturation_apart(saturated, steady).high < 0
    assert all(i.high < 0 for i in bits.successive(steady).values())


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: byte_bpe(TEXT, 255), "255 tokens cannot write every text"),
        (lambda: byte_bpe(TEXT, 100_000, "a text"), "a text has merges for .* 100,000 were asked"),
        (lambda: cut_windows(["abc"], byte_bpe(TEXT, 256), 64), "no document of 64 tokens"),
        (lambda: count_ngrams(np.zeros((2, 3), int), 8_192, 5), "63 bits"),
        (lambda: count_ngrams(np.zeros((2, 3), int), 8, 0), "order 0"),
        (lambda: bits.held_out_documents(["a"], 2, "a text"), "1 documents but 4 were asked"),
    ],
)
def test_bad_input_is_one_sentence(call, says):
    with pytest.raises(InputError, match=says) as error:
        call()
    assert "\n" not in str(error.value)
