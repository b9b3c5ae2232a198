"""Tables and computed prose as a reader should see them."""

import hashlib

import pandas as pd

from lib.stats import claims


def show(table: pd.DataFrame, digits: int = 3):
    """A table as it should be read: rounded, without index, column names in words."""
    from IPython.display import HTML

    view = table.rename(columns=lambda c: str(c).replace("_", " "))
    formats = dict.fromkeys(
        view.select_dtypes("float").columns,
        lambda v: f"{v:,.{digits}g}" if abs(v) >= 10**6 else f"{v:,.{digits}f}",
    )
    words = {"text-align": "left", "white-space": "normal", "vertical-align": "top"}
    styled = view.style.format(formats, na_rep="–").hide(axis="index")
    in_words = view.select_dtypes(exclude="number").columns
    styled = styled.set_properties(subset=in_words, **words).set_table_styles(
        {c: [{"selector": "th", "props": "text-align: left"}] for c in in_words}, overwrite=False
    )
    # The same table gives the same bytes, so that a re-rendered notebook differs only where its
    # numbers do.
    return HTML(styled.to_html(table_uuid=hashlib.sha256(view.to_csv().encode()).hexdigest()[:8]))


def say(text: str):
    """Computed prose, a blank line between paragraphs: numbers and words come from the same run."""
    from IPython.display import Markdown

    return Markdown(
        "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))
    )


def tally(found: pd.DataFrame | list[claims.Claim]) -> str:
    """How many claims had which verdict, in words."""
    counts = (
        claims.table(found)["verdict"].value_counts()
        if isinstance(found, list)
        else found["verdict"].value_counts()
    )
    return ", ".join(
        f"{n} {verdict}"
        for verdict, n in counts.reindex(claims.VERDICTS).dropna().astype(int).items()
    )
