"""One model's survey, families compared, and what is printed of them."""

from dataclasses import replace

import numpy as np
import pytest

from lib.base import InputError
from lib.gates import (
    GATES,
    SIX,
    TIERS,
    Survey,
    base_miss,
    below_base,
    difference_over_seeds,
    ends_over_middle,
    gated_costs,
    median_cost,
    nearest_pairs,
    on_training_text,
    over_routing,
    overfitting,
    protocol,
    ratio_over_documents,
    ratio_over_seeds,
    spare,
    survey,
    table8,
    wins,
)
from lib.gates.printed import BLOCKS
from lib.models import load_subject
from lib.texts import cut_windows, load_corpus
from lib.training import SEQUENTIAL, trained_models
from lib.training.switched import drawn


@pytest.fixture(scope="module")
def setting():
    subject, text = load_subject("tiny-neox"), load_corpus("wikipedia-sample")
    whole = cut_windows(text.fit, subject.tokenizer, 32)
    unseen = cut_windows(text.eval, subject.tokenizer, 32).take(512, evenly=True)
    parts = protocol(subject, whole.take(4096), whole, unseen, 1024, 256)
    return subject, parts, whole, survey(subject, parts, [0, 3, 5])


def known(costs, name="tiny-gpt2", gated=0.0, n=40, spread=0.01, seed=0, params=1e6) -> Survey:
    """A world with these all-linear costs by block; gated ones are `gated` of them."""
    rng, document = np.random.default_rng(seed), np.arange(n) // 2
    base = rng.normal(4, 0.1, (n, 8))
    noise = lambda: spread * rng.normal(size=(n, 8))
    lin = {b: base + np.log1p(c) + noise() for b, c in enumerate(costs)}
    gat = {b: base + np.log1p(gated * c) + noise() for b, c in enumerate(costs)}
    equal = {}
    for j, kind in enumerate(GATES):
        equal |= {(kind, b): base + np.log1p(c * (1 + 0.1 * j)) for b, c in enumerate(costs)}
    share = {b: np.full(n, 0.4) for b in lin}
    return Survey(
        name,
        False,
        int(params),
        128,
        len(costs),
        document,
        base,
        lin,
        gat,
        dict.fromkeys(lin, "linear"),
        share,
        {},
        equal,
        dict.fromkeys(equal, 0.4),
        None,
    )


def test_a_survey_measures_what_it_says(setting):
    _, parts, _, s = setting
    assert s.parallel and s.n_blocks == 6 and sorted(s.gated) == [0, 3, 5]
    assert s.rise("linear").shape == (3, len(parts.report))
    assert s.rise("equal", "linear").shape == (3, len(parts.report))
    for share in s.equal_share.values():
        assert share == pytest.approx(0.4, abs=0.25)  # cut on other documents
    (row,) = table8([s]).to_dict("records")
    cost = 100 * np.expm1(s.rise("gated").mean(1))
    assert row["best_cost"] == cost.min() and row["blocks_are"] == "parallel"
    assert row["below_base"] == (cost < 0).sum()


def test_families_that_differ_and_families_that_do_not():
    dear = [known([0.2, 0.4, 0.3], seed=k) for k in range(3)]
    cheap = [known([0.1, 0.2, 0.15], seed=9 + k) for k in range(3)]
    of = median_cost("linear")
    half = ratio_over_seeds(cheap, dear, of)
    assert half.value == pytest.approx(0.5, abs=0.05) and half.high < 0.72
    alike = [known([0.2, 0.4, 0.3], seed=20 + k) for k in range(3)]
    equal = ratio_over_seeds(dear, alike, of)
    assert equal.low < 1.05 and equal.high > 0.95
    same = ratio_over_documents([(cheap[0], dear[0])], of)
    assert same.low < 0.5 < same.high < 0.72
    none = [known([-0.1, -0.2, -0.1], seed=k) for k in range(3)]
    assert np.isnan(ratio_over_seeds(none, dear, of).value)


def test_wins_are_counted():
    winner, loser = known([0.1, 0.2, 0.3], gated=-0.5), known([0.1, 0.2, 0.3], gated=0.5)
    assert below_base(winner, np.ones(40)) == 1 and below_base(loser, np.ones(40)) == 0
    assert wins(winner).value == 3 and wins(winner).low == 3
    found = difference_over_seeds([winner] * 2, [loser, replace(loser, n_params=2)], below_base)
    assert found.value == 1


def test_routing_against_architecture():
    ones = [known([0.4, 0.8, 0.6], seed=k) for k in range(3)]
    others = [known([0.1, 0.2, 0.15], seed=k) for k in range(3)]
    assert over_routing({"a": ones, "b": others}).value > 4
    assert over_routing({"a": ones, "b": ones}).value == 0


def test_ends_that_cost_more():
    u = known([0.5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.5], "u")
    flat, fall = known([0.2] * 8, "flat"), known([0.5, *[0.1] * 7], "falling")
    found = ends_over_middle([u, flat, fall])
    assert found["u"].low > 1 and found["flat"].low < 0 < found["flat"].high
    assert found["falling"].low < 0.5


def test_overfitting_where_it_is_and_where_it_is_not():
    s = known([0.1, 0.2, 0.3], gated=-0.5, n=80)
    document = np.arange(30) // 2
    rng = np.random.default_rng(0)
    equal = np.log1p(-0.5 * np.array([[0.1], [0.2], [0.3]])) + 0.01 * rng.normal(size=(3, 30))
    gone = overfitting([(s, equal + 0.1, document)])
    assert gone.low > 0
    stays = overfitting([(s, equal, document)])
    assert stays.low < 0 < stays.high
    assert overfitting([(known([0.1, 0.2], gated=0.5), equal[:2], document)]) is None


def test_spare_windows_are_of_no_sample(setting):
    subject, parts, whole, s = setting
    own = spare(whole, parts, 256)
    assert own is not None
    used = {tuple(w) for p in (parts.train, parts.choose, parts.report) for w in p.tokens.tolist()}
    assert not used & {tuple(w) for w in own.tokens.tolist()}
    assert own.n_documents > 1 and len(own) == 8
    assert on_training_text(subject, parts, s, own).shape == (3, len(own))


def test_what_is_printed_is_of_the_paper_s_models(setting):
    s = setting[3]
    assert base_miss(s) is None
    medium = known([0.1] * 24, "gpt2-medium")
    medium.base[:] = np.log(34.8)
    assert base_miss(medium).value == pytest.approx(0, abs=1e-9)
    assert wins(known([0.1] * 24, "gpt2-medium", gated=-0.1)).value == 23  # block 0 does not count
    assert gated_costs(s, [1]) is None and set(gated_costs(s)) == {0, 3, 5}
    assert sum(map(len, TIERS.values())) == 31 and set(BLOCKS) == set(SIX)
    pairs = nearest_pairs(
        [
            known([0.1], n, params=p)
            for n, p in (
                ("gpt2-medium", 345e6),
                ("gpt2-large", 774e6),
                ("pythia-160m", 162e6),
                ("pythia-410m", 405e6),
                ("pythia-1b", 1012e6),
            )
        ]
    )
    assert [b.model for _, b in pairs] == ["pythia-410m", "pythia-1b"]


def test_the_switch_is_the_only_difference():
    one, other = drawn("tiny-neox", 4096, 7), drawn(SEQUENTIAL, 4096, 7)
    a, b = one.state_dict(), other.state_dict()
    assert a.keys() == b.keys() and all(bool((a[k] == b[k]).all()) for k in a)
    assert one.config.use_parallel_residual and not other.config.use_parallel_residual


def test_models_trained_here_are_subjects_and_repeat():
    tokenizer, text = load_subject("tiny-gpt2").tokenizer, load_corpus("wikipedia-sample")
    data = cut_windows(text.fit, tokenizer, 32)
    recipe = data, data.take(64), tokenizer, 2, 2
    found = trained_models([("tiny-neox", 1), (SEQUENTIAL, 1)], *recipe)
    assert found["tiny-neox", 1].parallel and not found[SEQUENTIAL, 1].parallel
    again = trained_models([("tiny-neox", 1)], *recipe)["tiny-neox", 1]
    assert again.key == found["tiny-neox", 1].key != found[SEQUENTIAL, 1].key
    with pytest.raises(InputError, match="family"):
        trained_models([("tiny-mamba", 1)], *recipe)
