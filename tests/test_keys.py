"""What a key stands for: inputs in words, and modules that are still what they were."""

import copy
import pickle
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from lib.errors import InputError
from lib.gating.gates import Gate, Routed
from lib.gating.routers import FixedScores
from lib.gating.routing import TopShare
from lib.keys import describe, fingerprint, seal, settings, words_of
from lib.lazy import LazyModule
from lib.linear import regression
from lib.linear.affine import AffineMap, constant
from lib.linear.moments import Moments
from lib.models.loading import load_subject
from lib.models.names import TINY
from lib.store import cached
from lib.swap.sweep import document_losses, sweep, token_sweep


class OfANotebook(nn.Module):
    """An FFN of a notebook's own with noise."""

    def __init__(self, ffn, seed):
        super().__init__()
        self.ffn, self.seed = ffn, seed

    def forward(self, x):
        generator = torch.Generator().manual_seed(self.seed)
        return self.ffn(x) + torch.randn(x.shape, generator=generator)


def by_data(model):
    model.lm_head.weight.data.mul_(0.5)


def in_place(model):
    with torch.no_grad():
        model.lm_head.weight.mul_(0.5)


def new_parameter(model):
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach() * 0.5)


def new_module(model):
    model.lm_head = nn.Linear(*reversed(model.lm_head.weight.shape), bias=False)


def a_hook(model):
    model.lm_head.register_forward_hook(lambda _, __, out: out * 0.5)


def a_buffer(model):
    model.register_buffer("of_mine", torch.ones(1))


def precision(model):
    model.to(torch.bfloat16)


def dropout(model):
    model.train()


def own_forward(model):
    model.lm_head.forward = lambda x: x


def a_setting(model):
    model.model.norm.variance_epsilon = 0.1


WAYS = [by_data, in_place, new_parameter, new_module, a_hook, a_buffer, precision, dropout,
        own_forward, a_setting]  # fmt: skip


@pytest.mark.parametrize("change", WAYS)
def test_a_model_that_was_changed_is_no_longer_the_model_of_that_name(change):
    model = load_subject("tiny-llama", device="cpu")
    assert model.provenance.startswith("tiny-llama ")
    change(model.model)
    assert model.provenance is None and document_losses.key(model, _windows(model)) is None


def _windows(subject):
    from lib.text.corpora import load_corpus
    from lib.text.windows import cut_windows

    return cut_windows(load_corpus("wikipedia-sample").test, subject.tokenizer, 64)[:3]


def test_a_changed_model_is_measured_as_it_is_now(own_cache):
    model = load_subject("tiny-llama", device="cpu")
    windows = _windows(model)
    before = sweep(model, windows, {}).perplexity
    model.model.lm_head.weight.data.mul_(0.5)
    after = sweep(model, windows, {}).perplexity
    by_token = np.exp(token_sweep(model, windows, {})[None].mean())
    assert after == pytest.approx(by_token, rel=1e-6)
    assert abs(after / before - 1) > 0.1
    model.model.lm_head.weight.data.mul_(2)
    assert model.provenance and sweep(model, windows, {}).perplexity == pytest.approx(before)


def test_a_pass_and_a_measurement_leave_a_model_what_it_is(each_subject, own_cache):
    words = each_subject.provenance
    sweep(each_subject, _windows(each_subject), {})
    assert words and each_subject.provenance == words
    with each_subject.unchanging():
        assert each_subject.provenance == words


def test_a_map_that_was_changed_or_copied_and_changed_has_no_words(subject, fit, own_cache):
    affine = regression.fit(subject, fit).maps[2]
    words, same = words_of(affine), copy.deepcopy(affine)
    assert words and words_of(same) == words
    same.weight.data[0, 0] += 1
    assert words_of(same) is None and words_of(affine) == words
    affine.bias += 1
    assert words_of(affine) is None


def test_changed_maps_are_measured_anew(subject, fit, test, own_cache):
    maps = regression.fit(subject, fit).maps
    before = sweep(subject, test, {(2, "map"): maps[2]}).nats("map")[2]
    maps[2].weight.mul_(0.5)
    after = sweep(subject, test, {(2, "map"): maps[2]}).nats("map")[2]
    exact = token_sweep(subject, test, {(2, "map"): maps[2]})
    assert after == pytest.approx((exact[2, "map"] - exact[None]).mean(), abs=1e-7)
    assert abs(after - before) > 1e-3


def test_a_part_that_a_notebook_defines_has_no_words_and_is_measured_each_time(
    subject, test, own_cache
):
    ffn = subject.blocks[2].original
    one, other = (sweep(subject, test, {(2, "noise"): OfANotebook(ffn, s)}) for s in (1, 2))
    assert one.nats("noise")[2] != other.nats("noise")[2]
    assert words_of(seal(OfANotebook(ffn, 1), "noise")) is None
    inside = Routed(OfANotebook(ffn, 1), constant(torch.zeros(128), "zero"), Gate([], []))
    assert fingerprint(inside) is None and words_of(inside) is None


def test_routed_ffns_are_what_their_parts_are(subject, fit, own_cache):
    ffn, maps = subject.blocks[2].original, regression.fit(subject, fit).maps
    masks = [TopShare(FixedScores(np.ones((1, 4)), words), 1.0) for words in ("all", "all", None)]
    one, same, without = (Routed(ffn, maps[2], mask) for mask in masks)
    assert words_of(one) == words_of(same) is not None and words_of(without) is None
    one.router.scorer.scores[0, 0] = 0
    assert words_of(one) is None
    same.surrogate.bias.data += 1
    assert words_of(same) is None


def test_no_key_of_a_map_hangs_on_what_was_fitted(subject, fit, test, own_cache, monkeypatch):
    """All fits times 1 + 10⁻⁶: another processor's last digits."""
    from lib.linear.regression import fit as fit_all

    def keys() -> list:
        fits = fit_all(subject, fit)
        several = (fits.maps, fits.massive_kept, fits.mean_output)
        return [document_losses.key(subject, test, b, m) for of in several for b, m in of.items()]

    before = keys()
    exact = Moments.fit

    def scaled(self, *args):
        affine = exact(self, *args)
        return AffineMap(affine.weight * (1 + 1e-6), affine.bias * (1 + 1e-6))

    monkeypatch.setattr(Moments, "fit", scaled)
    monkeypatch.setenv("NONLINEARITY_CACHE", str(own_cache / "another"))
    assert keys() == before and None not in before


def test_a_handle_is_made_when_it_is_first_used():
    made = []

    def make():
        made.append(1)
        return AffineMap(torch.eye(3), torch.ones(3))

    handle = LazyModule("the identity and one", make)
    assert words_of(handle) == "the identity and one" and not made
    assert torch.equal(handle(torch.zeros(3)), torch.ones(3)) and made == [1]
    assert handle.weight.shape == (3, 3) and not handle.massive(torch.zeros(2, 3)).any()
    assert words_of(handle) == "the identity and one" and made == [1]
    handle.bias.add_(1)
    assert words_of(handle) is None
    assert torch.equal(handle.double()(torch.zeros(3)), 2 * torch.ones(3))


def test_names_are_of_no_account_and_versions_are():
    def before(model, share=0.5):
        return model

    def renamed(lm, part=0.5, new=3):
        return lm

    one = cached("measured", 1)(before)  # an argument is called by its own name
    same = cached("measured", 1, lm="model", part="share", new="of late")(renamed)
    assert one.key("m") == same.key("m") == same.key("m", 0.5, 3)
    assert one.key("m", 0.25) == same.key("m", part=0.25) != one.key("m")
    assert same.key("m", new=4) != same.key("m")
    assert cached("measured", 2)(before).key("m") != one.key("m")
    with pytest.raises(TypeError, match=r"\['lm'\] are no arguments"):
        cached("measured", 1, lm="model")(before)


def test_a_field_at_its_default_changes_no_words():
    @dataclass(frozen=True)
    class Before:
        steps: int = 5
        rate: float = 0.1

        @property
        def provenance(self):
            return settings(self, steps="steps", rate="rate")

    @dataclass(frozen=True)
    class After:
        n_steps: int = 5
        lr: float = 0.1
        new: bool = False

        @property
        def provenance(self):
            return settings(self, n_steps="steps", lr="rate", new="of late")

    assert describe(Before(7)) == describe(After(7)) == {"steps": "7"}
    assert describe(After(new=True)) == {"of late": "True"}


# What a thing is, is settled when it is made.


def a_deep_copy(handle):
    return copy.deepcopy(handle)


def another_handle(handle):
    return LazyModule(handle._said, handle._make)


def a_pickled_one(handle):
    return pickle.loads(pickle.dumps(handle))


@pytest.mark.parametrize("twin_of", [a_deep_copy, another_handle, a_pickled_one])
@pytest.mark.parametrize("used_before", [False, True])
def test_what_is_done_to_a_copy_is_not_done_to_the_map(
    subject, fit, test, own_cache, twin_of, used_before
):
    """Found in fits of one memory: a zeroed copy zeroed the map, and its loss was kept as that of
    the map, for all later runs."""
    from lib.linear.regression import fit as fit_all

    fit_all(subject, fit)  # maps come from the cache below
    a = fit_all(subject, fit).maps[2]
    if used_before:
        _ = a.weight
    b = twin_of(a)
    b.weight.zero_(), b.bias.zero_()
    assert words_of(b) is None and a.weight.abs().max() > 0
    swaps = {(2, "map"): a, (2, "zeroed"): b}
    here = sweep(subject, test, swaps)
    pristine = fit_all(subject, fit).maps[2]
    exact = token_sweep(subject, test, {2: pristine, (2, "zero"): constant(torch.zeros(128))})
    assert here.nats("map")[2] == pytest.approx((exact[2] - exact[None]).mean(), abs=1e-6)
    of_zero = (exact[2, "zero"] - exact[None]).mean()
    assert here.nats("zeroed")[2] == pytest.approx(of_zero, abs=1e-6)
    # And in the cache, for whoever comes later.
    later = sweep(subject, test, {(2, "map"): fit_all(subject, fit).maps[2]})
    assert later.nats("map")[2] == here.nats("map")[2]


def in_double(handle):
    handle.to(torch.float64)


def by_attribute(handle):
    handle.bias = torch.ones(128)


def by_buffers(handle):
    for buffer in handle.buffers():
        buffer.zero_()


def by_state(handle):
    handle.load_state_dict({k: 0 * v for k, v in handle.state_dict().items()})


def by_state_of_what_holds_it(handle):
    holder = nn.ModuleList([handle])
    holder.load_state_dict({k: 0 * v for k, v in holder.state_dict().items()})


def by_apply(handle):
    handle.apply(lambda part: [buffer.zero_() for buffer in part.buffers(recurse=False)])


WAYS_OF_A_MAP = [in_double, by_attribute, by_buffers, by_state, by_state_of_what_holds_it, by_apply]


@pytest.mark.parametrize("change", WAYS_OF_A_MAP)
def test_a_map_that_is_changed_before_its_first_use_has_no_words(subject, fit, own_cache, change):
    from lib.linear.regression import fit as fit_all

    fits, again = fit_all(subject, fit), fit_all(subject, fit)
    handle, twin = fits.maps[2], copy.deepcopy(fits.maps[2])
    change(handle)
    assert words_of(handle) is None and words_of(twin) == words_of(again.maps[2]) is not None
    torch.testing.assert_close(twin.weight, again.maps[2].weight)


def other_documents(windows):
    windows.document[:] = np.arange(len(windows))


def other_tokens(windows):
    windows.tokens.numpy()[:] = 7


def one_token(windows):
    windows.tokens[0, 0] = 7


@pytest.mark.parametrize("change", [other_documents, other_tokens, one_token])
def test_windows_are_what_they_are_now(subject, own_cache, change):
    windows = copy.deepcopy(_windows(subject))
    before = sweep(subject, windows, {})
    key = document_losses.key(subject, windows)
    change(windows)
    assert document_losses.key(subject, windows) != key
    after = sweep(subject, windows, {})
    exact = token_sweep(subject, windows, {})
    assert after.perplexity == pytest.approx(np.exp(exact[None].mean()), rel=1e-6)
    assert len(after.document) == windows.n_documents
    same_tokens = after.perplexity == pytest.approx(before.perplexity)
    assert same_tokens == (change is other_documents)


@pytest.mark.parametrize("what", ["text", "model"])
def test_what_is_made_later_is_made_of_what_was_there_or_refused(fit, own_cache, what):
    from lib.linear.regression import fit as fit_all

    model, windows = load_subject("tiny-gpt2", device="cpu"), copy.deepcopy(fit)
    fits = fit_all(model, windows)
    _ = fits.maps[1].weight  # one is made, the others of the same pass are there
    other = fit_all(model, windows)
    if what == "text":
        windows.tokens[:] = 5
    else:
        model.model.lm_head.weight.data.mul_(0.5)
    assert fits.maps[2].weight.abs().max() > 0
    with pytest.raises(InputError, match=f"the {what} changed between"):
        _ = other.maps[2].weight


def test_a_model_is_the_same_wherever_its_folder_lies(tmp_path):
    here = load_subject("tiny-gpt2")
    shutil.copytree(TINY / "tiny-gpt2", tmp_path / "tiny-gpt2")
    assert load_subject(str(tmp_path / "tiny-gpt2")).provenance == here.provenance
