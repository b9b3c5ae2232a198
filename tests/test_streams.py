"""The FFN's input split into token and context, against the norm's own formula."""

import numpy as np
import pytest
import torch
from torch import nn

from lib.base import InputError
from lib.gates.geometry import _of as measured
from lib.gates.geometry import geometry, variation
from lib.gates.streams import Streams, frozen_parts, norm_before
from lib.models import load_subject
from lib.models.hooks import capture
from lib.texts import cut_windows, load_corpus

D = 12


@pytest.fixture(scope="module")
def windows():
    def of(subject, n=640, seq_len=32):
        text = load_corpus("wikipedia-sample")
        return cut_windows(text.eval, subject.tokenizer, seq_len).take(n)

    return of


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-neox", "tiny-llama"])
def test_token_and_context_add_up_to_the_ffn_s_input(name, windows):
    subject = load_subject(name)
    sample = windows(subject)
    streams = Streams(subject, sample, [0, 2])
    x, _ = capture(subject, sample, [2])[2]
    split = streams(2)
    np.testing.assert_allclose(split.x, x[:, :-1], atol=1e-5)
    offset = split.x - split.token - split.context
    np.testing.assert_allclose(offset, np.broadcast_to(offset[0, 0], offset.shape), atol=1e-4)
    assert np.abs(split.context).mean() > np.abs(split.token).mean()
    if subject.parallel:  # the FFN of the first block reads the block's input itself
        np.testing.assert_allclose(streams(0).context, 0, atol=1e-6)


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_the_token_s_part_is_the_norm_with_the_statistics_of_the_stream(name, windows):
    subject = load_subject(name)
    split = Streams(subject, windows(subject), [3])(3)
    norm = norm_before(subject, 3, windows(subject).tokens[:1])
    h, e = (torch.from_numpy(part).double() for part in (split.stream, split.embedding))
    if isinstance(norm, nn.LayerNorm):
        e = e - e.mean(-1, keepdim=True)
        scale = (h.var(-1, unbiased=False, keepdim=True) + norm.eps).rsqrt()
    else:
        scale = (h.square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()
    expected = scale * e * norm.weight.detach().double()
    np.testing.assert_allclose(split.token, expected, rtol=1e-3, atol=1e-5)


def test_what_is_no_norm_is_refused(windows):
    rng = np.random.default_rng(0)
    h, e = rng.normal(size=(2, 4, 8, D)).astype(np.float32)
    with pytest.raises(InputError, match="no LayerNorm"):
        frozen_parts(nn.Tanh(), np.tanh(h), h, e)
    token, left = frozen_parts(nn.Identity(), h, h, e)
    np.testing.assert_allclose(token, e, atol=1e-5)
    np.testing.assert_allclose(left, h - e, atol=1e-5)
    subject = load_subject("tiny-gpt2")
    with pytest.raises(InputError, match="does not exist"):
        Streams(subject, windows(subject), [99])


def test_the_norms_hooks_are_gone_afterwards(windows):
    subject = load_subject("tiny-gpt2")
    before = subject.key
    Streams(subject, windows(subject), [1])(1)
    assert subject.key == before


def test_another_position_s_token_is_where_subtraction_puts_it():
    rng = np.random.default_rng(0)
    whole, token = rng.normal(size=(2, 30, 20, 400)) * [[[[1]]], [[[0.5]]]]
    _, _, _, cosine, another, unrelated, _ = measured(whole, token, 0).mean(1)
    assert cosine == pytest.approx(unrelated, abs=0.01) and another == pytest.approx(
        cosine, abs=0.01
    )
    _, _, _, cosine, another, *_ = measured(whole + token, token, 0).mean(1)
    assert cosine > another + 0.3


def test_geometry_of_the_live_model(windows):
    subject = load_subject("tiny-gpt2")
    table = geometry(Streams(subject, windows(subject), [1, 3]), [1, 3])
    assert set(table.space) == {"literal", "stream", "split"} and len(table) == 2 * 3 * 20
    stream = table[table.space == "stream"]
    token = stream.groupby("block").token.mean()
    assert token.loc[1] == pytest.approx(token.loc[3])  # e is e at every depth
    found = variation(stream[stream.block == 1])
    assert 0 < found.low < found.value < found.high < 1
