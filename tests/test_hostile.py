"""Public functions with hostile arguments: a right value, one sentence, or Python's own type error.

Each row is a function of one argument, what its value may be, and what it is given.
"""

import re

import numpy as np
import pytest
import torch

from lib.errors import InputError
from lib.files import cache_folder
from lib.gating.gates import auc_by_document, fit_gate, linear_suffices
from lib.gating.routing import allocate
from lib.linear.affine import AffineMap, svd_ridge
from lib.linear.candidates import PolyLinear, conjunction_index
from lib.linear.moments import Moments
from lib.models.names import notebooks, plan
from lib.paper import format_interval as in_words
from lib.stats import Interval, interval, over_seeds, rank_correlation, ratio, spread
from lib.studies.mixer_study import MixerStudy
from lib.text.corpora import pieces
from lib.text.ngram import KneserNey
from lib.text.windows import cut_windows
from lib.training.decoder import Shape, build_decoder
from lib.training.widths import ffn_layers, ffn_widths, grouped, taper

NAN, INF = float("nan"), float("inf")
NUMBERS = (NAN, INF, -INF, -1, -0.5, 0, 1, 2, 1e300, "a", None, [1, 2])
rng = np.random.default_rng(0)
MIXERS = MixerStudy(fit=None, tests={}, tokenizer=None, vocab=11, steps=10)
ROWS = rng.standard_normal((40, 4))
ARRAYS = (
    np.full((40, 4), NAN), np.full((40, 4), INF), np.zeros((40, 4)), np.zeros((0, 4)), ROWS[:1],
    ROWS[:, :0], ROWS[:, 0], -ROWS, ROWS.astype(int), 1e200 * ROWS,
)  # fmt: skip
TENSORS = tuple(torch.from_numpy(np.asarray(a, float)) for a in ARRAYS)
DOCUMENT = np.repeat(np.arange(10), 4)
ANY = (-INF, INF)


def r2_of(x: torch.Tensor) -> float:
    moments = Moments.of(x, torch.from_numpy(ROWS[: len(x)]))
    return moments.r2(moments.fit())


def gate_share(x: np.ndarray) -> float:
    gate = fit_gate(x, rng.random(len(x)) > 0.5)
    return float(gate(torch.from_numpy(np.asarray(x))).float().mean())


def auc(score: np.ndarray, label: np.ndarray | None = None) -> float:
    label = rng.random((10, 4)) > 0.5 if label is None else label
    return float(auc_by_document(score.reshape(10, 4), label, np.arange(10))(np.ones((1, 10)))[0])


def letters(text, add_special_tokens=True, verbose=True):
    return {"input_ids": [ord(c) - 97 for c in text]}


def mean_of(values: np.ndarray) -> Interval:
    return interval(lambda w: (w @ values[:, 0]) / w.sum(1), DOCUMENT[: len(values)])


# ruff: noqa: E501
TABLE = [
    ("svd_ridge", lambda v: svd_ridge(TENSORS[7], TENSORS[7], v).weight.abs().max().item(), ANY, NUMBERS),
    ("fit ridge", lambda v: float(Moments.of(TENSORS[7], TENSORS[7]).fit(v).bias.abs().max()), ANY, NUMBERS),
    ("r2", r2_of, (-INF, 1.0), TENSORS),
    ("svd_ridge rows", lambda v: svd_ridge(v, v, 1.0).weight.sum().item(), ANY, TENSORS),
    ("gate", gate_share, (0, 1), ARRAYS),
    ("gate labels", lambda v: float(fit_gate(ROWS, v[:, 0])(TENSORS[7]).sum()), ANY, ARRAYS),
    ("needless", lambda v: float(linear_suffices(v).mean()), (0, 1), ARRAYS),
    ("auc", auc, (0, 1), ARRAYS),
    ("auc labels", lambda v: auc(ROWS[:, :1].repeat(1, 1)[:40], v[:, :1].reshape(10, 4)), (0, 1), ARRAYS),
    ("conjunction", lambda v: conjunction_index(AffineMap(torch.eye(4), torch.zeros(4)), v), (0, 1), TENSORS),
    ("rank", lambda v: float(PolyLinear(8, v).out.shape[0]), (1, 8), NUMBERS),
    ("placed", lambda v: len(ffn_layers(12, v, "middle")), (1, 12), NUMBERS),
    ("placed layers", lambda v: len(ffn_layers(v, 0.5, "first")), ANY, NUMBERS),
    ("placement", lambda v: sum(ffn_widths(12, 32, v, "final")), ANY, NUMBERS),
    ("taper", lambda v: sum(taper(12, 32, v, 2 - v, "cosine")), (12 * 32, 12 * 32), NUMBERS),
    ("taper layers", lambda v: sum(taper(v, 32, 1.5, 0.5, "linear")) / (v * 32), (1, 1), NUMBERS),
    ("grouped", lambda v: sum(grouped(12, 32, (v, 1, 2 - v))), (12 * 32, 12 * 32), NUMBERS),
    ("grouped shares", lambda v: sum(grouped(12, 32, v)), (12 * 32, 12 * 32),
     ((1,), (1, 2), (1, 1, 1, 0), (-1, 1, 3), (NAN, 1, 1), (1, 1, 1))),
    ("allocate", lambda v: float(allocate(np.abs(ROWS)[None], v).mean()), (0, 1), NUMBERS),
    ("interval", lambda v: mean_of(v).value, ANY, ARRAYS),
    ("ratio", lambda v: ratio(np.ones(10), np.full(10, v)).value, ANY, NUMBERS),
    ("over_seeds", lambda v: over_seeds(v[:, 0]).value, ANY, ARRAYS),
    ("rank_correlation", lambda v: rank_correlation(v[:, 0], np.arange(len(v))).value, (-1, 1), ARRAYS),
    ("spread", lambda v: len(spread(10, v)), (1, 10), (1, 2, 10, 11, None)),
    ("in_words", lambda v: len(in_words(v)), (1, 40), (NAN, INF, -INF, 0, -1, 1e300, 1e-300)),
    ("windows", lambda v: len(cut_windows(["abcdef"], letters, v)), (1, 6), (0, 1, 2, 6, 7, -1)),
    ("pieces", lambda v: len("".join(pieces(v))), ANY,
     ("", "a" * 50_000, "a\n" * 20_000, "word. " * 9_000, "\f".join(["page " * 99] * 99), "\n\n\n")),
    ("ngram order", lambda v: KneserNey(np.ones((2, 3), int), 4, v).losses(np.ones((1, 3), int)).sum(),
     (0, INF), NUMBERS),
    ("ngram tokens", lambda v: KneserNey(v, 4).losses(np.ones((1, 3), int)).sum(), (0, INF),
     (np.full((2, 3), 4), np.full((2, 3), -1), np.ones((2, 3), int), np.zeros((0, 3), int))),
    ("rate", lambda v: MIXERS.rate("linear", 8, 1, v)[0], ANY, ([], ())),
    ("decoder", lambda v: len(build_decoder([v, 8], Shape(8, 2, 11, 8)).model.layers), (2, 2),
     (-1, "a", None)),
    ("notebooks", lambda v: len(notebooks(v)), (1, 40),
     ("05-01", ",", "3-1,05", "x", "1-", "99", "01", "1,2", "-1", "0.5")),
    ("seeds", lambda v: len(plan({"seed": v, "number": "01"})), (1, 40),
     ("-1", "4294967296", "x", "1.5", "1,2", ",", "42")),
    ("settings", lambda v: len(plan(v)), (1, 60),
     ({"profle": "smoke"}, {"modle": "tiny-neox"}, {"profile": "smok"}, {"model": "tiny-gpt2,"},
      {"number": "01", "paper": "whip"}, {"corpus": "wikipedi"}, {"number": "01"},
      {"corpus": "{a}.txt"}, {"model": "./{wildcards.x}"}, {"model": "models/m.gguf"}, {"model": "."})),
]  # fmt: skip
CASES = [
    pytest.param(function, possible, value, id=f"{name}-{k}")
    for name, function, possible, values in TABLE
    for k, value in enumerate(values)
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function, possible, value", CASES)
def test_a_right_value_or_one_sentence(function, possible, value):
    try:
        found = function(value)
    except InputError as error:
        message = str(error)
        assert "\n" not in message and message.endswith("."), message
        assert re.search(r"[:;] |known are", message), f"no way out: {message}"
        return
    except (TypeError, AttributeError, IndexError):
        return  # a wrong type, or an array of a wrong shape: Python says it
    except (ValueError, RuntimeError) as error:  # NumPy's, scikit-learn's and PyTorch's own
        assert re.search(r"sample|shape|dim|array|NaN|infinity|convert|size", str(error))
        return
    low, high = possible
    assert np.isnan(found) or low - 1e-9 <= found <= high + 1e-9, found


def test_nothing_of_it_was_kept():
    assert not list(cache_folder().rglob("*.part"))
