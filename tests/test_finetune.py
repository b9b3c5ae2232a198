"""Fine-tuning with FFNs replaced: what is trained and what is not, killed runs, gates, orders."""

import contextlib
import copy

import pytest
import torch
from torch import nn

from lib.errors import InputError
from lib.gating.sparse import parts
from lib.hooks import capture, swap
from lib.models.parts import copy_of
from lib.report import start
from lib.studies import finetune
from lib.studies.finetune import (
    FinetuneConfig,
    Finetuning,
    _free,
    centre_out,
    fine_tune,
    finetuned_losses,
    first_stage,
    measure,
)
from lib.studies.replacements import largest_units, narrowed, replacement_for, unit_columns
from lib.studies.softgates import SoftGate, SoftGateConfig, train_gates
from lib.swap.sweep import token_losses
from lib.text.corpora import load_corpus
from lib.text.windows import cut_windows

TWO_STAGES = FinetuneConfig("map", ((2,), (1,)), (3, 4), lr=1e-3, constant=True, norms=False)
MARKS = {"test": (0, 2, 3, 5, 7)}


@pytest.fixture
def given(subject, fit, test):
    """Subject, text for maps, text to train on, test text."""
    return subject, fit[:20], fit[20:40], {"test": test[:6]}


def losses_of(given, arm, marks=MARKS):
    subject, fit, data, tests = given
    return finetuned_losses(Finetuning(subject, arm, fit, data, tests, marks))


def after_first(given, arm):
    return first_stage(*given[:1], arm, *given[1:3])


def test_order_is_the_printed_one_and_the_middle_half_for_every_depth():
    assert centre_out(24) == [12, 11, 13, 10, 14, 9, 15, 8, 7, 6, 5, 4]
    for n in range(6, 49):
        order = centre_out(n)
        assert sorted(order) == [*range(n // 6, n // 6 + n // 2)]
        distance = [abs(b - n // 2) for b in order]
        assert distance == sorted(distance) and order[0] == n // 2
    with pytest.raises(InputError, match=r"5 blocks.*at least 6"):
        centre_out(5)


def test_maps_stay_and_the_subject_is_not_touched(given, own_cache):
    subject = given[0]
    before = {n: p.clone() for n, p in subject.model.named_parameters()}
    one = FinetuneConfig("map", ((2, 1),), (3,), lr=1e-2)
    found = after_first(given, one)
    # The maps are those of the intact model, one after another, to the last bit.
    copied = copy_of(subject)
    with contextlib.ExitStack() as swaps:
        for block in (2, 1):
            expected = replacement_for(copied, given[1], block, "map")
            assert torch.equal(found["stand_ins"][block].weight, expected.weight)
            assert torch.equal(found["stand_ins"][block].bias, expected.bias)
            swaps.enter_context(swap(copied.blocks[block], expected))
    for name, p in subject.model.named_parameters():
        assert torch.equal(p, before[name])
    assert any(not torch.equal(w, before[n]) for n, w in found["weights"].items())


def test_an_empty_first_stage_is_no_stage(given, own_cache):
    """For every stand-in that a first stage fits together."""
    for kind in ("map", "narrow"):
        arm = FinetuneConfig(kind, ((), (2,)), (1, 1))
        assert len(losses_of(given, arm, {"test": (0, 2)}))


def test_norms_are_trained_only_where_asked(given, own_cache):
    trained = after_first(given, TWO_STAGES)["weights"]
    for name, p in given[0].model.named_parameters():
        if ".ln_" in name:
            assert torch.equal(trained[name], p), name
        elif "attn" in name and name.endswith("weight"):
            assert not torch.equal(trained[name], p), name


def test_a_kept_ffn_gets_no_gradient(subject):
    copied = copy_of(subject)
    module = nn.Linear(copied.d_model, copied.d_model)
    module.massive = lambda x: torch.zeros(x.shape[:-1], dtype=torch.bool)
    with swap(copied.blocks[1], module):
        _free(copied, norms=True)
        inside = {id(p) for p in copied.blocks[1].original.parameters()}
        for p in copied.model.parameters():
            assert p.requires_grad == (id(p) not in inside)


def test_step_zero_is_the_model_with_its_stand_ins_in(given, own_cache):
    subject, fit, _, tests = given
    for kind in ("none", "map", "deleted", "narrow"):
        stages = ((),) if kind == "none" else ((2,),)
        found = losses_of(given, FinetuneConfig(kind, stages, (1,)), {"test": (0,)})
        module = subject.blocks[2].original
        if kind != "none":
            module = replacement_for(subject, fit, 2, kind)
        with swap(subject.blocks[2], module):
            expected = token_losses(subject, tests["test"].tokens).mean().item()
            by_document = measure(subject, tests["test"])
        assert found.loss.to_numpy() == pytest.approx(by_document.loss.to_numpy(), abs=1e-6)
        weight = [(tests["test"].document == d).sum() for d in by_document.document]
        assert (by_document.loss * weight).sum() / sum(weight) == pytest.approx(expected)


@pytest.mark.parametrize("killed_at", [2, 3, 5])
def test_a_killed_training_goes_on_to_the_same_weights(given, own_cache, monkeypatch, killed_at):
    whole = losses_of(given, TWO_STAGES)
    monkeypatch.setenv("NONLINEARITY_CACHE", str(own_cache / "second"))
    steps, read = [], finetune.measure

    def dies(subject, windows):
        steps.append(1)
        if len(steps) == MARKS["test"].index(killed_at) + 1:
            raise KeyboardInterrupt
        return read(subject, windows)

    monkeypatch.setattr(finetune, "measure", dies)
    with pytest.raises(KeyboardInterrupt):
        losses_of(given, TWO_STAGES)
    monkeypatch.setattr(finetune, "measure", read)
    stages, train = [], finetune.train
    monkeypatch.setattr(finetune, "train", lambda *a, **k: stages.append(1) or train(*a, **k))
    again = losses_of(given, TWO_STAGES)
    assert again.equals(whole)
    assert len(stages) == (1 if killed_at > 3 else 2)  # a whole stage is not trained again


def test_fresh_text_is_read_once_and_in_the_order_of_the_seed(given, own_cache, monkeypatch):
    seen = []

    def reads(model, windows, recipe, **_):
        seen.append(windows.tokens)

    monkeypatch.setattr(finetune, "train", reads)
    with pytest.raises(ValueError):  # nothing was measured
        losses_of(given, TWO_STAGES, {"test": ()})
    rows = torch.cat(seen).tolist()
    assert len(rows) == 7 and len({tuple(r) for r in rows}) == 7


def test_in_bfloat16_the_training_differs_a_little_and_what_is_measured_before_it_not(
    subject, fit, test, own_cache
):
    arms = [FinetuneConfig("map", ((3,),), (4,), lr=1e-3, bfloat16=half) for half in (False, True)]
    texts = fit[:20], fit[20:40], {"test": test[:6]}, {"test": (0, 4)}
    losses = [fine_tune(Finetuning(subject, arm, *texts)) for arm in arms]
    before, after = (
        [found[found.step == step].loss.to_numpy() for found in losses] for step in (0, 4)
    )
    assert (before[0] == before[1]).all()
    assert (after[0] != after[1]).any()
    assert after[1] == pytest.approx(after[0], abs=0.05)


def test_gates_have_as_many_parameters_as_the_authors():
    gates = [SoftGate(nn.Identity(), nn.Identity(), 1024, 32, -3.0).gate for _ in range(4)]
    assert sum(p.numel() for g in gates for p in g.parameters()) == 131_332
    number = SoftGate(nn.Identity(), nn.Identity(), 1024, 0, -3.0).gate
    assert sum(p.numel() for p in number.parameters()) == 1


def test_a_soft_gate_goes_from_map_to_ffn_and_hands_no_gradient_through_it():
    ffn, affine = nn.Linear(4, 4), nn.Linear(4, 4)
    x = torch.randn(2, 3, 4, requires_grad=True)
    for bias, expected in ((-40.0, affine(x)), (40.0, ffn(x))):
        gate = SoftGate(ffn, affine, 4, 8, bias)
        assert torch.allclose(gate(x), expected, atol=1e-6)
    gate = SoftGate(ffn, affine, 4, 8, -3.0)
    assert gate(x).shape == x.shape and gate.opening.mean().item() == pytest.approx(0.047, abs=1e-3)
    gate(x).sum().backward()
    assert ffn.weight.grad is None and affine.weight.grad is not None
    for mode, expected in {"open": ffn(x), "cut": affine(x)}.items():
        gate.mode = mode
        assert torch.allclose(gate(x), expected, atol=1e-6)


def test_only_gates_are_trained_and_given_back_is_the_trained_model(given, own_cache):
    subject, fit, data, tests = given
    plain = FinetuneConfig("none", ((), ()), (3, 2), lr=1e-3)
    marks = {"test": (3, 5)}
    training = Finetuning(subject, plain, fit, data, tests, marks)
    gates = train_gates(training, SoftGateConfig(4), (1, 2))
    ended = losses_of(given, plain, marks).query("step == 3").loss.to_numpy()
    open_gates = gates.query("experiment == 'given back'").loss.to_numpy()
    assert open_gates == pytest.approx(ended, abs=1e-6)
    assert set(gates.step) == {3 + 4}
    opening = gates[gates.experiment.str.startswith("mean gate")].loss
    assert ((opening > 0) & (opening < 1)).all()
    # Another bias opens them: with gates near 1 the soft model is the trained one.
    wide = SoftGateConfig(1, hidden=0, bias=30.0, penalty=0.0)
    soft = train_gates(training, wide, (1, 2))
    assert soft.loss.to_numpy() == pytest.approx(ended, abs=1e-5)


def test_gates_find_the_first_stage_that_the_training_left(given, own_cache, monkeypatch):
    subject, fit, data, tests = given
    arm, marks = FinetuneConfig("map", ((1, 2),), (3,), lr=1e-3), {"test": (3,)}
    training = Finetuning(subject, arm, fit, data, tests, marks)
    fine_tune(training, weights=True)
    monkeypatch.setattr(finetune, "train", None)
    gates = train_gates(training, SoftGateConfig(2), (1, 2))
    assert {"soft", "cut", "given back"} <= {*gates.experiment}


def test_a_narrow_ffn_has_the_largest_units(each_subject, text):
    fit = cut_windows(text.fit, each_subject.tokenizer, 64)[:4]
    block = each_subject.blocks[1]
    x, y = capture(each_subject, fit, [1])[1]
    found = parts(block.ffn, each_subject.d_model)
    d_ff = len(unit_columns(block.ffn, each_subject.d_model))
    everything = narrowed(block.ffn, each_subject.d_model, torch.arange(d_ff))
    assert torch.allclose(everything(x), y, atol=1e-5)
    # By hand: the writer's input, unit by unit.
    hidden = []
    handle = found.writer.register_forward_hook(lambda _, args, __: hidden.append(args[0]))
    block.ffn(x)
    handle.remove()
    columns = unit_columns(block.ffn, each_subject.d_model)
    size = hidden[0].abs().flatten(0, 1).mean(0) * columns.norm(dim=1)
    expected = size.argsort(descending=True)[:5].sort().values
    ranked = largest_units(each_subject, fit, [0, 1])
    units = ranked[1][:5].sort().values
    assert sorted(ranked[0].tolist()) == [*range(d_ff)]
    assert units.tolist() == expected.tolist()
    # A narrow FFN is the FFN with all other units silent.
    silent = copy.deepcopy(block.ffn)
    writer = parts(silent, each_subject.d_model).writer
    keep = torch.zeros(d_ff)
    keep[units] = 1
    handle = writer.register_forward_pre_hook(lambda _, args: args[0] * keep)
    narrow = narrowed(block.ffn, each_subject.d_model, units)
    assert torch.allclose(narrow(x), silent(x), atol=1e-5)


def test_bad_input_gets_one_sentence(given):
    subject, fit, data, tests = given

    def training(arm, *steps):
        return Finetuning(subject, arm, fit, data, tests, {"test": steps or (0,)})

    for arm, message in (
        (FinetuneConfig("map", ((99,),), (2,)), r"99"),
        (FinetuneConfig("map", ((1,),), (2, 2)), r"1 stages have 2 numbers of steps"),
        (
            FinetuneConfig("none", ((),), (21,)),
            r"21 steps of fresh text need as many windows.*has 20",
        ),
        (FinetuneConfig("nothing", ((),), (2,)), r"unknown stand-in 'nothing'.*none, map"),
        (FinetuneConfig("none", ((1,),), (2,)), r"nothing replaces blocks \[1\]"),
        (
            FinetuneConfig("narrow", ((1,), (2,)), (1, 1)),
            r"narrow FFNs are put in at one stage only",
        ),
    ):
        with pytest.raises(InputError, match=message):
            fine_tune(training(arm))
    plain = FinetuneConfig("none", ((),), (2,))
    with pytest.raises(InputError, match=r"test is never evaluated: give it a step from 0 to 2"):
        fine_tune(training(plain, 3))
    with pytest.raises(InputError, match=r"a stage of 0 steps trains nothing"):
        fine_tune(training(FinetuneConfig("none", ((),), (0,))))
    mapped = FinetuneConfig("map", ((1,),), (2,))
    for blocks, message in (((99,), r"99"), ((2,), r"gates on blocks \[2\] need their maps")):
        with pytest.raises(InputError, match=message):
            train_gates(training(mapped), SoftGateConfig(2), blocks)
    with pytest.raises(InputError, match="the weights of narrow FFNs are not kept"):
        fine_tune(training(FinetuneConfig("narrow", ((1,),), (2,))), weights=True)


def test_text_to_train_on_holds_no_tested_window(subject):
    run, text = start("16_x", "smoke", "tiny-gpt2", None), load_corpus("wikipedia-sample")
    fresh, tested = run.untested(subject, text, 64), run.tested(subject, text, 64)
    sample = run.sample(subject, text, 64)
    rows = {tuple(row) for row in tested.tokens.tolist()}
    assert not rows & {tuple(row) for row in fresh.tokens.tolist()}
    assert {tuple(row) for row in sample.test.tokens.tolist()} <= rows
    assert {tuple(r) for r in sample.fit.tokens.tolist()} & {
        tuple(r) for r in fresh.tokens.tolist()
    }
