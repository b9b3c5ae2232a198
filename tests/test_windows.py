"""Windows: every document is cut, budgets are nested samples of all, splits go by document."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.base import InputError
from lib.texts.windows import Windows, cut_windows


class Words:
    """A tokenizer of whitespace-separated numbers."""

    def __call__(self, texts, **_):
        return {"input_ids": [[int(w) for w in text.split()] for text in texts]}


def corpus(lengths):
    """Documents of these many tokens; a token tells its document and its place."""
    return [" ".join(str(1000 * d + i) for i in range(n)) for d, n in enumerate(lengths)]


lengths = st.lists(st.integers(0, 60), min_size=5, max_size=12).filter(
    lambda ls: sum(n >= 4 for n in ls) >= 3
)


@given(lengths, st.integers(0, 99))
def test_every_document_is_cut_and_no_window_crosses_documents(ls, seed):
    cut = cut_windows(corpus(ls), Words(), 4, seed)
    assert sorted(cut.tokens.flatten().tolist()) == [
        1000 * d + i for d, n in enumerate(ls) for i in range(n // 4 * 4)
    ]
    assert ((cut.tokens // 1000) == cut.document[:, None]).all()
    assert cut.left_out == sum(n < 4 for n in ls)


@given(lengths, st.integers(0, 99), st.data())
def test_a_smaller_budget_lies_inside_a_larger_one_and_documents_keep_their_fold(ls, seed, data):
    whole = cut_windows(corpus(ls), Words(), 4, seed)
    n = data.draw(st.integers(1, len(whole)))
    part = whole.take(4 * n)
    assert torch.equal(part.tokens, whole.tokens[:n])
    fold_of = dict(zip(whole.document.tolist(), whole.folds(3).tolist(), strict=True))
    try:
        folds = part.folds(3)
    except InputError:  # so small that a fold has no window
        return
    assert [fold_of[d] for d in part.document.tolist()] == folds.tolist()


@given(lengths)
def test_no_document_stands_in_two_folds_and_folds_are_even(ls):
    whole = cut_windows(corpus(ls), Words(), 4)
    folds = whole.folds(3)
    for document in whole.document.unique():
        assert len(folds[whole.document == document].unique()) == 1
    filled = folds.bincount(minlength=3)
    assert filled.max() - filled.min() <= whole.sizes.max()


def test_the_seed_reaches_the_sample():
    one, two, again = (cut_windows(corpus([200] * 6), Words(), 4, seed) for seed in (1, 2, 1))
    assert torch.equal(one.tokens, again.tokens) and one.key == again.key
    assert not torch.equal(one.take(40).tokens, two.take(40).tokens) and one.key != two.key
    # A tenth of the windows comes from all six documents, not from the first.
    assert one.take(120).n_documents == 6


@given(lengths, st.data())
def test_an_even_sample_takes_alike_of_every_document(ls, data):
    whole = cut_windows(corpus(ls), Words(), 4)
    n = data.draw(st.integers(1, len(whole)))
    taken = whole.take(4 * n, evenly=True).document.bincount(minlength=len(ls))
    # A document with fewer windows than another has given all it has.
    assert ((taken >= taken.max() - 1) | (taken == whole.sizes)).all() and taken.sum() == n


def test_in_order_the_tail_is_contiguous():
    cut = cut_windows(corpus([40] * 4), Words(), 4, seed=None)
    assert cut.tokens[0, 0] == 0 and cut.held_out(5).nonzero().flatten().tolist() == [
        *range(32, 40)
    ]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: cut_windows(corpus([40, 40]), Words(), 4).folds(5), "2 document.* 5 folds"),
        (lambda: cut_windows(corpus([400]), Words(), 4).folds(2), "1 document.* 2 folds"),
        (lambda: cut_windows(corpus([3, 2]), Words(), 4), "no document of 4 tokens"),
        (lambda: cut_windows([], Words(), 4), "no document"),
        (lambda: cut_windows(corpus([40]), Words(), 1), "windows of 1 tokens"),
        (lambda: cut_windows(corpus([40]), None, 4), "without a tokenizer"),
        (lambda: cut_windows(corpus([40]), Words(), 4).take(400), "40 tokens .* 400 were asked"),
        (lambda: cut_windows(corpus([40]), Words(), 4).take(3), "make no window"),
        (lambda: cut_windows(corpus([40] * 6), Words(), 4).take(8).folds(5), "leave fold"),
        (lambda: cut_windows(corpus([40] * 6), Words(), 4).folds(1), "1 folds"),
        (lambda: Windows.of(torch.zeros(3)), "no windows of tokens"),
        (lambda: Windows.of([[1, 2]]), "no windows of tokens"),
    ],
)
def test_bad_input_is_one_sentence(call, says):
    with pytest.raises(InputError, match=says) as error:
        call()
    assert "\n" not in str(error.value)


@given(lengths)
def test_halves_share_no_document_and_can_be_cut_into_folds(ls):
    first, second = cut_windows(corpus(ls * 2), Words(), 4).halves()
    assert not set(first.document.tolist()) & set(second.document.tolist())
    assert len(first) + len(second) == int((first.sizes + second.sizes).sum())
    assert first.folds(2).bincount(minlength=2).min() > 0
