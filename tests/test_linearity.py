"""How affine the FFNs of trained decoders are: planted answers, and models put together by hand."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from lib.errors import InputError
from lib.hooks import capture, swap
from lib.linear.affine import svd_ridge
from lib.models.parts import as_subject
from lib.studies.decoder_study import DecoderStudy, losses_by_token
from lib.studies.linearity import linearity, made_affine, routed, update_cosines
from lib.text.windows import Windows
from lib.training.decoder import Shape

WIDTHS = [24, 0, 16, 16]


@pytest.fixture(scope="module")
def study():
    """Decoders of four layers, the second affine and the last two gated, trained on two walks."""
    walks = []
    for k, name in enumerate(("a walk", "another walk")):
        steps = np.random.default_rng(k).choice([1, 1, 1 + k, 2], (80, 16)).cumsum(1) % 11
        walks.append(Windows(torch.from_numpy(steps), np.arange(80), name))
    kinds = ("swiglu", "affine", "gated", "gated")
    return DecoderStudy(
        fit=walks[0],
        tests={walk.name: walk[:40] for walk in walks},
        tokenizer=None,
        shape=Shape(16, 2, 11, 16, kinds),
        d_ff=24,
        steps_per_epoch=20,
        n_layers=4,
        batch=4,
        start="scaled",
        ffn_frozen_share=0.0,
    )


def odd_loss(study, model) -> float:
    """Mean loss over the odd documents, mean over the texts."""
    of_texts = []
    for windows in study.tests.values():
        odd = windows[windows.document % 2 == 1]
        of_texts.append(float(losses_by_token(model, odd).mean()))
    return float(np.mean(of_texts))


def test_an_affine_layer_is_found_affine_and_free_to_swap(study):
    found = linearity(study, WIDTHS, [1, 2], fitted=60)
    assert len(found) == 8 and found.seed.tolist() == [1] * 4 + [2] * 4
    planted = found[found.layer == 1]
    np.testing.assert_allclose(planted.r2, 1, atol=1e-6)
    np.testing.assert_allclose(planted.swap_cost, 0, atol=1e-6)
    others = found[found.layer != 1]
    assert (others.r2 < 0.999).all()
    ablated = study.ablations(WIDTHS, 1)
    np.testing.assert_allclose(found[found.seed == 1].zero_cost, ablated, atol=1e-6)
    assert found.opening.notna().tolist() == [False, False, True, True] * 2
    assert found.opening.dropna().between(0, 1).all()


def test_routing_by_the_own_gate_leaves_the_ffn_out_where_it_is_most_closed(study):
    of_gates = replace(study, shape=replace(study.shape, kinds=("gated",) * 4))
    found = routed(of_gates, [16] * 4, [1], 0.5, fitted=60).set_index("router").loss
    model = of_gates.model([16] * 4, 1)
    assert found["none"] == pytest.approx(odd_loss(of_gates, model), abs=1e-6)

    def by_hand(gated, x):
        opening = gated.gate(x).sigmoid()
        linear = gated.affine(x)
        out = opening * gated.ffn(x) + (1 - opening) * linear
        # The eight positions of sixteen where the gate is least open.
        closed = opening[..., 0].argsort(-1)[:, :8]
        for window, positions in enumerate(closed):
            out[window, positions] = linear[window, positions]
        return out

    for layer in model.model.layers:
        layer.mlp.forward = lambda x, gated=layer.mlp: by_hand(gated, x)
    assert found["gate, not refitted"] == pytest.approx(odd_loss(of_gates, model), abs=1e-6)
    assert {"error", "random", "gate", "error, not refitted"} < set(found.index)


def test_layers_made_affine_are_their_maps_in_place(study):
    plain = replace(study, shape=replace(study.shape, kinds=()))
    widths, layers = [24] * 4, [1, 2]
    found = made_affine(plain, widths, [1], layers, fitted=60).iloc[0]
    model = plain.model(widths, 1)
    subject = as_subject(model, name="by hand")
    with contextlib.ExitStack() as stack:
        for layer, (x, y) in capture(subject, plain.fit[:60], layers).items():
            of_layer = svd_ridge(x.flatten(0, 1), y.flatten(0, 1), ridge=0.0)
            stack.enter_context(swap(subject.blocks[layer], of_layer.float()))
        assert found.before == pytest.approx(odd_loss(plain, model), abs=1e-4)
    assert found.after != found.before
    untouched = made_affine(plain, widths, [1], [], fitted=60).iloc[0]
    assert untouched.before == pytest.approx(odd_loss(plain, model), abs=1e-6)


def test_cosines_are_those_of_the_streams(study):
    plain = replace(study, shape=replace(study.shape, kinds=()))
    found = update_cosines(plain, [24] * 4, [1])
    assert found.layer.tolist() == [0, 1, 2, 3]
    model, seen = plain.model([24] * 4, 1), []
    layer = model.model.layers[2]
    layer.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    layer.mlp.register_forward_hook(lambda _, args, out: seen.append(out))
    update, added = [], []
    for windows in plain.tests.values():
        seen.clear()
        with torch.no_grad():
            model(windows[windows.document % 2 == 1].tokens)
        ffn, (h, leaving) = seen
        update.append(torch.cosine_similarity(leaving - h, h, dim=-1))
        added.append(torch.cosine_similarity(ffn, h, dim=-1))
    row = found.set_index("layer").loc[2]
    assert row["update, h"] == pytest.approx(float(torch.cat(update).mean()), abs=1e-5)
    assert row["added, h"] == pytest.approx(float(torch.cat(added).mean()), abs=1e-5)


def test_layers_that_are_not_there_are_refused(study):
    with pytest.raises(InputError, match=r"layers \[4\] are not all among the 4 of the decoder"):
        made_affine(study, WIDTHS, [1], [4], fitted=60)
