"""The numbers that the papers print, data/published/<paper>.csv, in one vocabulary."""

from decimal import Decimal, InvalidOperation

import pandas as pd

from lib.second.base.errors import InputError
from lib.second.base.paths import DATA

PAPERS = ("whipp", "balogh", "ikeda", "tapered", "badger")
COLUMNS = (
    *("paper", "table", "subject", "setting", "metric", "value", "low", "high"),
    *("bound", "unit", "canonical", "note", "source"),
)
"""columns of a paper's file"""


def vocabulary(kind: str) -> pd.DataFrame:
    """The words of one kind (metric, setting, subject, corpus, unit or bound): index name, columns
    unit (of a metric; "number" or "text" of a setting) and meaning."""
    words = pd.read_csv(DATA / "published" / "vocabulary.csv", keep_default_na=False)
    return words[words.kind == kind].drop(columns="kind").set_index("name")


def published(
    paper: str, table: str | None = None, metric: str | None = None, subject: str | None = None
) -> pd.DataFrame:
    """Rows of data/published/<paper>.csv, in the file's order.

    Columns paper, table, subject, metric, value, low, high (floats; a range has no value), bound,
    unit, canonical (bool), note, source, printed (the digits as printed, "low;high" for a range),
    and `setting` spread into one column a key (block, candidate, …; missing where absent; numbers
    where the vocabulary says so). The metric "r2" of the candidate "linear" is called "r2_lin", as
    in the papers, unless "r2" is asked for.

    Raises InputError for an unknown paper, or if nothing fits.
    """
    if paper not in PAPERS:
        known = ", ".join(sorted(PAPERS))
        raise InputError(f"no published numbers for {paper!r}: known are {known}.")
    path = DATA / "published" / f"{paper}.csv"
    rows = pd.read_csv(path, keep_default_na=False, dtype=str)
    settings = pd.DataFrame(
        [dict(part.split("=", 1) for part in s.split(";") if part) for s in rows.setting],
        index=rows.index,
    )
    if metric != "r2" and "candidate" in settings:
        rows.loc[(rows.metric == "r2") & (settings.candidate == "linear"), "metric"] = "r2_lin"
    for column, wanted in {"table": table, "metric": metric, "subject": subject}.items():
        rows = rows if wanted is None else rows[rows[column] == wanted]
    if rows.empty:
        raise InputError(
            f"no published number of {paper} has table={table!r}, metric={metric!r}, "
            f"subject={subject!r}."
        )
    rows = rows.drop(columns="setting").assign(
        printed=rows.value.where(rows.value != "", rows.low + ";" + rows.high),
        canonical=rows.canonical == "yes",
        **{end: pd.to_numeric(rows[end]) for end in ("value", "low", "high")},
    )
    settings = settings.loc[rows.index].dropna(axis=1, how="all")
    kinds = vocabulary("setting").unit
    for key in settings:
        if kinds[key] == "number":
            settings[key] = pd.to_numeric(settings[key]).convert_dtypes()
    return pd.concat([rows, settings], axis=1).reset_index(drop=True)


def half_unit(printed: str) -> float:
    """Half a unit of the last printed digit, the least tolerance at which a number can be compared
    with a printed one: 0.005 for "0.70", 500 for "15e3"."""
    try:
        exponent = Decimal(printed).as_tuple().exponent
    except InvalidOperation:
        exponent = None
    if not isinstance(exponent, int):  # "NaN" and "Infinity" have letters for exponents
        raise InputError(f"{printed!r} is no printed number: give one like '0.70' or '15e3'.")
    return float(Decimal(5).scaleb(exponent - 1))
