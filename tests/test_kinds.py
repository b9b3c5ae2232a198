"""Kinds of linearity against worlds that are known: planted ranks, pairs, directions, heavy tokens,
and costs."""

import numpy as np
import pandas as pd
import pytest
import torch

from lib.base import InputError
from lib.linear import (
    AffineMap,
    Moments,
    TokenEnergy,
    by_fold,
    choose_definition,
    compare_definitions,
    fold_shapes,
    leading_shares,
    massive_definitions,
    rank_mean,
    rank_profile,
    refits,
    spectrum_rank,
    total,
    twins,
)
from lib.linear.heavy import fewest, held_by_few
from lib.linear.reweighing import Reweighted
from lib.stats import rules
from lib.swaps import extra_cost

D, N = 12, 400


def rows(weights, generator, n=N):
    """Inputs and outputs of a linear map with noise: x [n, D], y [n, D]."""
    x = torch.randn(n, D, generator=generator, dtype=torch.float64)
    return x, x @ weights + 0.05 * torch.randn(n, D, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="module")
def world():
    """Five folds of two blocks, one of full rank and one with an outlier feature: rows and
    moments."""
    generator = torch.Generator().manual_seed(1)
    broad = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=torch.float64))[0]
    outlier = broad.clone()
    outlier[:, 3] *= 100
    data = [[rows(w, generator) for w in (broad, outlier)] for _ in range(5)]
    folds = [{b: Moments.of(*part[b]) for b in (0, 1)} for part in data]
    outputs = {b: total([Moments.of(p[b][1], p[b][1]) for p in data]) for b in (0, 1)}
    return folds, outputs


def test_shapes_tell_an_outlier_feature_from_a_broad_map(world):
    folds, outputs = world
    shapes = fold_shapes(folds, outputs)
    assert len(shapes) == 10
    ranks = by_fold(shapes, "effective_rank")
    assert ranks.shape == (5, 2) and (ranks[0] >= 10).all() and (ranks[1] == 1).all()
    # Weighed alike, by feature or by direction, the outlier is one of twelve.
    for kind in ("standardized", "whitened"):
        assert (by_fold(shapes, f"effective_rank_{kind}") >= 10).all(axis=None)


def test_whitened_rank_of_a_fold_needs_no_output_covariance_of_its_own(world):
    folds, outputs = world
    part = folds[0][1]
    train = total([fold[1] for fold in folds]) - part
    other = Moments(**{**vars(outputs[1]), "sxx": 7 * outputs[1].sxx})
    profiles = [rank_profile(train, part, outputs=(outputs[1], o)) for o in (outputs[1], other)]
    for share in (0.5, 0.8, 0.9):
        assert profiles[0].effective_rank(share) == profiles[1].effective_rank(share)


def test_ranks_that_agree_are_known_to_half_a_direction():
    same = rank_mean([3, 3, 3, 3, 3], scale=0.1)
    assert (same.value, same.low, same.high) == pytest.approx((0.3, 0.25, 0.35))
    wide = rank_mean([1, 5, 9, 3, 7])
    assert wide.low < 1 and wide.high > 9
    assert np.isnan(rank_mean([1, 2, np.nan, 2, 1]).low)


def test_spectrum_counts_singular_values():
    weight = torch.diag(torch.tensor([10.0, 10.0, 1.0, 0.1]))
    assert spectrum_rank(AffineMap(weight, torch.zeros(4))) == 2
    assert spectrum_rank(AffineMap(torch.eye(10), torch.zeros(10))) == 9
    with pytest.raises(InputError, match="a map of zeros has no spectrum"):
        spectrum_rank(AffineMap(torch.zeros(3, 3), torch.zeros(3)))


def test_leading_direction_lies_on_the_outlier(world):
    shares = leading_shares(world[0], [0, 1])
    assert (shares[1] > 0.99).all() and (shares[0] < 0.9).all()
    assert leading_shares(world[0], [0], top=D)[0].to_numpy() == pytest.approx(1)
    assert leading_shares(world[0], []).empty


def shapes_of(r2, medians, noise, seed):
    """A table of fold_shapes with fold noise around each block's values."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "block": block,
            "fold": fold,
            "r2_lin": r2[block] + noise * rng.normal(),
            "r2_feature_median": medians[block] + noise * rng.normal(),
        }
        for block in range(len(r2))
        for fold in range(5)
    )


def test_twins_true_false_and_noise():
    r2 = [0.9, 0.9, 0.9, 0.5, 0.5, 0.2]

    def verdicts(medians, noise):
        worlds = [shapes_of(r2, medians, noise, seed) for seed in range(40)]
        found = [twins(w) for w in worlds]
        return [rules.any_above(f, 0.3) if f else "none" for f in found]

    assert set(verdicts([0.9, 0.2, 0.8, 0.5, 0.4, 0.2], 0.004)) == {"reproduced"}
    assert set(verdicts([0.9, 0.85, 0.8, 0.5, 0.4, 0.2], 0.004)) == {"contradicted"}
    # A block of another R² is no twin, however far its median; noise alone opens no gap of 0.3.
    assert "reproduced" not in verdicts([0.5, 0.5, 0.5, 0.5, 0.5, -9], 0.01)
    assert verdicts([0.5] * 6, 0.15).count("reproduced") <= 4
    assert twins(shapes_of([0.1, 0.5], [0, 0], 0.001, 0)) == {}
    short = shapes_of(r2, r2, 0.01, 0)
    with pytest.raises(InputError, match="2 folds leave none"):
        twins(short[short.fold < 2])


def test_fewest_tokens_and_what_they_hold():
    weight = np.ones((3, 10, 40))
    weight[0, 0, :3] = 1000  # three of 400 hold most
    weight[1, :, 0] = 100  # ten do: more than one in a hundred
    marked = fewest(weight)
    assert marked[0].sum() == 2 and marked[0, 0, :3].sum() == 2
    assert not marked[1:].any()
    held = held_by_few(weight, np.ones_like(weight, bool))
    assert held == pytest.approx([3001 / 3397, 400 / 1390, 4 / 400])
    assert np.isnan(held_by_few(weight[:1], np.zeros((1, 10, 40), bool))).all()


@pytest.mark.parametrize(
    ("times", "chosen"),
    # Of a few tokens this heavy: none; a part is enough; a part is not, nor 20 ×; 20 × is enough.
    [(1, "norm over 20"), (15, "fewest"), (19.5, "norm over 10"), (60, "norm over 20")],
)
def test_definition_is_chosen_by_what_it_leaves(times, chosen):
    norm = np.random.default_rng(0).uniform(0.98, 1.02, (2, 20, 100))
    norm[0, :, 0] *= times  # one token in a hundred of one block
    norm[1, 0, 1:8] *= 12  # and seven in the other, which hold little
    energy = TokenEnergy(deviation=norm**2, error=norm, norm=norm)
    table = compare_definitions(massive_definitions(energy), energy)
    assert table.definition[0] == "none" and table.share_of_tokens[0] == 0
    assert table.still_concentrated[0] == (times > 10)
    assert choose_definition(table).startswith(chosen)


def test_refit_without_heavy_rows():
    generator = torch.Generator().manual_seed(2)
    weight = torch.eye(D, dtype=torch.float64)
    x, y = rows(weight, generator)
    x[:4] *= 50
    y[:4] = -x[:4]  # four rows, as heavy as all others, that obey another map
    both = Moments.of(y, y)
    part = Reweighted(Moments.of(x[4:], y[4:]), both)
    wrong = Moments.of(x, y).fit()
    table = refits([part], [part], {0: wrong})
    assert table.left_out[0] == 4 and table.rank_refit[0] >= 10
    assert table.r2_refit[0] > 0.99 and table.r2_without_massive[0] < 0


def test_extra_cost_true_false_and_noise():
    rng = np.random.default_rng(3)
    document = np.repeat(np.arange(12), 4)
    base = rng.normal(3, 0.5, (48, 30))
    swapped = base + 0.5 + 0.02 * rng.normal(size=(48, 30))

    def verdict(again):
        return rules.all_below({0: extra_cost(base, swapped, again, document)}, 0.04)

    assert verdict(swapped + 0.005) == "reproduced" and verdict(swapped + 0.1) == "contradicted"
    found = extra_cost(base, swapped, swapped + 0.1, document)
    assert found.value == pytest.approx(np.exp(0.6) - np.exp(0.5), rel=0.01)
    assert found.low < found.value < found.high
    noisy = [swapped + rng.normal(0.024, 0.3, 48)[:, None] for _ in range(40)]  # at the threshold
    assert sum(verdict(n) != "inconclusive" for n in noisy) <= 8
    with pytest.raises(InputError, match="cannot be paired"):
        extra_cost(base, swapped[:3], swapped, document)
