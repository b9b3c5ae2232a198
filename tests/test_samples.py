"""The sample of text that a run draws, and corpora that are too small for it."""

import json
from dataclasses import replace

import pytest
import torch

from lib.base import InputError
from lib.linear import recoverability
from lib.probes import BlockRows
from lib.reports import report
from lib.texts import cut_windows, load_corpus


@pytest.fixture(scope="module")
def documents():
    return load_corpus("wikipedia-sample").fit


def test_a_run_draws_with_its_profile_and_seed(tiny_gpt2, documents):
    tokenizer = tiny_gpt2.tokenizer
    one, again, other = (
        report.start("99_tiny", "smoke", seed=seed).windows(documents, tokenizer, 2560)
        for seed in (1, 1, 2)
    )
    cut = cut_windows(documents, tokenizer, 128, 1)
    assert torch.equal(one.tokens, cut.take(2560).tokens) and one.n_tokens == 2560
    assert one.key == again.key != other.key and not one.in_order
    assert one.name == "wikipedia-sample"
    run = report.start("99_tiny", "smoke", seed=1)
    whole, named = (run.windows(documents, tokenizer, name=name) for name in (None, "king-james"))
    assert torch.equal(whole.tokens, cut.tokens) and named.name == "king-james"
    assert torch.equal(whole.take(2560).tokens, one.tokens)  # a smaller budget lies inside
    run.profile = replace(run.profile, seq_len=64)
    assert run.windows(documents, tokenizer, 640).tokens.shape == (10, 64)


def test_a_run_samples_alike_of_every_document_where_asked(tiny_gpt2, documents):
    run = report.start("99_tiny", "smoke")
    even = run.windows(documents, tiny_gpt2.tokenizer, 21 * 128, evenly=True)
    assert (
        even.n_documents == 21 > run.windows(documents, tiny_gpt2.tokenizer, 21 * 128).n_documents
    )


def test_at_paper_the_windows_are_the_first_in_order(tiny_gpt2, documents):
    """Whatever the seed, and though an even sample was asked for."""
    first = cut_windows(documents, tiny_gpt2.tokenizer, 128, None).tokens[:20]
    for seed in (1, 2):
        run = report.start("99_tiny", "paper", "tiny-gpt2", "wikipedia-sample", seed)
        found = run.windows(documents, tiny_gpt2.tokenizer, 2560, evenly=True)
        assert found.in_order and torch.equal(found.tokens, first)
        assert found.held_out(5).nonzero().flatten().tolist() == [16, 17, 18, 19]


def test_a_run_tells_its_samples(tmp_path, monkeypatch, tiny_gpt2, documents):
    monkeypatch.setattr(report, "DATA", tmp_path)
    run = report.start("99_tiny", "smoke")
    fit = run.windows(documents, tiny_gpt2.tokenizer, 2560)
    line = run.provenance(tiny_gpt2, fit=fit, blocks=6)
    stored = json.loads((run.folder / "provenance.json").read_text())
    assert (stored["fit_tokens"], stored["fit_documents"]) == (2560, fit.n_documents)
    assert " · fit_tokens 2,560 · " in line and "fit" not in stored and stored["blocks"] == 6


def paragraphs(n, words=2_100):
    """Text whose pieces are `n` documents."""
    return "\n\n".join(f"Paragraph {i}. " + "word " * words for i in range(n))


@pytest.mark.parametrize(
    ("pieces", "usable"), [(5, "4 document"), (2, "1 document")], ids=["few", "one"]
)
def test_a_corpus_with_fewer_documents_than_folds(tmp_path, tiny_gpt2, pieces, usable):
    (tmp_path / "mine.txt").write_text(paragraphs(pieces))
    corpus = load_corpus(str(tmp_path / "mine.txt"))
    sample = cut_windows(corpus.fit, tiny_gpt2.tokenizer, 128, 42, corpus.name)
    assert sample.n_documents == int(usable[0]) and len(sample) > 5
    for call in (
        lambda: recoverability(tiny_gpt2, sample),
        lambda: BlockRows(tiny_gpt2, sample, [1]),
    ):
        with pytest.raises(
            InputError, match=f"mine has {usable}.* 5 folds need as many: give"
        ) as e:
            call()
        assert "\n" not in str(e.value) and str(e.value).count(". ") == 0


def test_a_document_that_is_the_whole_corpus(tmp_path, tiny_gpt2):
    (tmp_path / "mine.txt").write_text("One line. " + "word " * 1_500)
    with pytest.raises(InputError, match=r"is one document of 7,5\d\d characters") as error:
        load_corpus(str(tmp_path / "mine.txt"))
    assert "\n" not in str(error.value)
    sample = cut_windows(["word " * 9_000], tiny_gpt2.tokenizer, 128, 42, "mine")
    with pytest.raises(InputError, match=r"mine has 1 document.* give a corpus of more documents"):
        recoverability(tiny_gpt2, sample, n_folds=2)


def test_documents_shorter_than_a_window_are_left_out_and_counted(tiny_gpt2, documents):
    mixed = ["Too short.", *documents[:8], "Also too short to be a window.", *documents[8:12]]
    sample = cut_windows(mixed, tiny_gpt2.tokenizer, 128, seed=42)
    alone = cut_windows(documents[:12], tiny_gpt2.tokenizer, 128, seed=42)
    assert sample.left_out == 2 + alone.left_out and sample.n_documents == alone.n_documents
    assert not {0, 9} & set(sample.document.tolist())
    assert torch.equal(sample.tokens, alone.tokens)
    found, expected = (recoverability(tiny_gpt2, w.take(5120)) for w in (sample, alone))
    assert found.table.r2_lin.tolist() == expected.table.r2_lin.tolist()
