"""Bootstrap over documents: against the t-interval, coverage with few documents, and choices that
one half makes and the other reads."""

import numpy as np
import pytest

from lib.stats import Quantiles, clustered, over_documents, over_halves, weighted_mean

RNG = np.random.default_rng(0)


def test_of_a_mean_it_is_the_clustered_interval():
    document = np.repeat(np.arange(40), 5)
    values = RNG.normal(size=200) + RNG.normal(size=40)[document]
    found = over_documents(lambda w: weighted_mean(values, w), document, resamples=4000)
    expected = clustered(values, document)
    assert found.value == pytest.approx(expected.value)
    assert found.high - found.low == pytest.approx(expected.high - expected.low, rel=0.1)


def test_with_twelve_documents_it_covers():
    document, held = np.repeat(np.arange(12), 2), 0
    for k in range(200):
        values = np.random.default_rng(k).normal(size=12)[document]
        found = over_documents(
            lambda w, values=values: weighted_mean(values, w), document, resamples=300
        )
        held += found.low <= 0 <= found.high
    assert held >= 180


def test_a_choice_on_one_half_is_not_flattered_on_the_other():
    document = np.arange(60)
    noise = RNG.normal(size=(30, 60))  # 30 units that are all alike

    def smallest(choice, read):
        return weighted_mean(noise, read)[weighted_mean(noise, choice).argmin()]

    honest = over_halves(smallest, document)
    flattered = over_documents(lambda w: weighted_mean(noise, w).min(), document)
    assert abs(honest.value) < 0.15 < -flattered.value
    assert honest.low < 0 < honest.high


def test_few_documents_and_undefined_statistics_have_no_bounds():
    assert np.isnan(over_documents(lambda w: w.sum(), np.arange(3)).low)
    assert np.isnan(over_halves(lambda a, b: 1.0, np.arange(3)).value)
    odd = over_documents(lambda w: 1.0 if w[0] == 1 else np.nan, np.arange(30))
    assert odd.value == 1 and np.isnan(odd.high)


def test_weighted_quantiles_are_those_of_the_repeated_rows():
    values = RNG.normal(size=(3, 10, 7))
    weight = RNG.integers(0, 4, 10).astype(float)
    got = Quantiles(values)(weight, 0.05, 0.5, 0.95)
    repeated = np.repeat(values, weight.astype(int), axis=1).reshape(3, -1)
    expected = np.quantile(repeated, [0.05, 0.5, 0.95], axis=1, method="inverted_cdf")
    np.testing.assert_allclose(got, expected)
