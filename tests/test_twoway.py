"""Intervals of what varies in two ways."""

import numpy as np
import pytest

from lib.base import InputError
from lib.stats import (
    clustered,
    crossed,
    influence,
    pooled_half_width,
    seeds_and_documents,
    seeds_by_documents,
    seeds_by_documents_jointly,
)
from lib.stats.rules import above

DOCUMENT = np.repeat(np.arange(12), 3)


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
    """Draws that are all alike add nothing; seeds that are reach nothing, which decides nothing."""
    seeds = np.array([1.0, 2.0, 4.0])
    found = crossed(np.tile(seeds[:, None], (1, 5)))
    half = 4.302653 * seeds.std(ddof=1) / 3**0.5
    assert found.high - found.value == pytest.approx(half, rel=1e-6)
    assert np.isnan(crossed(np.tile(seeds, (5, 1))).low)


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


@pytest.mark.parametrize("seed_std, document_std", [(1.0, 0.0), (0.3, 1.0), (0.0, 1.0)])
def test_seeds_and_documents_cover_what_both_vary(seed_std, document_std):
    """On crossed worlds of three seeds and 16 documents the interval holds the truth 19 in 20."""
    rng, hits = np.random.default_rng(1), 0
    for _ in range(400):
        table = 0.7 + seed_std * rng.normal(size=(3, 1)) + document_std * rng.normal(size=(1, 16))
        table = table + 0.1 * rng.normal(size=(3, 16))
        means = table.mean(0)
        found = seeds_and_documents(table.mean(1), influence(means, np.ones(16)))
        hits += found.low <= 0.7 <= found.high
    assert hits / 400 >= 0.92


def test_seeds_and_documents_need_two_of_each():
    some = np.array([0.1, -0.1])
    assert np.isnan(seeds_and_documents([0.5], some).low)
    assert np.isnan(seeds_and_documents([0.5, 0.6], some[:1]).low)
    assert np.isnan(seeds_and_documents([0.5, 0.5], 0 * some).low)
    assert seeds_and_documents(0.5, some).low < 0.5  # a closed form: documents alone


def test_seeds_and_documents_both_widen_an_interval():
    """The interval covers the truth at its level, where either source alone would not."""
    rng, held, alone = np.random.default_rng(6), [], []
    for _ in range(400):
        shared = rng.normal(0, 1, 12)[DOCUMENT]
        values = rng.normal(0, 0.4, (3, 1)) + shared + rng.normal(0, 0.5, (3, len(DOCUMENT)))
        found, text = seeds_by_documents((values, DOCUMENT)), clustered(values[0], DOCUMENT)
        held.append(found.low <= 0 <= found.high)
        alone.append(text.low <= 0 <= text.high)
    assert np.mean(alone) < 0.92 < 0.93 <= np.mean(held)


def test_two_samples_add_up_and_unfit_ones_are_refused():
    rng = np.random.default_rng(7)
    values = rng.normal(1, 0.1, (3, 36))
    both = seeds_by_documents((values, DOCUMENT), (-values + 1, DOCUMENT + 5))
    assert both.value == pytest.approx(1) and both.low < 1 < both.high
    assert np.isnan(seeds_by_documents((values[:1], DOCUMENT)).low)  # one seed
    assert np.isnan(
        seeds_by_documents((np.ones((3, 36)) + values[0], DOCUMENT)).low
    )  # seeds that agree
    assert np.isnan(seeds_by_documents((values, np.zeros(36))).low)  # one document
    units = seeds_by_documents_jointly({"a": values, "b": values}, DOCUMENT)
    assert units["a"].high - units["a"].low > seeds_by_documents((values, DOCUMENT)).high - 1
    with pytest.raises(InputError, match="same seeds"):
        seeds_by_documents((values, DOCUMENT), (values[:2], DOCUMENT))
