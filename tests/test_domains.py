"""Token energies and cross-domain measures, against rows and against identities."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from lib.base import InputError
from lib.linear import (
    agreement,
    domain_intervals,
    domain_profiles,
    domains,
    fold_moments,
    recoverability,
    score_rows,
    token_energy,
    token_shares,
    transfer,
)
from lib.models import capture
from lib.stats import Interval


@pytest.fixture(scope="module")
def measured(tiny_gpt2, drawn_windows):
    """The held-out windows of a sample, its maps and table, and the mean outputs held out."""
    windows = drawn_windows[:30]
    found, folds = recoverability(tiny_gpt2, windows), fold_moments(tiny_gpt2, windows)
    means = torch.stack([folds[-1][b.index].mean_y for b in tiny_gpt2.blocks])
    return windows[windows.held_out(5)], found, means


def test_token_energies_add_up_to_the_scores(tiny_gpt2, measured):
    tail, found, means = measured
    energy = token_energy(tiny_gpt2, tail, found.maps, means, batch=3)
    assert energy.norm.shape == (6, len(tail), 128)
    assert np.allclose(energy.r2(), found.table.r2_held_out, atol=1e-5)
    x, y = (side.flatten(0, 1) for side in capture(tiny_gpt2, tail, [2])[2])
    assert np.allclose(energy.norm[2].ravel(), y.norm(dim=1), rtol=1e-5)
    keep = np.ones_like(energy.norm, bool)
    keep[:, :, 0] = False
    rest = torch.from_numpy(keep[2].ravel())
    deviation = (y - means[2]).double().square()
    error = (y - found.maps[2](x)).double().square()
    r2 = 1 - error[rest].sum() / deviation[rest].sum()
    assert energy.r2(keep)[2] == pytest.approx(float(r2), abs=1e-6)
    share = deviation[~rest].sum() / deviation.sum()
    assert energy.position_share(0)[2] == pytest.approx(float(share))
    assert score_rows(found.maps[2], x, y).r2 == pytest.approx(energy.r2()[2], abs=1e-5)
    assert np.isnan(energy.r2(np.zeros_like(keep))).all()


def test_a_planted_massive_token_is_found(tiny_gpt2, measured):
    tail, found, means = measured
    hook = tiny_gpt2.blocks[3].ffn.register_forward_hook(
        lambda _, args, y: torch.cat([y[:, :5], 500 * y[:, 5:6], y[:, 6:]], 1)
    )
    try:
        energy = token_energy(tiny_gpt2, tail, found.maps, means, batch=2)
    finally:
        hook.remove()
    massive = energy.massive()
    assert massive[3, :, 5].all() and massive[3].sum() == len(tail)
    assert energy.position_share(5)[3] > 0.95
    top = token_shares(energy, tail, tiny_gpt2.tokenizer, 3, top=4)
    planted = {repr(tiny_gpt2.tokenizer.decode([int(i)])) for i in tail.tokens[:, 5]}
    assert set(top.token) <= planted and top.variance_share.sum() > 0.5


def test_the_same_text_twice_agrees_wholly(tiny_gpt2, drawn_windows):
    texts = {"a": drawn_windows, "b": drawn_windows[:]}
    profiles = domain_profiles(tiny_gpt2, texts)
    found = agreement(profiles, "a").iloc[0]
    assert (found.pearson, found.spearman) == pytest.approx((1, 1))
    assert found.worst_shift == 0 == found.worst_shift_low < found.worst_shift_high
    moved = transfer(tiny_gpt2, texts).pivot_table(
        index="block", columns=["fit_on", "scored_on"], values="r2"
    )
    last = profiles[(profiles.domain == "a") & (profiles.fold == 4)]
    assert np.allclose(moved["a", "b"], moved["a", "a"])
    assert np.allclose(moved["a", "a"], last.r2)


def test_profiles_are_the_folds_of_each_domain_and_intervals_their_summary(
    tiny_gpt2, drawn_windows
):
    texts = {"a": drawn_windows[:30], "b": drawn_windows[30:]}
    profiles = domain_profiles(tiny_gpt2, texts, n_folds=3)
    summary = domain_intervals(profiles).set_index(["domain", "block"])
    for name, windows in texts.items():
        found = recoverability(tiny_gpt2, windows, n_folds=3)
        rows = profiles[profiles.domain == name].drop(columns="domain").reset_index(drop=True)
        pd.testing.assert_frame_equal(rows, found.folds)
        table = found.table.set_index("block")
        for here, there in {"mean": "r2_lin", "low": "low", "high": "high", "std": "std"}.items():
            assert np.allclose(summary.loc[name][here], table[there])


def test_transfer_is_scoring_the_map_on_the_other_rows(tiny_gpt2, drawn_windows):
    texts = {"a": drawn_windows[:30], "b": drawn_windows[30:]}
    moved = transfer(tiny_gpt2, texts)
    affine = recoverability(tiny_gpt2, texts["a"]).maps[1]
    tail = texts["b"][texts["b"].held_out(5)]
    x, y = (side.flatten(0, 1) for side in capture(tiny_gpt2, tail, [1])[1])
    got = moved.query("fit_on == 'a' and scored_on == 'b' and block == 1").r2.item()
    assert got == pytest.approx(score_rows(affine, x, y).r2, abs=1e-5)


def test_one_domain_cannot_be_compared(tiny_gpt2, tiny_windows):
    with pytest.raises(InputError, match=r"only one domain was given \(wikipedia\)"):
        domain_profiles(tiny_gpt2, {"wikipedia": tiny_windows})


def profiles_of(**domains):
    """domain_profiles of arrays [n_folds, n_blocks]."""
    frames = []
    for name, r2 in domains.items():
        fold, block = (index.ravel() for index in np.indices(r2.shape))
        frames.append(
            pd.DataFrame({"domain": name, "block": block, "fold": fold, "r2": r2.ravel()})
        )
    return pd.concat(frames, ignore_index=True)


def test_agreement_of_known_profiles():
    r2 = np.array([0.1, 0.5, 0.9, 0.3, 0.7])
    spread = np.random.default_rng(0).normal(0, [[0.001], [0.002], [0.001], [0.003]], size=(4, 5))
    spread -= spread.mean(0)
    one, two = r2 + spread, r2 * 0.5 + 0.2 + 2 * spread[::-1]
    found = agreement(profiles_of(a=one, b=two), "a").iloc[0]
    assert (found.pearson, found.spearman, found.worst_block) == pytest.approx((1, 1, 2))
    assert found.mean_abs_shift == pytest.approx(abs(r2 * 0.5 - 0.2).mean())
    assert found.worst_shift == pytest.approx(0.25)
    # Bonferroni over five blocks, Nadeau and Bengio over four folds, both domains in squares.
    t = stats.t.ppf(1 - 0.05 / 5 / 2, 3)
    margin = t * np.sqrt((1 / 4 + 1 / 3) * (one.var(0, ddof=1) + two.var(0, ddof=1)))
    shift = abs(two.mean(0) - one.mean(0))
    assert found.worst_shift_high == pytest.approx((shift + margin).max())
    assert found.worst_shift_low == pytest.approx((shift - margin).max())
    with pytest.raises(InputError, match="unknown domain 'c'"):
        agreement(profiles_of(a=one, b=two), "c")


@pytest.mark.parametrize("moved", [0.0, 0.08])
def test_the_largest_shift_allows_for_the_choice_of_its_block(moved, monkeypatch):
    """Thirty blocks of which at most one moved: its own interval would miss zero, or the shift,
    far more often than the joint one."""
    monkeypatch.setattr(domains, "bootstrap", lambda *_, **__: Interval(0, 0, 0))  # is slow
    rng, covered, alone = np.random.default_rng(0), 0, 0
    for _ in range(100):
        # What the folds share, and what they do not see, is what makes the variance of their mean
        # s² (1/5 + 1/4).
        one, two = (
            0.5 + 0.02 * (rng.normal(size=(5, 30)) + 0.5 * rng.normal(size=30)) for _ in range(2)
        )
        two[:, 3] += moved
        found = agreement(profiles_of(a=one, b=two), "a").iloc[0]
        covered += found.worst_shift_low <= moved <= found.worst_shift_high
        error = np.sqrt(0.45 * (one.var(0, ddof=1) + two.var(0, ddof=1)))[found.worst_block]
        alone += abs(found.worst_shift - moved) <= 1.96 * error
    assert covered >= 95 and alone < (30 if not moved else 95)
