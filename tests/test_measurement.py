"""One pass over the model: recoverability, the swap sweep and trained baselines, against the
long way round."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from lib.base import InputError
from lib.linear import AffineMap, Moments, descent, score_rows
from lib.linear import survey as recoverability
from lib.models import capture, swap
from lib.swaps import delta_ppl, next_token_losses, swap_sweep, token_losses
from lib.swaps import losses as perplexity


def test_every_fold_is_what_scikit_learn_finds_on_the_rows(tiny, tiny_windows):
    windows = tiny_windows[:20]
    found = recoverability.recoverability(tiny, windows, n_folds=4, batch=3)
    rows = capture(tiny, windows, range(len(tiny)))
    for block, (x, y) in rows.items():
        x, y = x.double().numpy(), y.double().numpy()
        folds = np.array_split(np.arange(20), 4)
        for k, fold in enumerate(folds):
            tail = np.isin(np.arange(len(x)) // 128, fold)
            linear = LinearRegression().fit(x[~tail], y[~tail])
            expected = r2_score(y[tail], linear.predict(x[tail]), multioutput="variance_weighted")
            got = found.folds.query("block == @block and fold == @k").r2.item()
            # LayerNorm's constant direction is regularised differently by the two solvers.
            assert got == pytest.approx(expected, abs=2e-4), (block, k)
        assert found.table.r2_lin[block] == found.folds.query("block == @block").r2.iloc[-1]
        assert score_rows(
            found.maps[block], *(torch.from_numpy(a[-5 * 128 :]).float() for a in (x, y))
        ).r2 == pytest.approx(found.table.r2_lin[block], abs=1e-4)


def test_an_affine_ffn_is_found_to_be_affine(tiny_gpt2, tiny_windows):
    generator = torch.Generator().manual_seed(0)
    planted = AffineMap(
        torch.randn(128, 128, generator=generator) / 50, torch.randn(128, generator=generator)
    )
    with swap(tiny_gpt2.blocks[2], planted):
        folds = [
            recoverability._one_fold.__wrapped__((tiny_gpt2, part, 8), lambda n: None)
            for part in tiny_windows.split(20)
        ]
    train, tail = (Moments.from_state(f[2]) for f in folds)
    assert tail.score(train.fit()).r2 > 1 - 1e-6
    other = [Moments.from_state(f[3]) for f in folds]
    assert other[1].score(other[0].fit()).r2 < 0.95


def test_a_killed_pass_resumes_with_the_same_numbers(tiny_gpt2, tiny_windows, monkeypatch):
    windows = tiny_windows[:15]
    passes = []
    real = recoverability.forward_body

    def killed(subject, tokens):
        passes.append(len(tokens))
        if len(passes) == 8:
            raise KeyboardInterrupt
        real(subject, tokens)

    monkeypatch.setattr(recoverability, "forward_body", killed)
    with pytest.raises(KeyboardInterrupt):
        recoverability.recoverability(tiny_gpt2, windows, n_folds=5, batch=1)
    resumed = recoverability.recoverability(tiny_gpt2, windows, n_folds=5, batch=1)
    assert len(passes) == 8 + 15 - 6  # two whole folds of three windows were kept
    again = recoverability.recoverability(tiny_gpt2, windows, n_folds=5, batch=1)
    assert len(passes) == 8 + 15 - 6  # and the second run measures nothing
    pd.testing.assert_frame_equal(resumed.table, again.table)
    monkeypatch.setattr(recoverability, "forward_body", real)
    fresh = recoverability._measure.__wrapped__((tiny_gpt2, windows, 5, 1, 0.0))
    pd.testing.assert_frame_equal(resumed.table, pd.DataFrame(fresh["table"]))


def test_too_few_windows_for_the_folds(tiny_gpt2, tiny_windows):
    with pytest.raises(InputError, match="3 windows cannot be cut into 5 folds"):
        recoverability.recoverability(tiny_gpt2, tiny_windows[:3])


def test_losses_are_those_of_transformers(tiny, tiny_windows):
    windows = tiny_windows[:4]
    with torch.no_grad():
        expected = tiny.model(windows, labels=windows).loss
    losses = token_losses(tiny, windows, batch=3)
    assert losses.shape == (4, 127) and losses.dtype == torch.float64
    assert losses.mean() == pytest.approx(float(expected), rel=1e-6)
    uniform = next_token_losses(torch.zeros(1, 5, 97), torch.ones(1, 5, dtype=torch.long))
    assert perplexity.perplexity(uniform) == pytest.approx(97)


def test_the_sweep_equals_swapping_one_block_at_a_time(tiny, tiny_windows):
    windows = tiny_windows[:6]
    maps = recoverability.recoverability(tiny, tiny_windows[6:26]).maps
    base, swapped = swap_sweep(tiny, windows, maps, batch=4)
    assert np.allclose(base, token_losses(tiny, windows), rtol=0, atol=1e-5)
    for block in tiny.blocks:
        with swap(block, maps[block.index]):
            assert np.allclose(swapped[block.index], token_losses(tiny, windows), rtol=0, atol=1e-5)


def test_swapping_ffns_for_themselves_costs_nothing(tiny_gpt2, tiny_windows):
    base, swapped = swap_sweep(
        tiny_gpt2, tiny_windows[:6], {b.index: b.ffn for b in tiny_gpt2.blocks}
    )
    cost = delta_ppl(base, swapped)
    assert (
        cost[
            ["delta_ppl", "delta_ppl_percent", "delta_ppl_percent_low", "delta_ppl_percent_high"]
        ].abs()
        < 1e-4
    ).all(None)


def test_delta_ppl_of_a_known_shift():
    base = np.full((10, 5), 2.0)
    cost = delta_ppl(base, {3: base + np.log(1.5)}).iloc[0]
    assert cost.delta_ppl_percent == pytest.approx(50) and cost.delta_ppl == pytest.approx(
        np.exp(2) / 2
    )
    assert cost.delta_ppl_percent_low == pytest.approx(
        50
    ) and cost.delta_ppl_percent_high == pytest.approx(50)


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


def test_descent_is_reproducible_and_seeds_differ():
    x, y = rows()
    args = ((x[:600], y[:600]), (x[600:], y[600:]), "adamw", 30)
    first = descent._descend.__wrapped__((*args, (42, 43), 32))
    assert first == descent._descend.__wrapped__((*args, (42, 43), 32))
    assert first[-1]["r2"] != first[len(first) // 2 - 1]["r2"]
    assert descent.checkpoints(5000)[-1] == 5000 and 3000 in descent.checkpoints(5000)


def test_baselines_of_a_model_run_it_once_and_then_not_at_all(tiny_gpt2, tiny_windows, monkeypatch):
    from lib.linear import baselines

    passes, real = [], baselines.capture
    monkeypatch.setattr(baselines, "capture", lambda *a: passes.append(1) or real(*a))
    args = (tiny_gpt2, tiny_windows[:20], [3, 1], ["sgd", "adamw"], 40, (42, 43))
    found = baselines.trained_baselines(*args)
    assert len(passes) == 1
    pd.testing.assert_frame_equal(baselines.trained_baselines(*args).curves, found.curves)
    assert len(passes) == 1
    x, y = real(tiny_gpt2, tiny_windows[:20], [1])[1]
    train, tail = Moments.of(x[:2048], y[:2048]), Moments.of(x[2048:], y[2048:])
    assert found.ceilings.set_index("block").r2_lin[1] == pytest.approx(tail.score(train.fit()).r2)
    assert (
        set(found.curves.block) == {1, 3}
        and found.curves.groupby(["block", "optimizer", "seed"]).step.max().eq(40).all()
    )
    assert found.exact.query("block == 1").r2.iloc[-1] == pytest.approx(
        found.ceilings.set_index("block").r2_lin[1], abs=0.01
    )
