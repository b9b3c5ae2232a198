"""Maps, δ, gates and routes: against oracles, identities and a world where the gate is known."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lib.base import InputError
from lib.gates import (
    GATES,
    MLP,
    Inputs,
    at_depths,
    compositions,
    deltas,
    everywhere,
    fit_gate,
    gate_parameters,
    labels,
    padded,
    protocol,
    random_mask,
    routed_losses,
    single_deltas,
    spread,
    tails,
)
from lib.linear import AffineMap, svd_ridge
from lib.models import load_subject
from lib.models.hooks import capture, swap
from lib.swaps import swap_sweep, token_losses
from lib.texts import cut_windows, load_corpus


@pytest.fixture(scope="module")
def setting():
    subject, text = load_subject("tiny-gpt2"), load_corpus("wikipedia-sample")
    whole = cut_windows(text.fit, subject.tokenizer, 32)
    unseen = cut_windows(text.eval, subject.tokenizer, 32).take(256, evenly=True)
    found = protocol(subject, whole.take(4096), whole, unseen, 1024, 256)
    return subject, whole.take(4096), found


def test_no_document_teaches_two_things(setting):
    _, fit, found = setting
    held = fit.held_out(5)
    maps = set(fit.document[~held].tolist())
    train, choose = (set(w.document.tolist()) for w in (found.train, found.choose))
    assert train and choose and not maps & train and not maps & choose and not train & choose


def test_maps_are_the_paper_s_ridge(setting):
    subject, fit, found = setting
    x, y = capture(subject, fit[~fit.held_out(5)], [1])[1]
    expected = svd_ridge(x.flatten(0, 1), y.flatten(0, 1), 0.01)
    torch.testing.assert_close(found.maps[1].weight, expected.weight.float(), rtol=1e-3, atol=1e-4)


def test_all_linear_is_the_swap_and_never_linear_the_original(setting):
    subject, _, found = setting
    windows, affine = found.report, found.maps[2]
    masks = {"all": everywhere(windows), "none": ~everywhere(windows)}
    got = routed_losses(subject, windows, {k: {2: (affine, m)} for k, m in masks.items()})
    base, swapped = swap_sweep(subject, windows, {2: affine})
    np.testing.assert_allclose(got.losses["all"], swapped[2], atol=1e-5)
    np.testing.assert_allclose(got.losses["none"], base, atol=1e-5)
    np.testing.assert_allclose(got.base, base, atol=1e-5)
    assert got.share("all") == 1 and got.share("none") == 0


def test_several_blocks_at_once_equal_the_live_model_with_all_swapped(setting):
    subject, _, found = setting
    windows = found.report
    route = {i: (found.maps[i], everywhere(windows)) for i in (0, 2, 3)}
    got = routed_losses(subject, windows, {"three": route}).losses["three"]
    with (
        swap(subject.blocks[0], found.maps[0]),
        swap(subject.blocks[2], found.maps[2]),
        swap(subject.blocks[3], found.maps[3]),
    ):
        expected = token_losses(subject, windows).numpy()
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_a_gate_decides_as_the_mask_of_its_decisions(setting):
    subject, _, found = setting
    windows, inputs = found.report, Inputs(subject, found.report, [1])
    gate = fit_gate("linear", inputs(1).reshape(-1, subject.d_model), inputs(1)[..., 0].ravel() > 0)
    mask = padded(gate(torch.from_numpy(inputs(1))).numpy())
    routes = {"gate": {1: (found.maps[1], gate)}, "mask": {1: (found.maps[1], mask)}}
    got = routed_losses(subject, windows, routes)
    np.testing.assert_array_equal(got.linear["gate"][1], mask[:, :-1])
    np.testing.assert_allclose(got.losses["gate"], got.losses["mask"], atol=1e-6)
    assert 0 < got.share("gate") < 1


def test_delta_by_two_roads(setting):
    subject, _, found = setting
    windows, affine = found.report, found.maps[1]
    delta = deltas(subject, windows, {1: affine}).by_block[1]
    plain = token_losses(subject, windows)
    with swap(subject.blocks[1], affine):
        expected = (token_losses(subject, windows) - plain).numpy()
    np.testing.assert_allclose(delta, expected, atol=1e-5)


def test_delta_of_one_position_alone(setting):
    subject, _, found = setting
    windows = found.report[:3]
    positions, got = single_deltas(subject, windows, {1: found.maps[1]}, n_positions=2)
    for row, k in ((0, 0), (2, 1)):
        mask = np.zeros(tuple(windows.tokens.shape), dtype=bool)
        mask[row, positions[row, k]] = True
        route = {"one": {1: (found.maps[1], mask)}}
        alone = routed_losses(subject, windows, route)
        expected = (alone.losses["one"] - alone.base)[row, positions[row, k]]
        assert got[1][row, k] == pytest.approx(expected, abs=1e-5)


def test_delta_of_the_first_position_is_the_same_in_both_readings(setting):
    subject, _, found = setting
    windows = found.report[:4]
    positions, got = single_deltas(subject, windows, {1: found.maps[1]}, windows.seq_len - 1)
    together = deltas(subject, windows, {1: found.maps[1]}).by_block[1]
    first = got[1][positions == 0]
    np.testing.assert_allclose(first, together[:, 0], atol=1e-5)
    assert np.abs(np.take_along_axis(together, positions, 1) - got[1]).max() > 1e-3


def test_the_linear_gate_is_scikit_learn_s():
    rng = np.random.default_rng(0)
    x = rng.normal(3, 5, (2000, 8)) * np.arange(1, 9)
    y = x @ rng.normal(size=8) > 10
    gate = fit_gate("linear", x.astype(np.float32), y)
    expected = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(x, y)
    score = gate.score(torch.tensor(x, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(score, expected.decision_function(x), atol=0.02)


@pytest.mark.parametrize("kind", [*GATES, MLP])
def test_a_gate_counts_its_parameters_and_finds_the_hyperplane(kind):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4000, 24)).astype(np.float32)
    x[:, 0] *= 6
    # Standardized inputs have no largest direction: let several features share the one that counts.
    x[:, 1:12] += x[:, :1] * 0.8
    y = x[:, 0] > 0.5
    gate = fit_gate(kind, x[:3000], y[:3000])
    assert gate.n_params == gate_parameters(kind, 24)
    score = gate.score(torch.from_numpy(x[3000:])).numpy()
    assert roc_auc_score(y[3000:], score) > 0.9


@pytest.mark.parametrize("kind", ["linear", "b=1", MLP])
def test_on_noise_a_gate_finds_nothing_on_other_rows(kind):
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(6000, 32)).astype(np.float32), rng.random(6000) < 0.5
    gate = fit_gate(kind, x[:3000], y[:3000])
    score = gate.score(torch.from_numpy(x[3000:])).numpy()
    assert abs(roc_auc_score(y[3000:], score) - 0.5) < 0.04


def test_the_paper_s_parameter_counts():
    assert [gate_parameters(k, 1024) for k in GATES] == [1025, 2053, 6157, 12313]
    assert compositions(104_659, 23, 1024) == [(8, 2, 11, 2), (8, 5, 6, 4), (8, 8, 1, 6)]


def test_labels_are_the_lower_half_unless_few_are_negative():
    delta = np.random.default_rng(0).normal(0.1, 1, 1001)
    found = labels(delta)
    assert not found.relaxed and found.of(delta).sum() == 501
    stricter = labels(np.abs(delta))
    assert stricter.relaxed and stricter.of(np.abs(delta)).mean() == pytest.approx(0.25, abs=0.01)
    with pytest.raises(InputError, match="two classes"):
        labels(np.zeros(10))


@given(st.integers(1, 80), st.one_of(st.none(), st.integers(1, 90)))
def test_spread_is_even_and_reaches_both_ends(n_blocks, n):
    found = spread(n_blocks, n)
    assert found == sorted(set(found)) and set(found) <= set(range(n_blocks))
    assert found[0] == 0 and len(found) == min(n or n_blocks, n_blocks)
    if len(found) > 1:
        assert found[-1] == n_blocks - 1 and np.ptp(np.diff(found)) <= 1


def test_the_paper_s_three_depths():
    assert at_depths(24) == [1, 12, 23]


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 1), st.integers(0, 9))
def test_a_random_router_has_its_share(setting, share, seed):
    mask = random_mask(setting[2].report, share, seed)
    sd = np.sqrt(max(share * (1 - share), 1e-9) / mask.size)
    assert abs(mask.mean() - share) < 6 * sd + 1e-9


def test_tails_of_a_known_distribution():
    delta = np.r_[np.full(90, 0.0), np.full(5, 1.0), np.full(5, -0.5)][None]
    (row,) = tails({3: delta}).to_dict("records")
    assert row["mean"] == pytest.approx(0.025) and row["negative"] == 0.05
    assert row["top_twentieth"] == 0.05 and row["bottom_twentieth"] == pytest.approx(-0.025)


def test_bad_routes_and_gates_are_one_sentence(setting):
    subject, _, found = setting
    affine, windows = found.maps[0], found.report
    mask = everywhere(windows)
    for route, word in [
        ({}, "no block"),
        ({99: (affine, mask)}, "does not exist"),
        ({0: (affine, mask[:, :-1])}, "one decision a token"),
        ({0: (affine, mask.astype(int))}, "one decision a token"),
    ]:
        with pytest.raises(InputError, match=word):
            routed_losses(subject, windows, {"r": route})
    x = np.zeros((4, 3))
    with pytest.raises(InputError, match="both classes"):
        fit_gate("linear", x, np.ones(4, dtype=bool))
    with pytest.raises(InputError, match="do not fit"):
        fit_gate("linear", x, np.ones(3, dtype=bool))
    with pytest.raises(InputError, match="gate"):
        fit_gate("quadratic", x, np.ones(4, dtype=bool))
    with pytest.raises(InputError, match="share"):
        random_mask(windows, 1.5, 0)


def test_a_corpus_too_short_for_disjoint_splits_says_so(setting):
    subject, fit, _ = setting
    whole = cut_windows(["one " * 200, "two " * 200], subject.tokenizer, 16)
    with pytest.raises(InputError, match="document"):
        protocol(subject, whole, whole, whole, 64, 32)
    with pytest.raises(InputError, match="asked for"):
        protocol(subject, fit, fit, fit, 10**8, 32)


def test_the_model_is_as_before(setting):
    subject, _, found = setting
    mask = everywhere(found.report)
    before = subject.key
    routed_losses(subject, found.report, {"r": {0: (AffineMap(*found.maps[0].buffers()), mask)}})
    assert subject.key == before and not subject.blocks[0].ffn._forward_hooks
