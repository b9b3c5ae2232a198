"""Shared fixtures: the committed tiny models, random-init models of every family, and a cache of
each test's own."""

import pytest
import torch

from lib.base import cache
from lib.models import load_subject
from lib.texts import cut_windows, load_corpus

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads or writes the reader's cache."""
    monkeypatch.setattr(cache, "CACHE", tmp_path / "cache")


@pytest.fixture(scope="session", params=["tiny-gpt2", "tiny-neox", "tiny-llama"])
def tiny(request):
    return load_subject(request.param, device="cpu")


@pytest.fixture(scope="session")
def tiny_gpt2():
    return load_subject("tiny-gpt2", device="cpu")


@pytest.fixture(scope="session")
def tiny_windows(tiny_gpt2):
    """Forty windows in order, so that a slice of them is what it seems."""
    text = load_corpus("wikipedia-sample").fit
    return cut_windows(text, tiny_gpt2.tokenizer, 128, seed=None).take(5120)


@pytest.fixture(scope="session")
def drawn_windows(tiny_gpt2):
    """Sixty windows drawn from all documents, so that folds go by document."""
    text = load_corpus("wikipedia-sample").fit
    return cut_windows(text, tiny_gpt2.tokenizer, 128, seed=42).take(7680)


@pytest.fixture(scope="session")
def unseen_windows(tiny_gpt2):
    """Eight windows drawn from documents that neither of the others holds."""
    text = load_corpus("wikipedia-sample").eval
    return cut_windows(text, tiny_gpt2.tokenizer, 128, seed=42).take(1024)
