"""Masked mixers: causal by construction, counted right, and composed into two matrices that give
the same."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.base import InputError
from lib.models import (
    KINDS,
    Composed,
    Mixer,
    agreement,
    build_mixer,
    compose,
    decoding,
    recurrence,
    rollout,
)
from lib.models.composed import identities, sum_depth

V, N = 40, 12
ALL = [Mixer(kind, V if kind == "direct" else 32, V, N) for kind in KINDS]
STACKED = [
    Mixer("linear", width, V, N, modules, maps)
    for width in (8, 40, 90)
    for modules, maps in ((1, 1), (3, 1), (1, 3), (2, 2))
]
named = {"ids": lambda s: f"{s.label} {s.width}"}


def tokens(n=N, rows=2, seed=0):
    return torch.randint(V, (rows, n), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("spec", [*ALL, *STACKED[3:4]], **named)
def test_no_logit_sees_a_later_token_and_all_see_earlier_ones(spec):
    model, text = build_mixer(spec, 1).eval(), tokens()
    changed = text.clone()
    changed[:, 7] = (changed[:, 7] + 1) % V
    with torch.no_grad():
        apart = (model(text).logits - model(changed).logits).abs().amax((0, 2))
    assert apart.shape == (N,) and torch.equal(apart[:7], torch.zeros(7))
    assert (apart[7:] > 0).all()


@pytest.mark.parametrize("spec", [*ALL, *STACKED], **named)
def test_parameters_are_those_of_the_model(spec):
    upper = N * (N - 1) // 2  # of a mixing matrix, never used
    model = build_mixer(spec, 1)
    unused = upper * len(getattr(model, "mixing", ()))
    assert spec.parameters == sum(p.numel() for p in model.parameters()) - unused


@pytest.mark.parametrize("spec", [*STACKED, ALL[1]], **named)
def test_a_linear_mixer_composes(spec):
    model, text = build_mixer(spec, 2), tokens()
    composed = compose(model)
    assert composed.q.shape == (V, V) and not np.triu(composed.mixing, 1).any()
    with torch.no_grad():
        logits = model.double()(text).logits.numpy()
    for row, wanted in zip(text, logits, strict=True):
        assert np.allclose(composed.logits(row), wanted, atol=1e-10)
        assert np.allclose(composed.next_logits(row[:5]), wanted[4], atol=1e-10)
    if spec.kind == "linear":
        assert np.linalg.matrix_rank(composed.q) == min(spec.width, V)


def test_only_linear_models_are_additive_and_compose():
    a, b = tokens(seed=3), tokens(seed=4)
    deviation = {s.kind: decoding.from_tokens(build_mixer(s, 1).eval(), a, b) for s in ALL}
    linear = {kind for kind, found in deviation.items() if found < 1e-5}
    assert (
        linear == {"linear", "direct"}
        and min(found for kind, found in deviation.items() if kind not in linear) > 0.01
    )
    for spec in ALL[2:]:
        with pytest.raises(InputError, match="is not linear"):
            compose(build_mixer(spec, 1))


def composed_of(c, q):
    return Composed(np.tril(np.asarray(c, float)), np.asarray(q, float))


numbers = st.floats(-2, 2).map(lambda v: round(v, 3))


@settings(max_examples=40)
@given(st.data(), st.integers(1, 4), st.integers(1, 6), st.integers(2, 5))
def test_three_evaluations_of_a_rollout_agree(data, p, n, v):
    matrix = lambda k: [data.draw(st.lists(numbers, min_size=k, max_size=k)) for _ in range(k)]
    composed = composed_of(matrix(p + n), matrix(v))
    prompt = data.draw(st.lists(st.integers(0, v - 1), min_size=p, max_size=p))
    first, *others = (
        way(composed, prompt, n)
        for way in (rollout.one_by_one, rollout.by_powers, rollout.by_doubling)
    )
    scale = 1 + np.abs(first).max()
    assert all(np.allclose(first, other, atol=1e-9 * scale) for other in others)


@settings(max_examples=30)
@given(st.lists(numbers, min_size=21, max_size=21), st.integers(1, 5))
def test_the_symbolic_recurrence_is_the_rollout_for_any_c(c, i):
    """With a scalar Q, t_i is the polynomial's value."""
    mixing = np.zeros((6, 6))
    mixing[np.tril_indices(6)] = c
    composed, q = composed_of(mixing, [[0.7]]), 0.7
    value = sum(
        count * np.prod([c[k] for k in factors]) * q**power
        for (power, factors), count in recurrence.vector(i).items()
    )
    assert rollout.one_by_one(composed, [0], 5)[i - 1, 0] == pytest.approx(value, abs=1e-9)


def test_the_printed_polynomials():
    assert [recurrence.wrong_terms(i) for i in (1, 2, 3)] == [0, 1, 1]
    assert recurrence.vector(2) == {(1, (1,)): 1, (2, (0, 2)): 1}
    assert recurrence.vector(3)[3, (0, 2, 5)] == 1
    assert len(recurrence.vector(5)) == 2**4
    assert recurrence.formula(recurrence.vector(2)) == "c_{1}\\,Q\\,t_0 + c_{2} c_{0}\\,Q^{2}\\,t_0"


def test_counts():
    assert [rollout.rounds(n) for n in (1, 2, 3, 4, 1024, 2048)] == [1, 2, 2, 3, 11, 12]
    assert [sum_depth(n) for n in (1, 2, 3, 1024)] == [0, 1, 2, 10]
    pairs = sum(i for i in range(1, 9))
    assert rollout.cost_attention(8, 3, cached=True) == 3 * pairs
    assert rollout.cost_attention(8, 3, cached=False, layers=2) == 6 * sum(
        i * i for i in range(1, 9)
    )
    assert rollout.exponent(lambda n: 5 * n**3, 7) == pytest.approx(3)
    found = identities(compose(build_mixer(ALL[0], 1)), np.random.default_rng(0))
    assert max(found.values()) < 1e-13


def test_decoders_write_the_same_and_a_rollout_its_own():
    """A mixer composed, uncomposed and token by token; a transformer with its cache and without."""
    model, text = build_mixer(Mixer("linear", 90, V, N), 5).eval(), tokens()
    composed = compose(model)
    prompt = text[0, :5].tolist()
    wanted = rollout.greedy(composed, prompt, 6).tolist()
    assert decoding.composed_decoder(composed)(prompt, 6) == wanted
    assert decoding.mixer_decoder(model)(prompt, 6) == wanted
    llama, grown = build_mixer(ALL[-1], 5).eval(), list(prompt)
    for _ in range(6):
        grown.append(int(llama(torch.tensor([grown])).logits[0, -1].argmax()))
    assert decoding.cached_decoder(llama)(prompt, 6) == grown[5:]
    agree = agreement(composed, text[:, :5].numpy(), 6)
    assert agree.shape == (2, 6) and agree[:, 0].all()
    speeds = decoding.paired_speeds({"a": decoding.composed_decoder(composed)}, [prompt] * 2, 2)
    assert speeds.shape == (2, 1) and (speeds > 0).all().all()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: build_mixer(ALL[0], 1)(tokens(N + 1)), "13 tokens is longer than the mixing"),
        (lambda: compose(build_mixer(ALL[0], 1)).logits(range(13)), "13 tokens do not fit"),
        (lambda: compose(build_mixer(ALL[0], 1)).logits([V]), "token 40 is not in the vocabulary"),
        (lambda: rollout.one_by_one(compose(build_mixer(ALL[0], 1)), [1] * 8, 5), "8 tokens and 5"),
        (lambda: rollout.greedy(compose(build_mixer(ALL[0], 1)), [], 5), "0 tokens and 5"),
        (lambda: build_mixer(Mixer("linaer", 8, V, N), 1), "did you mean 'linear'"),
        (lambda: build_mixer(Mixer("linear", 0, V, N), 1), "width 0 is not possible"),
        (lambda: build_mixer(Mixer("relu", 8, V, N, modules=2), 1), "'relu' is not stacked"),
    ],
)
def test_bad_input_is_one_sentence(call, says):
    with pytest.raises(InputError, match=says) as error:
        call()
    assert "\n" not in str(error.value)
