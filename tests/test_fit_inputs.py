"""Bad input to fits, intervals and notebook options: refused in one sentence, or answered with
"undefined", never with a wrong number."""

import numpy as np
import pandas as pd
import pytest
import torch

from lib.base import InputError
from lib.linear import AffineMap
from lib.models import swap
from lib.probes import BlockRows, conjunction_index, fit_candidates, residual_probes
from lib.reports import parameters, report
from lib.stats import bootstrap, pairwise, spearman, variance_shares
from lib.swaps import delta_ppl, heal
from lib.training import develop


def test_fits_refuse_bad_budgets_in_one_sentence(tiny_gpt2, tiny_windows):
    rows = BlockRows(tiny_gpt2, tiny_windows, [1])
    for steps, seeds, what in [
        (0, [1], "0 steps"),
        (2.5, [1], "2.5 steps"),
        (3, [], "seeds"),
        (3, [1, 1], "seeds"),
        (3, [-1], "seeds"),
        (3, 42, "seeds"),
    ]:
        for call in (
            lambda seeds=seeds, steps=steps: residual_probes(rows, seeds, steps=steps),
            lambda seeds=seeds, steps=steps: fit_candidates(rows, ["poly"], seeds, steps),
        ):
            with pytest.raises(InputError, match=what):
                call()
    with pytest.raises(InputError, match="named twice"):
        residual_probes(rows, [1], blocks=[1, 1])
    with pytest.raises(InputError, match="neither True nor False"):
        fit_candidates(rows, ["linear"], [1], 1, scale_aware="False")
    with pytest.raises(InputError, match="rate of -1"):
        heal(tiny_gpt2, tiny_windows[:4], {(1, "own", 1): tiny_gpt2.blocks[1].ffn}, 2, lr=-1)
    with pytest.raises(InputError, match="unknown family"):
        develop([("tiny-gpt3", "text", 1)], {}, tiny_windows, 10, 1)


def test_rows_follow_the_model(tiny_gpt2, tiny_windows):
    """The same BlockRows after a change of the model gives the changed model's rows."""
    rows = BlockRows(tiny_gpt2, tiny_windows[:8], [1])
    before = rows(1).x
    with swap(tiny_gpt2.blocks[0], torch.nn.Linear(128, 128).requires_grad_(False)):
        assert torch.equal(
            rows(1).x, BlockRows(tiny_gpt2, tiny_windows[:8], [1])(1).x
        ) and not torch.equal(rows(1).x, before)
    assert torch.equal(rows(1).x, before)


def test_healing_of_an_unknown_module_is_not_cached(tiny_gpt2, tiny_windows):
    class Scaled(torch.nn.Module):
        def __init__(self, k):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.k = torch.nn.Linear(128, 128), k

        def forward(self, x):
            return self.layer(x) * self.k

    small, large = (
        heal(tiny_gpt2, tiny_windows[:4], {(1, "own", 1): Scaled(k)}, 2, lr=1e-2)[1, "own", 1]
        for k in (1.0, 50.0)
    )
    assert not torch.allclose(small.layer.weight, large.layer.weight)


@pytest.mark.parametrize("n", [5, 10])
def test_one_held_out_document_gives_no_unseen_gain(tiny_gpt2, tiny_windows, n):
    """However many windows it has."""
    rows = BlockRows(tiny_gpt2, tiny_windows[:n], [1])
    assert len(set(rows(1).document)) == 1 and len(rows(1).document) == n // 5
    table = residual_probes(rows, [42], layout=((2, 4),), steps=20).table
    assert np.isfinite(table.gain).all() and table[
        ["gain_unseen", "gain_unseen_low", "gain_unseen_high"]
    ].isna().all(axis=None)
    fitted = fit_candidates(rows, ["poly"], [42], steps=20).table
    assert np.isfinite(fitted.r2).all() and fitted.r2_unseen.isna().all()


def test_conjunction_index_of_nothing_finite_is_refused():
    half, x = torch.tensor([True, False, True]), torch.randn(8, 3)
    for bad in (
        AffineMap(torch.full((3, 2), torch.nan), torch.zeros(2)),
        AffineMap(torch.ones(3, 2), torch.full((2,), torch.inf)),
    ):
        with pytest.raises(InputError, match="not finite"):
            conjunction_index(bad, x, half)
    for wrong in (x[:0], x[None]):
        with pytest.raises(InputError, match="must be rows"):
            conjunction_index(AffineMap(torch.ones(3, 2), torch.zeros(2)), wrong, half)
    module = torch.nn.Linear(3, 2)
    conjunction_index(module, x, half)
    assert module.weight.dtype == torch.float32


def test_delta_ppl_and_variance_refuse_what_does_not_fit():
    base = np.ones((4, 3))
    for wrong in (np.ones((1, 3)), np.ones((4, 1))):
        with pytest.raises(InputError, match="same windows"):
            delta_ppl(base, {1: wrong}, np.arange(4))
    with pytest.raises(InputError, match="level 95"):
        delta_ppl(base, {1: base}, np.arange(4), level=95)
    with pytest.raises(InputError, match="3 documents do not fit losses of 4 windows"):
        delta_ppl(base, {1: base}, np.arange(3))
    grid = (
        pd.MultiIndex.from_product([range(3), range(2)], names=["family", "block"])
        .to_frame(index=False)
        .assign(r2=0.1)
    )
    for table, what in (
        (grid, "does not vary"),
        (grid.assign(r2=np.nan), "not finite"),
        (grid.drop(columns="block"), "no column 'block'"),
    ):
        with pytest.raises(InputError, match=what):
            variance_shares(table, ["family", "block"])
    assert len(pairwise(grid, ["family"], over="block")) == 3
    with pytest.raises(InputError, match="more than once"):
        pairwise(pd.concat([grid, grid]), ["family"], over="block")


def test_intervals_of_too_little_decide_nothing():
    assert np.isnan(bootstrap(np.mean, [1.0]).low)
    assert np.isfinite(
        bootstrap(spearman, [1.0, 2, 3, 4, 5, 6], [1.0, 3, 2, 5, 4, 6], paired=True).low
    )
    assert np.isnan(spearman([1.0, 1, 1], [1.0, 2, 3]))


@pytest.mark.parametrize("blocks", ["a", "1,", "99", "1,1", "1.5", [1, 4], -1])
def test_bad_blocks_parameter(blocks):
    with pytest.raises(InputError, match="distinct block numbers"):
        parameters.blocks_named(blocks, 6)


def test_notebook_options_have_their_own_folder():
    assert parameters.blocks_named("1, 4", 6) == [1, 4] and parameters.blocks_named(3, 6) == [3]
    assert [parameters.blocks_named(None, n) for n in (1, 2, 6)] == [[0], [0, 1], [1, 4]]
    usual, other = (report.start("05_two_blocks", "smoke", blocks=b) for b in (None, "0,5"))
    assert (
        usual.folder != other.folder
        and usual.folder.parent.name == "tiny-gpt2"
        and "blocks" in other.folder.parent.name
    )


def test_bad_domains_parameter():
    assert parameters.domains_named(" python-stdlib", "wikipedia-sample", ()) == ["python-stdlib"]
    assert parameters.domains_named(None, "wikipedia", ("wikipedia", "king-james")) == [
        "king-james"
    ]
    for bad in ("wikipedia-sample", "python-stdlib,python-stdlib"):
        with pytest.raises(InputError, match="name each other corpus once"):
            parameters.domains_named(bad, "wikipedia-sample", ())
