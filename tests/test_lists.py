"""No-Fly lists where types have a need of their own, and where they have none."""

import numpy as np
import pandas as pd
import pytest

from lib.base import InputError
from lib.gates.lists import components, measures, pair, reliabilities, reliability
from lib.gates.lists_error import both_ways, in_words, look_up, means_of, over_both
from lib.gates.lists_worlds import worlds, yardsticks
from lib.stats.dealt import dealt_within

SD = 0.3


def text(seed: int, means: np.ndarray, n: int = 240, t: int = 64):
    """(tokens, δ, document) with frequencies of a long tail and δ of heavy tails."""
    chance = np.random.default_rng(seed)
    tokens = (chance.zipf(1.3, (n, t)) - 1) % len(means)
    delta = 0.02 + means[tokens] + SD / 3**0.5 * chance.standard_t(3, (n, t))
    return tokens, delta, np.arange(n) // 12


@pytest.fixture(scope="module")
def noise():
    means = np.zeros(2000)
    return text(1, means), text(2, means)


@pytest.fixture(scope="module")
def stable():
    means = np.random.default_rng(0).normal(0, 0.1, 2000)
    return text(3, means), text(4, means)


def ones(both):
    return [np.ones(len(side.counts)) for side in (both.first, both.second)]


def test_measures_of_four_types_by_hand():
    tokens = np.repeat(np.arange(4), 10)[None]
    first = tokens, np.repeat([0.2, 0.1, 0.0, -0.1], 10)[None], np.zeros(1)
    second = tokens, np.repeat([0.3, -0.2, 0.1, 0.0], 10)[None], np.zeros(1)
    found = measures(pair(first, second), np.ones(1), np.ones(1))
    assert found["listed"] == found["found"] == 2 and found["frequent"] == 4
    assert found["still"] == found["flipped"] == 0.5
    expected = np.corrcoef([0.2, 0.1, 0.0, -0.1], [0.3, -0.2, 0.1, 0.0])[0, 1]
    assert found["r_frequent"] == pytest.approx(expected)
    assert np.isnan(found["r_listed"]) and np.isnan(found["base_still"])  # too few to say


def test_types_are_matched_where_enough_are_left_unlisted():
    def found(listed: int, types: int = 12):
        means = np.where(np.arange(types) < listed, 0.2, 0.0)
        tokens = np.repeat(np.arange(types), 10)[None]
        text = tokens, np.repeat(means, 10)[None], np.zeros(1)
        return measures(pair(text, text), np.ones(1), np.ones(1))

    few, many = found(4), found(7)
    assert few["matched"] >= 3 and few["lead"] == pytest.approx(0.2) and few["lead_kept"] == 1
    assert [few["times"], few["base_times"]] == pytest.approx([10, 10])
    assert many["matched"] == 0 and np.isnan(many["lead"]) and many["still"] == 1


def test_on_noise_a_list_keeps_nothing_and_flips_as_others_do(noise):
    found = look_up(pair(*noise))
    assert found["r_listed"].low < 0.05 < found["r_listed"].high
    assert found["lead"].low > 0.05 and abs(found["lead_kept"].value) < 0.25
    assert found["flips_less"].low < 0 < found["flips_less"].high
    assert found["still"].value < 0.5 and found["survivors"].value < 1.3


def test_types_with_a_need_of_their_own_carry_over(stable):
    found = look_up(pair(*stable))
    assert found["r_frequent"].low > 0.4 and found["lead_kept"].low > 0.4
    assert found["flips_less"].low > 0.1 and found["still"].value > found["base_still"].value


def test_reliability_is_the_share_of_the_variance_of_means(stable, noise):
    both = pair(*stable)
    n = both.first.counts.sum(0)
    expected = 0.01 / (0.01 + np.mean(SD**2 / n))
    assert reliability(both.first, ones(both)[0], n > 0) == pytest.approx(expected, abs=0.12)
    own, single = components(both.first, ones(both)[0], n > 0)
    assert own == pytest.approx(0.01, rel=0.35) and single == pytest.approx(SD**2, rel=0.5)
    found = reliabilities(both, *ones(both))
    assert found["transfer"] == pytest.approx(1, abs=0.25)
    assert found["ten"] == pytest.approx(0.01 / (0.01 + SD**2 / 10), abs=0.2)
    assert found["ten"] < found["all"] and found["occurrences"] > 10
    silent = pair(*noise)
    assert components(silent.first, ones(silent)[0], silent.kinds >= 0)[0] < 0.002


def test_what_documents_share_is_no_reliability():
    # A token stands in two documents, each with a level of its own: halves of the occurrences
    # would have a covariance of 0.045.
    chance, document = np.random.default_rng(0), np.arange(240) // 2
    level = chance.normal(0, 0.3, 120)[document][:, None]
    tokens = chance.integers(4, size=(240, 64)) + 4 * (document % 60)[:, None]
    text = tokens, level + 0.05 * chance.normal(size=(240, 64)), document
    both = pair(text, text)
    assert abs(components(both.first, ones(both)[0], both.kinds >= 0)[0]) < 0.03


def test_worlds_tell_what_the_counts_could_show(noise, stable):
    looked, tables = {}, []
    for name, texts, world in (("n", noise, "noise"), ("s", stable, "stable")):
        both = pair(*texts)
        tables.append(worlds(both, *texts).assign(text=name))
        table = tables[-1].set_index(["world", "statistic"])
        seen = measures(both, *ones(both))
        for statistic in ("still", "flipped", "r_frequent"):
            row = table.loc[world, statistic]
            assert row.low - 0.1 < seen[statistic] < row.high + 0.1, (world, statistic)
        looked[name] = look_up(both)
    assert table.loc["noise", "r_frequent"].high < table.loc["stable", "r_frequent"].low
    assert table.loc["upper", "r_frequent"]["mean"] > table.loc["stable", "r_frequent"]["mean"]
    asked = {
        "ours-types-uncorrelated": ("r_frequent", "n", "s"),
        "balogh-4.3.3-survivors-reduced": ("survivors", "s"),
    }
    told = yardsticks(asked, looked, pd.concat(tables)).set_index(["statistic", "text"]).tells
    assert told["r_frequent", "s"] and not told["r_frequent", "n"]
    assert not told["survivors", "s"]  # chosen to be above the threshold in both texts


def test_values_are_dealt_within_their_groups():
    groups, values = np.array(["b", "a", "b", "a", "c"]), np.arange(5.0)
    draws = [dealt_within(values, groups, np.random.default_rng(k)) for k in range(20)]
    for name in "abc":
        here = groups == name
        assert all(sorted(d[here]) == sorted(values[here]) for d in draws)
    assert len({tuple(d) for d in draws}) == 4


def test_intervals_have_the_spread_of_new_documents():
    means = np.random.default_rng(0).normal(0, 0.1, 2000)
    values = []
    for k in range(25):
        both = pair(text(100 + k, means), text(200 + k, means))
        values.append(measures(both, *ones(both)))
    found = look_up(both)
    for name in ("still", "r_frequent", "lead_there"):
        spread = np.std([v[name] for v in values])
        half = (found[name].high - found[name].low) / 2 / 2.09  # t of 19
        assert half == pytest.approx(spread, rel=0.6), name


def test_one_document_or_an_undefined_statistic_has_no_bounds(noise):
    tokens, delta, document = noise[0]
    both = pair((tokens, delta, 0 * document), noise[1])
    assert np.isnan(look_up(both)["still"].low)
    found = over_both(lambda a, b: {"none": np.nan}, pair(*noise))["none"]
    assert np.isnan(found.value) and np.isnan(found.high)


def test_single_tokens_and_tables_for_readers(stable):
    both = pair(*stable)
    kinds = both.kinds[:2]
    first = means_of(both, kinds)
    tokens, delta, _ = stable[0]
    assert first[0].value == pytest.approx(delta[tokens == kinds[0]].mean())
    assert len(first) == 4 and means_of(both, np.array([10**6])) is None
    looked = {(0, "s"): look_up(both)}
    row = in_words(looked, ["found", "still"]).iloc[0]
    assert row.found == str(int(looked[0, "s"]["found"].value)) and "[" in row.still
    assert looked[0, "s"]["still"].low >= 0 and looked[0, "s"]["still"].high <= 1


def test_a_word_that_goes_both_ways(noise):
    tokens, delta, document = noise[0]
    kinds = np.array([0, 1, 2])
    found = both_ways(tokens, delta, document, kinds)
    shares = [(delta[tokens == k] > 0.05).mean() for k in kinds]
    assert found.low < np.median(shares) < found.high and found.low > 0.3
    assert both_ways(tokens, np.abs(delta), document, kinds).value == 0


def test_texts_that_do_not_fit_are_one_sentence(noise):
    tokens, delta, document = noise[0]
    with pytest.raises(InputError, match="do not fit"):
        pair((tokens, delta[:, 1:], document), noise[1])
    with pytest.raises(InputError, match="no token stands 10 times"):
        pair((np.arange(20)[None], np.zeros((1, 20)), np.zeros(1)), noise[1])
