"""Training on the spot, and looking at it, against the same by hand."""

import numpy as np
import pytest
import torch

from lib.base import cache
from lib.linear import recoverability
from lib.models import as_subject
from lib.training import TrainingRun, build, develop, train, untrained
from lib.training.development import checkpoints, profile


def test_development_looks_without_touching(tiny_gpt2, drawn_windows):
    assert np.allclose(
        profile(tiny_gpt2, drawn_windows),
        recoverability(tiny_gpt2, drawn_windows).table.r2_held_out,
    )
    assert checkpoints(300)[0] == 0 and checkpoints(300)[-1] == 300 and len(checkpoints(300)) == 12
    fresh = untrained(tiny_gpt2, 1)
    assert fresh.key != untrained(tiny_gpt2, 2).key and fresh.key == untrained(tiny_gpt2, 1).key


def test_develop_is_training_and_measuring(tiny_gpt2, tiny_windows):
    """Against the same run by hand in this process; its worker keeps the run in this test's
    cache."""
    data, measured_on, vocab = (
        (tiny_windows[:8], tiny_windows[8:10]),
        tiny_windows[:10],
        len(tiny_gpt2.tokenizer),
    )
    profiles, losses = develop(
        [("tiny-llama", "text", 5)], {"text": data}, measured_on, vocab, steps=2, batch=4
    )
    model = build("tiny-llama", vocab, 5)
    curve = train(model, *data, TrainingRun(steps=2, batch=4, warmup=1, seed=5), quiet=True)
    assert np.allclose(
        profiles[profiles.step == 2].r2, profile(as_subject(model), measured_on), atol=1e-5
    )
    assert losses.held_out_loss.iloc[-1] == pytest.approx(curve.held_out_loss.iloc[-1], abs=1e-5)
    assert sorted(profiles.step.unique()) == [0, 1, 2] and list(cache.CACHE.rglob("output.pkl"))


def test_looking_does_not_change_training(tiny_windows, tiny_gpt2):
    def trained(look):
        model = build("tiny-neox", len(tiny_gpt2.tokenizer), 3)
        seen = lambda step: (as_subject(model), model.requires_grad_(True).train())
        train(
            model,
            tiny_windows[:8],
            tiny_windows[8:10],
            TrainingRun(steps=3, batch=2, warmup=1),
            look=seen if look else None,
            at=[0, 2],
        )
        return model.state_dict()

    for a, b in zip(trained(True).values(), trained(False).values(), strict=True):
        assert torch.equal(a, b)
