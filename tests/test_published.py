"""The papers' printed numbers: each stands in its source line, in one vocabulary, and one of
several printings is canonical."""

import re
from decimal import Decimal

import pandas as pd
import pytest

from lib.base import DATA, InputError
from lib.stats import half_unit, published
from lib.stats.published import COLUMNS, PAPERS, vocabulary

ENDS = ("value", "low", "high")
PROTOCOL = {"run", "cv"}
"""settings that say how a quantity was measured, not which one it is"""
IN_WORDS = {"7": "seven", "8": "eight", "1": "without exception"}


def read(paper: str) -> pd.DataFrame:
    return pd.read_csv(DATA / "published" / f"{paper}.csv", keep_default_na=False, dtype=str)


def settings(row) -> dict[str, str]:
    return dict(part.split("=", 1) for part in row.setting.split(";") if part)


@pytest.fixture(scope="module")
def every() -> pd.DataFrame:
    return pd.concat([read(paper) for paper in PAPERS], ignore_index=True)


def test_every_file_is_a_papers_the_ledger_or_the_vocabulary():
    files = {path.stem for path in (DATA / "published").glob("*.csv")}
    assert files == {*PAPERS, "claims", "vocabulary"}
    for paper in PAPERS:
        rows = read(paper)
        assert tuple(rows) == COLUMNS and (rows.paper == paper).all()


def printings(row, value: str) -> list[str]:
    """How the text may print a value of the file: scaled by k, M or B, a fraction as a percentage,
    a power of ten as 10^k, Ikeda's blocks from 1."""
    value = value.lstrip("-")
    mantissa, _, exponent = value.partition("e")
    if row.unit == "block" and row.paper == "ikeda":
        return [str(int(value) + 1)]
    found = [value, mantissa]
    if row.unit == "1" and not exponent:
        found.append(f"{Decimal(mantissa).scaleb(2):f}")
    if mantissa == "1" and exponent:
        found.append(f"10^{exponent}")
    return found


def stands_in(row, value: str) -> bool:
    """Whether the source line prints the value, to its last digit and without its sign.

    Whipp's text prints every formula twice without a gap ("0.9960.996"), so there a number may
    also begin or end with the value.
    """
    if row.note.startswith("printed in words"):
        return IN_WORDS[value] in row.source
    source = re.sub(r"(?<=\d\.) (?=\d)", "", row.source)  # "30. 8"
    joined = re.sub(r"(?<=\d)[\s,\u2009\u00a0](?=[\d.])", "", source)  # "10,000"
    numbers = re.findall(r"10\^\d|\d+e-?\d+|\d[\d.]*", joined)
    numbers = {number.rstrip(".") for number in numbers + re.findall(r"\d+(?:\.\d+)?", source)}
    if row.note.startswith("glued from"):  # the point is not the number's
        numbers = {number.replace(".", "") for number in numbers}
    forms = printings(row, value)
    if row.paper == "whipp":
        return any(number.startswith(f) or number.endswith(f) for number in numbers for f in forms)
    return not numbers.isdisjoint(forms)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_published_number_stands_in_its_source_line(paper):
    rows = read(paper)
    lost = [
        (row.Index + 2, value, row.source)
        for row in rows.itertuples()
        for value in (row.value, row.low, row.high)
        if value and not stands_in(row, value)
    ]
    assert not lost


def test_a_wrong_number_is_not_found():
    rows = read("balogh")
    row = next(rows[rows.value == "-0.173"].itertuples())
    assert stands_in(row, row.value) and stands_in(row, "0.173")
    assert not any(stands_in(row, wrong) for wrong in ("-0.0173", "-0.17", "-0.1730", "-0.183"))


def test_the_vocabulary_is_closed(every):
    """No word is used that is not explained, and none explained that is not used."""
    found = [settings(row) for row in every.itertuples()]
    used = {
        "metric": set(every.metric),
        "subject": set(every.subject),
        "setting": {key for each in found for key in each},
        "corpus": {
            each[key] for each in found for key in ("corpus", "reference_corpus") if key in each
        },
        "unit": set(every.unit),
        "bound": set(every.bound) - {""},
    }
    for kind, words in used.items():
        known = vocabulary(kind)
        assert known.index.is_unique and set(known.index) == words, kind
        assert (known.meaning != "").all()
    units = vocabulary("metric").unit
    assert (every.unit == every.metric.map(units)).all(), "one unit a metric"


def test_settings_are_typed(every):
    kinds = vocabulary("setting").unit
    assert set(kinds) == {"number", "text"} and not set(kinds.index) & {*COLUMNS, "printed"}
    for row in every.itertuples():
        found = settings(row)
        assert row.setting == ";".join(f"{k}={v}" for k, v in found.items()), row
        for key, value in found.items():
            if kinds[key] == "number":
                float(value)
        assert int(found.get("block", 0)) in range(48), "blocks count from 0"
        assert re.fullmatch(r"(\d+(-\d+)?,?)+", found.get("blocks", "0"))


def test_a_row_has_a_value_or_a_range(every):
    numbers = every[[*ENDS]].apply(pd.to_numeric)
    value, low, high = (numbers[end].notna() for end in ENDS)
    assert (value ^ low).all() and (low == high).all()
    assert (numbers.low[low] < numbers.high[low]).all()
    assert not every.metric.str.contains(r"percent|_(?:low|high|min|max|approx)$").any()
    assert not every.unit.str.contains("percent|%").any()


def test_fractions_are_no_percentages(every):
    shares = every[every.metric.str.endswith(("_share", "accuracy", "_saved", "auc"))]
    shares = pd.concat([shares, every[every.metric.isin(["r2", "cosine", "pearson_r"])]])
    top = shares[[*ENDS]].apply(pd.to_numeric).abs().max(axis=1)
    assert len(shares) > 250 and (top <= 1).all()


def test_one_canonical_value_a_quantity(every):
    """Of the printings of one quantity of one subject exactly one is canonical, whatever the run;
    none only where a note says that the text is damaged."""
    keys = [
        (row.paper, row.subject, row.metric)
        + tuple(sorted((k, v) for k, v in settings(row).items() if k not in PROTOCOL))
        for row in every.itertuples()
    ]
    assert set(every.canonical) == {"yes", "no"}
    same = every.assign(key=keys, yes=every.canonical == "yes").groupby("key")
    assert (same.yes.sum() <= 1).all()
    without = same.filter(lambda rows: not rows.yes.any())
    assert len(without) == 3 and (without.note != "").all()
    assert not every.duplicated(
        [c for c in COLUMNS if c not in ("canonical", "note", "source")]
    ).any()


def test_gpt2s_block_10_has_one_canonical_r2():
    rows = published("whipp", metric="r2_lin", subject="gpt2")
    rows = rows[rows.block == 10]
    assert sorted(rows.value.unique()) == [0.434, 0.67, 0.736, 0.74]
    (one,) = rows[rows.canonical].itertuples()
    assert (one.value, one.table, one.run) == (0.67, "Figure 2", "depth-survey")


def test_ikedas_layers_count_from_0():
    rows = published("ikeda", metric="expanded_block")
    assert rows.block.tolist() == rows.value.tolist() == [5, 6, 7]
    (removed,) = published("ikeda", metric="removed_block").itertuples()
    assert (removed.low, removed.high) == (0, 19) and "layers 1–20" in removed.source


def test_doubtful_readings_are_marked():
    rows = published("ikeda", metric="warmup_steps").set_index("table")
    assert rows.value.to_dict() == {"Table 5": 10_000, "Appendix G.1": 1000}
    assert rows.canonical.to_dict() == {"Table 5": False, "Appendix G.1": True}
    assert "100 00" in rows.note["Table 5"]
    low = published("whipp", "§5.4", "effective_rank", "all")
    (low,) = low[(low.regime == "low-rank") & low.canonical].itertuples()
    assert (low.low, low.high, low.bound) == (1, 6, "approx") and "166" in low.note


def test_taperings_counts_printed_in_words():
    rows = published("tapered", "§3.3", "n_improved").set_index("task").value
    assert rows.to_dict() == {"lambada": 8, "wikitext": 7}
    assert published("tapered", metric="improved_share").value.tolist() == [1]


@pytest.mark.parametrize(
    ("paper", "subject", "metric", "where", "value"),
    [
        ("whipp", "gpt2", "r2_lin", {"table": "Figure 2", "block": 2}, 0.996),
        ("whipp", "pythia-160m", "r2", {"table": "Figure 2", "block": 11}, 0.99),
        ("whipp", "llama-160m", "r2_lin", {"table": "Figure 2", "block": 5}, 0.37),
        ("whipp", "gpt2", "r2", {"table": "Table 2", "block": 1, "candidate": "linear"}, 0.954),
        (
            *("whipp", "gpt2", "ffn_params"),
            *({"table": "Table 2", "block": 1, "candidate": "poly"}, 628224),
        ),
        ("whipp", "gpt2", "condition_number", {"table": "§5.1", "bound": "approx"}, 3e7),
        ("balogh", "gpt2-medium", "ppl", {"table": "Abstract"}, 19.00),
        ("balogh", "gpt2-medium", "ppl", {"table": "Table 10", "n_linearized": 1}, 24.79),
        (
            *("balogh", "pythia-2.8b", "delta_ppl_relative"),
            *({"table": "Table 3", "block": 0, "candidate": "linear"}, 5.132),
        ),
        (
            *("ikeda", "570m-24layer", "relative_improvement"),
            *({"table": "Table 1", "position": "middle", "ratio": 0.7}, 0.0181),
        ),
        ("ikeda", "285m-12layer", "accuracy", {"table": "Table 6", "task": "piqa"}, 0.647),
        (
            *("tapered", "transformer-440m", "delta_ppl"),
            *({"table": "Figure 1", "versus": "uniform"}, -1.84),
        ),
        ("badger", "llama-1-layer", "loss", {"d_model": 4096, "epoch": 3}, 2.12),
    ],
)
def test_a_sample_of_published_numbers_read_again(paper, subject, metric, where, value):
    rows = published(paper, where.get("table"), metric, subject)
    for column, wanted in where.items():
        rows = rows[(rows[column] == wanted).fillna(False)]
    assert value in rows.value.tolist()


def test_the_published_profiles_are_whole():
    profiles = published("whipp", table="Figure 2", metric="r2_lin")
    assert len(profiles) == 36 and str(profiles.block.dtype) == "Int64"
    blocks = profiles.groupby("subject").block.apply(list)
    assert blocks.map(lambda found: found == list(range(12))).all()


def test_the_linear_map_is_a_candidate_among_others():
    rows = published("whipp", table="Table 3", metric="r2")
    assert rows.groupby("block").candidate.apply(set).tolist() == 2 * [
        {"linear", "poly", "dense2x", "poly2x"}
    ]


def test_printed_digits_give_a_tolerance():
    rows = published("whipp", "Table 2", "r2", "gpt2").set_index(["block", "candidate"])
    assert rows.printed[1, "dense2x"] == "0.960"
    assert half_unit(rows.printed[1, "dense2x"]) == 0.0005
    assert [half_unit(p) for p in ("0.70", "-0.0010", "376", "15e3", "3e7")] == [
        *(0.005, 0.00005, 0.5, 500, 5e6)
    ]
    assert published("balogh", metric="nonlinear_share").printed.tolist() == ["0.05;0.10"]
    for wrong in ("", "0.05;0.10", "NaN"):
        with pytest.raises(InputError, match="is no printed number"):
            half_unit(wrong)
