"""The all-linear cost and its controls: against the swap they stand for, rows taken out by hand,
and worlds where the answer is known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from lib.base import InputError
from lib.gates import (
    arithmetic,
    deletions,
    figures_cost,
    fit_facts,
    linear_cost,
    map_documents,
    maps_of,
    maps_without_massive,
    mean_outputs,
    norm_limits,
    protocol,
    sizes,
    why,
)
from lib.linear import TokenEnergy, svd_ridge, token_energy
from lib.models import as_subject, load_subject
from lib.models.hooks import capture, swap
from lib.stats import Interval
from lib.swaps import swap_sweep, token_losses
from lib.texts import cut_windows, load_corpus


@pytest.fixture(scope="module")
def setting():
    subject, text = load_subject("tiny-gpt2"), load_corpus("wikipedia-sample")
    whole = cut_windows(text.fit, subject.tokenizer, 32)
    unseen = cut_windows(text.eval, subject.tokenizer, 32).take(512, evenly=True)
    fit = whole.take(4096)
    return subject, fit, protocol(subject, fit, whole, unseen, 256, 128)


@pytest.fixture(scope="module")
def facts(setting):
    return fit_facts(*setting[:2])


def test_deletion_and_the_mean_output_are_what_they_say(setting, facts):
    subject, fit, parts = setting
    x, y = capture(subject, map_documents(fit), [3])[3]
    means = facts.means
    torch.testing.assert_close(means[3], y.flatten(0, 1).double().mean(0), rtol=1e-4, atol=1e-6)
    constant = mean_outputs(means)[3]
    torch.testing.assert_close(constant(x)[5, 6], means[3].float())
    _, losses = swap_sweep(subject, parts.report, {3: deletions(subject)[3]})

    class Nothing(nn.Module):
        def forward(self, x):
            return torch.zeros_like(x)

    with swap(subject.blocks[3], Nothing()):
        expected = token_losses(subject, parts.report).numpy()
    np.testing.assert_allclose(losses[3], expected, atol=1e-5)


def test_maps_of_all_map_documents_are_the_protocol_s(setting):
    subject, fit, parts = setting
    again = maps_of(subject, map_documents(fit))
    torch.testing.assert_close(again[2].weight, parts.maps[2].weight, rtol=1e-3, atol=1e-4)


def test_the_condition_number_is_that_of_the_centred_rows(setting, facts):
    subject, fit, _ = setting
    decades = []
    for block in range(len(subject)):
        x = capture(subject, fit, [block])[block][0].flatten(0, 1).double()
        s = torch.linalg.svdvals(x - x.mean(0))
        s = s[s > s[0] * 1e-6]  # LayerNorm makes one direction constant
        decades.append(float((s[0] / s[-1]).log10()))
    found = facts.decades
    assert found.value == pytest.approx(np.median(decades), abs=1e-3)
    assert found.low < found.value < found.high


def test_a_map_without_massive_tokens_is_the_fit_of_the_other_rows(setting):
    subject, fit, _ = setting
    x, y = (side.flatten(0, 1) for side in capture(subject, map_documents(fit), [1])[1])
    limit = float(y.norm(dim=-1).quantile(0.9))
    found = maps_without_massive(subject, fit, {1: limit})
    keep = y.double().norm(dim=-1) <= limit
    expected = svd_ridge(x[keep], y[keep], 0.01)
    torch.testing.assert_close(found[1].weight, expected.weight.float(), rtol=1e-3, atol=1e-4)
    assert maps_without_massive(subject, fit, {}) == {}
    with pytest.raises(InputError, match="does not exist"):
        maps_without_massive(subject, fit, {99: 1.0})


def test_limits_are_for_blocks_with_massive_tokens():
    norm = np.ones((2, 3, 4))
    norm[1, 0, 0] = 30
    energy = TokenEnergy(norm, norm, norm)
    assert norm_limits(energy) == {1: 10.0}


def test_the_fit_is_about_the_mean_output(setting, facts):
    subject, _, parts = setting
    constant = token_energy(subject, parts.report, mean_outputs(facts.means), facts.means)
    np.testing.assert_allclose(constant.r2(), 0, atol=1e-6)


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-neox", "tiny-llama"])
def test_what_an_ffn_adds_and_what_enters_its_activation(name):
    subject, text = load_subject(name), load_corpus("wikipedia-sample")
    windows = cut_windows(text.eval, subject.tokenizer, 16)[:4]
    found = why.activity(subject, windows)
    y = capture(subject, windows, [2])[2][1]
    streams = subject.model(windows.tokens, output_hidden_states=True).hidden_states
    expected = y.norm(dim=-1) / (streams[3] - y).norm(dim=-1)
    np.testing.assert_allclose(found.relative[2], expected, rtol=1e-3)
    assert (found.outer is None) == (name == "tiny-llama")
    hidden = why.last_projection(subject.blocks[0])
    assert sum(p.numel() for p in hidden.parameters()) > 100


def test_units_that_are_linear_gain_nothing_by_number(setting):
    subject, fit, _ = setting
    before = subject.key
    found = why.quarters(subject, fit, draws=1)
    assert found.shape == (5, len(subject)) and found.mean() > 0
    assert subject.key == before
    plain = load_subject("tiny-gpt2")
    for block in plain.blocks:
        block.ffn.act = nn.Identity()
    flat = as_subject(plain.model, plain.tokenizer, "flat")
    assert np.abs(why.quarters(flat, fit.take(1024), draws=1)).max() < 1e-6


def worlds(*rise):
    """Base 0 and losses that rise by these nats on average, on 24 windows of 12 documents."""
    rng = np.random.default_rng(0)
    noise = 0.02 * rng.normal(size=(24, 7))
    losses = {b: r + noise - noise.mean() for b, r in enumerate(rise)}
    return np.zeros((24, 7)), losses, np.repeat(np.arange(12), 2)


def test_statistics_over_blocks_where_the_answer_is_known():
    base, losses, document = worlds(0.3, 0.01, 0.02, 0.03, 0.2)
    assert linear_cost.median_cost(base, losses, document).value == pytest.approx(np.expm1(0.03))
    block, cost = linear_cost.extreme(base, losses, document, dearest=True)
    assert block == 0 and cost.low < np.expm1(0.3) < cost.high
    assert linear_cost.extreme(base, losses, document, dearest=False)[0] == 1
    apart = linear_cost.ends_less_rest(base, losses, document)
    assert apart.low > 0 and apart.value == pytest.approx(np.expm1(0.2) - np.expm1(0.03), rel=0.05)
    half = {b: 0.5 * v for b, v in losses.items()}
    share = linear_cost.median_share(base, half, losses, document)
    assert share.value == pytest.approx(0.5) and share.high - share.low < 1e-9
    assert linear_cost.median_share(base, half, losses, document, least=9.0) is None
    assert linear_cost.less_from_one(Interval(0.2, 0.1, 0.4)) == Interval(0.8, 0.6, 0.9)


def test_shares_and_ranks_of_joint_costs():
    costs = {0: Interval(0.02, 0.01, 0.025), 1: Interval(0.02, 0.01, 0.04), 2: Interval(1, 0.9, 2)}
    assert linear_cost.share_below(costs, 0.03) == Interval(2 / 3, 1 / 3, 2 / 3)
    assert linear_cost.nth_largest(costs, 2) == Interval(0.02, 0.01, 0.04)
    assert linear_cost.middle(range(24), 24) == list(range(3, 21))
    assert linear_cost.middle([0, 3, 5], 6) == [3]


def test_depths_of_the_dearest_block_over_models():
    base, first, document = worlds(0.9, 0.1, 0.1)
    _, last, _ = worlds(0.1, 0.1, 0.9)
    same = linear_cost.depth_range({"a": (base, first, document), "b": (base, first, document)})
    apart = linear_cost.depth_range({"a": (base, first, document), "b": (base, last, document)})
    assert same == Interval(0, 0, 0) and apart == Interval(1, 1, 1)


def test_how_far_apart_random_blocks_lie():
    assert linear_cost.apart_by_chance([2, 2], 0.5) == 0.5
    assert linear_cost.apart_by_chance([3, 1], 0.6) == pytest.approx(1 / 3)


def test_printed_costs_are_the_paper_s():
    printed = linear_cost.printed_costs("gpt2-medium", "Table 3")
    assert dict(printed) == {8: 0.016, 23: 0.123}
    assert not len(linear_cost.printed_costs("tiny-gpt2", "Table 3", "Table 9"))
    base, losses, document = worlds(0, 0)
    few = pd.Series({0: 0.01})
    assert linear_cost.printed_miss(base, losses, few, document).value == pytest.approx(1)
    assert linear_cost.printed_miss(base, losses, printed, document) is None
    assert list(sizes.printed_sizes().dearest)[-1] == pytest.approx(513.2)


def test_facts_by_arithmetic(setting):
    subject, fit, _ = setting
    assert arithmetic.ffn_parameters() == 8 * 1024**2 + 5 * 1024
    assert arithmetic.ffn_share() == pytest.approx(2 / 3, abs=1e-3)
    assert arithmetic.collapse_error() < 1e-12
    assert arithmetic.gelu_off_identity() == pytest.approx(0.1587, abs=1e-4)
    assert arithmetic.gelu_off_zero() == pytest.approx(0.00405, abs=1e-5)
    assert arithmetic.svd_against_moments(subject, fit.take(1024), [0, 5]) < 1e-6


def test_massive_tokens_can_be_drawn():
    table = pd.DataFrame({"block": [1, 11], "share": [0.001, 0.02]})
    table[["linear", "kept", "refit"]] = [[10.0, 9.0, 8.0], [800.0, 20.0, 2.0]]
    figures_cost.massive_figure(table, "a model")


def test_sizes_name_the_dearest_block_and_can_be_drawn():
    base, losses, document = worlds(0.1, 0.3, 0.2)
    one = sizes.Priced("a", 10**6, 128, 1280, base, losses, document)
    table = sizes.size_table([one, replace(one, model="b", n_params=10**8), one])
    assert set(table.dearest_block) == {1} and set(table.blocks) == {3}
    figures_cost.size_figure(table, sizes.printed_sizes())
