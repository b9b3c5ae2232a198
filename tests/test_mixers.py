"""Linear mixers: composition, recurrence, powers, causality, bits per byte."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lib.errors import InputError
from lib.report import Run
from lib.studies.mixer_study import MixerStudy, beginnings, cut_mixer_study, mixer_study
from lib.swap.sweep import next_token_losses
from lib.text.windows import Windows
from lib.training.mixers import MODELS, Kind, LinearMixer, composed, matched_width


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    steps = rng.choice([1, 1, 1, 2], (400, 16)).cumsum(1) % 11  # the next token follows the last
    return Windows(torch.from_numpy(steps), np.arange(400), "a walk")


def changes(model) -> torch.Tensor:
    """At which positions the logits change with the token at position 5, [8]."""
    model.eval()
    tokens = torch.randint(11, (2, 8))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    with torch.no_grad():
        moved = (model(tokens).logits - model(changed).logits).abs()
    return moved.amax((0, 2)) > 1e-5


@pytest.mark.parametrize("kind", MODELS)
def test_no_model_sees_the_future(kind):
    torch.manual_seed(0)
    moved = changes(MODELS[kind](11, 8, 32))
    assert not moved[:5].any() and moved[5]
    assert moved[6:].any().item() is (kind != "no mixing")


def test_the_control_without_mixing_keeps_the_bias_of_each_position():
    """So the difference from a linear mixer is the mixing alone."""
    torch.manual_seed(0)
    model = MODELS["no mixing"](11, 8, 32)
    logits = model(torch.full((1, 8), 3)).logits[0]
    assert model.mixings[0].b.requires_grad and not torch.allclose(logits[0], logits[5])
    _, c, _ = composed(model)
    assert torch.equal(c, torch.eye(8).double())


def test_bits_per_byte_of_text_with_known_counts(own_cache):
    """Letters beyond ASCII have two bytes and more, and a token may end within one."""
    texts = ["naïve café, 漢字 — " * 30, "plain words and a § " * 30] * 4
    run = Run("27_bits_per_byte", "smoke", "tiny-gpt2", "wikipedia-sample", 42)
    lab = cut_mixer_study(run, texts, {"signs": texts}, 270, 16)
    for text in texts[:2]:
        tokens = np.array(lab.tokenizer(text)["input_ids"])
        assert lab.bytes_spelled(tokens).sum() == len(text.encode()) > len(tokens)
    # Two bits a token are 2 · tokens / bytes a byte.
    windows = lab.tests["signs"]
    predicted = windows[windows.document % 2 == 1].tokens[:, 1:].numpy()
    n_bytes = sum(lab.bytes_spelled(row).sum() for row in predicted)
    bits = lab.bits_per_byte({"signs": float(np.log(4))})["signs"]
    assert bits == pytest.approx(2 * predicted.size / n_bytes)


def test_models_have_as_many_parameters_as_the_authors():
    """At 4,096 tokens and as much width, context 128: the author's code, in millions."""
    of_author = {"linear": 33.6, "ReLU": 33.6, "conv-GELU-conv": 33.6, "one-layer mixer": 67.1}
    for kind, millions in (of_author | {"Llama": 302.0}).items():
        with torch.device("meta"):
            model = MODELS[kind](4_096, 128, 4_096)
        size = sum(p.numel() for p in model.parameters()) / 1e6
        assert size == pytest.approx(millions, abs=0.1)


@pytest.mark.parametrize("blocks, maps", [(1, 1), (3, 1), (1, 3), (2, 2)])
def test_a_composed_linear_mixer_is_the_mixer(blocks, maps):
    torch.manual_seed(0)
    model = LinearMixer(11, 8, 24, blocks=blocks, maps=maps)
    q, c, offset = composed(model)
    tokens = torch.randint(11, (3, 8))
    mixed = c @ torch.nn.functional.one_hot(tokens, 11).double()
    assert torch.allclose(model(tokens).logits.double(), mixed @ q.T + offset, atol=1e-5)
    with pytest.raises(InputError, match="compose a LinearMixer"):
        composed(MODELS["ReLU"](11, 8, 24))
    with pytest.raises(InputError, match="9 tokens exceed"):
        model(torch.zeros(1, 9, dtype=torch.long))


@pytest.mark.parametrize("kind", ["C by channel", "map by lag", "current-token map"])
def test_an_untied_mixer_holds_the_linear_mixer(kind):
    """With one C for all channels, or all later lags' maps 0, its logits are the linear mixer's."""
    torch.manual_seed(0)
    linear, untied = LinearMixer(11, 8, 24), MODELS[kind](11, 8, 24)
    for name in ("embedding.weight", "head.weight", "mixings.0.b"):
        untied.get_parameter(name).data.copy_(linear.get_parameter(name))
    if kind == "C by channel":
        untied.c.data.copy_(linear.mixings[0].c.expand(24, 8, 8))
    else:
        untied.mixings[0].c.data.copy_(linear.mixings[0].c)
        untied.of_lag[0].weight.data.copy_(linear.embedding.weight)
    tokens = torch.randint(11, (3, 8))
    assert torch.allclose(untied(tokens).logits, linear(tokens).logits, atol=1e-5)


@pytest.mark.parametrize("kind", ["C by channel", "map by lag", "current-token map"])
def test_an_untied_mixer_is_linear_in_one_hot_tokens(kind):
    """Logits are a sum over earlier tokens, of what each adds alone at its place."""
    torch.manual_seed(0)
    model = MODELS[kind](11, 8, 24).double()
    if kind != "C by channel":
        for embedding in model.of_lag:
            torch.nn.init.normal_(embedding.weight)
    a, b = torch.randint(11, (2, 1, 8))
    mixed = a.clone()
    mixed[:, ::2] = b[:, ::2]  # each place has the token of a or of b
    other = b.clone()
    other[:, ::2] = a[:, ::2]
    pair = model(a).logits + model(b).logits
    assert torch.allclose(pair, model(mixed).logits + model(other).logits)


def test_the_posts_t2_and_t3_lack_a_factor_each():
    """The recurrence t_k = Q Σ_{j<k} c[k-1, j] t_j, step by step, and as polynomials in Q."""
    torch.manual_seed(1)
    q, t0 = torch.randn(7, 7).double(), torch.eye(7).double()[4]
    c = torch.randn(3, 3).double().tril()
    t = [t0]
    for k in (1, 2, 3):
        t.append(q @ sum(c[k - 1, j] * t[j] for j in range(k)))
    c0, c1, c2, c3, c4, c5 = c[*torch.tril_indices(3, 3)]  # as the post counts them
    t1, square, cube = q @ t0, q @ q @ t0, q @ q @ q @ t0
    assert torch.allclose(t[2], c1 * t1 + c2 * c0 * square)
    assert torch.allclose(t[3], c3 * t1 + (c4 * c0 + c5 * c1) * square + c5 * c2 * c0 * cube)
    assert not torch.allclose(t[2], c1 * t1 + c0 * square)  # as the post prints it
    assert not torch.allclose(t[3], c3 * t1 + (c4 * c0 + c5 * c1) * square + c0 * cube)


def test_a_sum_of_two_pairs_is_no_pair():
    """What a token at each position adds to the last logits: of one pair all are multiples of Q."""
    torch.manual_seed(2)
    (q1, q2), (c1, c2) = torch.randn(2, 5, 5).double(), torch.randn(2, 6).double()
    one = torch.stack([a * q1.flatten() for a in c1])  # [position, vocab²]
    both = torch.stack([a * q1.flatten() + b * q2.flatten() for a, b in zip(c1, c2)])
    assert torch.linalg.matrix_rank(one) == 1 and torch.linalg.matrix_rank(both) == 2


def test_matched_widths_have_equal_parameters():
    for kind in ("linear", "one-layer mixer", "Llama"):
        width = matched_width(kind, 128, 16, 200_000)
        size = sum(p.numel() for p in MODELS[kind](128, 16, width).parameters())
        assert size == pytest.approx(200_000, rel=0.1)
    with pytest.raises(InputError, match="unknown kind of model 'lstm'"):
        matched_width("lstm", 128, 16, 200_000)


@pytest.fixture
def lab(data, own_cache):
    tests = {"walk": replace(data[300:], name="walk")}
    return MixerStudy(fit=data[:300], tests=tests, tokenizer=None, vocab=11, steps=120)


def test_a_lab_trains_chooses_a_rate_on_the_even_documents_and_gives_the_weights_back(lab):
    found = lab.train("linear", 24, 1e-2, 1)
    assert sorted(found.step.unique()) == [40, 80, 120] and set(found.half) == {"even", "odd"}
    odd = found[(found.half == "odd") & (found.step == 120)].loss.item()
    assert lab.losses("linear", 24, 1e-2, [1])[0] == odd < 2
    assert lab.losses("linear", 24, 1e-2, [1], third=1)[0] > odd
    # The model that comes back gives the very losses.
    model, windows = lab.model("linear", 24, 1e-2, 1), lab.tests["walk"]
    losses = next_token_losses(model(windows.tokens).logits, windows.tokens).mean(1).numpy()
    assert losses[windows.document % 2 == 1].mean() == pytest.approx(odd, abs=1e-5)
    # Rates are halved or doubled until the best lies inside.
    rate, inside = lab.rate("linear", 24, 1, [1e-4, 2e-4], most=12)
    assert inside and rate > 2e-4


def test_what_is_kept_starts_no_process(lab, monkeypatch):
    from lib.studies import mixer_study as module

    lab.train_all([("linear", 4, 1e-2, 1)])
    asked = []
    monkeypatch.setattr(module, "in_parallel", lambda _, jobs, brief: asked.append(len(jobs)))
    lab.train_all([("linear", 4, 1e-2, 1)])
    lab.train_all([("linear", 4, 1e-2, 1), ("linear", 4, 1e-2, 2)])
    assert asked == [0, 1]


def test_a_lab_refuses_a_vocabulary_that_the_text_does_not_fill_and_a_context_of_one_token():
    run = Run("25_linear_mixers", "smoke", "tiny-gpt2", "wikipedia-sample", 42)
    text = ["one two three " * 40]
    with pytest.raises(InputError, match=r"the text fills a vocabulary of \d+ tokens, not of 900"):
        cut_mixer_study(run, text, {"text": text}, 900, 16)
    with pytest.raises(InputError, match="a context of 1 token has nothing to predict"):
        cut_mixer_study(run, text, {"text": text}, 260, 1)
    lab = mixer_study(run)
    first = beginnings(lab, ["one two three " * 40 + "\n\nshort\n\n" + "four five " * 40], "text")
    assert len(first) == 2 and sorted(first.document.tolist()) == [0, 2]


def test_a_kind_of_a_readers_own_has_no_words(monkeypatch):
    assert Kind("linear").provenance == "linear"
    monkeypatch.setitem(MODELS, "mine", LinearMixer)
    monkeypatch.setitem(MODELS, "linear", MODELS["map by lag"])
    assert Kind("mine").provenance is None and Kind("linear").provenance is None
