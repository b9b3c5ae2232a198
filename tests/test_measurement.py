"""One pass over the model: recoverability, its folds and its learning curve, against scikit-learn
on the rows."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score

from lib.base import InputError, cache
from lib.linear import (
    AffineMap,
    Moments,
    doubling,
    fold_moments,
    moment_grid,
    recoverability,
    score_rows,
    survey,
    total,
)
from lib.models import capture, swap

FIELDS = ("mean_x", "mean_y", "sxx", "sxy", "syy")


def rows_of(subject, windows, block):
    """x and y of one block, each [n, seq_len, d], as float64 arrays."""
    return (side.double().numpy() for side in capture(subject, windows, [block])[block])


def prediction(x, y, train, test):
    """scikit-learn's, fitted on the windows `train` and made for `test`: [rows, d]."""
    flat = lambda side, windows: side[windows].reshape(-1, side.shape[-1])
    return LinearRegression().fit(flat(x, train), flat(y, train)).predict(flat(x, test))


def refit(x, y, train, test):
    """Held-out R² of that prediction."""
    made = prediction(x, y, train, test)
    return r2_score(y[test].reshape(made.shape), made, multioutput="variance_weighted")


def by_hand(values, level=0.95):
    """Half the width of Nadeau and Bengio's interval of a mean over folds."""
    k = len(values)
    error = np.sqrt((1 / k + 1 / (k - 1)) * np.var(values, ddof=1))
    return stats.t.ppf(1 - (1 - level) / 2, k - 1) * error


def test_folds_are_what_scikit_learn_finds_on_their_documents_rows(tiny, drawn_windows):
    windows = drawn_windows[:40]
    found = recoverability(tiny, windows, n_folds=4, batch=3)
    fold_of = windows.folds(4).numpy()
    for block in range(len(tiny)):
        x, y = rows_of(tiny, windows, block)
        expected = [refit(x, y, fold_of != k, fold_of == k) for k in range(4)]
        # LayerNorm's constant direction is regularised differently by the two solvers.
        assert found.folds[found.folds.block == block].r2.to_numpy() == pytest.approx(
            expected, abs=2e-4
        )
        row = found.table.set_index("block").loc[block]
        assert row.r2_lin == pytest.approx(np.mean(expected), abs=2e-4)
        assert row.r2_held_out == pytest.approx(expected[-1], abs=2e-4)
        assert row.high - row.r2_lin == pytest.approx(by_hand(expected), rel=0.05)
        assert row.low + row.high == pytest.approx(2 * row.r2_lin)
        tail = (torch.from_numpy(side[fold_of == 3]).flatten(0, 1).float() for side in (x, y))
        assert score_rows(found.maps[block], *tail).r2 == pytest.approx(row.r2_held_out, abs=1e-4)


def test_in_order_the_folds_are_contiguous(tiny_gpt2, tiny_windows):
    windows = tiny_windows[:20]
    found = recoverability(tiny_gpt2, windows, n_folds=4).folds.set_index(["block", "fold"]).r2
    x, y = rows_of(tiny_gpt2, windows, 2)
    for k, fold in enumerate(np.array_split(np.arange(20), 4)):
        test = np.isin(np.arange(20), fold)
        assert found[2, k] == pytest.approx(refit(x, y, ~test, test), abs=2e-4)


def test_every_budget_is_what_scikit_learn_finds_on_its_windows(tiny_gpt2, drawn_windows):
    """Budgets are prefixes of the sample; each is scored on all windows of the held-out fold."""
    found = recoverability(tiny_gpt2, drawn_windows, n_folds=3, segments=3)
    fold_of, place = drawn_windows.folds(3).numpy(), np.arange(60)
    x, y = rows_of(tiny_gpt2, drawn_windows, 4)
    for row in found.curves[found.curves.block == 4].itertuples():
        train = (fold_of != row.fold) & (place < (15, 30, 60)[row.budget])
        assert row.n_tokens == 128 * train.sum()
        assert row.r2 == pytest.approx(refit(x, y, train, fold_of == row.fold), abs=5e-4)
    everywhere = np.empty_like(y)
    for k in range(3):
        made = prediction(x, y, fold_of != k, fold_of == k)
        everywhere[fold_of == k] = made.reshape(-1, *y.shape[1:])
    pooled = r2_score(y.reshape(-1, 128), everywhere.reshape(-1, 128),
                      multioutput="variance_weighted")  # fmt: skip
    limit = found.limits.set_index("block").loc[4]
    assert limit.r2_pooled == pytest.approx(pooled, abs=2e-4)
    assert limit.r2_limit > limit.r2_pooled and limit.r2_ridge > limit.r2_pooled - 1e-3


def test_segments_change_nothing_but_add_the_curve(tiny_gpt2, drawn_windows):
    one, three = (recoverability(tiny_gpt2, drawn_windows, n_folds=3, segments=n) for n in (1, 3))
    assert np.allclose(one.table.r2_lin, three.table.r2_lin, rtol=0, atol=1e-9)
    assert np.allclose(one.folds.r2, three.folds.r2, rtol=0, atol=1e-9)
    assert one.curves.empty and one.limits.empty and len(three.limits) == 6
    whole = three.curves[three.curves.budget == 2].sort_values(["block", "fold"])
    assert np.allclose(whole.r2, three.folds.r2, rtol=0, atol=1e-7)


def test_segments_sum_to_the_whole_and_each_is_its_rows(tiny_gpt2, drawn_windows):
    grid = moment_grid(tiny_gpt2, drawn_windows, 3, segments=3)
    whole = moment_grid(tiny_gpt2, drawn_windows, 3)
    assert (len(grid), len(whole)) == (3, 1)
    x, y = capture(tiny_gpt2, drawn_windows, [1])[1]
    fold_of, place = drawn_windows.folds(3), torch.arange(60)
    for k in range(3):
        for s, (start, stop) in enumerate([(0, 15), (15, 30), (30, 60)]):
            here = (fold_of == k) & (place >= start) & (place < stop)
            expected = Moments.of(x[here].flatten(0, 1), y[here].flatten(0, 1))
            assert grid[s][k][1].n == expected.n
            for name in FIELDS:
                cell = getattr(grid[s][k][1], name)
                assert torch.allclose(cell, getattr(expected, name), rtol=1e-9, atol=1e-7), name
        both = total([row[k][1] for row in grid])
        for name in FIELDS:
            assert torch.allclose(
                getattr(both, name), getattr(whole[0][k][1], name), rtol=1e-9, atol=1e-7
            ), name
        again = fold_moments(tiny_gpt2, drawn_windows, 3, segments=3)[k][1]
        assert torch.equal(again.sxy, both.sxy)


def test_segments_are_fewer_where_a_part_would_be_empty_or_too_much(
    tiny_gpt2, tiny_windows, drawn_windows, monkeypatch
):
    assert len(moment_grid(tiny_gpt2, drawn_windows[:16], 3, segments=9)) < 5
    # In order, the first half of the sample holds no window of the last folds.
    assert len(moment_grid(tiny_gpt2, tiny_windows[:10], 5, segments=3)) == 1
    monkeypatch.setattr(survey, "MEMORY", 2 * 6 * 3 * 128**2 * 2 * 8)
    assert len(moment_grid(tiny_gpt2, drawn_windows, 3, segments=3)) == 2


def test_of_windows_in_order_every_segment_has_every_fold(tiny_gpt2, tiny_windows):
    """A budget is a prefix of each contiguous fold, and the folds are the same in any case."""
    dealt, folds = survey._in_turn(tiny_windows, 5, 3), tiny_windows.folds(5)
    for k in range(5):
        assert torch.equal(dealt.tokens[dealt.folds(5) == k], tiny_windows.tokens[folds == k])
    grid = moment_grid(tiny_gpt2, dealt, 5, segments=3)
    assert [[cell[1].n // 128 for cell in row] for row in grid] == [[2] * 5, [2] * 5, [4] * 5]
    one, three = (recoverability(tiny_gpt2, tiny_windows, segments=n) for n in (1, 3))
    assert np.allclose(one.folds.r2, three.folds.r2, rtol=0, atol=1e-9)
    assert len(doubling(three.curves)) == 2 and three.limits.r2_pooled.notna().all()
    last = fold_moments(tiny_gpt2, tiny_windows, 5, segments=3)[-1][1]
    x, y = capture(tiny_gpt2, tiny_windows[tiny_windows.held_out(5)], [1])[1]
    assert torch.allclose(last.sxy, Moments.of(x.flatten(0, 1), y.flatten(0, 1)).sxy, atol=1e-7)


def test_doubling_is_the_mean_rise_over_blocks_and_folds(tiny_gpt2, drawn_windows):
    curves = recoverability(tiny_gpt2, drawn_windows, n_folds=3, segments=3).curves
    found, r2 = doubling(curves), curves.set_index(["budget", "fold", "block"]).r2
    for step in (0, 1):
        rise = np.array([[r2[step + 1, k, b] - r2[step, k, b] for b in range(6)] for k in range(3)])
        row = found.iloc[step]
        assert row["mean"] == pytest.approx(rise.mean())
        assert row.high - row["mean"] == pytest.approx(by_hand(rise.mean(1)))
        assert row.block_that_gains_most == rise.mean(0).argmax()
        assert row.its_gain == pytest.approx(rise.mean(0).max())
        tokens = curves.groupby("budget").n_tokens.mean()
        assert [row.n_tokens, row.n_tokens_doubled] == [tokens[step], tokens[step + 1]]
    with pytest.raises(InputError, match="one segment of text has no learning curve"):
        doubling(recoverability(tiny_gpt2, drawn_windows, n_folds=3).curves)


def test_an_affine_ffn_is_found_to_be_affine(tiny_gpt2, tiny_windows):
    generator = torch.Generator().manual_seed(0)
    planted = AffineMap(
        torch.randn(128, 128, generator=generator) / 50, torch.randn(128, generator=generator)
    )
    with swap(tiny_gpt2.blocks[2], planted):
        found = recoverability(tiny_gpt2, tiny_windows, n_folds=2).table.r2_lin
    assert found[2] > 1 - 1e-6 and found[3] < 0.95


def test_a_killed_pass_resumes_with_the_same_numbers(
    tiny_gpt2, drawn_windows, monkeypatch, tmp_path
):
    passes, real = [], survey.forward_body

    def killed(subject, tokens):
        passes.append(len(tokens))
        if len(passes) == 12:
            raise KeyboardInterrupt
        real(subject, tokens)

    def measure():
        return recoverability(tiny_gpt2, drawn_windows, n_folds=3, segments=2, batch=1)

    monkeypatch.setattr(survey, "forward_body", killed)
    with pytest.raises(KeyboardInterrupt):
        measure()
    ends = drawn_windows[:30].folds(3).bincount().cumsum(0)  # of the first segment's parts
    kept = int(ends[ends < 12].max())
    resumed = measure()
    assert kept > 0 and len(passes) == 12 + 60 - kept
    again = measure()
    assert len(passes) == 12 + 60 - kept  # the second run measures nothing
    monkeypatch.setattr(cache, "CACHE", tmp_path / "another")
    fresh = measure()
    assert len(passes) == 12 + 60 - kept + 60
    for name in ("table", "folds", "curves", "limits"):
        for other in (again, fresh):
            pd.testing.assert_frame_equal(getattr(resumed, name), getattr(other, name))


def test_too_few_windows_for_the_folds(tiny_gpt2, tiny_windows):
    with pytest.raises(InputError, match="3 windows of 1 documents leave fold 3 of 5 empty"):
        recoverability(tiny_gpt2, tiny_windows[:3])
