"""Sweeps of small language models, and what is read from their table on worlds that are known."""

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch

from lib.base import InputError, get_profile
from lib.models import Mixer
from lib.stats import judge
from lib.texts import Windows
from lib.training import Splits, at_the_edge, mixers, sweep, train_one, widths
from lib.training.figures_mixers import differences_figure, widths_figure

V, N = 24, 8


@pytest.fixture(scope="module")
def data():
    rng = torch.Generator().manual_seed(0)
    part = lambda n: Windows.of(torch.randint(V, (n, N), generator=rng))
    return Splits(part(40), part(6), part(6))


def test_a_sweep_chooses_on_validation_and_pairs_seeds(data):
    specs = [Mixer("linear", 8, V, N), Mixer("llama", 32, V, N)]
    runs, tried = sweep(specs, (1e-3, 1e-1), (5, 6), data, 3, 4)
    assert len(runs) == 4 and tried.chosen.sum() == 2 and set(runs.seed) == {5, 6}
    for (_, width), part in tried.groupby(["model", "width"]):
        (lr,) = set(runs[runs.width == width].lr)
        assert lr == part.lr[part.validation.idxmin()]
    assert at_the_edge(tried) == (2, 2)
    # The same run by hand, from its weights.
    model = train_one(specs[0], runs.lr[0], 5, data, 3, 4)
    assert mixers.window_losses(model, data.test).mean() == pytest.approx(runs.loss[0], abs=1e-6)
    assert np.shape(runs.text[0]) == (6, N // 2) and runs["rank"].tolist()[1] == -1
    with pytest.raises(InputError, match="4 steps, 2 learning rates"):
        sweep(specs, (1e-3, 1e-1), (5,), data, 4, 4)


def test_sampling_follows_the_model():
    """A model that is sure of token 3 writes it."""

    class Sure(torch.nn.Module):
        device = torch.device("cpu")

        def forward(self, tokens, use_cache=False):
            logits = torch.full((*tokens.shape, V), -1e9)
            logits[..., 3] = 0
            return type("Out", (), {"logits": logits})

    assert mixers.sample(Sure(), torch.zeros(2, N, dtype=torch.int64), 1).tolist() == [[3] * 4] * 2


def world(break_at_vocabulary=True, noise=0.001, seeds=(1, 2, 3)):
    """Runs of linear mixers whose loss falls by 0.1 a doubling, up to |t| = 64 or throughout; one-
    layer mixers 0.3 below those of as many parameters; stacks 0.05 above."""
    rng, rows = np.random.default_rng(0), []
    shape = lambda m: 3 - 0.1 * np.log2(min(m, 64) if break_at_vocabulary else m)
    specs = [Mixer("linear", m, 64, N) for m in (8, 16, 32, 64, 256, 512)]
    size = {s.parameters: shape(s.width) for s in specs}
    known = sorted(size)
    for spec in [
        *specs,
        Mixer("linear", 64, 64, N, modules=2),
        Mixer("linear", 64, 64, N, maps=3),
        Mixer("direct", 64, 64, N),
        Mixer("mixer", 16, 64, N),
    ]:
        loss = shape(spec.width) + 0.05 * (spec.modules + spec.maps > 2)
        if spec.kind == "mixer":
            at = np.log([float(k) for k in known])
            loss = np.interp(np.log(spec.parameters), at, [size[k] for k in known]) - 0.3
        for seed in seeds:
            value = loss + rng.normal(0, noise)
            rows.append(
                asdict(spec)
                | {"model": spec.label, "parameters": spec.parameters, "flops": spec.flops}
                | {"seed": seed, "loss_1": value + 1, "loss_2": value + 0.5, "loss": value}
                | {"validation": value, "rank": min(spec.width, 64), "text": [[1, 2]]}
            )
    return pd.DataFrame(rows)


def test_a_gain_that_stops_is_told_from_one_that_goes_on():
    stops, goes_on = world(), world(break_at_vocabulary=False)
    wide = lambda share: share in (4, 8)
    id = "badger-inference-expansion-identical"
    verdicts = [judge(id, widths.against_vocabulary(w, wide)).verdict for w in (stops, goes_on)]
    assert verdicts == ["reproduced", "contradicted"]
    found = [widths.slope_break(w) for w in (stops, goes_on)]
    assert found[0].value == pytest.approx(0.1, abs=0.002) and found[0].low > 0
    assert abs(found[1].value) < 0.002
    noisy = widths.against_vocabulary(world(noise=0.2), wide)
    assert judge(id, noisy).verdict == "inconclusive"
    assert widths.against_vocabulary(stops, lambda share: share == 3) is None


def test_differences_are_those_of_the_world():
    runs = world()
    assert widths.matched(runs, "mixer", "parameters")["width 16"].value == pytest.approx(
        -0.3, abs=0.003
    )
    assert widths.stacked(runs, "modules")["linear mixer, 2 modules"].value == pytest.approx(
        0.05, abs=0.003
    )
    assert abs(widths.direct_less_factored(runs).value) < 0.003
    assert widths.rank_excess(runs) == 0
    assert widths.rank_excess(runs.assign(rank=runs["rank"] + (runs.width == 8) * 3)) == 3
    gain = widths.late_gain(runs, "linear")
    assert gain.value == pytest.approx(0, abs=1e-12)
    assert widths.by_third(runs)["64"].dropna().iloc[0] == pytest.approx(3.4, abs=0.01)


def test_frequencies_and_triples():
    train = np.array([[0, 0, 1, 0]])
    test = np.array([[1, 0, 1]])
    wanted = -(np.log(4 / 6) + np.log(2 / 6)) / 2
    assert widths.frequency_loss(train, test, 2) == pytest.approx(wanted)
    known = set(widths.triples("x And he said, go. And x"))
    assert ("and", "he", "said") in known and (",", "go", ".") in known
    assert widths.attested(["y and he said so now z"], known) == pytest.approx(1 / 3)
    assert np.isnan(widths.attested(["one two"], known))


def test_the_page_s_own_losses_find_their_runs():
    runs = world().replace({"width": {16: 4096}})
    found = {id: (value, about) for id, value, about in widths.printed_losses(runs)}
    assert len(found) == 18
    value, about = found["badger-table-mixer-4096-3e"]
    assert about == "mixer-1-layer-of-width-4096" and value.low < value.high
    assert found["badger-table-mixer-8192-3e"][0] is None
    verdict = judge("badger-table-mixer-4096-3e", value).verdict
    assert verdict in ("reproduced", "contradicted")


def test_figures_draw_what_they_are_given():
    runs = world()
    figure = widths_figure(runs)
    assert len(figure.axes) == 3 and figure.axes[0].get_xlabel() == "hidden dimension m"
    groups = {"m": widths.against_vocabulary(runs, lambda share: share != 1)}
    assert len(differences_figure(groups).axes[0].get_yticks()) == 5


def test_the_models_of_a_profile_are_those_it_names():
    profile = get_profile("smoke")
    (flat, rates), (layers, _) = widths.line_up(profile)
    plain = [s.width for s in flat if s.kind == "linear" and s.modules == s.maps == 1]
    assert plain == [round(share * profile.mixer_vocab) for share in profile.mixer_widths]
    deep = sorted((s.modules, s.maps) for s in flat if s.modules + s.maps > 2)
    assert deep == [(1, 2), (1, 3), (2, 1), (3, 1)] and rates == profile.mixer_rates
    assert {s.kind for s in flat} == {"linear", "direct", "relu", "convolutions"}
    assert {s.kind for s in layers} == {"mixer", "llama"}


def test_learned_is_below_the_frequencies_of_tokens():
    rng = np.random.default_rng(0)
    sample = Windows.of(torch.from_numpy(rng.integers(0, 4, (64, 32))))
    data = Splits(sample, sample, sample)  # uniform over four tokens: log 4 nats
    table = pd.DataFrame({"kind": "linear", "modules": 1, "maps": 1, "seed": 1, "width": [4]})
    for loss, ok in ((np.log(4) - 0.3, True), (np.log(4) - 0.1, False)):
        found = widths.learned(table.assign(loss=loss), data, 4)
        assert bool(found["ok"]) is ok and "frequencies alone at 1.39" in found["why"]
