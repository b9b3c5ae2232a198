"""Rows whose means are statistics: against scikit-learn, scipy and a bootstrap over clusters."""

import numpy as np
import pytest
from scipy.stats import pearsonr
from sklearn.metrics import roc_auc_score

from lib.base import InputError
from lib.stats import clustered
from lib.stats.rows import auc_rows, pearson_rows


@pytest.fixture
def grouped():
    rng = np.random.default_rng(0)
    cluster = np.repeat(np.arange(40), 25)
    shared = rng.normal(size=40)[cluster]
    score = shared + rng.normal(size=1000)
    return score, score + 0.8 * shared + 2 * rng.normal(size=1000), cluster


@pytest.mark.parametrize("ties", [False, True])
def test_area_is_scikit_learn_s(grouped, ties):
    score, other, _ = grouped
    score = score.round() if ties else score
    assert auc_rows(other > 0, score).mean() == pytest.approx(roc_auc_score(other > 0, score))


def test_correlation_is_scipy_s(grouped):
    a, b, _ = grouped
    assert pearson_rows(a, b).mean() == pytest.approx(pearsonr(a, b).statistic)
    assert np.isnan(pearson_rows(a, np.ones_like(a))).all()


@pytest.mark.parametrize("what", ["area", "correlation"])
def test_intervals_are_those_of_a_bootstrap_over_clusters(grouped, what):
    a, b, cluster = grouped
    statistic = {
        "area": lambda i: roc_auc_score(b[i] > 0, a[i]),
        "correlation": lambda i: pearsonr(a[i], b[i]).statistic,
    }[what]
    rows = auc_rows(b > 0, a) if what == "area" else pearson_rows(a, b)
    rng, at = np.random.default_rng(1), np.arange(1000).reshape(40, 25)
    draws = [statistic(at[rng.integers(40, size=40)].ravel()) for _ in range(400)]
    i = clustered(rows, cluster)
    assert (i.high - i.low) / 4.05 == pytest.approx(np.std(draws), rel=0.2)


def test_bad_rows_are_one_sentence():
    with pytest.raises(InputError, match="of one class"):
        auc_rows(np.ones(4, bool), np.arange(4))
    with pytest.raises(InputError, match="do not fit"):
        auc_rows(np.ones(4, bool), np.arange(3))
    with pytest.raises(InputError, match="cannot be paired"):
        pearson_rows(np.ones(4), np.arange(3))
