"""The learning curve against refits from rows, and its limit against worlds whose R² is known."""

from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from lib.base import InputError
from lib.linear import RIDGES, LearningCurve, Moments, learning_curve, tokens_for
from lib.linear.figures_curve import curve_figure
from lib.stats import fold_mean

D = 32


def segments(rows, document, rng, n_folds=5, parts=4, window=4):
    """The cells of a corpus: [parts][n_folds] arrays of row numbers, documents whole in a fold and
    windows drawn at random, each budget twice the one before."""
    fold_of = rng.permutation(document[-1] + 1) % n_folds
    drawn = rng.permutation(rows // window)
    ends = [0, *(len(drawn) // 2**j for j in reversed(range(parts)))]
    taken = [(drawn[a:b, None] * window + np.arange(window)).ravel() for a, b in pairwise(ends)]
    return [[t[fold_of[document[t]] == k] for k in range(n_folds)] for t in taken]


def grid_of(x, y, cells):
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    return [[Moments.of(x[rows], y[rows]) for rows in row] for row in cells]


def mixing(d_out, d=D):
    """x = z @ mix has a spectrum of three decades; `map_` [d, d_out] has outputs of variance 1."""
    rng = np.random.default_rng(0)
    mix = np.linalg.qr(rng.normal(size=(d, d)))[0] * np.logspace(0, -1.5, d)
    map_ = rng.normal(size=(d, d_out))
    return mix.T, map_ / np.linalg.norm(mix.T @ map_, axis=0)


def even(n, size=32):
    return np.arange(n) // size


def gaussian(rng, n, r2=0.6, d_out=16):
    mix, map_ = mixing(d_out)
    x = rng.normal(size=(n, D)) @ mix
    noise = np.sqrt((1 - r2) / r2) * rng.normal(size=(n, d_out))
    return x + 3, x @ map_ + noise, even(n), r2


def nearly_linear(rng, n):
    return gaussian(rng, n, 0.98, 24)


def misspecified(rng, n, d_out=16):
    """y = a'z + 2 relu(u'z) + (u'z)², u of length 1, no noise: what no affine map follows is
    |g| + g² about its mean, g standard normal, of variance (1 - 2/π) + 2 + 2 √(2/π)."""
    mix, _ = mixing(d_out)
    fixed = np.random.default_rng(1)
    a, u = fixed.normal(size=(2, D, d_out)) / np.sqrt(D)
    u /= np.linalg.norm(u, axis=0)
    z = rng.normal(size=(n, D))
    missed = (1 - 2 / np.pi) + 2 + 2 * np.sqrt(2 / np.pi)
    variance = np.square(a + u).sum() + d_out * missed
    y = z @ a + 2 * np.maximum(z @ u, 0) + (z @ u) ** 2
    return z @ mix, y, even(n), 1 - d_out * missed / variance


def clustered(rng, n, r2=0.7, d_out=16):
    """Documents of 4 or 80 rows, each with its own mean of x and its own noise."""
    mix, map_ = mixing(d_out)
    lengths = np.where(rng.random(n) < 0.15, 80, 4)
    document = np.repeat(np.arange(n), lengths)[:n]
    shift, level = 0.7 * rng.normal(size=(n, D)), rng.gamma(4, 1 / 4, size=n)  # E level² = 1.25
    x = (rng.normal(size=(n, D)) + shift[document]) @ mix
    noise = np.sqrt(1.49 * (1 - r2) / r2 / 1.25) * level[document, None]
    return x, x @ map_ + noise * rng.normal(size=(n, d_out)), document, r2


def massive(rng, n, d_out=16, share=0.003):
    """Three rows in a thousand, long in one direction of x and in one of y, carry two thirds of
    the variance of y; an affine map follows their length but not their noise."""
    mix, map_ = mixing(d_out)
    fixed = np.random.default_rng(5)
    into, out = fixed.normal(size=D), fixed.normal(size=d_out)
    into, out = into / np.linalg.norm(into), out / np.linalg.norm(out)
    is_massive = rng.random(n) < share
    length = np.exp(0.3 * rng.normal(size=n)) * is_massive
    x = rng.normal(size=(n, D)) @ mix + 20 * length[:, None] * into
    big = np.sqrt(4 * d_out / share)
    own = 0.2 * is_massive[:, None] * rng.normal(size=(n, d_out)) / np.sqrt(d_out)
    y = x @ map_ + rng.normal(size=(n, d_out)) + big * (length[:, None] * out + own)
    return x, y, even(n), R2_MASSIVE


R2_MASSIVE = 0.824  # of the map fitted on eight million rows
WORLDS = {gaussian: 640, misspecified: 640, clustered: 2000, massive: 2400, nearly_linear: 320}


def drawn(world, n, seed) -> tuple[LearningCurve, float]:
    """Learning curve of a draw of n rows of a world, and the world's R²."""
    rng = np.random.default_rng([7, seed])
    x, y, document, r2 = world(rng, n)
    return learning_curve(grid_of(x, y, segments(n, document, rng))), r2


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)
def test_the_interval_covers_the_true_limit(world):
    limits = [drawn(world, WORLDS[world], seed) for seed in range(100)]
    assert sum(curve.plain.low <= r2 <= curve.plain.high for curve, r2 in limits) >= 90


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)
def test_the_interval_says_something(world):
    """Four times the rows narrow it, and it then leaves out what is plainly wrong."""
    few, many = ([drawn(world, times * WORLDS[world], s) for s in range(15)] for times in (1, 4))
    width = [np.median([c.plain.high - c.plain.low for c, _ in draws]) for draws in (few, many)]
    assert width[1] < 0.8 * width[0]
    wrong = [c.plain.low <= r2 - 0.3 or c.plain.high >= r2 + 0.3 for c, r2 in many]
    assert sum(wrong) <= 1
    if world is gaussian:
        assert width[1] < 0.05
    # The value is nearer than the R² of the largest budget, which is lower by construction.
    assert np.mean([c.plain.value - c.pooled.r2.iloc[-1] for c, _ in few]) > 0


def test_every_cell_is_what_refits_on_the_rows_give():
    rng = np.random.default_rng(3)
    n = 900
    x, y, document, _ = clustered(rng, n)
    cells = segments(n, document, rng)
    curve = learning_curve(grid_of(x, y, cells))
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    scores, ridges = {}, {}
    for k in range(5):
        test = np.concatenate([row[k] for row in cells])
        for j in range(4):
            train = np.concatenate([row[m] for row in cells[: j + 1] for m in range(5) if m != k])
            fold, fit = Moments.of(x[test], y[test]), Moments.of(x[train], y[train])
            ridges[k, j] = RIDGES * float(fit.sxx.trace()) / D
            scores[k, j] = [fold.score(fit.fit(r)) for r in ridges[k, j]], fold.syy.sum(), fit.n
    for row in curve.table.itertuples():
        ours, _, n_tokens = scores[row.fold, row.budget]
        errors = sum(
            (1 - np.array([s.r2 for s in scores[m, row.budget][0]])) * float(scores[m, 0][1])
            for m in range(5)
            if m != row.fold
        )
        assert row.n_tokens == n_tokens and row.ridge == RIDGES[errors.argmin()]
        assert np.isclose(row.r2, ours[0].r2, rtol=1e-6)
        assert np.isclose(row.r2_ridge, ours[errors.argmin()].r2, rtol=1e-6)
    # The ridge pays where tokens are few, and both fits meet where they are many.
    gain = curve.pooled.r2_ridge - curve.pooled.r2
    assert gain.iloc[0] > 0.01 and abs(gain.iloc[-1]) < 0.01


def test_tokens_for_a_gap_of_two_points_are_those_of_theory():
    """Gaussian inputs: the gap is (1 - R²) d / (n - d), so 672 tokens for 0.02 at R² = 0.6."""
    curve, _ = drawn(gaussian, 2560, 0)
    plain, ridge = tokens_for(curve), tokens_for(curve, ridge=True)
    assert 600 < plain < 760 and 256 <= ridge < plain
    assert tokens_for(curve, 0.01) > plain > tokens_for(curve, 0.04)
    assert tokens_for(curve, 0.5) == 260  # never under the smallest budget, 256 tokens
    assert tokens_for(curve, 1e-6) is None  # too far beyond the largest
    assert tokens_for(LearningCurve(curve.table, curve.pooled, curve.plain, 2000)) is None
    with pytest.raises(InputError, match="within 0 is no distance"):
        tokens_for(curve, 0)


def test_an_affine_block_has_the_limit_one():
    rng = np.random.default_rng(0)
    x, y, document, _ = gaussian(rng, 640)
    y = x @ rng.normal(size=(D, 5)) + 2
    # LayerNorm's outputs lie in a hyperplane: one input direction never varies.
    centred = x - x.mean(1, keepdims=True)
    for inputs, outputs, rank in ((x, y, D), (centred, centred[:, :5] - 3, D - 1)):
        curve = learning_curve(grid_of(inputs, outputs, segments(640, document, rng)))
        assert curve.rank == rank
        assert curve.plain.low > 1 - 1e-9 and curve.plain.high <= 1


def test_fewer_tokens_than_inputs_say_nothing():
    rng = np.random.default_rng(0)
    x, y, _, _ = gaussian(rng, 80)
    last, first = (
        learning_curve(grid_of(x[:n], y[:n], segments(n, even(n, 4), rng, parts=2))).plain
        for n in (36, 76)
    )
    assert np.isnan([last.value, last.low, last.high, first.low, first.high]).all()
    assert np.isfinite(first.value)


def test_a_segment_may_miss_a_fold():
    rng = np.random.default_rng(0)
    x, y, document, r2 = gaussian(rng, 640)
    cells = segments(640, document, rng)
    cells[1][2] = np.concatenate([cells[0][2], cells[1][2]])
    cells[0][2] = cells[0][2][:0]
    curve = learning_curve(grid_of(x, y, cells))
    assert np.isfinite(curve.table.r2).all() and curve.plain.low < r2 < curve.plain.high


def test_bad_grids():
    rng = np.random.default_rng(0)
    x, y, document, _ = gaussian(rng, 640)
    cells = segments(640, document, rng)
    grid = grid_of(x, y, cells)
    for bad in (grid[:1], [row[:1] for row in grid], [grid[0], grid[1][:4]], []):
        with pytest.raises(InputError, match="gives no learning curve"):
            learning_curve(bad)
    empty = grid_of(x, y, [[*row[:4], row[4][:0]] for row in cells])
    with pytest.raises(InputError, match="fold 4 has no rows"):
        learning_curve(empty)
    with pytest.raises(InputError, match="one fold only"):
        learning_curve([[grid[0][0], *empty[0][4:] * 4], *grid[1:]])
    with pytest.raises(InputError, match="have no variance"):
        learning_curve(grid_of(x, np.ones_like(y), cells))


def test_fold_mean_is_nadeau_and_bengio():
    found = fold_mean([0.5, 0.6, 0.7, 0.6, 0.6])
    # s² = 0.005, (1/5 + 1/4) s² = 0.00225, t(0.975, 4) = 2.776445
    assert np.isclose(found.value, 0.6) and np.isclose(found.high - 0.6, 2.776445 * 0.00225**0.5)
    assert np.isclose(found.low + found.high, 1.2)
    assert fold_mean([1, 2, 3], level=0.99).high > fold_mean([1, 2, 3]).high
    assert np.isnan([fold_mean([1.0]).low, fold_mean([1.0]).high]).all()
    with pytest.raises(InputError, match="test_over_train -1"):
        fold_mean([1, 2], -1)
    with pytest.raises(InputError, match="level 95"):
        fold_mean([1, 2], level=95)


def test_fold_mean_covers_where_the_plain_interval_does_not():
    """Five fits on few rows share most of them, so their errors move together."""
    n, d, rng = 50, 25, np.random.default_rng(0)
    truth = 1 + d / (40 - d - 1)  # expected squared error of least squares on 40 rows
    covered = np.zeros(2)
    for _ in range(400):
        x, y = rng.normal(size=(n, d)), rng.normal(size=n)
        errors = []
        for test in np.arange(n).reshape(5, -1):
            train = np.setdiff1d(np.arange(n), test)
            weight = np.linalg.lstsq(x[train], y[train], rcond=None)[0]
            errors.append(np.square(y[test] - x[test] @ weight).mean())
        for i, share in enumerate((0.0, 0.25)):
            interval = fold_mean(errors, share)
            covered[i] += interval.low <= truth <= interval.high
    plain, corrected = covered / 400
    assert plain < 0.9 < corrected


def test_the_figure_has_a_panel_a_block():
    curve, _ = drawn(gaussian, 640, 0)
    plain = curve.plain
    limit = {"r2_limit": plain.value, "limit_low": plain.low, "limit_high": plain.high}
    limits = pd.DataFrame([{"block": b, **limit} for b in (2, 5, 7, 9)])
    table = pd.concat([curve.table.assign(block=b) for b in limits.block])
    figure = curve_figure(table, limits, "tiny")
    assert [ax.get_title(loc="left") or ax.get_title() for ax in figure.axes] == [
        f"block {b}" for b in limits.block
    ]
    labels = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert labels == ["512", "128", "∞"]
    low, high = figure.axes[0].get_ylim()
    assert low < curve.plain.low and high > curve.plain.high
    plt.close(figure)
