"""Gates and regressions in worlds where need lies with the token, with the context, or nowhere."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch

from lib.base import InputError
from lib.gates import context, depth, fit_gate, labels
from lib.gates.delta import Deltas
from lib.gates.features import FEATURES, Described
from lib.gates.readout import read_out
from lib.gates.streams import Split
from lib.gates.types import type_means, variances
from lib.gates.variance_explained import REGRESSORS, explained, explained_by_token
from lib.gates.words import TYPES
from lib.stats import clustered
from lib.texts import Windows

D, N_TYPES = 12, 30


@dataclass
class World:
    """Streams that are given, not captured."""

    windows: Windows
    split: Split
    name: str

    def key(self, block):
        return {"world": self.name, "block": block}

    def __call__(self, block):
        return self.split


def world(name: str, seed: int, need, n: int = 120, t: int = 33) -> context.Sample:
    """x = e of the token + a context of its own; δ = need(token, context) + noise."""
    shared, chance = np.random.default_rng(0), np.random.default_rng(seed)
    table = shared.normal(size=(N_TYPES, D)).astype(np.float32)
    tokens = chance.integers(N_TYPES, size=(n, t))
    e = table[tokens[:, :-1]]
    c = chance.normal(size=(n, t - 1, D)).astype(np.float32)
    delta = need(tokens[:, :-1], c) + 0.3 * chance.normal(size=(n, t - 1))
    split = Split(e + c, e + c, e, e, c)
    found = Windows(torch.from_numpy(tokens), torch.arange(n) // 10, torch.full((n // 10,), 10))
    deltas = Deltas(np.zeros_like(delta), {0: delta})
    return context.Sample(World(found, split, f"{name}{seed}"), deltas, tokens[:, :-1] % len(TYPES))


BY_TYPE = np.random.default_rng(3).normal(size=N_TYPES)
WORLDS = {
    "token": lambda tokens, c: BY_TYPE[tokens],
    "context": lambda tokens, c: c[..., 0],
    "noise": lambda tokens, c: 0.0,
}


@pytest.fixture(scope="module")
def areas():
    found = {}
    for name, need in WORLDS.items():
        learn, test = world(name, 1, need), world(name, 2, need)
        rows = context.part_rows(learn, test, [0])
        found[name] = {gate: r.mean() for gate, r in rows[0].items()}
    return found


def test_gates_find_where_the_need_lies(areas):
    by_token, by_context, nothing = (areas[name] for name in ("token", "context", "noise"))
    assert by_token["type delta"] > 0.9 and by_token["token"] > 0.6
    assert by_token["less type mean"] < 0.55 < by_token["full"]
    assert by_context["full"] > 0.8 and by_context["less type mean"] > 0.9
    assert abs(by_context["token"] - 0.5) < 0.05 and abs(by_context["type delta"] - 0.5) < 0.05
    assert all(abs(area - 0.5) < 0.05 for area in nothing.values())
    assert all(abs(found["noise"] - 0.5) < 0.05 for found in areas.values())


def test_a_gate_on_x_less_e_and_e_sees_what_a_gate_on_x_sees(areas):
    for found in areas.values():
        assert found["context and token"] >= found["full"] - 0.03
    # x - e is the context here, and the token is not in it; less another's token is no better.
    assert areas["token"]["context"] < 0.55
    assert areas["context"]["context"] > areas["context"]["another's token"]


def test_gaps_and_shares_of_rows():
    rng, document = np.random.default_rng(0), np.repeat(np.arange(20), 10)
    rows = {
        b: {"full": 0.7 + 0.01 * rng.normal(size=200), "part": np.full(200, 0.6)} for b in (1, 2)
    }
    assert context.mean_gap(rows, document, "full", "part").value == pytest.approx(0.1, abs=0.01)
    assert set(context.gaps(rows, document, "full", 0.5)) == {1, 2}
    share = context.share_of_excess(rows, document, "part", "full")
    assert share.low < 0.5 < share.high
    assert context.less_best(rows, document, "full", ["part"]).low > 0
    with pytest.raises(InputError, match="no gate 'whole'"):
        context.mean_gap(rows, document, "whole", 0.5)


def test_the_embedding_is_read_off_where_it_is():
    learn, test = (world("read", seed, WORLDS["noise"]) for seed in (1, 2))
    table = read_out(learn, test, [0]).set_index("input")["mean"]
    assert 0.3 < table["full"] < 0.7  # e and c of one size
    assert abs(table["context"]) < 0.05 and abs(table["split context"]) < 0.05


def test_means_of_types_come_from_other_documents():
    tokens, document = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 1, 2, 0, 1, 2])
    x = np.array([0.0, 1.1, 0.9, 5.0, 6.1, 5.9])[:, None]
    within, between = variances(x, tokens)
    assert between > 10 * within
    seen, unseen = type_means(x, tokens, document, np.array([0, 1, 7]))
    assert seen[0, 0] == pytest.approx(1.0, abs=0.2) and seen[3, 0] == pytest.approx(6.0, abs=0.2)
    assert unseen[:, 0] == pytest.approx([0.67, 5.67, x.mean()], abs=0.2)
    flat = type_means(np.ones((6, 1)), tokens, document, tokens)[0]
    np.testing.assert_allclose(flat, 1)
    with pytest.raises(InputError, match="do not fit"):
        type_means(x, tokens[:3], document, tokens)


@pytest.fixture(scope="module")
def regressions():
    found = {}
    for name, need in WORLDS.items():
        samples = [world(name, seed, need) for seed in (1, 2)]
        said = []
        for k, sample in enumerate(samples):
            chance, n = np.random.default_rng(k), len(sample.tokens)
            table = pd.DataFrame({f: chance.normal(size=n) for f in FEATURES})
            table["part of speech"] = chance.integers(3, size=n)
            table["position"] = sample.streams(0).rows("context")[:, 0]
            said.append(Described(table, sample.type, sample.type > 2))
        rows = explained(*samples, said, [0])[0]
        found[name] = {r: rows[r, "raw"].mean() for r in REGRESSORS}
    return found


def test_regressions_explain_what_is_there_and_nothing_else(regressions):
    signal = BY_TYPE.var() / (BY_TYPE.var() + 0.09)
    by_token, by_context = regressions["token"], regressions["context"]
    assert by_token["token identity"] == pytest.approx(signal, abs=0.05)
    assert abs(by_token["features, ridge"]) < 0.02
    assert by_context["features, ridge"] > 0.85 and by_context["features, trees"] > 0.8
    assert by_context["activation, ridge"] > 0.3 and abs(by_context["token identity"]) < 0.02
    assert by_context["features of the next token, ridge"] < 0.02
    assert all(abs(r2) < 0.02 for r2 in regressions["noise"].values())


def test_features_of_the_token_alone_see_no_context():
    found = {}
    for name in ("token", "context"):
        samples, said = [world(name, seed, WORLDS[name]) for seed in (1, 2)], []
        for sample in samples:
            table = pd.DataFrame(0.0, range(len(sample.tokens)), [*FEATURES])
            table["position"] = sample.streams(0).rows("context")[:, 0]
            table["length"] = BY_TYPE[sample.tokens]
            said.append(Described(table, sample.type, sample.type > 2))
        rows = explained_by_token(*samples, said, [0])[0]
        found[name] = rows["features of the token alone, ridge", "raw"].mean()
    assert found["token"] > 0.8 and abs(found["context"]) < 0.02


def test_what_function_words_and_context_say_of_a_gate_s_score():
    chance, samples, said = np.random.default_rng(0), [], []
    document = np.repeat(np.arange(20), 30)
    for _ in range(2):
        table = pd.DataFrame(chance.normal(size=(600, 4)), columns=[*depth.ABOUT])
        table["function word"] = (table["position"] > 0).astype(float)
        samples.append({(0, "linear"): table["position"].to_numpy(), (0, "mlp"): np.zeros(600)})
        said.append(Described(table, np.zeros(600), table["function word"].to_numpy() > 0))
    alone = depth.by_function_words(*samples, said, document)
    assert alone.value == pytest.approx(2 / np.pi, abs=0.05)  # of a normal by its sign
    assert abs(depth.beyond_context(*samples, said, document).value) < 1e-6


def test_a_gate_on_known_rows_is_the_gate_of_table_1():
    learn, test = (world("context", seed, WORLDS["context"]) for seed in (1, 2))
    delta = learn.delta.by_block[0].ravel()
    gate = fit_gate("linear", learn.streams(0).rows("x"), labels(delta).of(delta))
    expected = gate.score(torch.from_numpy(test.streams(0).rows("x"))).numpy()
    got = context.part_scores(learn, test, [0])[0]["full"][0]
    np.testing.assert_allclose(got, expected, atol=1e-4)
    assert clustered(got, test.document).value == pytest.approx(expected.mean(), abs=1e-4)
