"""Profiles on several texts: statistics with known answers, on true, false and noisy worlds."""

import numpy as np
import pandas as pd
import pytest

from lib.base import TINY, InputError
from lib.linear import (
    agreement,
    block_shifts,
    leads,
    models_over_texts,
    same_ends,
    scores_of,
    side_by_side,
    transfer_loss,
    turns_of,
)
from lib.models import companions
from lib.stats import control_passes, judge
from lib.swaps import ProductCosts, printed_elsewhere

DEEP = np.random.default_rng(1).uniform(0.2, 0.95, 30)
"""a profile of thirty blocks"""


def folds_around(profile, noise=0.02, shared=0.02, seed=0, n_folds=5):
    """R² [n_folds, ...]: noise of each block, and some that all blocks of a fold share."""
    rng, profile = np.random.default_rng(seed), np.asarray(profile, float)
    alike = rng.normal(0, shared, (n_folds, *[1] * profile.ndim))
    return profile + alike + rng.normal(0, noise, (n_folds, *profile.shape))


def profiles_of(**domains):
    """domain_profiles of arrays [n_folds, n_blocks]."""
    frames = []
    for name, r2 in domains.items():
        fold, block = (index.ravel() for index in np.indices(r2.shape))
        frames.append(
            pd.DataFrame({"domain": name, "block": block, "fold": fold, "r2": r2.ravel()})
        )
    return pd.concat(frames, ignore_index=True)


def verdict(id, table, measure):
    return judge(id, table[table.measure == measure].set_index("domain")).verdict


CLAIMS = {
    "pearson": "whipp-5.7-profiles-track",
    "spearman": "whipp-5.7-spearman",
    "mean_shift": "whipp-5.7-mean-shift",
}


@pytest.mark.parametrize("measure", CLAIMS)
def test_a_profile_that_tracks_itself_is_told_from_one_that_does_not(measure):
    home, other = folds_around(DEEP), folds_around(DEEP + 0.02, seed=1)
    true = agreement(profiles_of(a=home, b=other), "a")
    assert verdict(CLAIMS[measure], true, measure) == "reproduced"
    false = agreement(profiles_of(a=home, b=folds_around(DEEP[::-1], seed=1)), "a")
    assert verdict(CLAIMS[measure], false, measure) == "contradicted"


@pytest.mark.parametrize("measure", CLAIMS)
def test_where_two_samples_of_one_flat_profile_differ_by_noise_the_control_fails(measure):
    flat = np.full(30, 0.5)
    parts = {d: folds_around(flat, noise=0.4, seed=k) for k, d in enumerate("abc")}
    found = agreement(profiles_of(**parts), "a")
    control = found[(found.domain == "b") & (found.measure == measure)].value.item()
    assert not control_passes(CLAIMS[measure], control)
    assert control_passes("whipp-5.7-spearman", 0.95) and control_passes("whipp-5.7-mean-shift", 0)


def test_agreement_of_known_profiles():
    r2 = np.array([0.1, 0.5, 0.9, 0.3, 0.7])
    one, two = folds_around(r2, 0.01, seed=0), folds_around(r2, 0.01, seed=1)
    one, two = one - one.mean(0) + r2, two - two.mean(0) + r2 * 0.5 + 0.2
    found = agreement(profiles_of(a=one, b=two), "a").set_index("measure")
    assert found.value.to_dict() == pytest.approx(
        {"pearson": 1, "spearman": 1, "mean_shift": abs(r2 * 0.5 - 0.2).mean()}
    )
    assert (found.low.dropna() < found.value[found.low.notna()]).all()
    with pytest.raises(InputError, match="unknown domain 'c'"):
        agreement(profiles_of(a=one, b=two), "c")


@pytest.mark.parametrize("n_blocks", [1, 2, 3])
def test_few_blocks_decide_nothing_about_order(n_blocks):
    parts = {d: folds_around(DEEP[:n_blocks], seed=k) for k, d in enumerate("ab")}
    profiles = profiles_of(**parts)
    found = agreement(profiles, "a")
    assert verdict(CLAIMS["spearman"], found, "spearman") == "inconclusive"
    assert all(np.isnan(i.low) for i in turns_of(profiles, ["b"]).values())
    assert len(block_shifts(profiles, "a", ["b"])) == n_blocks
    assert np.isnan(same_ends(profiles, "a", ["b"])["b"].low) == (n_blocks == 1)


def test_the_largest_shift_allows_for_the_choice_of_its_block():
    """Twelve blocks of which one moved: joint intervals cover all in 95 of 100 cases."""
    rng, covered = np.random.default_rng(0), 0
    truth = {f"b, block {k}": 0.08 * (k == 3) for k in range(12)}
    for _ in range(40):
        # What the folds share, and what they do not see, is what makes the variance of their mean
        # s² (1/5 + 1/4).
        one, two = (
            0.5 + 0.02 * (rng.normal(size=(5, 12)) + 0.5 * rng.normal(size=12)) for _ in range(2)
        )
        two[:, 3] += 0.08
        units = block_shifts(profiles_of(a=one, b=two), "a", ["b"])
        covered += all(i.low <= truth[unit] <= i.high for unit, i in units.items())
    assert covered >= 37


def test_a_large_shift_of_one_block_is_seen_and_a_small_one_everywhere_too():
    home, moved = folds_around(DEEP, 0.005, 0.005), DEEP.copy()
    moved[4] = 1 - moved[4] if abs(1 - 2 * moved[4]) > 0.3 else moved[4] - 0.35
    judged = [
        judge(
            "whipp-5.7-worst-shift",
            block_shifts(profiles_of(a=home, b=folds_around(p, s, s, seed=1)), "a", ["b"]),
        ).verdict
        for p, s in ((moved, 0.005), (DEEP + 0.02, 0.005), (DEEP, 0.2))
    ]
    assert judged == ["contradicted", "reproduced", "inconclusive"]


def test_ends_chosen_on_the_reference_are_read_on_the_other_text():
    home = folds_around(DEEP)
    judged = [
        judge(
            "whipp-5.7-heterogeneous-everywhere",
            same_ends(profiles_of(a=home, b=folds_around(p, s, seed=1)), "a", ["b"]),
        ).verdict
        for p, s in ((DEEP, 0.02), (np.full(30, 0.5), 0.02), (np.full(30, 0.5), 0.5))
    ]
    assert judged == ["reproduced", "contradicted", "inconclusive"]


def test_turns_are_counted_on_each_text():
    zigzag = np.where(np.arange(12) % 4 < 2, 0.2, 0.9)
    parts = {"a": folds_around(zigzag), "b": folds_around(np.linspace(0.1, 0.95, 12), 0.001, 0.001)}
    found = turns_of(profiles_of(**parts), ["a", "b"])
    assert found["a"].low >= 2 and found["b"].high == 0


def worlds(models, texts, noise=0.01):
    """{text: R² [n_folds, n_models, n_blocks]} of profiles that models and texts move by so
    much."""
    rng, n = np.random.default_rng(3), 3
    of_model = rng.normal(0, models, (n, 12))
    return {
        text: folds_around(0.5 + of_model + rng.normal(0, texts, (1, 12)), noise, noise, seed=k)
        for k, text in enumerate("abc")
    }


@pytest.mark.parametrize(
    "models, texts, noise, expected",
    [
        (0.3, 0.02, 0.01, "reproduced"),
        (0.02, 0.3, 0.01, "contradicted"),
        (0.0, 0.0, 0.1, "inconclusive"),
    ],
)
def test_models_and_texts_are_weighed(models, texts, noise, expected):
    found = models_over_texts(worlds(models, texts, noise), "a")
    assert judge("whipp-5.7-property-of-model", found).verdict == expected


def test_one_model_is_no_comparison():
    with pytest.raises(InputError, match=r"1 model\(s\) on 3 text"):
        models_over_texts({t: s[:, :1] for t, s in worlds(0.1, 0.1).items()}, "a")


@pytest.mark.parametrize(
    "second, noise, expected",
    [
        (DEEP[::-1], 0.01, "reproduced"),
        (DEEP - 0.1, 0.01, "contradicted"),
        (DEEP, 1.0, "inconclusive"),
    ],
)
def test_leads_are_read_where_they_were_not_chosen(second, noise, expected):
    both = np.stack([DEEP, second])
    scores = {t: folds_around(both, noise, noise, seed=k) for k, t in enumerate("abc")}
    found = leads(scores, "a")
    assert list(found) == ["b", "c"]
    assert judge("whipp-5.7-crossing-everywhere", found).verdict == expected


def test_models_stand_side_by_side_in_their_order():
    one, two = (profiles_of(a=folds_around(DEEP, seed=k), b=folds_around(DEEP)) for k in (0, 1))
    found = side_by_side({"one": one, "two": two})
    assert found["a"].shape == (5, 2, 30)
    assert np.allclose(found["a"][:, 1], scores_of(two)["a"])
    shallow = profiles_of(a=folds_around(DEEP[:6]))
    with pytest.raises(InputError, match="give models of equal depth"):
        side_by_side({"one": one, "shallow": shallow})


@pytest.mark.parametrize(
    "loss, noise, expected",
    [(0.02, 0.005, "reproduced"), (0.2, 0.005, "contradicted"), (0.02, 0.2, "inconclusive")],
)
def test_what_a_map_loses_elsewhere_is_paired_by_fold(loss, noise, expected):
    profiles = profiles_of(a=folds_around(DEEP), b=folds_around(DEEP, shared=0.3, seed=1))
    moved = profiles[profiles.domain == "b"].rename(columns={"domain": "scored_on"})
    extra = np.random.default_rng(0).normal(0, noise, 5)[moved.fold]
    moved = moved.assign(fit_on="a", r2=moved.r2 - loss + extra)
    # Rows of other maps are not looked at.
    moved = pd.concat([moved, moved.assign(fit_on="b", r2=0.0)])
    found = transfer_loss(profiles, moved, "a", ["b"])
    assert found["b"].value == pytest.approx(loss - extra.reshape(-1, 30)[:, 0].mean())
    assert judge("ours-map-transfers", found).verdict == expected


def test_companions_are_the_papers_three_the_small_ones_or_null():
    assert companions("pythia-160m")[0] == "gpt2"
    assert companions("smollm2-135m") == TINY == companions("tiny-llama")
    assert all(name.endswith(":random") for name in companions("tiny-gpt2:random"))


def test_printed_numbers_go_to_the_claims_about_them():
    apart = agreement(profiles_of(a=folds_around(DEEP), **{"moby-dick": folds_around(DEEP)}), "a")
    by_domain = pd.DataFrame(
        {
            "domain": ["wikitext-2", "moby-dick"],
            "block": [0, 0],
            "mean": 0.9,
            "low": 0.8,
            "high": 1.0,
        }
    )
    base, swapped = np.full((4, 3), np.log(50.0)), np.full((4, 3), np.log(125.0))
    losses = {(0, "linear"): swapped, (0, "bilinear"): base}
    priced = {"moby-dick": ProductCosts(None, None, base, losses)}

    class Sample:
        document = np.arange(4)

    args = {"llama-160m": apart}, by_domain, priced, {"moby-dick": Sample}
    found = {id: (i.value, about) for id, i, about in printed_elsewhere("llama-160m", *args)}
    about = {"model": "llama-160m", "corpus": "moby-dick"}
    assert found["whipp-5.7-moby-llama-0-linear"] == (pytest.approx(75), about)
    assert found["whipp-5.7-moby-llama-0-poly"] == (pytest.approx(0), about)
    assert found["whipp-5.7-moby-llama-0-r2"] == (0.9, about)
    assert "whipp-5.7-r-moby-llama" in found and len(found) == 4
    assert not list(printed_elsewhere("tiny-gpt2", {"tiny-gpt2": apart}, *args[1:]))
