"""Intervals of what varies in two ways, and overlaps of rankings."""

import numpy as np
import pytest

from lib.base import InputError
from lib.stats import crossed, pooled_half_width, top_overlap
from lib.stats.rules import above, below


def worlds(mean: float, n: int = 200):
    """Tables of three seeds and three draws about `mean`, each side varying by 1."""
    rng = np.random.default_rng(0)
    for _ in range(n):
        rows, columns = rng.normal(size=(3, 1)), rng.normal(size=(1, 3))
        yield crossed(mean + rows + columns + 0.3 * rng.normal(size=(3, 3)))


def test_crossed_intervals_cover_and_decide():
    noise = list(worlds(0))
    inside = np.mean([i.low <= 0 <= i.high for i in noise])
    assert 0.93 <= inside <= 1
    assert {above(i, 0) for i in worlds(30)} == {"reproduced"}
    assert {above(i, 0) for i in worlds(-30)} == {"contradicted"}
    assert np.mean([above(i, 0) != "inconclusive" for i in noise]) <= 0.1


def test_crossed_with_one_side_fixed_is_the_interval_of_the_other():
    """Rows that are all alike add nothing."""
    columns = np.array([1.0, 2.0, 4.0])
    found = crossed(np.tile(columns, (5, 1)))
    half = 4.302653 * columns.std(ddof=1) / 3**0.5
    assert found.high - found.value == pytest.approx(half, rel=1e-6)


@pytest.mark.parametrize("values", [np.ones((3, 3)), np.arange(3.0)[None], np.arange(3.0)[:, None]])
def test_crossed_without_variation_or_a_side_decides_nothing(values):
    assert above(crossed(values), -1) == "inconclusive"


def test_crossed_wants_a_table():
    with pytest.raises(InputError, match="row a seed"):
        crossed([1.0, 2.0])


def test_pooled_width_of_one_part_is_students():
    assert pooled_half_width([(4.0, 10)]) == pytest.approx(2 * 2.228139, rel=1e-6)
    both = pooled_half_width([(np.array([4.0, 0.0]), 10), (np.array([0.0, 0.0]), 1)])
    assert both == pytest.approx([2 * 2.228139, 0], rel=1e-6)


def test_top_overlap_of_same_opposite_and_unrelated_rankings():
    a = np.arange(60.0)
    assert below(top_overlap(a, -a), 0.5) == "reproduced"
    assert below(top_overlap(a, a), 0.5) == "contradicted"
    assert top_overlap(a, a).value == 1
    rng = np.random.default_rng(0)
    chance = np.mean([top_overlap(a, rng.permutation(a)).value for _ in range(100)])
    assert chance == pytest.approx(1 / 6, abs=0.05)
    # Thirty blocks have a top of five, too few to tell none of five from half.
    assert below(top_overlap(a[:30], -a[:30]), 0.5) == "inconclusive"


def test_top_overlap_of_nothing_decides_nothing():
    assert below(top_overlap([1.0], [1.0]), 0.5) == "inconclusive"
    assert below(top_overlap([1.0, 1.0], [1.0, 2.0]), 0.5) == "inconclusive"
    with pytest.raises(InputError, match="paired"):
        top_overlap([1.0, 2.0], [1.0])
