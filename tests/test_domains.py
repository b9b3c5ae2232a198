"""Token energies and cross-domain measures, against rows and against identities."""

import numpy as np
import pandas as pd
import pytest
import torch

from lib.base import InputError
from lib.linear import (
    agreement,
    domain_profiles,
    fold_moments,
    recoverability,
    score_rows,
    token_energy,
    token_shares,
    transfer,
)
from lib.models import capture


@pytest.fixture(scope="module")
def measured_parts(tiny_gpt2, tiny_windows):
    return tiny_windows[:20], tiny_windows[16:20]


def test_token_energies_add_up_to_the_scores(tiny_gpt2, measured_parts):
    everything, tail = measured_parts
    measured, folds = recoverability(tiny_gpt2, everything), fold_moments(tiny_gpt2, everything)
    means = torch.stack([folds[-1][b.index].mean_y for b in tiny_gpt2.blocks])
    energy = token_energy(tiny_gpt2, tail, measured.maps, means, batch=3)
    assert energy.norm.shape == (6, 4, 128)
    assert np.allclose(energy.r2(), measured.table.r2_lin, atol=1e-5)
    x, y = capture(tiny_gpt2, tail, [2])[2]
    assert np.allclose(energy.norm[2].ravel(), y.norm(dim=1), rtol=1e-5)
    keep = np.ones_like(energy.norm, bool)
    keep[:, :, 0] = False
    rest = torch.from_numpy(keep[2].ravel())
    deviation, error = (
        (y - means[2]).double()[rest].square().sum(),
        (y - measured.maps[2](x)).double()[rest].square().sum(),
    )
    assert energy.r2(keep)[2] == pytest.approx(float(1 - error / deviation), abs=1e-6)
    assert energy.position_share(0)[2] == pytest.approx(
        float(
            (y - means[2]).double()[~rest].square().sum() / (y - means[2]).double().square().sum()
        )
    )
    assert score_rows(measured.maps[2], x, y).r2 == pytest.approx(energy.r2()[2], abs=1e-5)
    assert np.isnan(energy.r2(np.zeros_like(keep))).all()


def test_a_planted_massive_token_is_found(tiny_gpt2, measured_parts):
    everything, tail = measured_parts
    measured, folds = recoverability(tiny_gpt2, everything), fold_moments(tiny_gpt2, everything)
    means = torch.stack([folds[-1][b.index].mean_y for b in tiny_gpt2.blocks])
    hook = tiny_gpt2.blocks[3].ffn.register_forward_hook(
        lambda _, args, y: torch.cat([y[:, :5], 500 * y[:, 5:6], y[:, 6:]], 1)
    )
    try:
        energy = token_energy(tiny_gpt2, tail + 0, measured.maps, means, batch=2)
    finally:
        hook.remove()
    massive = energy.massive()
    assert (
        massive[3, :, 5].all()
        and massive[3].sum() == len(tail)
        and energy.position_share(5)[3] > 0.95
    )
    top = token_shares(energy, tail, tiny_gpt2.tokenizer, 3, top=4)
    assert (
        set(top.token) <= {repr(tiny_gpt2.tokenizer.decode([int(i)])) for i in tail[:, 5]}
        and top.variance_share.sum() > 0.5
    )


def test_the_same_text_twice_agrees_wholly(tiny_gpt2, measured_parts):
    everything, _ = measured_parts
    texts = {"a": everything, "b": everything.clone()}
    profiles = domain_profiles(tiny_gpt2, texts)
    found = agreement(profiles, "a").iloc[0]
    assert (
        found.pearson == pytest.approx(1)
        and found.spearman == pytest.approx(1)
        and found.worst_shift == 0
    )
    moved = transfer(tiny_gpt2, texts).pivot_table(
        index="block", columns=["fit_on", "scored_on"], values="r2"
    )
    assert np.allclose(moved["a", "b"], moved["a", "a"])
    assert np.allclose(moved["a", "a"], profiles[profiles.domain == "a"].r2_lin)


def test_transfer_is_scoring_the_map_on_the_other_rows(tiny_gpt2, tiny_windows):
    texts = {"a": tiny_windows[:20], "b": tiny_windows[20:40]}
    moved = transfer(tiny_gpt2, texts)
    affine = recoverability(tiny_gpt2, texts["a"]).maps[1]
    x, y = capture(tiny_gpt2, texts["b"].tensor_split(5)[-1], [1])[1]
    got = moved.query("fit_on == 'a' and scored_on == 'b' and block == 1").r2.item()
    assert got == pytest.approx(score_rows(affine, x, y).r2, abs=1e-5)


def test_one_domain_cannot_be_compared(tiny_gpt2, tiny_windows):
    with pytest.raises(InputError, match=r"only one domain was given \(wikipedia\)"):
        domain_profiles(tiny_gpt2, {"wikipedia": tiny_windows})


def test_agreement_of_known_profiles():
    r2 = np.array([0.1, 0.5, 0.9, 0.3, 0.7])
    frame = pd.concat(
        [
            pd.DataFrame(
                {"block": range(5), "r2_lin": v, "low": v - 0.03, "high": v + 0.03, "domain": d}
            )
            for d, v in {"a": r2, "b": r2 * 0.5 + 0.2}.items()
        ]
    )
    found = agreement(frame, "a").iloc[0]
    assert (
        found.pearson == pytest.approx(1)
        and found.mean_abs_shift == pytest.approx(abs(r2 * 0.5 - 0.2).mean())
        and found.worst_block == 2
    )
    assert (
        found.worst_shift_high - found.worst_shift,
        found.worst_shift - found.worst_shift_low,
    ) == pytest.approx((0.03 * 2**0.5,) * 2)
