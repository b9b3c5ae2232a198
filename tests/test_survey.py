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
    divide_kept,
    ends_over_middle,
    fit_facts,
    gated_costs,
    median_cost,
    medians,
    nearest_pairs,
    on_training_text,
    over_mean_output,
    over_routing,
    overfitting,
    protocol,
    ratio_over_documents,
    ratio_over_seeds,
    ratio_text,
    share_over_seeds,
    spare,
    survey,
    table8,
    unequal_pair,
    unlearned,
    wins,
    wins_table,
    with_rows,
)
from lib.gates.across import by_seed
from lib.gates.printed import BLOCKS
from lib.gates.routers import RandomRouter
from lib.gates.sizes import Priced
from lib.models import load_subject
from lib.texts import cut_windows, load_corpus
from lib.training import SEQUENTIAL, trained_models
from lib.training.switched import drawn


@pytest.fixture(scope="module")
def setting():
    subject, text = load_subject("tiny-neox"), load_corpus("wikipedia-sample")
    whole = cut_windows(text.fit, subject.tokenizer, 32)
    unseen = cut_windows(text.eval, subject.tokenizer, 32).take(512, evenly=True)
    fit = whole.take(4096)
    parts = protocol(subject, fit, whole, unseen, 1024, 256)
    means = fit_facts(subject, fit).means
    return subject, parts, whole, survey(subject, parts, means, [0, 3, 5])


def known(
    costs, name="tiny-gpt2", gated=0.0, n=40, spread=0.01, seed=0, params=1e6, constant=2.0
) -> Survey:
    """A world with these all-linear costs by block; gated ones are `gated` of them, those of a
    constant `constant` of them, those of random routers in proportion to the share."""
    rng, document = np.random.default_rng(seed), np.arange(n) // 2
    base = rng.normal(4, 0.1, (n, 8))
    noise = lambda: spread * rng.normal(size=(n, 8))
    lin = {b: base + np.log1p(c) + noise() for b, c in enumerate(costs)}
    gat = {b: base + np.log1p(gated * c) + noise() for b, c in enumerate(costs)}
    equal = {}
    for j, kind in enumerate(GATES):
        equal |= {(kind, b): base + np.log1p(c * (1 + 0.1 * j)) for b, c in enumerate(costs)}
    fixed = {b: base + np.log1p(constant * c) + noise() for b, c in enumerate(costs)}
    mask = {b: np.arange(8 * n).reshape(n, 8) % 5 < 2 for b in lin}
    whole = {b: (lin[b] - base).mean(1) for b in lin}
    random = {b: RandomRouter(whole[b] / 2, whole[b], lin[b] - base) for b in lin}
    return Survey(
        name,
        False,
        int(params),
        128,
        len(costs),
        document,
        base,
        lin,
        fixed,
        fixed,
        gat,
        dict.fromkeys(lin, "linear"),
        {b: float(-b) for b in lin},
        mask,
        random,
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
    cost = dict(zip([0, 3, 5], 100 * np.expm1(s.rise("gated").mean(1)), strict=True))
    assert row["blocks_are"] == "parallel" and row["best_block"] in cost
    assert row["cost_there"] == pytest.approx(cost[row["best_block"]], abs=6e-4)
    assert s.rise("deleted").shape == s.rise("mean_output").shape == (3, len(parts.report))
    assert set(s.random) == {0, 3, 5} and all(m.dtype == bool for m in s.mask.values())


def test_a_random_router_of_all_positions_is_the_linear_map(setting):
    s = setting[3]
    assert s.by_chance(dict.fromkeys(s.random, 1.0)) == pytest.approx(s.rise("linear"))
    assert np.abs(s.by_chance(dict.fromkeys(s.random, 0.0))).max() < 1e-12
    found = s.priced()
    assert np.array_equal(found.rise(s.kind), s.rise("gated"))
    assert found.shares(s.kind)[1] == pytest.approx(s.share[3])


def test_the_best_block_is_chosen_elsewhere():
    (row,) = table8([known([0.1, 0.2, 0.3], gated=0.5)]).to_dict("records")
    assert row["best_block"] == 2 and row["cost_there"] == pytest.approx(15, abs=1)
    assert row["linear_percent_there"] == pytest.approx(40)


def test_what_stands_beside_a_gate():
    (row,) = medians([known([0.1, 0.2, 0.3], gated=0.1)]).to_dict("records")
    assert row["all_linear"] == pytest.approx(20, abs=1)
    assert row["mean_output"] == pytest.approx(40, abs=1)
    chance = 100 * (1.2**0.4 - 1)
    assert row["random_of_its_shares"] == pytest.approx(chance, abs=1)
    assert row["realised_percent"] == pytest.approx(40)
    (none,) = medians([known([-1e-9] * 3, spread=0)]).to_dict("records")
    assert str(none["all_linear"]) == "0.0"  # no minus zero


def test_wins_beside_chance():
    skilled, lucky = known([0.1] * 4, gated=-0.5), known([-0.1] * 4, gated=0.4)
    a, b = wins_table([skilled, lucky]).to_dict("records")
    assert (a["below_base"], a["low"], a["by_chance"], a["more_low"]) == (4, 4, 0, 4)
    assert b["below_base"] == 4 and b["by_chance"] > 3.9 and b["more_high"] < 0.1


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
    assert np.isnan(by_seed(none, dear, of)).all() and np.isfinite(by_seed(dear, alike, of)).all()
    assert ratio_text(none, dear, of).startswith("undefined (by seed none, none, none); as a diff")


def test_a_divide_that_a_constant_has_too_is_none_beside_it():
    dear = [known([0.2, 0.4, 0.3], seed=k) for k in range(3)]
    cheap = [known([0.1, 0.2, 0.15], seed=9 + k) for k in range(3)]
    gone = ratio_over_seeds(cheap, dear, over_mean_output("linear"))
    assert gone.value == pytest.approx(1, abs=0.1)
    firm = [known([0.1, 0.2, 0.15], seed=9 + k, constant=4.0) for k in range(3)]
    assert ratio_over_seeds(firm, dear, over_mean_output("linear")).high < 0.7
    both = over_mean_output("linear")(known([-0.1] * 3), np.ones(40))
    assert np.isnan(both)  # two medians below 0 make no ratio


def test_what_has_not_learned_decides_nothing():
    models = [known([0.1, 0.2, 0.3], seed=k) for k in range(2)]  # 4 nats
    assert not unlearned(models, 4.5)
    assert "2 of 2 models trained here have not learned" in unlearned(models, 4.1)
    idle = known([0.1, 0.2, 0.3], constant=0.0)
    assert "1 of 3 do not surely lose" in unlearned([*models, idle], 4.5)


def test_wins_are_counted():
    winner, loser = known([0.1, 0.2, 0.3], gated=-0.5), known([0.1, 0.2, 0.3], gated=0.5)
    assert below_base(winner, np.ones(40)) == 1 and below_base(loser, np.ones(40)) == 0
    assert wins(winner).value == 3 and wins(winner).low == 3
    found = share_over_seeds([winner] * 2, [loser, replace(loser, n_params=2)], below_base)
    assert found.value == 1
    half = known([-0.1, -0.1, 0.2, 0.2], gated=0.5)
    wide = share_over_seeds([winner, half], [loser, loser], below_base)
    assert (wide.value, wide.low, wide.high) == (0.75, -1, 1)  # t would say −2.4 to 3.9


def test_routing_against_architecture():
    ones = [known([0.4, 0.8, 0.6], seed=k) for k in range(3)]
    others = [known([0.1, 0.2, 0.15], seed=k) for k in range(3)]
    assert over_routing({"a": ones, "b": others}).value > 4
    alike = [known([0.4, 0.8, 0.6 * (1 + x)], seed=k) for k, x in enumerate((-0.1, 0.1, 0.0))]
    assert over_routing({"a": ones, "b": alike}).value < 0.2
    assert np.isnan(over_routing({"a": ones, "b": [known([-0.1] * 3)] * 3}).value)


def test_a_divide_that_overfitted_maps_make_and_one_that_they_do_not():
    def world(cost, width):
        s = known([cost] * 3, spread=0.001)
        return Priced("m", 1, width, 10_000, s.base, s.linear, s.document)

    same = [world(0.4, 512), world(0.1, 128)]
    assert divide_kept(same, [world(0.3, 512), world(0.1, 128)]).low > 0.5
    assert divide_kept(same, [world(0.11, 512), world(0.1, 128)]).high < 0.5
    assert np.isnan(divide_kept([world(0.1, 512)] * 2, same).value)  # nothing to keep


def test_rows_in_proportion_to_the_width(setting):
    subject, parts, whole, s = setting
    fit = whole.take(4096)
    one = subject, fit, parts.report, [0, 3]
    same, alike = with_rows([one, one], rows=10)
    assert [p.n_tokens for p in alike] == [1280, 1280] and set(alike[0].losses) == {0, 3}
    assert same[0].n_tokens > 3000  # all there are
    wide = replace(s, d_model=256)
    assert unequal_pair([s, s, wide], []) == (s, wide)
    assert unequal_pair([s, wide], [(s, s)]) is None


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
