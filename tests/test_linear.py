"""Moments, ridge, R², massive tokens and effective rank against scikit-learn and brute force."""

from dataclasses import replace

import numpy as np
import pytest
import sklearn.decomposition
import sklearn.linear_model
import torch
from sklearn.metrics import r2_score

from lib.errors import InputError
from lib.hooks import Rows, capture, swap
from lib.lazy import made
from lib.linear import regression
from lib.linear.affine import MassiveKeptMap, svd_ridge
from lib.linear.descent import descend, search_rate
from lib.linear.moments import Moments, collect
from lib.linear.rank import (
    along_directions,
    directions,
    effective_rank,
    kinds,
    median_feature_r2,
    rank_gains,
    rank_r2,
    reduced,
    through,
)
from lib.linear.regression import (
    MASSIVE,
    bulk_moments,
    cross_validate,
    massive_direction,
)
from lib.models.loading import load_subject
from lib.stats import sums
from lib.swap.sweep import token_sweep


@pytest.fixture
def data(generator):
    """x [300, 7], y [300, 5]: correlated features with a large mean, and noise."""
    x = (
        torch.randn(300, 7, generator=generator).double()
        @ torch.randn(7, 7, generator=generator).double()
        + 100
    )
    y = x @ torch.randn(7, 5, generator=generator).double() - 30
    return x, y + torch.randn(300, 5, generator=generator).double()


def same(a: Moments, b: Moments) -> None:
    assert a.n == b.n
    for name in ("mean_x", "mean_y", "sxx", "sxy", "syy"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=1e-8, atol=1e-6)


def test_moments_are_numpys_covariances(data):
    m, both = Moments.of(*data), np.concatenate(data, 1)
    cov = np.cov(both.T, ddof=0) * len(both)
    np.testing.assert_allclose(m.sxx, cov[:7, :7], rtol=1e-9)
    np.testing.assert_allclose(m.sxy, cov[:7, 7:], rtol=1e-9)
    np.testing.assert_allclose(m.syy, np.diag(cov)[7:], rtol=1e-9)


def test_moments_add_and_subtract(data):
    x, y = data
    first, rest, whole = (
        Moments.of(x[:90], y[:90]),
        Moments.of(x[90:], y[90:]),
        Moments.of(x, y),
    )
    same(first + rest, whole)
    same(whole - first, rest)
    same(whole - rest, first)


def test_moments_lose_no_digits_to_a_large_mean(data):
    x, y = data
    near, far = Moments.of(x, y), Moments.of(x + 1e6, y)
    torch.testing.assert_close(near.sxx, far.sxx, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("ridge", [0.01, 1.0, 100.0])
def test_ridge_three_ways(data, ridge):
    x, y = data
    oracle = sklearn.linear_model.Ridge(alpha=ridge).fit(x, y)
    for affine in (svd_ridge(x, y, ridge), Moments.of(x, y).fit(ridge)):
        np.testing.assert_allclose(affine.weight, oracle.coef_.T, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(affine.bias, oracle.intercept_, rtol=1e-6, atol=1e-6)


def test_ridge_zero_is_the_pseudo_inverse(data):
    x, y = data
    x = torch.cat([x, x[:, :2].sum(1, keepdim=True)], 1)  # one direction never varies
    centred_x, centred_y = x - x.mean(0), y - y.mean(0)
    oracle = np.linalg.pinv(centred_x.numpy(), rcond=1e-10) @ centred_y.numpy()
    np.testing.assert_allclose(Moments.of(x, y).fit().weight, oracle, atol=1e-7)
    np.testing.assert_allclose(svd_ridge(x, y, 0.0).weight, oracle, atol=1e-7)
    assert len(Moments.of(x, y).eigen[0]) == 7


@pytest.mark.parametrize(
    "units",
    [
        torch.tensor([1e6, 1e6, 1e6, 1, 1, 1, 1]),
        torch.logspace(-6, 6, 7),
        torch.tensor([1e-5, 1e-5, 1e-5, 1e-5, 1, 1, 1]),
        torch.tensor([1e-20, 1, 1, 1, 1, 1, 1e12]),
    ],
    ids=["three large", "all different", "half small", "extreme"],
)
def test_least_squares_does_not_depend_on_units(data, units):
    x, y = (part.float() for part in data)
    units = units.double()
    for fitted in (lambda x: Moments.of(x, y).fit(), lambda x: svd_ridge(x, y, 0.0)):
        there, here = fitted((x * units).float())(x.double() * units), fitted(x)(x.double())
        torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-5)


def test_of_few_rows_the_least_map_is_taken(generator):
    """Fewer rows than features: both roads are numpy's pseudo-inverse."""
    x = torch.randn(5, 8, generator=generator).double()
    y = torch.randn(5, 2, generator=generator).double()
    oracle = np.linalg.pinv((x - x.mean(0)).numpy(), rcond=1e-10) @ (y - y.mean(0)).numpy()
    for affine in (Moments.of(x, y).fit(), svd_ridge(x, y, 0.0)):
        np.testing.assert_allclose(affine.weight, oracle, atol=1e-9)


def test_a_feature_that_never_varies_has_no_weight(data):
    x, y = data
    x = torch.cat([x, torch.full_like(x[:, :1], 1e6 / 3)], 1).float()
    for affine in (Moments.of(x, y).fit(), svd_ridge(x, y, 0.0)):
        assert affine.weight[-1].abs().max() == 0 and affine.weight.abs().max() < 100


@pytest.mark.parametrize("fit_rows", [Moments.of, svd_ridge, lambda x, y: Moments.of(x, y).fit()])
def test_no_rows_are_told_in_a_sentence(fit_rows):
    with pytest.raises(InputError, match="no rows"):
        fit_rows(torch.zeros(0, 3), torch.zeros(0, 2))


def test_r2_is_sklearns(data):
    x, y = data
    affine = Moments.of(x[:200], y[:200]).fit(5.0)
    held_out, guess = Moments.of(x[200:], y[200:]), affine(x[200:])
    total = r2_score(y[200:], guess, multioutput="variance_weighted")
    assert held_out.r2(affine) == pytest.approx(total, abs=1e-9)
    each = r2_score(y[200:], guess, multioutput="raw_values")
    np.testing.assert_allclose(1 - held_out.error(affine) / held_out.syy, each, atol=1e-9)
    left = (y[200:] - guess).square().sum(0)
    np.testing.assert_allclose(held_out.error(affine), left, rtol=1e-7)


def test_collect_is_moments_of_captured_rows(subject, fit, rows):
    sample = collect(subject, fit)[2]
    x, y = rows[:2]
    same(sample.moments, Moments.of(x, y))
    np.testing.assert_allclose(sample.norm.flatten(), y.norm(dim=1), rtol=1e-6)
    torch.testing.assert_close(sample.y, y[sample.heavy])


def test_gathered_moments_without_massive_tokens(subject, fit, rows):
    x, y = rows[:2]
    sample, norm = collect(subject, fit)[2], y.norm(dim=1)
    same(sample.moments, Moments.of(x, y))
    assert bulk_moments(sample, np.inf) is sample.moments
    heavy, limit = norm.argsort()[-9:], float(norm.sort().values[-4])
    sample = replace(sample, heavy=heavy.numpy(), x=x[heavy], y=y[heavy])
    same(bulk_moments(sample, limit), Moments.of(x[norm <= limit], y[norm <= limit]))


def test_fit_maps_is_sklearns_least_squares(fits, rows):
    x, y = (side.double().numpy() for side in rows[:2])
    oracle = sklearn.linear_model.LinearRegression().fit(x, y)
    guess = fits.maps[2](torch.tensor(x)).numpy()
    np.testing.assert_allclose(guess, oracle.predict(x), atol=2e-3 * y.std())


def test_fit_maps_tells_variances_and_conditions(fits, rows):
    x, y = (side.double().numpy() for side in rows[:2])
    variance = np.sort(y.var(0))  # torch's median of 128 is the 64th
    assert fits.facts.variance_ratio[2] == pytest.approx(variance[-1] / variance[63], rel=1e-6)
    # LayerNorm's output has one constant direction, which is no part of either number.
    e = np.linalg.eigvalsh(np.cov(x.T))[1:]
    assert fits.facts.condition[2] == pytest.approx(e[-1] / e[0], rel=1e-3)
    assert fits.facts.condition_without_smallest[2] == pytest.approx(e[-1] / e[1], rel=1e-3)


def test_r2_about_one_scalar_mean(r2, fits, rows):
    x, y = rows[2:]
    left = (y - fits.maps[2](x)).double().square().sum()
    oracle = 1 - left / (y.double() - y.double().mean()).square().sum()
    assert r2.r2_scalar_mean[2] == pytest.approx(float(oracle), abs=1e-5)
    assert r2.r2_scalar_mean[2] > r2.r2[2]  # offsets count as explained


def test_r2_by_block_is_sklearns(r2, fits, rows):
    x, y = rows[2:]
    oracle = r2_score(y, fits.maps[2](x), multioutput="variance_weighted")
    assert r2.r2[2] == pytest.approx(oracle, abs=1e-5)


def test_r2_off_massive_tokens(subject, test, fits, r2):
    assert isinstance(made(fits.repaired[0]), MassiveKeptMap) or not fits.facts.massive[0]
    for b, repaired in fits.repaired.items():
        x, y = (side.flatten(0, 1) for side in capture(subject, test, [b])[b])
        off = y.norm(dim=1) <= fits.facts.limit[b]
        oracle = r2_score(y[off], repaired(x)[off], multioutput="variance_weighted")
        assert r2.r2_off_massive[b] == pytest.approx(oracle, abs=1e-5)


def test_a_recentred_map_has_its_slope_and_no_mean_error(subject, fits, test):
    carried = regression.recentred(subject, fits, test)[2]
    x, y = (side.flatten(0, 1).double() for side in capture(subject, test, [2])[2])
    assert torch.equal(carried.weight, fits.maps[2].weight)
    assert (y - fits.maps[2](x.float())).mean(0).abs().max() > 1e-3
    assert (y - carried(x.float())).mean(0).abs().max() < 1e-5
    at_home = regression.recentred(subject, fits, fits.windows)[2]
    torch.testing.assert_close(at_home.bias, fits.maps[2].bias, rtol=1e-4, atol=1e-5)


def test_errors_are_summed_by_document(subject, fits, test):
    table = regression.errors(subject, test, fits)
    x, y = capture(subject, test, [2])[2]
    by_window = (y - fits.maps[2](x)).double().square().sum((1, 2)).numpy()
    of_block = table[table.block == 2]
    np.testing.assert_allclose(of_block.error, sums(by_window[:, None], test.document), rtol=1e-6)
    assert of_block.positions.sum() == y.shape[0] * y.shape[1]


@pytest.fixture
def planted(subject, monkeypatch):
    """tiny-gpt2 whose first FFN adds 400 medians where a feature of x is beyond its 99% quantile;
    the feature and that quantile."""
    ffn, at = subject.blocks[0].ffn, {}

    class Planted(torch.nn.Module):
        def forward(self, x):
            y = ffn(x)
            return y + 400 * at["norm"] * (x[..., 3:4] > at["cut"]) * at["to"]

    def install(fit):
        x, y = capture(subject, fit, [0])[0]
        at["norm"], at["cut"] = y.norm(dim=-1).median(), x[..., 3].quantile(0.99)
        at["to"] = torch.nn.functional.one_hot(torch.tensor(5), subject.d_model)
        return swap(subject.blocks[0], Planted())

    return install


def test_massive_tokens_are_found_and_repaired(planted, subject, fit, test):
    memory = replace(subject, loaded_as=None)  # it is no longer the model of that name
    with planted(fit):
        fits = regression.fit(memory, fit)
        found = regression.r2(memory, test, fits)
        x, y = capture(memory, test, [0])[0]
        repaired = fits.repaired[0]
        assert isinstance(made(repaired), MassiveKeptMap)
        assert fits.facts.massive[0] == pytest.approx(0.01, abs=0.003)
        assert fits.facts.limit[0] < 400 * y.norm(dim=-1).median()
        massive, told = y.norm(dim=-1) > float(fits.facts.limit[0]), repaired.massive(x)
        assert massive.any() and (massive & told).sum() > 0.7 * massive.sum()
        assert found.r2_off_massive[0] > found.r2[0]
        # In the model the FFN stays on the massive positions, and the map has all others.
        ffn = subject.blocks[0].ffn
        with swap(subject.blocks[0], repaired):
            swapped = subject.blocks[0].ffn(x)
        torch.testing.assert_close(swapped[told], ffn(x)[told])
        torch.testing.assert_close(swapped[~told], repaired(x)[~told])


def test_massive_direction_tells_planted_rows(generator):
    bulk = torch.randn(2000, 10, generator=generator) * torch.arange(1, 11)
    massive = torch.randn(12, 10, generator=generator) + torch.eye(10)[0] * 20
    direction, threshold = massive_direction(Moments.of(bulk, bulk), massive)
    assert float(direction.norm()) == pytest.approx(1)
    assert int(direction.abs().argmax()) == 0  # the narrow feature that is far off
    assert not (bulk @ direction > threshold).any()
    assert (massive @ direction > threshold).all()
    assert MASSIVE == 20


def test_cross_validation_is_refitting(subject, fit):
    found, fold = cross_validate(subject, fit, 3), fit.folds(3)
    x, y = (side.double().numpy() for side in capture(subject, fit, [2])[2])
    for k in range(3):
        train = [side[fold != k].reshape(-1, 128) for side in (x, y)]
        u, v = (side[fold == k].reshape(-1, 128) for side in (x, y))
        model = sklearn.linear_model.LinearRegression().fit(*train)
        oracle = r2_score(v, model.predict(u), multioutput="variance_weighted")
        assert found[2, k] == pytest.approx(oracle, abs=1e-6)


@pytest.mark.parametrize("bulk", [False, True])
def test_rank_profile_is_explicit_rank_k_regression(subject, fits, test, rows, bulk):
    found = rank_gains(subject, fits, test, bulk)
    r2 = rank_r2(found, 2, np.ones((1, len(test))))[0]
    x, y, u, v = (side.double().numpy() for side in rows)
    if bulk:  # without massive tokens
        train, held_out = (np.linalg.norm(side, axis=1) <= fits.facts.limit[2] for side in (y, v))
        x, y, u, v = x[train], y[train], u[held_out], v[held_out]
    weight = np.linalg.pinv(x - x.mean(0), rcond=1e-6) @ (y - y.mean(0))
    leading = np.linalg.svd((x - x.mean(0)) @ weight, full_matrices=False)[2]
    total = ((v - v.mean(0)) ** 2).sum()
    for k in (1, 2, 7, 40, 100):
        guess = y.mean(0) + (u - x.mean(0)) @ weight @ leading[:k].T @ leading[:k]
        assert r2[k - 1] == pytest.approx(1 - ((v - guess) ** 2).sum() / total, abs=2e-4)
    guess = y.mean(0) + (u - x.mean(0)) @ weight
    assert r2[-1] == pytest.approx(1 - ((v - guess) ** 2).sum() / total, abs=2e-4)
    each = r2_score(v, guess, multioutput="raw_values")
    median = median_feature_r2(found, 2, np.ones((1, len(test))))
    assert median == pytest.approx(np.median(each), abs=2e-4)


def test_rank_totals_leave_massive_tokens_out(subject, fits, test, rows):
    norm, v = np.linalg.norm(rows[3], axis=1), rows[3].double().numpy()
    limit = np.quantile(norm, 0.9)
    memory = replace(subject, loaded_as=None)
    limited = replace(fits, facts=fits.facts.assign(limit=limit))
    found = rank_gains(memory, limited, test, ordinary=True)
    v = v[norm <= limit]
    assert found["total"][2].sum() == pytest.approx(((v - v.mean(0)) ** 2).sum(), rel=1e-6)


def test_output_directions_of_a_planted_rank(generator):
    def normal(*shape):
        return torch.randn(shape, generator=generator).double()

    x, out = normal(2000, 12), torch.linalg.qr(normal(9, 3))[0]
    y = x @ normal(12, 3) @ out.T + 5
    v = directions(Moments.of(x, y))[:, :3]
    torch.testing.assert_close(v @ v.T, out @ out.T, atol=1e-8, rtol=0)


def test_no_layer_of_few_outputs_recovers_more_than_its_directions(subject, fits, test):
    table = along_directions(subject, test, {2: fits.maps[2]}, 5)
    x, y = capture(subject, test, [2])[2]
    left = (y - fits.maps[2](x)).flatten(0, 1).double().numpy()
    oracle = sklearn.decomposition.TruncatedSVD(5, algorithm="arpack").fit(left)
    held = (oracle.inverse_transform(oracle.transform(left)) ** 2).sum() / (left**2).sum()
    assert table.share.item() == pytest.approx(held, rel=1e-6)


def test_effective_rank_by_hand():
    r2 = np.array([[0.4, 0.7, 0.8, 1.0], [-0.3, -0.2, -0.1, 0.0], [0.95, 1, 1, 1]])
    found = effective_rank(r2)
    assert found[0] == 4 and np.isnan(found[1]) and found[2] == 1
    assert effective_rank(r2[:1], 0.8) == 3


def test_a_map_through_all_directions_is_the_map_and_through_few_their_regression(generator):
    x = torch.randn(400, 6, generator=generator)
    y = x @ torch.randn(6, 6, generator=generator) + 0.5 * torch.randn(400, 6, generator=generator)
    moments = Moments.of(x, y)
    v = directions(moments)
    whole = through(moments, v)
    torch.testing.assert_close(whole(x), moments.fit()(x.double()).float(), rtol=1e-4, atol=1e-4)
    # Rank one: the leading pair of the map's outputs on the projected output.
    one = through(moments, v[:, :1])
    projected = (
        moments.mean_y + ((moments.fit()(x.double()) - moments.mean_y) @ v[:, :1]) @ v[:, :1].T
    )
    torch.testing.assert_close(one(x).double(), projected, rtol=1e-4, atol=1e-4)
    best = [(y - through(moments, v[:, k : k + 1])(x)).square().sum() for k in range(6)]
    assert min(best) == best[0]


def test_reduced_maps_are_the_rank_regressions_of_the_gains(subject, fits, test):
    """The errors of a map cut to rank 3 are those that the gains of its directions leave."""
    found = rank_gains(subject, fits, test)
    cut = reduced(subject, fits, {2: 3, 4: 128})
    x, y = capture(subject, test, [2])[2]
    r2 = rank_r2(found, 2, np.ones((1, len(test))))[0, 2]
    total = (y - y.mean((0, 1))).double().square().sum()
    assert float(1 - (y - cut[2](x)).double().square().sum() / total) == pytest.approx(r2, abs=1e-4)
    whole = fits.maps[4](x)  # of all ranks it is the map itself
    torch.testing.assert_close(cut[4](x), whole, rtol=1e-3, atol=1e-3)
    assert "rank 3, block 2" in cut[2].provenance and cut[2].provenance != cut[4].provenance


def test_kinds_tell_what_the_gains_tell(subject, fits, test):
    table = kinds(subject, test, fits)
    found, ones = rank_gains(subject, fits, test), np.ones((1, len(test)))
    row = table[(table.block == 2) & (table.positions == "all")].iloc[0]
    r2 = rank_r2(found, 2, ones)[0]
    assert row.r2 == pytest.approx(r2[-1]) and row.r2_rank_1 == pytest.approx(r2[0])
    assert row["rank"] == effective_rank(r2[None])[0]
    assert row.median_feature == pytest.approx(median_feature_r2(found, 2, ones)[0])
    assert row.rank_low < row["rank"] < row.rank_high
    ordinary = table.block[table.positions == "ordinary"]
    assert [*ordinary] == fits.massive_blocks


def test_descent_climbs_towards_the_closed_form(subject, fit, test, fits, r2):
    rows = Rows(subject, fit, test, [2])
    total = regression.errors(subject, test, fits).groupby("block").spread.sum()[2]
    few, many = (descend(rows, 2, "adamw", 1e-2, steps, 42) for steps in (20, 800))
    r2_few, r2_many = (1 - run.error[-1].sum() / total for run in (few, many))
    assert r2_few < r2_many < r2.r2[2] + 0.05
    assert many.step[-1] == 800 and many.error.shape == (len(many.step), len(test))
    # The map that comes back has the error that was measured.
    x_test, y_test = rows[2][2:]
    left = (y_test - many.map(x_test)).double().square().sum((1, 2))
    np.testing.assert_allclose(left, many.error[-1], rtol=1e-4)


class IllConditioned:
    """Rows whose y depends alike on directions of x that differ a thousandfold in size."""

    provenance = None

    def __getitem__(self, block):
        g = torch.Generator().manual_seed(1)
        truth, scale = torch.randn(8, 8, generator=g), torch.logspace(0, -3, 8)
        hidden = torch.randn(4000, 8, generator=g), torch.randn(5, 40, 8, generator=g)
        (x, y), (x_test, y_test) = ((z * scale, z @ truth) for z in hidden)
        return x, y, x_test, y_test


def test_whitening_makes_the_trained_map_of_raw_inputs_better():
    rows = IllConditioned()
    x_test, y_test = rows[0][2:]
    raw, white = (descend(rows, 0, "adamw", 1e-2, 300, 42, whiten=w) for w in (False, True))
    assert white.error[-1].sum() < 0.5 * raw.error[-1].sum()
    left = (y_test - white.map(x_test)).double().square().sum((1, 2))
    np.testing.assert_allclose(left, white.error[-1], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_a_layer_trained_on_standardized_features_is_the_map_of_raw_ones(side):
    rows = IllConditioned()
    x_test, y_test = rows[0][2:]
    raw = descend(rows, 0, "adamw", 1e-2, 300, 42)
    scaled = descend(rows, 0, "adamw", 1e-2, 300, 42, standardized=side)
    left = (y_test - scaled.map(x_test)).double().square().sum((1, 2))
    np.testing.assert_allclose(left, scaled.error[-1], rtol=1e-2, atol=1e-4)
    if side == "inputs":  # directions along the features: as good as whitened
        assert scaled.error[-1].sum() < 0.5 * raw.error[-1].sum()


def test_an_unknown_side_is_refused():
    with pytest.raises(InputError, match="unknown standardized side 'output'"):
        descend(IllConditioned(), 0, "adamw", 1e-2, 10, 42, standardized="output")


def test_a_searched_rate_beats_the_ends_of_its_grid(subject, fit, test):
    rows = Rows(subject, fit, test, [2])

    def held_out(rate: float) -> float:
        return descend(rows, 2, "adamw", rate, 100, 42).held_out[-1]

    rate = search_rate((1e-5, 1e-4), held_out)
    assert rate > 1e-4  # both are too small, so it went on
    assert held_out(rate) < held_out(1e-4) < held_out(1e-5)


def test_bfloat16_gives_nearly_the_same(fit, test, r2):
    half = load_subject("tiny-gpt2", device="cpu", dtype=torch.bfloat16)
    found = regression.r2(half, test, regression.fit(half, fit))
    np.testing.assert_allclose(found.r2, r2.r2, atol=0.02)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_cuda_gives_the_numbers_of_the_cpu(fit, test):
    found = {}
    for device in ("cpu", "cuda"):
        there = load_subject("tiny-gpt2", device=device)
        there = replace(there, loaded_as=None)  # nothing is kept: both are computed
        maps = regression.fit(there, fit)
        of_maps = regression.r2(there, test, regression.fit(there, fit))
        found[device] = of_maps, token_sweep(there, test, maps.repaired)
    cpu, cuda = found["cpu"], found["cuda"]
    for b in range(6):
        assert cuda[0].r2[b] == pytest.approx(cpu[0].r2[b], abs=1e-3)
        losses = [of[1][b].mean() for of in (cuda, cpu)]
        assert losses[0] == pytest.approx(losses[1], abs=1e-3)


@pytest.mark.parametrize("d", [8, 32, 128, 576])
def test_a_direction_that_varies_by_rounding_gets_no_weight(d, generator):
    """LayerNorm's outputs in float32: one direction is constant but for rounding; svd_ridge and the
    moments leave it out, in float32 as in float64."""
    norm = torch.nn.LayerNorm(d)
    x = norm(torch.randn(6 * d, d, generator=generator) + 0.3).detach()
    y = x @ torch.randn(d, d, generator=generator)
    constant_direction = torch.ones(d).double() / d**0.5  # of a norm without weights
    for rows in (x, x.double()):
        moments = Moments.of(x, y)
        assert len(moments.eigen[0]) == d - 1
        for fitted in (svd_ridge(rows if rows is x else x, y, 0.0), moments.fit()):
            along = (constant_direction @ fitted.weight).norm() / fitted.weight.norm()
            assert along < 1e-3
    half = x.to(torch.float16)
    assert len(Moments.of(half, y.half()).eigen[0]) == d - 1
