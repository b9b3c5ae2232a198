"""Linear mixers: composition, recurrence, powers, causality, bits per byte."""

import numpy as np
import pytest
import torch

from lib.errors import InputError
from lib.mixers import (
    KINDS,
    Mixer,
    bits_per_byte,
    build,
    compose,
    fit_lm,
    path_coefficients,
    powers,
    powers_by_doubling,
    rollout,
    trained,
    width_for,
)
from lib.text import Windows


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    steps = rng.choice([1, 1, 1, 2], (400, 16)).cumsum(1) % 11  # the next token follows the last
    return Windows(torch.from_numpy(steps), np.arange(400), "a walk")


@pytest.mark.parametrize("kind", KINDS)
def test_no_mixer_sees_the_future(kind):
    torch.manual_seed(0)
    model = build(kind, 11, 8, 32).eval()
    tokens = torch.randint(11, (2, 8))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    with torch.no_grad():
        a, b = model(tokens).logits, model(changed).logits
    assert torch.allclose(a[:, :5], b[:, :5], atol=1e-5)
    assert not torch.allclose(a[:, 5:], b[:, 5:], atol=1e-5)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_composed_mixer_is_the_mixer_layer_by_layer(layers):
    torch.manual_seed(0)
    model = Mixer(11, 8, 24, layers=layers)
    q, c = compose(model)
    tokens = torch.randint(11, (3, 8))
    a = c @ torch.nn.functional.one_hot(tokens, 11).double()
    assert torch.allclose(model(tokens).logits.double(), a @ q.T, atol=1e-5)
    with pytest.raises(InputError, match="a relu mixer is not one pair"):
        compose(Mixer(11, 8, 24, "relu"))
    with pytest.raises(InputError, match="9 tokens exceed"):
        model(torch.zeros(1, 9, dtype=torch.long))


def test_doubling_is_powers_is_the_recurrence():
    torch.manual_seed(1)
    q = torch.randn(13, 13, dtype=torch.float64) / 13**0.5
    c, first, n = torch.randn(20, 20).double().tril() / 3, torch.eye(13).double()[4], 19
    direct = rollout(q, c, first, n)
    columns = powers(q, first, n)
    assert torch.allclose(columns, powers_by_doubling(q, first, n), atol=1e-8)
    assert torch.allclose(path_coefficients(c, n) @ columns, direct, atol=1e-8)


def test_the_posts_polynomials_lack_a_factor():
    c = torch.tensor([[2.0, 0, 0], [3, 5, 0], [7, 11, 13]], dtype=torch.float64)
    p = path_coefficients(c, 3)
    c0, (c1, c2), (c3, c4, c5) = 2.0, (3.0, 5.0), (7.0, 11.0, 13.0)
    assert p[2].tolist() == [0, c1, c2 * c0, 0]
    assert p[3].tolist() == [0, c3, c4 * c0 + c5 * c1, c5 * c2 * c0]


def test_a_linear_mixer_learns_token_pairs(data):
    found = fit_lm("linear", data, data[:50], 11, 32, 1e-2, 150, 32)
    assert found["loss"][:5].mean() > 2 > found["test"].mean()
    model = trained(found, "linear", 11, 16, 32)
    logits = model(data.tokens[:1]).logits
    guess = logits.argmax(-1)[0, :-1]
    assert (guess == (data.tokens[0, :-1] + 1) % 11).float().mean() > 0.9


@pytest.mark.parametrize("kind", ["linear", "relu", "ffn", "llama"])
def test_widths_match_parameters(kind):
    size = sum(
        p.numel() for p in build(kind, 128, 16, width_for(kind, 128, 16, 200_000)).parameters()
    )
    assert size == pytest.approx(200_000, rel=0.2)


def test_bits_per_byte_of_a_text_of_known_entropy():
    """Two bytes a token, each token one of four at random: 1 bit a byte."""
    assert bits_per_byte(float(np.log(4)), 500, 1_000) == pytest.approx(1.0)
