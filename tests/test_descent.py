"""Gradient descent on the linear map, against its closed form and by hand."""

import numpy as np
import pandas as pd
import pytest
import torch

from lib.base import InputError
from lib.linear import AffineMap, Moments, baselines, descent, score_rows


def rows(n=800, d=10, condition=100.0, seed=0):
    """Linear targets that need every direction of x equally, however small its scale."""
    generator = torch.Generator().manual_seed(seed)
    white = torch.randn(n, d, generator=generator)
    scales = torch.logspace(0, -float(np.log10(condition)) / 2, d)
    return white * scales + 0.3, white @ torch.randn(
        d, d, generator=generator
    ) + 0.05 * torch.randn(n, d, generator=generator)


def test_exact_descent_is_gradient_descent():
    x, y = rows()
    train, tail = Moments.of(x[:600], y[:600]), Moments.of(x[600:], y[600:])
    rate = 0.7 * descent.stable_rate(x[:600])
    augmented = torch.cat([x[:600], torch.ones(600, 1)], 1).double()
    w = descent.initial_weights(10, 10, 42).double()
    for step in range(1, 51):
        w = w - rate * augmented.T @ (augmented @ w - y[:600].double()) / 600
        if step in (1, 7, 50):
            expected = score_rows(AffineMap(w[:-1], w[-1]), x[600:].double(), y[600:]).r2
            assert descent.exact_descent(train, tail, rate, [step], 42).r2.item() == pytest.approx(
                expected, abs=1e-9
            )
    assert descent.exact_descent(train, tail, rate, [10**9], 42).r2.item() == pytest.approx(
        tail.score(train.fit()).r2, abs=1e-6
    )


def test_ill_conditioning_slows_sgd_as_exact_descent_says():
    short = {}
    for condition in (1.0, 1e6):
        x, y = rows(condition=condition)
        seen, tail = (x[:600], y[:600]), (x[600:], y[600:])
        train, held_out = Moments.of(*seen), Moments.of(*tail)
        curve = descent.descend(seen, tail, "sgd", 400, seeds=(42,), batch=64)
        exact = descent.exact_descent(train, held_out, curve.lr[0], [400], 42).r2.item()
        assert curve.r2.iloc[-1] == pytest.approx(exact, abs=0.02)
        short[condition] = held_out.score(train.fit()).r2 - curve.r2.iloc[-1]
    assert short[1.0] < 0.02 < 0.1 < short[1e6]
    with pytest.raises(InputError, match="unknown optimizer 'sdg': did you mean 'sgd'"):
        descent.descend(seen, tail, "sdg", 10, (42,))


def test_no_row_that_judges_the_map_chooses_its_rate():
    x, y = rows(condition=1e4)
    seen, tail = (x[:600], y[:600]), (x[600:], y[600:])
    spoiled = tail[0], -tail[1].flip(0)
    rates = {sgd(seen, held_out).lr[0] for held_out in (tail, spoiled)}
    assert rates == {descent.best_rate(seen, 100, 42, 64)}
    assert rates == {descent.stable_rate(seen[0])}  # the slow directions want the largest


def sgd(seen, held_out):
    return descent.descend(seen, held_out, "sgd", 100, seeds=(42,), batch=64)


def test_descent_is_reproducible_and_seeds_differ():
    x, y = rows()
    args = ((x[:600], y[:600]), (x[600:], y[600:]), "adamw", 30)
    first = descent._descend.__wrapped__((*args, (42, 43), 32))
    assert first == descent._descend.__wrapped__((*args, (42, 43), 32))
    assert first[-1]["r2"] != first[len(first) // 2 - 1]["r2"]
    assert descent.checkpoints(5000)[-1] == 5000 and 3000 in descent.checkpoints(5000)


def test_baselines_of_a_model_run_it_once_and_then_not_at_all(
    tiny_gpt2, drawn_windows, monkeypatch
):
    passes, real = [], baselines.capture
    monkeypatch.setattr(baselines, "capture", lambda *a: passes.append(1) or real(*a))
    args = (tiny_gpt2, drawn_windows[:20], [3, 1], ["sgd", "adamw"], 40, (42, 43))
    found = baselines.trained_baselines(*args)
    assert len(passes) == 1
    pd.testing.assert_frame_equal(baselines.trained_baselines(*args).curves, found.curves)
    assert len(passes) == 1
    x, y = real(tiny_gpt2, drawn_windows[:20], [1])[1]
    test = drawn_windows[:20].held_out(5)
    train, tail = (
        Moments.of(x[chosen].flatten(0, 1), y[chosen].flatten(0, 1)) for chosen in (~test, test)
    )
    assert found.ceilings.set_index("block").r2_lin[1] == pytest.approx(tail.score(train.fit()).r2)
    assert (
        set(found.curves.block) == {1, 3}
        and found.curves.groupby(["block", "optimizer", "seed"]).step.max().eq(40).all()
    )
    assert found.exact.query("block == 1").r2.iloc[-1] == pytest.approx(
        found.ceilings.set_index("block").r2_lin[1], abs=0.01
    )
