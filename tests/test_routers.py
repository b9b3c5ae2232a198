"""Gates beside random and oracle routers: the random router's expectation against many draws, a
world of noise, and statistics where the answer is known."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lib.base import InputError
from lib.gates import (
    GATES,
    Chosen,
    Deltas,
    Inputs,
    auc,
    choose_gates,
    delta_claims,
    deltas,
    fitted_gates,
    gate_scores,
    gated_claims,
    protocol,
    random_mask,
    routed_losses,
    weights,
)
from lib.gates.routers import (
    LABELS,
    LARGER,
    ORACLE,
    Gated,
    RandomRouter,
    at_share,
    first_kept,
    gated,
    larger_gates,
)
from lib.models import load_subject
from lib.texts import cut_windows, load_corpus

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def setting():
    subject, text = load_subject("tiny-gpt2"), load_corpus("wikipedia-sample")
    whole = cut_windows(text.fit, subject.tokenizer, 32)
    unseen = cut_windows(text.eval, subject.tokenizer, 32).take(1024, evenly=True)
    parts = protocol(subject, whole.take(4096), whole, unseen, 1024, 512)
    maps = {b: parts.maps[b] for b in (0, 3)}
    return subject, parts, maps, deltas(subject, parts.report, maps)


@pytest.fixture(scope="module")
def priced(setting):
    subject, parts, maps, found = setting
    inputs = Inputs(subject, parts.train, list(maps))
    fitted = fitted_gates(inputs, deltas(subject, parts.train, maps), GATES)
    scores = gate_scores(fitted, Inputs(subject, parts.report, list(maps)))
    chosen = choose_gates(subject, parts, fitted)
    larger = larger_gates(chosen)
    gate = gated(subject, parts.report, maps, found, scores, fitted, larger, [3])
    return fitted, chosen, larger, gate


def test_a_share_is_exact_and_of_the_highest():
    score = RNG.normal(size=(5, 8))
    mask = at_share(score, 0.3)
    assert mask.sum() == 12 and score[mask].min() > score[~mask].max()
    assert at_share(np.zeros((2, 4)), 0.5).tolist() == [[True] * 4, [False] * 4]
    with pytest.raises(InputError, match="share"):
        at_share(score, 1.2)


def test_a_random_router_is_the_mean_of_many(setting, priced):
    subject, parts, maps, found = setting
    router, draws, share = priced[3].random[0], 24, 0.3
    masks = {k: random_mask(parts.report, share, 100 + k) for k in range(draws)}
    routes = {k: {0: (maps[0], mask)} for k, mask in masks.items()}
    losses = routed_losses(subject, parts.report, routes).losses
    rise = np.array([(losses[k] - found.base).mean() for k in masks])
    error = rise.std(ddof=1) / draws**0.5
    assert router.rise(share).mean() == pytest.approx(rise.mean(), abs=4 * error + 1e-3)
    spread = router.draws(share, 400, 0).mean(1)
    assert spread.mean() == pytest.approx(router.rise(share).mean(), abs=1e-3)
    assert 0.5 < spread.std() / rise.std(ddof=1) < 2
    np.testing.assert_allclose(router.rise(1), found.by_block[0].mean(1), atol=1e-9)
    assert not router.rise(0).any()


def test_a_random_router_that_leaves_first_positions_is_the_mean_of_many(setting, priced):
    subject, parts, maps, found = setting
    args = subject, parts.report, maps, priced[3], "linear"
    drawn = [first_kept(*args, seed=k)[0] for k in range(12)]
    t, share, routes = found.base.shape[1], priced[3].masks[0, "linear"].mean(), {}
    for k in range(24):
        mask = random_mask(parts.report, share * t / (t - 1), 300 + k)
        mask[:, 0] = False
        routes[k] = {0: (maps[0], mask)}
    losses = routed_losses(subject, parts.report, routes).losses
    many = np.array([(losses[k] - found.base).mean() for k in routes])
    assert drawn[0].shape == found.base.shape[:1]
    ours = np.array([rise.mean() for rise in drawn])
    error = np.hypot(ours.std(ddof=1) / 12**0.5, many.std(ddof=1) / 24**0.5)
    assert ours.mean() == pytest.approx(many.mean(), abs=4 * error)


def test_the_control_variate_takes_off_a_draw_s_own_choice():
    delta, base = RNG.normal(0.1, 1, (20, 30)), np.zeros((20, 30))
    drawn = []
    for k in range(20):
        mask = np.random.default_rng(k).random((20, 30)) < 0.5
        drawn.append(RandomRouter.measured(base, mask * delta, mask, delta).rise(0.5).mean())
    np.testing.assert_allclose(drawn, 0.5 * delta.mean(), atol=1e-12)


def test_every_router_is_what_it_says(setting, priced):
    subject, parts, maps, found = setting
    fitted, _, larger, gate = priced
    route = {"gate": {3: (maps[3], fitted.gates[3, "linear"])}}
    alone = routed_losses(subject, parts.report, route).losses["gate"]
    np.testing.assert_allclose(gate.losses[3, "linear"], alone, atol=1e-4)
    share = gate.masks[3, "linear"].mean()
    assert gate.masks[3, LARGER].mean() == pytest.approx(share, abs=1e-3)
    lowest = found.by_block[3][gate.masks[3, ORACLE]]
    assert lowest.max() <= found.by_block[3][~gate.masks[3, ORACLE]].min()
    assert (gate.masks[3, LABELS] == fitted.labels[3].of(found.by_block[3])).all()
    assert (0, LABELS) not in gate.masks and set(larger.values()) <= set(GATES[1:])
    np.testing.assert_allclose(gate.whole()[1], found.by_block[3].mean(1))


def test_a_gate_of_noise_does_not_beat_chance(setting, priced):
    subject, parts, maps, found = setting
    fitted, _, larger, _ = priced
    shape, rng = found.base.shape, np.random.default_rng(7)
    noise = {(b, kind): rng.normal(size=shape) for b in maps for kind in GATES}
    gate = gated(subject, parts.report, maps, found, noise, fitted, larger)
    beats = gated_claims.less_random(gate, "linear")
    assert beats.low < 0 < beats.high
    masks = {b: noise[b, "linear"] > 0 for b in maps}
    tail = gated_claims.around_tail(masks, found.by_block, gate.document)
    assert tail.low < 1 < tail.high


def world(costs: np.ndarray, noise: float = 0.0, n: int = 48) -> Gated:
    """A gated model in which gate k of block b costs costs[k, b] nats at every window, and all
    positions cost twice that of the first gate."""
    rng, t, blocks = np.random.default_rng(3), 10, range(costs.shape[1])
    base, delta, losses, masks, random = np.zeros((n, t)), {}, {}, {}, {}
    for b in blocks:
        delta[b] = np.full((n, t), 2 * costs[0, b])
        for k, kind in enumerate(GATES):
            losses[b, kind] = costs[k, b] + noise * rng.normal(size=(n, 1)) + base
        losses[b, LARGER] = losses[b, "b=6"]
        losses[b, ORACLE] = losses[b, "linear"]
        masks |= {
            (b, kind): np.tile([True, False], (n, t // 2)) for kind in (*GATES, LARGER, ORACLE)
        }
        random[b] = RandomRouter(delta[b].mean(1) / 2, delta[b].mean(1), delta[b])
    return Gated(base, losses, masks, random, delta, np.arange(n) // 2)


def test_which_gate_wins():
    clear = world(np.array([[0.1] * 6, [0.01] * 6, [0.2] * 6, [0.3] * 6]))
    assert gated_claims.dominance(clear).value == 1
    assert gated_claims.wins_of(clear, "b=1", [1, 2, 3]).value == 3
    assert gated_claims.flattery(clear).value == pytest.approx(0, abs=1e-12)
    noisy = world(np.full((4, 12), 0.01), noise=0.1)
    assert gated_claims.flattery(noisy).low > 0
    assert gated_claims.dominance(noisy).value < 0.5
    assert gated_claims.larger_gain(clear).value == pytest.approx(np.expm1(0.1) - np.expm1(0.3))


def test_a_block_with_massive_tokens_rules_no_median():
    costs = np.full((4, 5), 0.1)
    costs[0, 4] = 3.0
    massive = world(costs)
    assert gated_claims.larger_gain(massive).value == pytest.approx(0)
    assert gated_claims.less_random(massive, LARGER).value == pytest.approx(0)
    apart = gated_claims.less_random_by_block(massive, LARGER)
    assert apart[4].value == pytest.approx(np.expm1(0.1) - np.expm1(3)) and apart[4].high < 0
    assert apart[0].value == pytest.approx(0)


def test_gated_against_random_and_oracle():
    skilled = world(np.array([[0.05] * 4, [0.06] * 4, [0.2] * 4, [0.3] * 4]))
    assert gated_claims.less_half(skilled, "linear")[2].value == pytest.approx(
        np.expm1(0.05) - np.expm1(0.1) / 2
    )
    dearer = {b: replace(r, half=r.half * 2) for b, r in skilled.random.items()}
    lucky = replace(skilled, random=dearer)
    assert gated_claims.less_random(lucky, "linear").high < 0
    assert gated_claims.of_oracle(lucky).value == pytest.approx(1)
    worse = {(b, ORACLE): skilled.losses[b, "b=6"] for b in range(4)}
    assert np.isnan(gated_claims.of_oracle(replace(skilled, losses=skilled.losses | worse)).value)
    below = world(np.array([[-0.05] * 4, [0.06] * 4, [0.2] * 4, [0.3] * 4]))
    costs = gated_claims.gated_costs(below, dict.fromkeys(range(4), "linear"))
    assert costs[0].value == pytest.approx(np.expm1(-0.05))
    assert gated_claims.wins_over_chance(below, "b=1").value < 0


def test_a_block_without_a_gate_that_routes_enough_counts_whole():
    found = world(np.array([[0.01] * 3, [0.5] * 3, [0.5] * 3, [0.5] * 3]))
    rows = [
        {"block": b, "kind": k, "cost": 0.1 * i, "linear_share": 0.3 if b else 0.1}
        for b in range(3)
        for i, k in enumerate(GATES)
    ]
    chosen = Chosen({}, pd.DataFrame(rows), None)
    assert gated_claims.routing_a_quarter(found, chosen).value == pytest.approx(np.expm1(0.01))
    none = Chosen({}, chosen.table.assign(linear_share=0.0), None)
    assert gated_claims.routing_a_quarter(found, none).value == pytest.approx(np.expm1(0.02))


def test_the_auc_of_every_gate_for_all_at_once():
    rng, document = np.random.default_rng(8), np.arange(30) // 2
    positive = {b: rng.random((30, 40)) < 0.5 for b in (1, 4)}
    scores = {(b, "linear"): truth.astype(float) for b, truth in positive.items()}
    scores |= {(b, "b=1"): rng.normal(size=(30, 40)) for b in positive}
    found = auc.jointly(scores, positive, ["linear", "b=1"], document)
    assert [*found] == ["block 1, linear", "block 4, linear", "block 1, b=1", "block 4, b=1"]
    assert found["block 4, linear"].value == 1
    alone = auc.clustered_auc(
        scores[1, "b=1"].ravel(), positive[1].ravel(), np.repeat(document, 40)
    )
    joint = found["block 1, b=1"]
    assert joint.value == pytest.approx(alone.value) and joint.low < 0.5 < joint.high
    assert joint.high - joint.low > 1.2 * (alone.high - alone.low)


def test_the_tail_and_who_is_sent_around_it():
    delta = {0: RNG.normal(size=(40, 50)), 1: RNG.normal(size=(40, 50))}
    document = np.arange(40) // 2
    knows = {b: d <= np.quantile(d, 0.9) for b, d in delta.items()}
    assert gated_claims.around_tail(knows, delta, document).value == 0


def test_how_delta_is_distributed():
    document, rng = np.arange(60) // 3, np.random.default_rng(5)
    even = {b: rng.normal(0, 1, (60, 40)) for b in range(3)}
    assert delta_claims.skew(even, document).value == pytest.approx(1, abs=0.15)
    assert delta_claims.cancelled(even, document).value == pytest.approx(1, abs=0.1)
    assert delta_claims.negative(even, document).value == pytest.approx(0.5, abs=0.03)
    assert delta_claims.near_zero(even, document).value == pytest.approx(0.04, abs=0.01)
    skewed = {b: np.exp(d) for b, d in even.items()}
    found = delta_claims.skew(skewed, document)
    assert found.low > 2 and delta_claims.cancelled(skewed, document).value == 0
    middle = delta_claims.quantile(skewed, 0.5, document)
    assert middle.low < 1 < middle.high


def test_two_readings_of_the_same_positions():
    rng = np.random.default_rng(6)
    together = {2: rng.normal(size=(20, 30))}
    positions = rng.random((20, 30)).argsort(1)[:, :3]
    alone = {2: 2 * np.take_along_axis(together[2], positions, 1)}
    (row,) = delta_claims.readings(positions, alone, together).to_dict("records")
    assert row["rank_correlation"] == pytest.approx(1)
    assert row["mean_single"] == pytest.approx(2 * row["mean_all"])
    agree = delta_claims.readings_agree(positions, alone, together, np.arange(20) // 2)
    assert agree.value == pytest.approx(1) and agree.low == pytest.approx(1)


def test_linear_gates_again(setting):
    subject, parts, maps, _ = setting
    inputs, learned = Inputs(subject, parts.train, [3]), deltas(subject, parts.train, maps)
    learned = Deltas(learned.base, {3: learned.by_block[3]})
    fitted = fitted_gates(inputs, learned, ["linear"])
    again = weights.refitted(inputs, learned, fitted)
    assert weights.trained_twice(fitted, again) == 0
    assert again.without.shape == (weights.GROUPS, 1, subject.d_model + 1)
    dealt = weights.of_permuted_labels(inputs, learned, fitted)
    cosine = np.corrcoef(dealt.whole[0, :-1], again.whole[0, :-1])[0, 1]
    assert dealt.whole.shape == again.whole.shape and abs(cosine) < 0.9
    assert weights.first_component(np.ones((5, 4))) == pytest.approx(1)
    assert weights.first_component(np.eye(4, 5)) == pytest.approx(0.25)
