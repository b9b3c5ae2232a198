"""Losses by document: by hand, and against statistics of the rows they were summed from."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from lib.errors import InputError
from lib.stats import (
    contrast_of_correlations,
    contrasts_table,
    interval,
    rank_correlations,
)
from lib.swap.losses import Losses, of_tables

RNG = np.random.default_rng(0)
N = RNG.integers(50, 200, 12)
BASE = N * 3.0 + RNG.normal(size=12)
ADDED = {b: N * 0.1 * (b + 1) + RNG.normal(size=12) for b in range(5)}


@pytest.fixture
def losses() -> Losses:
    changed = {(b, "affine"): BASE + added for b, added in ADDED.items()}
    changed |= {(b, "mean"): BASE + 2 * added for b, added in ADDED.items()}
    return Losses(np.arange(12), N, BASE, changed)


def test_a_replacement_adds_what_its_sums_say(losses):
    by_hand = ADDED[1].sum() / N.sum()
    assert losses.perplexity == pytest.approx(np.exp(BASE.sum() / N.sum()))
    assert losses.difference((1, "affine")).value == pytest.approx(by_hand)
    assert losses.difference((1, "mean"), (1, "affine")).value == pytest.approx(by_hand)
    assert losses.change((1, "affine")).value == pytest.approx(np.expm1(by_hand))
    assert losses.nats("affine")[1] == pytest.approx(by_hand)
    assert losses.nats("affine").index.tolist() == [0, 1, 2, 3, 4]


def test_the_table_has_a_row_a_replacement_and_joint_intervals(losses):
    table = losses.table().set_index(["swap", "block"])
    assert len(table) == 10 and not table.isna().any().any()
    joint = losses.difference((2, "mean"), level=1 - 0.05 / 5)
    assert table.loc[("mean", 2), "low"] == pytest.approx(joint.low)
    assert joint.low < losses.difference((2, "mean")).low


def test_a_contrast_is_of_medians_or_means_on_the_same_documents(losses):
    each = {b: ADDED[b].sum() / N.sum() for b in ADDED}
    medians = losses.contrast("affine", [0, 1, 2], [3, 4])
    assert medians.value.value == pytest.approx(each[1])
    assert medians.against.value == pytest.approx((each[3] + each[4]) / 2)
    assert medians.difference.value == pytest.approx(medians.value.value - medians.against.value)
    means = losses.contrast("affine", [0, 1, 2], [3, 4], over="mean")
    assert means.value.value == pytest.approx(np.mean([each[b] for b in range(3)]))
    other = losses.contrast("mean", [0, 1], to="affine", over="mean")
    assert other.against.value == pytest.approx((each[0] + each[1]) / 2)
    # The difference of the paired draws, by a second road.
    added = ADDED[0] + ADDED[1]
    by_hand = interval(lambda w: (w @ added) / (w @ N) / 2, np.arange(12))
    assert [*other.difference] == pytest.approx([*by_hand])


def test_a_change_against_another_and_the_cheapest(losses):
    found = losses.against((3, "affine"), (3, "mean"))
    assert found.value.value == pytest.approx(losses.change((3, "affine")).value)
    assert found.difference.high < 0
    assert losses.cheapest("affine", [2, 1, 4]) == 1


def test_losses_are_read_from_kept_tables(losses):
    def table(sums):
        return pd.DataFrame({"document": np.arange(12), "sum": sums, "predictions": N})

    changed = {key: table(sums) for key, sums in losses.changed.items()}
    again = of_tables(table(BASE), changed)
    assert again.table().equals(losses.table())


def test_rank_correlations_are_scipys_and_lead_as_paired_ones_do():
    signals = pd.DataFrame(RNG.normal(size=(30, 3)), columns=["a", "b", "cost"])
    signals["b"] += signals.cost
    table = rank_correlations(signals, "cost", against="b")
    for name in "ab":
        rho = scipy.stats.spearmanr(signals[name], signals.cost).statistic
        assert table.rho[name] == pytest.approx(rho)
    pairs = [(signals[name], signals.cost) for name in "ab"]
    found = contrast_of_correlations(*pairs, ranks=True)
    row = table.loc["a"]
    assert [row.rho, row.low, row.high] == pytest.approx([*found.value])
    assert [row.lead, row["lead low"], row["lead high"]] == pytest.approx([*found.difference])
    assert table.loc["b", ["lead", "lead low", "lead high"]].tolist() == [0, 0, 0]
    shown = contrasts_table({"a": found})
    assert shown["difference low"][0] == found.difference.low and len(shown) == 1


def test_what_was_not_measured_is_refused_with_what_was(losses):
    with pytest.raises(InputError, match="unknown replacement"):
        losses.difference((0, "no such swap"))
