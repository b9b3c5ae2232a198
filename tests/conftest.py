"""A cache folder of its own for each test process, and the subjects that many tests read."""

# ruff: noqa: E402

import os
import shutil
import tempfile

# A test forks, and a forked process with several threads of OpenMP stands still.
os.environ.setdefault("OMP_NUM_THREADS", "1")
CACHE = tempfile.mkdtemp(prefix="nonlinearity-tests-")
os.environ["NONLINEARITY_CACHE"] = CACHE  # before lib is imported: nobody's cache is touched

import pytest
import torch

from lib import tables
from lib.hooks import capture
from lib.linear import regression
from lib.models.loading import load_subject
from lib.text.corpora import load_corpus
from lib.text.windows import cut_windows


def pytest_unconfigure():
    shutil.rmtree(CACHE, ignore_errors=True)


@pytest.fixture(scope="session")
def subject():
    return load_subject("tiny-gpt2", device="cpu")


@pytest.fixture(scope="session", params=["tiny-gpt2", "tiny-neox", "tiny-llama"])
def each_subject(request):
    return load_subject(request.param, device="cpu")


@pytest.fixture(scope="session")
def text():
    return load_corpus("wikipedia-sample")


@pytest.fixture(scope="session")
def fit(text, subject):
    return cut_windows(text.fit, subject.tokenizer, 64, name="fit").take(4_096)


@pytest.fixture(scope="session")
def fit_text(fit):
    """The same, where `fit` is a function of lib."""
    return fit


@pytest.fixture(scope="session")
def test(text, subject):
    return cut_windows(text.test, subject.tokenizer, 64, name="test").take(24 * 64, evenly=True)


@pytest.fixture(scope="session")
def fits(subject, fit):
    return regression.fit(subject, fit)


@pytest.fixture(scope="session")
def r2(subject, test, fits):
    """A row a block: see regression.r2."""
    return regression.r2(subject, test, fits)


@pytest.fixture(scope="session")
def rows(subject, fit, test):
    """Rows of block 2: x, y [n, d] of the fit text and of the test text."""
    (x, y), (u, v) = (capture(subject, w, [2])[2] for w in (fit, test))
    return x.flatten(0, 1), y.flatten(0, 1), u.flatten(0, 1), v.flatten(0, 1)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache folder for one test."""
    monkeypatch.setenv("NONLINEARITY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def no_writing(monkeypatch, tmp_path):
    """make render and make train tell Python through the environment that committed files may be
    written; what a test sets of it ends with the test, and it keeps measurements in a folder of its
    own."""
    monkeypatch.setattr(tables, "MEASURED", tmp_path / "measured")
    for name in ("NONLINEARITY_RENDER", "NONLINEARITY_TRAIN", "NONLINEARITY_CHECK"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
