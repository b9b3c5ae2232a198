"""Token energies and cross-domain measures, against rows and against identities."""

import numpy as np
import pandas as pd
import pytest
import torch

from lib.base import InputError
from lib.linear import (
    domain_intervals,
    domain_profiles,
    fold_moments,
    recoverability,
    score_rows,
    token_energy,
    token_shares,
    transfer,
)
from lib.models import capture, swap


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

    class Planted(torch.nn.Module):
        def __init__(self, ffn):
            super().__init__()
            self.ffn = ffn

        def forward(self, x):
            y = self.ffn(x)
            return torch.cat([y[:, :5], 500 * y[:, 5:6], y[:, 6:]], 1)

    block = tiny_gpt2.blocks[3]
    with swap(block, Planted(block.ffn)):
        energy = token_energy(tiny_gpt2, tail, found.maps, means, batch=2)
    massive = energy.massive()
    assert massive[3, :, 5].all() and massive[3].sum() == len(tail)
    assert energy.position_share(5)[3] > 0.95
    top = token_shares(energy, tail, tiny_gpt2.tokenizer, 3, top=4)
    planted = {repr(tiny_gpt2.tokenizer.decode([int(i)])) for i in tail.tokens[:, 5]}
    assert set(top.token) <= planted and top.variance_share.sum() > 0.5


def test_the_same_text_twice_is_moved_without_loss(tiny_gpt2, drawn_windows):
    texts = {"a": drawn_windows, "b": drawn_windows[:]}
    profiles = domain_profiles(tiny_gpt2, texts)
    moved = transfer(tiny_gpt2, texts, "a")
    last = moved[moved.fold == 4].pivot_table("r2", "block", ["fit_on", "scored_on"])
    assert np.allclose(last["a", "b"], last["a", "a"])
    own = profiles[(profiles.domain == "a") & (profiles.fold == 4)]
    assert np.allclose(last["a", "a"], own.r2)
    # Only the map of the reference is scored on all folds, and not on rows that it was fitted on.
    assert moved.groupby(["fit_on", "scored_on"]).fold.nunique().to_dict() == {
        ("a", "a"): 1, ("a", "b"): 5, ("b", "a"): 1, ("b", "b"): 1
    }  # fmt: skip


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
    moved = transfer(tiny_gpt2, texts, "a")
    affine = recoverability(tiny_gpt2, texts["a"]).maps[1]
    got = moved.query("fit_on == 'a' and scored_on == 'b' and block == 1").set_index("fold").r2
    for fold in (1, 4):
        part = texts["b"][texts["b"].folds(5) == fold]
        x, y = (side.flatten(0, 1) for side in capture(tiny_gpt2, part, [1])[1])
        assert got[fold] == pytest.approx(score_rows(affine, x, y).r2, abs=1e-5)
    with pytest.raises(InputError, match="unknown domain 'c'"):
        transfer(tiny_gpt2, texts, "c")


def test_one_domain_cannot_be_compared(tiny_gpt2, tiny_windows):
    with pytest.raises(InputError, match=r"only one domain was given \(wikipedia\)"):
        domain_profiles(tiny_gpt2, {"wikipedia": tiny_windows})
