"""Record, swap, resume and the sweep: identities on live models, and that all is put back."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lib.hooks import capture, capture_residual, forward, record, resume, swap
from lib.keys import words_of
from lib.linear.affine import AffineMap, MassiveKeptMap
from lib.linear.regression import mean_ablation, zero_ablation
from lib.models.loading import load_subject
from lib.swap.expected import expected_added_loss
from lib.swap.healing import heal, trainable
from lib.swap.sweep import batch_size, next_token_losses, token_losses, token_sweep
from lib.text.corpora import load_corpus
from lib.text.windows import cut_windows


@pytest.fixture(scope="module")
def few(test):
    return test[:4]


def state(subject) -> list:
    """What must be as before: the modules in their places and the hooks on them."""
    modules = dict(subject.model.named_modules())
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules.values()]
    return [[*modules], [id(m) for m in modules.values()], hooks]


def test_a_subject_knows_its_parts(each_subject):
    assert len(each_subject) == 6 and each_subject.d_model == 128
    assert "6 blocks of width 128" in repr(each_subject)
    for b in each_subject.blocks:
        assert b.n_params == sum(p.numel() for p in b.ffn.parameters())


def test_random_weights_are_seeded_and_untrained(subject):
    def weight(s):
        return s.model.get_input_embeddings().weight

    one, same, other = (load_subject("tiny-gpt2:random", seed=s) for s in (42, 42, 43))
    assert torch.equal(weight(one), weight(same)) and not torch.equal(weight(one), weight(other))
    assert not torch.equal(weight(one), weight(subject))
    words = [s.provenance for s in (one, other, subject)]
    assert None not in words and len({*words}) == 3 and one.provenance == same.provenance


def test_losses_are_torchs_cross_entropy(generator):
    logits = torch.randn(3, 50, 11, generator=generator) * 4
    tokens = torch.randint(11, (3, 50), generator=generator)
    oracle = nn.functional.cross_entropy(
        logits[:, :-1].double().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
    ).view(3, 49)
    torch.testing.assert_close(next_token_losses(logits, tokens), oracle)


def test_mean_loss_is_the_models_own(each_subject, few):
    own = each_subject.model(few.tokens, labels=few.tokens).loss
    assert float(token_losses(each_subject, few.tokens).mean()) == pytest.approx(
        float(own), rel=1e-5
    )


def test_captured_rows_are_what_the_ffn_maps(each_subject, few):
    for i, (x, y) in capture(each_subject, few, [0, 3, 5]).items():
        assert x.shape == y.shape == (*few.tokens.shape, 128)
        torch.testing.assert_close(each_subject.blocks[i].ffn(x), y)


def test_residual_streams_are_transformers_hidden_states(each_subject, few):
    oracle = each_subject.model(few.tokens, output_hidden_states=True).hidden_states
    for i, h in capture_residual(each_subject, few, range(6)).items():
        torch.testing.assert_close(h, oracle[i], rtol=1e-5, atol=1e-5)


def test_forward_stops_after_the_last_block_asked_for(subject, few):
    seen = []
    with record(subject, on_ffn=lambda i, x, y: seen.append(i)):
        forward(subject, few, on_ffn=lambda i, x, y: None, blocks=[1])
    assert seen == [0, 1]


def test_an_ffn_swapped_for_itself_changes_no_bit(each_subject, few):
    plain = token_losses(each_subject, few.tokens)
    for b in each_subject.blocks:
        with swap(b, copy.deepcopy(b.ffn)):
            assert torch.equal(token_losses(each_subject, few.tokens), plain)


def test_resuming_at_any_block_is_the_plain_pass(each_subject, few):
    plain = token_losses(each_subject, few.tokens)
    for b, h in capture_residual(each_subject, few, range(6)).items():
        with resume(each_subject, b, h):
            assert torch.equal(token_losses(each_subject, few.tokens), plain)
        with resume(each_subject, b, torch.zeros_like(h)):
            assert not torch.allclose(token_losses(each_subject, few.tokens), plain)


def test_all_is_put_back_after_an_exception(each_subject, few):
    before, h = state(each_subject), torch.zeros(4, few.tokens.shape[1], 128)

    def ignore(*_):
        return None

    zero = AffineMap(torch.zeros(128, 128), torch.zeros(128))
    for opened in (
        lambda: record(each_subject, ignore, ignore),
        lambda: swap(each_subject.blocks[1], zero),
        lambda: resume(each_subject, 0, h),
        lambda: resume(each_subject, 3, h),
    ):
        with pytest.raises(KeyError), opened():
            assert state(each_subject) != before
            raise KeyError
        assert state(each_subject) == before
    with pytest.raises(KeyError):
        forward(each_subject, few, on_ffn=lambda *_: {}["no"])
    assert state(each_subject) == before


def test_sweep_is_whole_model_evaluation(subject, test, fits):
    modules = {**fits.maps, (2, "repaired"): fits.repaired[2], (3, "ffn"): subject.blocks[3].ffn}
    found = token_sweep(replace(subject, loaded_as=None), test, modules)
    base = token_losses(subject, test.tokens).numpy()
    np.testing.assert_allclose(found[None], base, rtol=1e-5)
    for key, module in modules.items():
        block = key[0] if isinstance(key, tuple) else key
        with swap(subject.blocks[block], module):
            whole = token_losses(subject, test.tokens).numpy()
        np.testing.assert_allclose(found[key], whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[3, "ffn"], found[None])


def test_ablations_and_some_windows_of_a_sweep(subject, test, fit, rows):
    means, zeros = mean_ablation(subject, fit), zero_ablation(subject)
    _, y = capture(subject, fit, [2])[2]
    expected = y.flatten(0, 1).double().mean(0).float()
    torch.testing.assert_close(means[2].bias, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(means[2](rows[2])[0], means[2].bias)
    assert not zeros[2](rows[2]).any() and words_of(means[2]) != words_of(means[3])
    found = token_sweep(subject, test, {(2, "mean"): means[2], (2, "zero"): zeros[2]})
    chosen = test.first_of_document
    assert chosen.sum() == len(np.unique(test.document))
    alone = token_sweep(replace(subject, loaded_as=None), test[chosen], {(2, "mean"): means[2]})
    np.testing.assert_allclose(found[2, "mean"][chosen], alone[2, "mean"], rtol=1e-5)


def test_expected_added_loss_is_its_formula(each_subject):
    """The first term against the loss's own slope, by finite differences."""
    own = each_subject
    windows = cut_windows(load_corpus("wikipedia-sample").test, own.tokenizer, 32, name="few")[:2]
    b, width = 2, own.d_model
    maps = {b: AffineMap(torch.zeros(width, width), torch.full((width,), 0.01))}
    terms = expected_added_loss(own, windows, maps)
    assert terms.shape == (1, 2, 2)

    class Blend(torch.nn.Module):
        """A step of size `eps` from the FFN to the map."""

        def __init__(self, eps):
            super().__init__()
            self.eps, self.ffn = eps, own.blocks[b].original

        def forward(self, x):
            return (1 - self.eps) * self.ffn(x) + self.eps * maps[b](x)

    eps = 1e-2
    with swap(own.blocks[b], Blend(eps)):
        up = token_losses(own, windows.tokens).mean(1).numpy()
    with swap(own.blocks[b], Blend(-eps)):
        down = token_losses(own, windows.tokens).mean(1).numpy()
    np.testing.assert_allclose(terms[0, 0], (up - down) / (2 * eps), rtol=0.02, atol=1e-4)
    assert (terms[:, 1] > 0).all()
    # A map that is the FFN costs nothing; one that keeps the FFN everywhere neither.
    kept = MassiveKeptMap(maps[b].weight, maps[b].bias, torch.zeros(width), -1.0)
    assert not expected_added_loss(own, windows, {b: kept}).any()


def test_trainable_copies_compute_the_same(subject, fits, rows):
    for module in (fits.maps[2], subject.blocks[2].ffn):
        layer = trainable(module)
        torch.testing.assert_close(layer(rows[2]), module(rows[2]), rtol=1e-4, atol=1e-4)
        assert layer is not module and all(p.requires_grad for p in layer.parameters())
    assert not any(p.requires_grad for p in subject.model.parameters())


def test_healing_helps_a_broken_layer_and_touches_nothing_else(subject, fit, fits):
    weights = copy.deepcopy(subject.model.state_dict())
    zero = AffineMap(torch.zeros(128, 128), torch.zeros(128))
    modules = {(2, "zero"): zero, (2, "map"): fits.maps[2], (2, "ffn"): subject.blocks[2].ffn}
    healed = heal(subject, fit, modules, steps=12, lr=1e-3)
    assert list(healed) == list(modules)
    before, after = (token_sweep(subject, fit[:16], m) for m in (modules, healed))
    for key in ((2, "zero"), (2, "map")):
        assert after[key].mean() < before[key].mean()
    for name, value in subject.model.state_dict().items():
        assert torch.equal(value, weights[name])
    again = heal(subject, fit, {(2, "zero"): zero}, steps=12, lr=1e-3)[2, "zero"]
    assert torch.equal(again.weight, healed[2, "zero"].weight)


def test_losses_over_a_large_vocabulary_are_those_of_float64(generator):
    logits = 5 * torch.randn(2, 4, 262_144, generator=generator)
    tokens = torch.randint(262_144, (2, 4), generator=generator)
    oracle = -logits.double().log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
    assert (next_token_losses(logits, tokens) - oracle).abs().max() < 2e-7


def test_batches_of_a_large_vocabulary_are_small(subject, test):
    assert batch_size(subject, test) == 16
    wide = SimpleNamespace(
        model=SimpleNamespace(
            get_output_embeddings=lambda: SimpleNamespace(weight=torch.empty(262_144, 1))
        )
    )
    long = replace(test, tokens=torch.zeros(8, 256, dtype=torch.long))
    assert batch_size(wide, long) == 2  # half a gigabyte of logits


def test_what_a_callback_returns_changes_nothing(subject, test):
    tokens = test.tokens[:2]
    usual = subject.model(tokens).logits
    with record(subject, on_ffn=lambda b, x, y: torch.zeros_like(y)):
        assert torch.equal(subject.model(tokens).logits, usual)
