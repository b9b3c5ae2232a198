"""The rule that judges comparisons: by hand, and by simulation."""

import numpy as np
import pandas as pd
import pytest

from lib import old as module
from lib.errors import InputError
from lib.old import compare, in_words, key_to, printed_in_words
from lib.stats import Interval, over_seeds, paired

COLUMNS = pd.read_csv(module.PUBLISHED / "comparisons.csv", nrows=0).columns


def row(id: str, kind: str, side: str = "more", low="", high="", quantity="R²", paper="whipp"):
    given = dict(id=id, kind=kind, side=side, printed_low=low, printed_high=high, paper=paper)
    return dict.fromkeys(COLUMNS, "") | given | {"quantity": quantity, "unit": "1"}


@pytest.fixture(autouse=True)
def planted(monkeypatch):
    table = pd.DataFrame(
        [
            row("more", "effect", "more", "0.40", "0.60"),
            row("less", "effect", "less", "-0.60", "-0.40"),
            row("words", "effect", "more"),
            row("mine", "effect", "more", paper="ours"),
            row("at-most", "bound", "", "", "0.30"),
            row("at-least", "bound", "", "0.90", ""),
            row("measured", "measured", "", "1", "2"),
            row("some", "effect", "more", "0.40", "0.60", "R² of some block"),
            row("every", "effect", "more", "0.40", "0.60", "R² of every block"),
            row("cost", "effect", "more") | {"unit": "relative change of perplexity"},
            row("loss", "measured") | {"unit": "nats a word"},
            row("in-block", "effect", quantity="R², median block"),
        ]
    ).set_index("id", drop=False)
    monkeypatch.setattr(module, "rows", lambda: table)


def i(value: float, half: float = 0.1) -> Interval:
    return Interval(value, value - half, value + half)


def outcome(id: str, *values) -> str:
    return compare(id, *values).outcome


def test_an_effect_is_judged_by_its_paired_difference():
    # The two intervals overlap; the paired difference is what decides.
    assert outcome("more", i(0.5, 0.3), i(0.4, 0.3), i(0.1, 0.05)) == "reproduced"
    assert outcome("more", i(0.5), i(0.6), i(-0.1, 0.05)) == "reversed"
    assert outcome("less", i(-0.5), i(0.0), i(-0.5)) == "reproduced"
    assert outcome("less", i(0.5), i(0.0), i(0.5)) == "reversed"
    assert outcome("mine", i(0.5), i(0.0), i(0.5)) == "found"


def test_not_found_asks_that_the_printed_effect_would_have_been_seen():
    # Printed 0.40, control 0: here lies wholly below 0.20.
    assert outcome("more", i(0.05, 0.1), i(0.0), i(0.05, 0.1)) == "not found"
    assert outcome("more", i(0.15, 0.1), i(0.0), i(0.05, 0.1)) == "undecided"  # reaches 0.25
    assert outcome("less", i(-0.05, 0.1), i(0.0), i(-0.05, 0.1)) == "not found"
    # Nothing printed, or a printed range that touches the control: never "not found".
    assert outcome("words", i(0.0, 0.01), i(0.0), i(0.0, 0.01)) == "undecided"
    assert outcome("more", i(0.3, 0.01), i(0.45, 0.0), i(0.0, 0.01)) == "undecided"


def test_the_size_is_said_only_of_a_gain():
    gain = i(0.2, 0.1)
    assert compare("more", gain, 3.0, gain).why == "a smaller effect"
    large = i(0.9, 0.1)
    assert compare("more", large, 3.0, large).why == "a larger effect"
    assert compare("more", i(0.2, 0.1), i(0.0), i(0.2, 0.099)).why == ""
    none = i(0.0, 0.1)  # a gain's own interval decides: below half of the printed 0.40
    assert outcome("more", none, 3.0, none) == "not found"


def test_undecided_says_what_would_have_been_seen():
    found = compare("words", i(0.1), i(0.0), i(0.1, 0.3))
    assert found.outcome == "undecided" and "0.3" in found.why
    without = compare("more", 0.9, 0.1, Interval(0.8, np.nan, np.nan))
    assert without.outcome == "undecided" and without.why == "no interval"


def test_a_bound_needs_a_control_that_is_outside():
    assert outcome("at-most", i(0.1), i(0.9)) == "reproduced"
    assert outcome("at-most", i(0.1), 0.9) == "reproduced"  # a control that is a known number
    assert outcome("at-most", i(0.1), i(0.25)) == "undecided"
    assert outcome("at-most", i(0.1)) == "undecided"
    assert outcome("at-most", i(0.5)) == "exceeded"
    assert outcome("at-most", i(0.3), i(0.9)) == "undecided"
    assert outcome("at-least", i(0.95, 0.01), i(0.1)) == "reproduced"
    assert outcome("at-least", i(0.5), i(0.1)) == "exceeded"
    assert outcome("at-most", 0.1, i(0.9)) == "undecided"  # no interval


def test_some_asks_for_one_block_and_every_for_all():
    yes, no, open_ = i(0.5), i(-0.5), i(0.0, 0.3)

    def judged(id, *differences):
        zeros = [i(0.0)] * len(differences)
        return compare(id, list(differences), zeros, list(differences))

    assert judged("some", no, yes, open_).outcome == "reproduced"
    assert "block 1" in judged("some", no, yes, open_).why
    named = compare("some", [i(0.2), i(0.5)], [i(0.0)] * 2, [i(0.0, 0.3), i(0.5)], blocks=[4, 9])
    assert named.outcome == "reproduced" and named.why.endswith("block 9")
    far = judged("some", yes, i(0.9), no)  # of those that agree, the farthest is shown
    assert far.outcome == "reproduced" and far.difference.value == 0.9
    assert judged("every", i(0.9), yes).difference.value == 0.5
    assert judged("some", no, open_).outcome == "undecided"
    assert judged("every", yes, yes).outcome == "reproduced"
    assert judged("every", yes, open_).outcome == "undecided"
    assert judged("every", yes, no).outcome == "reversed"


def test_what_is_missing_or_unknown_is_refused():
    for given in ((i(1.0),), (i(1.0), i(0.0))):
        with pytest.raises(InputError, match="is an effect"):
            compare("more", *given)
    with pytest.raises(InputError, match=r"unknown comparison 'mor'.*more"):
        compare("mor", i(1.0))
    with pytest.raises(InputError, match="neither some nor every"):
        compare("more", [i(1.0)] * 2, [i(0.0)] * 2, [i(1.0)] * 2)


def test_what_is_no_number_is_never_reproduced():
    nothing = Interval(np.nan, np.nan, np.nan)
    assert outcome("more", nothing, i(0.0), i(0.5)) == "undecided"
    assert outcome("more", i(0.5), i(0.0), nothing) == "undecided"
    assert outcome("at-most", i(0.1), nothing) == "undecided"
    with pytest.raises(InputError, match=r"\[2, 1, 2\] values"):
        compare("some", [i(1.0)] * 2, i(0.0), [i(1.0)] * 2)


def test_the_difference_of_two_percentages_is_in_points():
    found = compare("cost", i(0.3, 0.01), i(0.1, 0.01), i(0.2, 0.02))
    assert "by +20.0 points [18.0, 22.0]" in found.in_words
    assert found.cells["here"] == "+30.0% [29.0, 31.0]"
    assert "perplexity" not in found.cells["the paper says"]  # the % says enough
    assert "; nats a word" in compare("loss", 0.1).cells["the paper says"]
    open_row = compare("cost", i(0.1), i(0.1), i(0.0, 0.1234))
    assert open_row.in_words.endswith("visible beyond 12 points")
    assert "visible beyond" in key_to([open_row])
    gain = compare("cost", i(0.3), i(0.1), i(0.3))
    assert gain.in_words == "✔ reproduced"  # its difference stands in the row already


def test_a_limit_from_below_is_not_reached_and_the_key_says_what_outcomes_mean():
    low, high = compare("at-least", i(0.5, 0.1)), compare("at-most", i(0.5, 0.1))
    assert low.in_words == "✘ not reached" and high.in_words == "✘ exceeded"
    key = key_to([low, compare("more", i(0.5), i(0.1), i(0.4))])
    assert "✘ exceeded" in key and "✔ reproduced" in key and "undecided" not in key


def test_the_key_says_when_a_median_difference_is_not_that_of_the_medians():
    of_medians = compare("in-block", i(0.5), i(0.2), i(0.3))
    within_blocks = compare("in-block", i(0.5), i(0.2), i(0.4))
    assert "within each block" in key_to([of_medians, within_blocks])
    assert "within each block" not in key_to([of_medians])
    assert "within each block" not in key_to([compare("more", i(0.5), i(0.2), i(0.4))])


def test_numbers_as_a_reader_sees_them():
    assert in_words(Interval(0.5512, 0.541, 0.562)) == "0.551 [0.541, 0.562]"
    assert in_words(Interval(0.03, -0.012, 0.07), "relative change of perplexity") == (
        "+3.0% [−1.2, 7.0]"
    )
    tenfold = Interval(188.7, 112.3, 321.0)
    assert in_words(tenfold, "relative change of perplexity") == "×190 [110, 320]"
    assert in_words(tenfold, "relative change", signed=True) == "+19,000% [11,000, 32,000]"
    assert in_words(-0.5, signed=True) == "−0.5" and in_words(float("nan")) == "–"
    # Zero has no sign.
    assert in_words(Interval(-0.00001, -0.001, 0.001), "relative change") == "0.00% [−0.10, 0.10]"
    assert in_words(0.0, signed=True) == "0" and in_words(-0.05, signed=True) == "−0.05"
    table = module.rows()
    assert printed_in_words(table.loc["more"]) == "0.4 to 0.6"
    assert printed_in_words(table.loc["at-least"]) == "≥ 0.9"
    assert printed_in_words(table.loc["words"]) == "in words"
    of_author = table.loc["more"].copy()
    of_author["printed_for"] = "author's repository: GPT-2"
    assert printed_in_words(of_author) == "0.4 to 0.6 (author's repository)"


# The rates of the rule ----------------------------------------------------------------------------


def judged_worlds(effect: float, spread: float, correlation: float, data: str) -> dict[str, float]:
    """Shares of outcomes in simulated worlds of a row whose paper prints an effect of 1 over 0.

    Documents: 24 of unequal length, each with a deviation of this `spread`, of which here and
    control share a part; skewed ones are as skewed as an exponential. Seeds: six.
    """
    rng, n_worlds = np.random.default_rng(7), 250
    n = 6 if data == "seeds" else 24
    counts: dict[str, int] = {}
    for _ in range(n_worlds):
        shared, own, other = rng.standard_normal((3, n))
        if data == "skewed documents":
            shared, own, other = rng.exponential(size=(3, n)) - 1
        mixed, rest = np.sqrt(correlation) * shared, np.sqrt(1 - correlation)
        here = effect + spread * (mixed + rest * own)
        control = spread * (mixed + rest * other)
        if data == "seeds":
            judged = [over_seeds(values) for values in (here, control, here - control)]
        else:
            length = rng.integers(1, 4, n).astype(float)
            mean_here, mean_control = weighted_mean(here, length), weighted_mean(control, length)
            judged = paired(mean_here, mean_control, np.arange(n))
        name = compare("world", *judged).outcome
        counts[name] = counts.get(name, 0) + 1
    return {name: count / n_worlds for name, count in counts.items()}


def weighted_mean(values: np.ndarray, length: np.ndarray):
    """The mean of documents of unequal length, as a statistic of weights."""
    return lambda w: (w @ (values * length)) / (w @ length)


@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.98])
@pytest.mark.parametrize("data", ["documents", "skewed documents", "seeds"])
def test_the_rates_of_the_rule(data, correlation, monkeypatch):
    table = pd.DataFrame([row("world", "effect", "more", "1", "1")]).set_index("id", drop=False)
    monkeypatch.setattr(module, "rows", lambda: table)
    nothing = judged_worlds(0.0, 1.5, correlation, data)
    printed = judged_worlds(1.0, 6.0, correlation, data)  # so noisy that it is often missed
    false_alarm, miss = nothing.get("reproduced", 0), printed.get("not found", 0)
    print(f"{data}, correlation {correlation}: without an effect reproduced {false_alarm:.1%}, "
          f"with the printed effect not found {miss:.1%}")  # fmt: skip
    assert false_alarm <= 0.05 and miss <= 0.05
    # The same rule does see the printed effect where it can, and its absence.
    quiet = judged_worlds(1.0, 0.5, correlation, data)
    absent = judged_worlds(0.0, 0.3, correlation, data)
    assert quiet["reproduced"] > 0.5 and absent["not found"] > 0.5


def test_the_top_says_what_decided_and_the_rows_own_line_the_rest():
    found = compare("more", i(0.5), i(0.1), i(0.4), note="elsewhere 0.3", turns="the sign turns")
    assert found.cells["outcome"] == "✔ reproduced, by +0.40 [0.30, 0.50]; the sign turns"
    assert found.note == "elsewhere 0.3"
