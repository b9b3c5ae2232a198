"""Allocations of FFN width over depth, against the papers' own tables and identities."""

import numpy as np
import pytest

from lib.errors import InputError
from lib.paper import numbers as published
from lib.training.widths import (
    PLACES,
    SCHEDULES,
    ffn_layers,
    ffn_widths,
    grouped,
    importance,
    share_moved,
    shuffled,
    taper,
)

RATIOS = (0.1, 0.3, 0.5, 0.7, 0.9)


def test_the_papers_example_fixes_the_middle():
    assert [layer + 1 for layer in ffn_layers(12, 0.3, "middle")] == [6, 7, 8]
    assert ffn_layers(40, 0.7, "middle") == [*range(6, 34)]
    assert ffn_layers(12, 0.5, "evenly") == [1, 3, 5, 7, 9, 11]
    assert ffn_layers(12, 0.25, "ends") == [0, 1, 11]


def test_fourteen_of_sixteen_widths_of_table_4():
    """The two entries of 10% at d = 1280 are printed one too high."""
    sizes = {"285m-12layer": (12, 4480), "570m-24layer": (24, 4480), "570m-40layer": (40, 3472)}
    sizes |= {"1.2b-40layer": (40, 5040)}
    off = [
        max(ffn_widths(*sizes[row.subject], float(row.ratio), "first")) - row.value
        for row in published("ikeda", table="Table 4", metric="d_ff").itertuples()
    ]
    assert len(off) == 16 and sorted(off) == [-1, -1] + [0] * 14


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("n_layers", [10, 12, 24, 40])
def test_placements_keep_the_parameters(place, n_layers):
    d, d_ff = 64, 176
    for ratio in RATIOS:
        widths = ffn_widths(n_layers, d_ff, ratio, place)
        n = sum(w > 0 for w in widths)
        assert n == len(ffn_layers(n_layers, ratio, place)) == int(n_layers * ratio + 1e-9)
        more = 3 * d * sum(widths) + d * n - (3 * d * d_ff + d) * n_layers
        assert 0 <= more < 3 * d * n  # never below, by less than a unit in each
    alone = ffn_widths(n_layers, d_ff, 0.5, place, expand=False)
    assert {*alone} == {0, d_ff}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("start", [1.25, 1.375, 1.5, 1.625, 1.75])
def test_tapers_are_exact(schedule, start):
    for n_layers in (6, 12, 24, 33, 48):
        for d_ff, multiple in ((128, 2), (2048, 16), (512, 16)):
            w = taper(n_layers, d_ff, start, 2 - start, schedule, multiple)
            assert (w[0], w[-1]) == (start * d_ff, (2 - start) * d_ff)
            assert sum(w) == n_layers * d_ff and len(w) == n_layers
            assert (np.diff(w) <= 0).all() and all(x % multiple == 0 for x in w)
            assert taper(n_layers, d_ff, 2 - start, start, schedule, multiple) == w[::-1]


def test_schedules_are_the_papers_formulas():
    t = np.arange(12) / 11
    cosine = 64 + 64 * (1 + np.cos(np.pi * t))
    sigmoid = 64 + 128 / (1 + np.exp(10 * (t - 0.5)))
    linear = 192 - 128 * t
    for name, formula in {"linear": linear, "cosine": cosine, "sigmoid": sigmoid}.items():
        assert np.abs(np.array(taper(12, 128, 1.5, 0.5, name, 2)) - formula).max() <= 1.0
    assert share_moved(taper(24, 2048, 1.5, 0.5, "linear")) == pytest.approx(0.26 / 2, abs=0.005)


def test_groups_and_shuffles_keep_the_sum():
    early, ends = grouped(12, 128, (1.5, 0.75, 0.75)), grouped(12, 128, (1.25, 0.5, 1.25))
    assert early[:4] == [192] * 4 and sum(early) == sum(ends) == 12 * 128
    assert share_moved(early) == pytest.approx(share_moved(ends)) == pytest.approx(1 / 6)
    assert sorted(shuffled(early, 1)) == sorted(early) and shuffled(early, 1) != early
    assert shuffled(early, 1) == shuffled(early, 1) != shuffled(early, 2)


def test_importance_of_the_worked_example():
    """−2.04% over 20 layers is +0.102 for each of them."""
    score = importance({("final", 0.5): -2.04}, 40)
    raw = np.where(np.arange(40) < 20, 0.102, 0.0)
    assert np.allclose(score, (raw - raw.mean()) / raw.std())


def test_one_unlucky_baseline_alone_gives_the_papers_ranges():
    for n_layers, range_ in ((12, (3, 10)), (24, (4, 21)), (40, (5, 36))):
        same = {(p, r): 1.0 for p in ("first", "middle", "final") for r in RATIOS}
        high = np.flatnonzero(importance(same, n_layers) > 0) + 1
        assert (high.min(), high.max()) == range_ and len(high) == range_[1] - range_[0] + 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ffn_layers(6, 0.1, "first"), "at least 0.167"),
        (lambda: ffn_layers(12, 0.01, "first"), "at least 0.084"),
        (lambda: ffn_layers(13, 0.5, "middle"), "give 12 or 14"),
        (lambda: ffn_layers(12, 0.5, "top"), "unknown place 'top'"),
        (lambda: taper(12, 128, 1.5, 0.6, "cosine", 2), "an end of 0.5"),
        (lambda: taper(12, 128, 1.2, 0.8, "cosine", 16), "a start of 1.25"),
        (lambda: taper(12, 2730, 1.5, 0.5, "cosine"), "d_ff = 2736"),
        (lambda: taper(12, 128, 2.5, -0.5, "cosine", 2), "ends between 0 and 2"),
        (lambda: taper(10, 128, 1.5, 0.5, "steps", 2), "give 9"),
        (lambda: grouped(10, 128, (1.5, 0.75, 0.75)), "give 9"),
        (lambda: grouped(12, 128, (1.5, 1, 1)), "a last one of 0.5"),
    ],
)
def test_what_cannot_be_met_names_what_can(call, words):
    with pytest.raises(InputError, match=words):
        call()
