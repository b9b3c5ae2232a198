"""Clusters where regions differ in need, where they do not, and what each criterion says then."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from lib.gates import by_type
from lib.gates.cluster_need import (
    between_clusters,
    chance_table,
    cluster_auc,
    cluster_table,
    need,
    ratio_of_sd,
)
from lib.gates.cluster_shares import at_random, no_fly_regions, top_rows, what_they_are
from lib.gates.clusters import CLUSTERS, clusters
from lib.gates.streams import Split
from lib.texts import Windows

N, T, D = 150, 32, 8


@dataclass
class World:
    """Streams that are given: blobs of 20 centres."""

    seed: int

    def __post_init__(self):
        chance = np.random.default_rng(self.seed)
        centres = 10 * np.random.default_rng(0).normal(size=(CLUSTERS, D))
        self.blob = chance.integers(CLUSTERS, size=(N, T))
        self.x = (centres[self.blob] + chance.normal(size=(N, T, D))).astype(np.float32)
        tokens, document = torch.zeros(N, T + 1, dtype=torch.int64), torch.arange(N) // 10
        self.windows = Windows(tokens, document, torch.full((N // 10,), 10))

    def key(self, block):
        return {"seed": self.seed, "block": block}

    def __call__(self, block):
        return Split(self.x, self.x, self.x, self.x, self.x)


@pytest.fixture(scope="module")
def found():
    worlds = World(1), World(2)
    return worlds, {0: clusters(*worlds, [0])[0]}


def needs(worlds, of_blob, noise: float):
    return [
        {0: of_blob[w.blob] + noise * np.random.default_rng(w.seed + 9).standard_t(3, (N, T))}
        for w in worlds
    ]


NEED = np.where(np.arange(CLUSTERS) < 4, 1.0, -0.05)
DOCUMENT = np.arange(N) // 10


def test_blobs_are_found_and_keep_their_variance(found):
    (_, world), of = found[0], found[1][0]
    pairs = np.unique(np.stack([of.found.ravel(), world.blob.ravel()]), axis=1)
    assert pairs.shape[1] <= CLUSTERS + 6  # nearly one to one
    assert of.kept == pytest.approx(1) and of.kept_rows.mean() == pytest.approx(1, abs=1e-6)


def test_regions_of_need_are_seen(found):
    worlds, of = found
    learn, test = needs(worlds, NEED, 0.02)
    assert cluster_auc(of[0], learn[0], test[0]).mean() > 0.6
    excess, by_chance = between_clusters(of, test, DOCUMENT)
    assert excess[0].low > 0.8 and by_chance[0] < 0.05
    same, chance = between_clusters(of, test, DOCUMENT, within=of[0].found)
    assert abs(same[0].value) < 1e-6 and chance[0] > 0.8  # dealt within clusters: they keep theirs
    table = cluster_table(of, learn, test, DOCUMENT)
    dear = table[table.value > 0.5]
    assert len(dear) >= 3 and (dear.purity > 0.95).all() and dear.stands_out.all()
    assert (dear.ratio_value < 2).all() and (dear.needed_low > 0.9).all()
    cheap = table[table.value < 0]
    assert (cheap.linear_value < 0.9).all() and (cheap.needed_value < 0.1).all()
    region = no_fly_regions(of, learn, test, DOCUMENT).set_index("block").loc[0]
    assert region.low > 0 and region.judged == pytest.approx(1, abs=0.02)
    assert region.value == pytest.approx(region.judged - region.bar)
    assert top_rows(of[0], learn[0], test[0]).mean() > 0.4


def test_a_cluster_less_the_rest_of_its_block_is_paired_over_documents(found):
    worlds, of = found
    level = np.random.default_rng(3).normal(0, 1, N // 10)[DOCUMENT][:, None]
    learn, test = ({0: delta[0] + level} for delta in needs(worlds, NEED, 0.02))
    table = cluster_table(of, learn, test, DOCUMENT)
    dear = table[table["need"] > table["need"].median() + 0.2]
    assert len(dear) and dear.stands_out.all()
    inside = of[0].found == dear.cluster.iloc[0]
    expected = test[0][inside].mean() - test[0][~inside].mean()
    assert dear.away_value.iloc[0] == pytest.approx(expected)
    assert (dear.away_high - dear.away_low < dear.high - dear.low).all()


def test_few_positions_or_documents_are_not_judged(found):
    worlds, of = found
    learn, test = needs(worlds, NEED, 0.02)
    table = cluster_table(of, learn, test, np.arange(N) % 4)  # fewer documents than are asked for
    assert table.empty and {"block", "n", "need"} <= set(table)


def test_what_stands_out_is_said(found):
    worlds, of = found
    learn, test = needs(worlds, NEED, 0.02)
    table = cluster_table(of, learn, test, DOCUMENT)

    class Letters:
        def decode(self, ids):
            return "abc"[ids[0]]

    told = what_they_are(table, of, test, worlds[1].windows, Letters()).set_index("cluster")
    assert set(table.cluster[table.stands_out]) <= set(told.index)
    k = told.index[0]
    inside = of[0].found == k
    assert told.of_sum[k] == pytest.approx(test[0][inside].sum() / test[0].sum())
    assert told.positions[k] == inside.mean() and told.tokens[k] == "'a' 100%"


def test_clusters_at_random_rank_nothing(found):
    worlds, of = found
    learn, test = needs(worlds, NEED, 0.02)
    told = at_random(of[0], learn[0], test[0])
    assert told["auc_low"] < 0.5 < told["auc_high"] < 0.53
    assert told["top"] == pytest.approx(0.1, abs=0.02) and told["top_high"] < 0.15
    assert need(of[0].learned, learn[0]).max() == pytest.approx(1, abs=0.02)


def test_on_noise_no_criterion_but_the_paper_s_fires(found):
    worlds, of = found
    learn, test = needs(worlds, np.zeros(CLUSTERS), 0.3)
    assert abs(cluster_auc(of[0], learn[0], test[0]).mean() - 0.5) < 0.03
    excess, _ = between_clusters(of, test, DOCUMENT)
    assert excess[0].low < 0 < excess[0].high
    table = cluster_table(of, learn, test, DOCUMENT)
    assert not table.stands_out.any() and (table.purity < 0.9).all()
    assert (table.linear_high < 0.9).all() and (table.needed_high < 0.9).all()
    assert (table.ratio_value > 2).all()
    shifted = [{0: sample[0] + 0.2} for sample in (learn, test)]
    assert abs(top_rows(of[0], shifted[0][0], shifted[1][0]).mean() - 0.1) < 0.03


def test_the_oracle_passes_what_noise_does_not(found):
    worlds, of = found
    learn, test = needs(worlds, np.zeros(CLUSTERS), 0.3)
    table = chance_table(of, learn, test, DOCUMENT, {0: -test[0]}).set_index("world")
    assert table.pure["oracle"] >= CLUSTERS - 2 and table.pure["observed"] == 0
    assert table.clean["oracle"] >= 8 and table.clean["permuted"] == 0
    assert table.clean["gate"] == table.clean["oracle"]  # the same parts, the other way round
    assert table.sd_below["oracle"] > CLUSTERS / 2 > table.sd_below["permuted"]
    assert table.stands_out["oracle"] > CLUSTERS / 2 and table.stands_out["permuted"] < 0.5


def test_need_that_is_not_positive_has_no_share(found):
    worlds, of = found
    learn, test = needs(worlds, np.full(CLUSTERS, -1.0), 0.1)
    assert np.isnan(top_rows(of[0], learn[0], test[0])).all()


def test_ratio_of_sd_has_no_upper_end_where_the_mean_may_be_0():
    rng, document = np.random.default_rng(0), np.repeat(np.arange(20), 50)
    sure = ratio_of_sd(2 + rng.normal(size=1000), document)
    assert sure.low < 0.5 < sure.high < 1
    unsure = ratio_of_sd(rng.normal(size=1000), document)
    assert unsure.low > 2 and unsure.high == np.inf


def test_types_that_differ_and_types_that_do_not():
    rng, document = np.random.default_rng(0), np.arange(200) // 10
    types = rng.integers(5, size=(200, 20))
    noise = rng.normal(size=(200, 20))
    deltas = {0: noise, 1: noise + 2.0 * types}
    found = by_type.between_types(deltas, types, document)
    assert found[0].low < 0 < found[0].high and found[1].low > 0.8
    flat, kind = deltas[1].ravel(), types.ravel()
    means = np.array([flat[kind == k].mean() for k in range(5)])[kind]
    expected = np.square(means - flat.mean()).sum() / np.square(flat - flat.mean()).sum()
    assert by_type.between_rows(flat, kind).mean() == pytest.approx(expected)
    apart = by_type.one_type_less_another(deltas, types, document, "punctuation", "function word")
    assert apart[1].low < 8 < apart[1].high and apart[0].low < 0 < apart[0].high
    table = by_type.type_table({b: (b + 1) * deltas[1] for b in range(6)}, types, document)
    name, rising = by_type.least_rising(table)
    assert name in set(table.type) and rising.n == 6
