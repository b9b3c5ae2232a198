"""All instruments on a model whose FFNs are affine; swaps where a few positions are set apart, with
planted massive positions. (31, 29)"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.linear_model import LinearRegression
from torch import nn

from lib import stats
from lib.errors import InputError
from lib.hooks import capture, capture_residual
from lib.linear import regression
from lib.linear.affine import AffineMap
from lib.linear.moments import Moments
from lib.models.loading import load_subject
from lib.models.parts import as_subject
from lib.models.rounding import rounded
from lib.stats import sums
from lib.swap import instruments, massive, read_errors, rows_back
from lib.swap.losses import Losses
from lib.swap.sweep import sweep, token_sweep


@pytest.fixture(scope="module")
def affine_model():
    """tiny-gpt2 without the nonlinearity in its FFNs."""
    tiny = load_subject("tiny-gpt2", device="cpu")
    for block in tiny.blocks:
        block.ffn.act = nn.Identity()
    return as_subject(tiny.model, tiny.tokenizer, "affine")


def test_where_ffns_are_affine_every_instrument_says_so(affine_model, fit, test):
    fits = regression.fit(affine_model, fit)
    losses = instruments.swaps(affine_model, test, fits)
    found = instruments.by_block(affine_model, test, test[:4], fits, losses)
    np.testing.assert_allclose(found["R²"], 1, atol=1e-4)
    np.testing.assert_allclose(found["swap cost"], 0, atol=1e-4)
    np.testing.assert_allclose(found["predicted cost"], 0, atol=1e-4)
    for b in (0, 3):  # the mean output by hand, and the cosine where the FFN adds y to h
        constant = fits.mean_output[b]
        by_hand = sweep(affine_model, test, {(b, "constant"): constant}).nats("constant")[b]
        assert found["mean output"][b] == pytest.approx(by_hand)
        (_, y), h = (
            capture(affine_model, test, [b])[b],
            capture_residual(affine_model, test, [b])[b],
        )
        cosine = torch.cosine_similarity(y, h, dim=-1).mean()
        assert found["cosine"][b] == pytest.approx(float(cosine), abs=1e-4)


def test_signals_that_order_costs_lead_over_those_that_do_not():
    """Costs that rise with depth but for the scatter of documents."""
    random = np.random.default_rng(0)
    n_blocks, n = 12, 20
    scatter = random.normal(0, 0.3, (n_blocks, n))
    changed = {(b, "affine map"): 100 * (3 + b / 4 + scatter[b]) for b in range(n_blocks)}
    losses = Losses(np.arange(n), np.full(n, 100), np.full(n, 300.0), changed)
    costs = losses.nats("affine map")
    signals = pd.DataFrame({"itself": costs, "reversed": -costs, "depth": costs.index})
    orders = instruments.order_of_costs(losses, signals, ["depth", "reversed"])
    by = orders.set_index(["signal", "rival"])
    assert by.rho["itself", "depth"] == pytest.approx(1)
    assert by.lead["itself", "reversed"] == pytest.approx(2)
    assert by.lead["depth", "depth"] == 0 and np.isnan(by.low["depth", "depth"])
    assert by.low["itself", "reversed"] > 1.8
    expected = spearmanr(signals.depth, costs).statistic
    assert by.rho["depth", "reversed"] == pytest.approx(expected)
    # Halves of documents agree as far as their scatter lets them: by hand over few splits.
    added = np.stack([losses.added(key) for key in changed])
    mixed = np.random.default_rng(42).permutation(n)
    by_hand = spearmanr(*(added[:, half].sum(1) for half in (mixed[:10], mixed[10:]))).statistic
    assert stats.split_halves(added, losses.predictions, splits=1) == pytest.approx(by_hand)
    halves = orders.drop_duplicates("signal").set_index("signal")["rho on a half"]
    assert 0.8 < halves["half of the text"] < halves["itself"] < 1
    of_half = spearmanr(added[:, mixed[:10]].sum(1), signals.depth).statistic
    by_depth = stats.split_halves(added, losses.predictions, signals.depth, splits=1)
    assert by_depth == pytest.approx(of_half)


@pytest.fixture(scope="module")
def planted(fit):
    """tiny-gpt2 whose third FFN adds a long vector at the first position of a window, which it
    tells by a mark that this position's embedding carries."""
    tiny = load_subject("tiny-gpt2", device="cpu")
    tiny.model.transformer.wpe.weight.data[0, 7] += 100
    x, y = capture(replace(tiny, loaded_as=None), fit[:8], [2])[2]
    cut, far = 0.8 * float(x[:, 0, 7].min()), 300 * float(y.norm(dim=-1).median())
    assert bool((x[:, 1:, 7] < cut).all())

    class Planted(nn.Module):
        def __init__(self, ffn):
            super().__init__()
            self.ffn = ffn

        def forward(self, x):
            mark = x[..., 7:8] > cut
            return self.ffn(x) + far * mark * nn.functional.one_hot(torch.tensor(5), x.shape[-1])

    tiny.blocks[2].layer.mlp = Planted(tiny.blocks[2].ffn)
    return replace(tiny, loaded_as=None)


def test_long_outputs_are_where_they_were_planted(planted, test):
    found = massive.long_outputs(planted, test[:8], None)
    of_block = found[(found.block == 2) & (found.over == 20)].iloc[0]
    assert of_block["first"] == 1 and of_block["others"] == 0
    assert of_block["share"] == pytest.approx(1 / test.tokens.shape[1])
    token = planted.tokenizer.eos_token_id
    behind = massive.opened(planted, test[:8], token)
    assert (behind.tokens[:, 0] == token).all() and behind.tokens.shape == test[:8].tokens.shape
    assert torch.equal(behind.tokens[:, 1:], test[:8].tokens[:, :-1])


def test_maps_without_some_positions_are_fits_of_the_others(planted, fit):
    text = fit[:24]
    facts = regression.fit(planted, text)
    maps = massive.fitted_on(planted, text, [2], None, facts, (1, 4))[2]
    x, y = (side.double() for side in capture(planted, text, [2])[2])
    first = torch.zeros(x.shape[:2], dtype=torch.bool)
    first[:, 0] = True
    put_back = ~first
    put_back[:4, 0] = True  # the first four massive rows
    middle = torch.ones_like(first)
    middle[:, x.shape[1] // 2] = False
    rows = {"ordinary": ~first, 4: put_back, "all but the middle": middle, "all": first | ~first}
    for name, chosen in rows.items():
        oracle = LinearRegression().fit(x[chosen], y[chosen])
        predicted = maps[name](x[chosen].float()).double().numpy()
        expected = oracle.predict(x[chosen])
        assert np.abs(predicted - expected).max() < 1e-3 * np.abs(expected).max()


def test_swaps_with_positions_set_apart_are_those_by_hand(planted, fit, test):
    text, fits = fit[:24], regression.fit(planted, fit[:24])
    table = massive.apart(massive.Trial(planted, text, test[:6], [2], None, fits), (1,))
    losses = massive.as_losses(table)
    maps = massive.fitted_on(planted, text, [2], None, fits, (1,))[2]
    ffn = planted.blocks[2].ffn

    class ByHand(nn.Module):
        def forward(self, x):
            y = maps["all but the first"](x)
            y[:, 0] = ffn(x)[:, 0]
            return y

    swept = token_sweep(planted, test[:6], {2: ByHand()})
    added = sums(swept[2] - swept[None], test[:6].document)
    np.testing.assert_allclose(losses.added((2, "without the first, FFN there")), added, atol=1e-3)
    cost = losses.nats("without massive, FFN there")[2]
    assert cost < 0.5 * losses.nats("fitted on all")[2]


def test_as_many_ordinary_rows_are_left_out(planted, fit, test):
    text, few = fit[:24], test[:6]
    fits = regression.fit(planted, text)
    table = massive.without_influential(massive.Trial(planted, text, few, [1, 2], None, fits))
    assert {*table.block} == {2}  # block 1 has no massive position
    x, y = (side.flatten(0, 1).double() for side in capture(planted, text, [2])[2])
    norm = y.norm(dim=-1)
    ordinary = norm <= float(fits.facts.limit[2])
    longest = norm[ordinary].sort().values[-24]  # 24 windows, so as many massive rows
    used = ~ordinary | (norm < longest)
    oracle = LinearRegression().fit(x[used], y[used])
    by_hand = nn.Linear(x.shape[1], x.shape[1])
    by_hand.weight.data = torch.tensor(oracle.coef_).float()
    by_hand.bias.data = torch.tensor(oracle.intercept_).float()
    swept = token_sweep(planted, few, {2: by_hand.requires_grad_(False)})
    added = sums(swept[2] - swept[None], few.document)
    losses = massive.as_losses(table)
    name = "without as many ordinary rows of the longest outputs"
    np.testing.assert_allclose(losses.added((2, name)), added, rtol=1e-2, atol=0.05)


def test_rows_put_back_are_those_by_hand(planted, fit, test):
    text, few = fit[:24], test[:6]
    fits = regression.fit(planted, text)
    trial = massive.Trial(planted, text, few, [1, 2], None, fits)
    losses = massive.as_losses(rows_back.put_back(trial, 4, 2))
    assert {b for b, _ in losses.changed} == {2}  # block 1 has no massive position
    x, y = (side.flatten(0, 1).double() for side in capture(planted, text, [2])[2])
    is_massive = y.norm(dim=-1) > float(fits.facts.limit[2])
    random = np.random.default_rng([42, 2, 1])
    four, others = (random.choice(np.flatnonzero(of), 4, replace=False)
                    for of in (is_massive, ~is_massive))  # fmt: skip
    weight = (~is_massive).double()
    weight[others] += y[four].square().sum() / y[others].square().sum()
    oracle = LinearRegression().fit(x, y, sample_weight=weight)
    by_hand = regression.repair(Moments.of(x[~is_massive], y[~is_massive]), x[is_massive])
    affine = AffineMap(
        torch.tensor(oracle.coef_.T).float(), torch.tensor(oracle.intercept_).float()
    )
    swept = token_sweep(planted, few, {2: by_hand.with_affine(affine)})
    added = sums(swept[2] - swept[None], few.document)
    np.testing.assert_allclose(losses.added((2, "ordinary, weighted, draw 1")), added, atol=2e-3)
    # The same x with longer outputs, by hand.
    mean = y[~is_massive].mean(0)
    left = y[others] - mean
    y_long = mean + left * (y[four].square().sum() / left.square().sum()).sqrt()
    rows = torch.cat([x[~is_massive], x[others]]), torch.cat([y[~is_massive], y_long])
    oracle = LinearRegression().fit(*rows)
    affine = AffineMap(*(torch.tensor(of).float() for of in (oracle.coef_.T, oracle.intercept_)))
    swept = token_sweep(planted, few, {2: by_hand.with_affine(affine)})
    added = sums(swept[2] - swept[None], few.document)
    longer = rows_back.put_back(trial, 4, 2, ways=("ordinary, lengthened",))
    losses = massive.as_losses(longer)
    np.testing.assert_allclose(losses.added((2, "ordinary, lengthened, draw 1")), added, atol=2e-3)
    with pytest.raises(InputError, match="no block of"):
        rows_back.put_back(trial, 25, 1)


def test_length_place_and_direction_of_rows_put_back_are_varied_one_at_a_time():
    random = torch.Generator().manual_seed(0)
    (x, y), (x_massive, y_massive) = (
        [scale * torch.randn(5, d, generator=random) for d in (4, 3)] for scale in (1.0, 50.0)
    )
    mean = torch.ones(3)
    back = rows_back._rows_back((x_massive, y_massive), (x, y), mean)
    size, usual = y_massive.square().sum(), y.square().sum()
    one = mean + (y[0] - mean) / (y[0] - mean).norm() * (size / 5).sqrt()
    longer = mean + (y - mean) * (size / (y - mean).square().sum()).sqrt()
    shorter = mean + (y_massive - mean) * (usual / (y_massive - mean).square().sum()).sqrt()
    rows = {
        "massive, shortened": (x_massive, shorter),
        "one massive, repeated": (x_massive[[0] * 5], y_massive[[0] * 5]),
        "one ordinary, lengthened and repeated": (x[[0] * 5], one.repeat(5, 1)),
        "one ordinary, ten times longer and repeated": (
            x[[0] * 5],
            (mean + 10 * (one - mean)).repeat(5, 1),
        ),
        "one massive output, repeated at an ordinary input": (x[[0] * 5], y_massive[[0] * 5]),
        "one ordinary output, lengthened and repeated at a massive input": (
            x_massive[[0] * 5],
            one.repeat(5, 1),
        ),
        "massive outputs at ordinary inputs": (x, y_massive),
        "ordinary outputs, lengthened, at massive inputs": (x_massive, longer),
    }
    for way, (of_x, of_y) in rows.items():
        by_hand = Moments.of(of_x, of_y)
        for part in ("mean_x", "mean_y", "sxx", "sxy", "syy"):
            found, expected = getattr(back[way], part), getattr(by_hand, part)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-2, err_msg=way)


def test_parts_of_an_error_are_all_of_it_and_add_up(planted, fit, test):
    few = test[:6]
    fits = regression.fit(planted, fit[:24])
    kept_map = fits.massive_kept[2].with_affine(fits.maps[2])
    moments = read_errors.gradient_moments(planted, fit[:2], [2])
    leaves = [read_errors.output_gradients(planted, fit[n : n + 1].tokens)[2][2] for n in (0, 1)]
    gradients = torch.cat([leaf.grad[0] for leaf in leaves]).double()
    np.testing.assert_allclose(moments[2], gradients.T @ gradients, rtol=1e-6)
    # The gradient by another road: of the loss, with respect to a vector added at one position.
    added, tokens = torch.zeros(planted.d_model, requires_grad=True), fit[:1].tokens

    def hook(_, args, y):
        return y + nn.functional.one_hot(torch.tensor(9), y.shape[1])[:, None] * added

    with torch.enable_grad():
        handle = planted.blocks[2].ffn.register_forward_hook(hook)
        planted.model(tokens, labels=tokens).loss.mul(tokens.shape[1] - 1).backward()
        handle.remove()
    np.testing.assert_allclose(leaves[0].grad[0, 9], added.grad, rtol=1e-3, atol=1e-5)
    some = read_errors.swaps_by_part(planted, fit[:2], few, {2: kept_map}, 8)
    by_hand = token_sweep(planted, few, {2: kept_map})
    swapped = sums(by_hand[2] - by_hand[None], few.document)
    losses = massive.as_losses(some)
    np.testing.assert_allclose(losses.added((2, "all of it")), swapped, rtol=1e-3, atol=1e-2)
    # Along and across, each by hand, are the error.
    x = capture(planted, few, [2])[2][0]
    y, ffn, basis = kept_map(x), planted.blocks[2].ffn, torch.linalg.eigh(moments[2])[1][:, -8:]
    error = (y - ffn(x)) * ~kept_map.massive(x)[..., None]
    along, across = (read_errors.PartOfError(ffn, kept_map, basis, of)(x) - ffn(x)
                     for of in (False, True))  # fmt: skip
    away = ~kept_map.massive(x)
    np.testing.assert_allclose((along + across)[away], error[away], atol=1e-3)
    assert (across[away] @ basis.float()).abs().max() < 1e-3 < along[away].abs().max()
    shares = some.groupby("swap")[["of error", "of gradient"]].first()
    expected = float(along.double().square().sum() / error.double().square().sum())
    assert shares["of error"]["along"] == pytest.approx(expected, rel=1e-3)
    assert (
        shares["of gradient"]["along"]
        > 2 * shares["of gradient"]["along as many random directions"]
    )


def test_a_rounded_model_has_few_levels_and_words_of_its_own():
    tiny = load_subject("tiny-gpt2", device="cpu")
    before = tiny.blocks[1].ffn.c_fc.weight.clone()
    coarse = rounded(tiny, 3, group=16)
    weight = coarse.blocks[1].ffn.c_fc.weight
    for group in weight.view(-1, 16)[:20]:
        assert len(group.unique()) <= 7 and group.abs().max() > 0
    np.testing.assert_allclose(weight.view(-1, 16).abs().amax(1), before.view(-1, 16).abs().amax(1))
    step = before.view(-1, 16).abs().amax(1) / 3
    assert ((weight - before).view(-1, 16).abs().amax(1) <= step / 2 + 1e-6).all()
    assert torch.equal(tiny.blocks[1].ffn.c_fc.weight, before)  # the model itself is as it was
    assert coarse.provenance == f"{tiny.provenance}, weights of its blocks rounded to 3 bits by 16"
    coarse.blocks[1].ffn.c_fc.weight.data[0] += 1
    assert coarse.provenance is None
    with pytest.raises(InputError, match="1 bits"):
        rounded(tiny, 1)
    with pytest.raises(InputError, match="no groups of 8"):
        rounded(tiny, 4, group=7)


def test_a_mended_stream_is_the_models_own_where_it_is_mended(planted, fit, test):
    text, fits, few = fit[:24], regression.fit(planted, fit[:24]), test[:6]
    losses = massive.as_losses(
        massive.mended(massive.Trial(planted, text, few, [2], None, fits), (1,), 2, [3, 4]),
        ("at", "mended"),
    )
    # From the next block on, only the first position is wrong: a swap at that position alone.
    ordinary = massive.fitted_on(planted, text, [2], None, fits, (1,))[2]["ordinary"]
    ffn = planted.blocks[2].ffn

    class AtTheFirst(nn.Module):
        def forward(self, x):
            y = ffn(x).clone()
            y[:, 0] = ordinary(x)[:, 0]
            return y

    class Elsewhere(nn.Module):
        def forward(self, x):
            y = ordinary(x).clone()
            y[:, 0] = ffn(x)[:, 0]
            return y

    swept = token_sweep(planted, few, {(2, "others"): AtTheFirst(), (2, "first"): Elsewhere()})
    for mended in ("first", "others"):
        by_hand = sums(swept[2, mended] - swept[None], few.document)
        np.testing.assert_allclose(losses.added((3, mended)), by_hand, atol=2e-3)
    with pytest.raises(InputError, match="not all behind block 2"):
        massive.mended(massive.Trial(planted, text, few, [2], None, fits), (1,), 2, [2, 3])
