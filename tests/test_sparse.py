"""FFNs without their small entries: the original at threshold 0, savings counted by hand."""

import numpy as np
import pytest
import torch

from lib.errors import InputError
from lib.gating.sparse import SparseFFN, cats, magnitudes, parts, teal
from lib.hooks import capture, swap
from lib.swap.sweep import token_losses
from lib.text.corpora import load_corpus
from lib.text.windows import cut_windows


@pytest.fixture(scope="module")
def own(each_subject):
    return each_subject


@pytest.fixture(scope="module")
def windows(own):
    return cut_windows(load_corpus("wikipedia-sample").fit, own.tokenizer, 32, name="few")[:8]


def rows_of(own, windows, b=2):
    return capture(own, windows, [b])[b]


@pytest.mark.parametrize("how", [teal, cats])
def test_nothing_left_out_is_the_original_to_the_last_bit(own, windows, how):
    base = token_losses(own, windows.tokens)
    for b, thinned in how(own, windows, 0.0).items():
        with swap(own.blocks[b], thinned):
            assert torch.equal(token_losses(own, windows.tokens), base)
        assert not thinned.saved.any()


def test_without_any_input_an_ffn_gives_its_answer_to_nothing(own):
    ffn, x = own.blocks[2].ffn, torch.randn(2, 3, own.d_model)
    thinned = SparseFFN(ffn, own.d_model, {"input": np.inf})
    torch.testing.assert_close(thinned(x), ffn(torch.zeros_like(x)))
    n_readers = len(parts(ffn, own.d_model).readers)
    assert thinned.saved.numpy() == pytest.approx(n_readers / (n_readers + 1), rel=1e-5)


def test_savings_are_those_counted_by_hand(own, windows):
    x, _ = rows_of(own, windows)
    block = own.blocks[2]
    readers, _, writer = parts(block.ffn, own.d_model)
    seen = {}
    handle = writer.register_forward_hook(lambda _, args, __: seen.update(hidden=args[0]))
    block.ffn(x)
    handle.remove()
    cuts = {"input": 0.3, "hidden": 0.05}
    thinned = SparseFFN(block.ffn, own.d_model, cuts)
    thinned(x)
    d, h, k = own.d_model, seen["hidden"].shape[-1], len(readers)
    # Hidden units are counted in the thinned pass, so only the input's part is known beforehand.
    of_input = (x.abs() < 0.3).sum(-1) * k * h
    assert (thinned.saved * (k + 1) * d * h >= of_input - 1).all()
    alone = SparseFFN(block.ffn, own.d_model, {"hidden": 0.05})
    alone(x)
    by_hand = (seen["hidden"].abs() < 0.05).sum(-1) * d / ((k + 1) * d * h)
    torch.testing.assert_close(alone.saved, by_hand.float())
    kept = torch.where(seen["hidden"].abs() < 0.05, 0.0, seen["hidden"])
    torch.testing.assert_close(alone(x), writer(kept), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", [teal, cats])
def test_the_share_asked_for_is_saved_on_the_fit_text(own, windows, how):
    thinned = how(own, windows, 0.25)[2]
    x, _ = rows_of(own, windows)
    thinned(x)
    # TEAL's hidden entries are those of the thinned input, so its share is a little higher.
    assert float(thinned.saved.mean()) == pytest.approx(0.25, abs=0.06)
    more = how(own, windows, 0.45)[2]
    y = own.blocks[2].ffn(x)
    assert (more(x) - y).norm() > (thinned(x) - y).norm() > 0


def test_magnitudes_are_quantiles(own, windows):
    x, _ = rows_of(own, windows)
    found = magnitudes(own, windows, (0.1, 0.5))
    expected = np.quantile(x[:, 16::32].abs().numpy(), (0.1, 0.5))
    np.testing.assert_allclose(found["input"][2], expected, rtol=1e-5)
    assert (found["hidden"][:, 0] < found["hidden"][:, 1]).all()


def test_shares_that_cannot_be(own, windows):
    with pytest.raises(InputError, match=r"a share of 1\.5"):
        teal(own, windows, 1.5)
    with pytest.raises(InputError, match=r"CATS cannot save a share of 0\.9"):
        cats(own, windows, 0.9)
    with pytest.raises(InputError, match="Linear has"):
        parts(torch.nn.Linear(4, 4), 4)
