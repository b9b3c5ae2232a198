"""Gates of many blocks: held-out AUC against scikit-learn and a bootstrap, the choice against its
own definition, and a world of noise."""

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from lib.base import InputError
from lib.gates import (
    GATES,
    MLP,
    Deltas,
    Inputs,
    auc_table,
    best_gates,
    choose_gates,
    clustered_auc,
    deltas,
    fitted_gates,
    gate_scores,
    protocol,
    routed_losses,
)
from lib.models import load_subject
from lib.texts import cut_windows, load_corpus

BLOCKS = (0, 2)


@pytest.fixture(scope="module")
def setting():
    subject, text = load_subject("tiny-gpt2"), load_corpus("wikipedia-sample")
    whole = cut_windows(text.fit, subject.tokenizer, 32)
    unseen = cut_windows(text.eval, subject.tokenizer, 32).take(1024, evenly=True)
    parts = protocol(subject, whole.take(4096), whole, unseen, 1024, 512)
    inputs = Inputs(subject, parts.train, BLOCKS)
    learned = deltas(subject, parts.train, {b: parts.maps[b] for b in BLOCKS})
    return subject, parts, inputs, learned, fitted_gates(inputs, learned)


def test_an_auc_is_scikit_learn_s_and_its_interval_a_bootstrap_over_documents():
    rng = np.random.default_rng(0)
    document = np.repeat(np.arange(60), 20)
    shared = rng.normal(size=60)[document]
    positive = rng.random(1200) < 1 / (1 + np.exp(-shared))
    score = np.round(rng.normal(size=1200) + 0.7 * positive + shared, 1)  # with ties
    found = clustered_auc(score, positive, document)
    assert found.value == pytest.approx(roc_auc_score(positive, score))
    rows = [np.flatnonzero(document == d) for d in range(60)]
    drawn = [np.concatenate([rows[d] for d in rng.integers(60, size=60)]) for _ in range(300)]
    sd = np.std([roc_auc_score(positive[i], score[i]) for i in drawn])
    assert (found.high - found.low) / 2 / 2.0 == pytest.approx(sd, rel=0.2)
    alone = clustered_auc(score, positive, np.arange(1200))
    assert found.high - found.low > 1.2 * (alone.high - alone.low)
    with pytest.raises(InputError, match="both"):
        clustered_auc(score, np.ones(1200, bool), document)


def test_gates_of_many_blocks_are_those_of_each(setting):
    subject, parts, inputs, learned, fitted = setting
    assert fitted.blocks == list(BLOCKS) and fitted.kinds == [*GATES, MLP]
    again = fitted_gates(inputs, learned)
    for unit, gate in fitted.gates.items():
        # Two fits add in another order: on a busy machine their last digits drift apart.
        torch.testing.assert_close(
            again.gates[unit].state_dict(), gate.state_dict(), rtol=1e-2, atol=1e-3
        )
        assert gate.relu == again.gates[unit].relu
    scores = gate_scores(fitted, Inputs(subject, parts.report, BLOCKS))
    x = torch.from_numpy(Inputs(subject, parts.report, [2])(2))
    np.testing.assert_allclose(scores[2, "b=1"], fitted.gates[2, "b=1"].score(x), atol=1e-4)


def test_a_gate_that_knows_the_answer_has_an_auc_of_one_and_noise_one_half(setting):
    subject, parts, inputs, _, _ = setting
    x = Inputs(subject, parts.report, [2])
    known = lambda rows: Deltas(rows[..., 0], {2: rows[..., 3]})
    fitted = fitted_gates(Inputs(subject, parts.train, [2]), known(inputs(2)), ["linear"])
    table = auc_table(fitted, x, known(x(2)), parts.report.document)
    assert table.auc[0] > 0.95 and table.low[0] > 0.9
    rng = np.random.default_rng(1)
    noise = lambda rows: Deltas(rows[..., 0], {2: rng.normal(size=rows.shape[:2])})
    fitted = fitted_gates(Inputs(subject, parts.train, [2]), noise(inputs(2)), ["linear"])
    table = auc_table(fitted, x, noise(x(2)), parts.report.document)
    assert abs(table.auc[0] - 0.5) < 0.07
    assert table.joint_low[0] == table.low[0]  # of one block


def test_the_best_gate_is_the_one_with_the_lowest_loss(setting):
    subject, parts, _, _, fitted = setting
    chosen = choose_gates(subject, parts, fitted)
    assert len(chosen.table) == len(BLOCKS) * len(GATES)
    of = chosen.table[chosen.table.block == 2].set_index("kind")
    assert chosen.kind[2] == of.cost.idxmin() and of.linear_share.between(0, 1).all()
    gate = best_gates(fitted, chosen)[2]
    alone = routed_losses(subject, parts.choose, {"g": {2: (parts.maps[2], gate)}})
    cost = np.expm1((alone.losses["g"] - alone.base).mean())
    assert cost == pytest.approx(of.cost.min(), abs=1e-6)
    only = choose_gates(subject, parts, fitted, ["b=3"])
    assert set(only.kind.values()) == {"b=3"}
    with pytest.raises(InputError, match="unknown gate"):
        choose_gates(subject, parts, fitted, ["b=9"])


def test_inputs_and_deltas_of_other_windows_are_refused(setting):
    subject, parts, _, learned, _ = setting
    with pytest.raises(InputError, match="same windows"):
        fitted_gates(Inputs(subject, parts.report[:3], BLOCKS), learned)
