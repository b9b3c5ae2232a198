"""Measurements that are kept: found by what they are of, the same as measured ones, and checked."""

import json

import pandas as pd
import pytest

from lib import kept
from lib.kept import Checked, entry, families, read
from lib.linear.affine import Handle
from lib.linear.regression import errors, fit, fit_facts, fit_maps, r2
from lib.models.names import TINY
from lib.old import token_sweep
from lib.swap.expected import predicted_cost
from lib.swap.sweep import document_losses, sweep

COMMITTED = TINY.parent / "measured"


@pytest.fixture
def written(monkeypatch):
    """What make render sets: measurements are added to the repository's, here to a folder of the
    test's own."""
    monkeypatch.setenv("NONLINEARITY_RENDER", "1")


def forget(monkeypatch, tmp_path):
    """Another machine: the repository is there, the user's cache is empty."""
    monkeypatch.setenv("NONLINEARITY_CACHE", str(tmp_path / "another machine"))


def test_a_kept_page_fits_nothing_and_has_the_same_numbers(
    subject, fit_text, test, own_cache, written, monkeypatch, tmp_path
):
    def page():
        fits = fit(subject, fit_text)
        swaps = {(2, "affine"): fits.maps[2], (3, "mean output"): fits.mean_output[3]}
        losses = sweep(subject, test, swaps).table()
        return losses, r2(subject, test, fits), predicted_cost(subject, test[:4], fits), fits

    measured = page()
    assert families() == sorted(["facts of fits", "losses after a swap", "errors of affine maps",
                                 "predicted costs"])  # fmt: skip
    forget(monkeypatch, tmp_path)

    def never(*_):
        raise AssertionError("fitted again")

    monkeypatch.setattr("lib.linear.regression.fit_maps", never)
    monkeypatch.setattr("lib.swap.sweep.token_sweep", never)
    again = page()
    for one, other in zip(measured[:3], again[:3]):
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert isinstance(again[3].maps[2], Handle)


def test_losses_by_document_are_those_of_each_token(subject, fits, test, own_cache):
    losses = sweep(subject, test, {(2, "plain"): fits.plain[2]})
    exact = token_sweep(subject, test, {(2, "plain"): fits.plain[2]})
    assert losses.perplexity == pytest.approx(exact.perplexity, rel=1e-8)
    assert [*losses.change((2, "plain"))] == pytest.approx([*exact.cost((2, "plain"))], rel=1e-5)


def test_r2_by_block_is_that_of_the_scores(subject, fit_text, test, scores, own_cache):
    table = r2(subject, test, fit(subject, fit_text))
    assert table.r2.to_numpy() == pytest.approx(scores.value())
    assert table.r2_scalar_mean.to_numpy() == pytest.approx(scores.value("scalar"))
    assert table.r2_off_massive.to_numpy() == pytest.approx(scores.value("bulk"))


def test_an_entry_is_written_once_and_only_by_make_render(subject, test, own_cache, monkeypatch):
    sweep(subject, test, {})
    assert not families()
    monkeypatch.setenv("NONLINEARITY_RENDER", "1")
    sweep(subject, test, {})  # found in the user's cache, and added
    sweep(subject, test, {})
    rows = read("losses after a swap")
    assert len(rows) == test.n_documents and rows.key.nunique() == 1
    assert {"model", "text", "version", "document", "sum", "predictions"} <= {*rows.columns}
    assert rows.device.iloc[0] == "cores" and rows.model.iloc[0] == subject.provenance


def test_nothing_of_a_model_in_memory_is_kept(subject, test, own_cache, written):
    from dataclasses import replace

    sweep(replace(subject, loaded_as=None), test, {})
    assert not families()


def test_a_changed_row_is_found_when_it_is_measured_again(
    subject, test, own_cache, written, monkeypatch, tmp_path
):
    sweep(subject, test, {})
    digest = document_losses.key(subject, test).digest
    path = kept.path_of("losses after a swap")

    def measured_again() -> float:
        forget(monkeypatch, tmp_path)
        monkeypatch.setenv("NONLINEARITY_CHECK", digest)
        with pytest.raises(Checked) as told:
            sweep(subject, test, {})
        monkeypatch.delenv("NONLINEARITY_CHECK")
        return json.loads(str(told.value))["difference"]

    assert measured_again() < 1e-6
    rows = read("losses after a swap")
    rows.loc[3, "sum"] *= 1.01
    kept.write("losses after a swap", rows)
    assert path.exists() and measured_again() > 1e-3


@pytest.mark.parametrize("damage", [lambda text: text[:40], lambda text: "", lambda text: "\x00"])
def test_a_damaged_file_is_set_aside_and_measured_again(
    subject, test, own_cache, written, monkeypatch, tmp_path, capsys, damage
):
    before = sweep(subject, test, {}).perplexity
    path = kept.path_of("losses after a swap")
    path.write_text(damage(path.read_text()))
    forget(monkeypatch, tmp_path)
    assert sweep(subject, test, {}).perplexity == before
    assert "is damaged: it is set aside" in capsys.readouterr().out and path.exists()


def test_an_entry_that_was_cut_short_is_measured_again(
    subject, test, own_cache, written, monkeypatch, tmp_path, capsys
):
    before = sweep(subject, test, {}).perplexity
    path = kept.path_of("losses after a swap")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    forget(monkeypatch, tmp_path)
    assert sweep(subject, test, {}).perplexity == before
    assert "are missing, so it is measured again" in capsys.readouterr().out


def test_inputs_that_only_some_entries_name_are_empty_in_the_others(
    subject, fits, test, own_cache, written
):
    sweep(subject, test, {(2, "plain"): fits.plain[2]})
    rows = read("losses after a swap")
    assert {str(block) for block in rows.block} <= {"", "2", "2.0"} and rows.key.nunique() == 2
    key = document_losses.key(subject, test, 2, fits.plain[2])
    table = entry("losses after a swap", key.digest)
    assert [*table.columns] == ["document", "sum", "predictions"]


def test_facts_of_a_fit_are_those_of_the_maps(subject, fit_text, own_cache):
    facts, fits = fit_facts(subject, fit_text), fit_maps(subject, fit_text)
    assert facts.block[facts.is_massive].tolist() == [*fits.massive_kept]
    assert facts.massive.to_numpy() == pytest.approx(fits.massive)


def test_a_model_without_massive_activations_gives_no_rows_and_no_nan(own_cache):
    from lib.models.loading import load_subject
    from lib.text.corpora import load_corpus
    from lib.text.windows import cut_windows

    llama = load_subject("tiny-neox", device="cpu")
    text = load_corpus("wikipedia-sample")
    windows = cut_windows(text.fit, llama.tokenizer, 64).take(2_048)
    few = cut_windows(text.test, llama.tokenizer, 64).per_document(1, 8)
    fits = fit(llama, windows)
    some = {(b, "massive kept"): m for b, m in fits.massive_kept.items()}
    table = sweep(llama, few, {(1, "affine"): fits.maps[1]} | some).table()
    assert len(table) == 1 + len(fits.massive_blocks) and not table.isna().any().any()
    assert not errors(llama, few, fits).isna().any().any()


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*.csv")), ids=lambda path: path.stem)
def test_what_is_committed_is_whole_and_of_no_test(path):
    rows = kept.parsed(path.read_text(encoding="utf-8"))
    assert (rows.groupby("key")["rows"].first() == rows.groupby("key").size()).all()
    words = rows.iloc[:, : rows.columns.get_loc("version")].astype(str)
    assert not words.apply(lambda column: column.str.contains(r"walk|\btest, ")).any().any()
    assert path.stat().st_size < 30e6


def test_inputs_stay_words_where_only_some_entries_say_them():
    """With blanks in its column a 5 would come back as 5.0 when the file is written anew."""
    about = "device,torch,seconds,rows"
    old = kept.parsed(f"key,steps,version,loss,{about}\na,5,1,0.5,cores,2.1,1.5,1\n")
    new = kept.parsed(f"key,width,version,loss,{about}\nb,7,1,0.25,cores,2.1,1.5,1\n")
    written = kept.joined(old, new).to_csv(index=False)
    again = kept.parsed(written)
    assert again.steps.tolist() == ["5", ""] and again.width.tolist() == ["", "7"]
    assert again.loss.tolist() == [0.5, 0.25] and again.torch.tolist() == ["2.1", "2.1"]
    assert again.to_csv(index=False) == written.replace("nan", "")
