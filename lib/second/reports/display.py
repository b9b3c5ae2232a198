"""Tables, figures and computed prose as a reader should see them."""

import base64
import hashlib
import sys

import pandas as pd

from lib.second.base.errors import InputError

# The display that `brief` opens at the top of a notebook and `fill_brief` fills at its end.
BRIEF = "in-brief"


def shell():
    """The notebook's IPython shell; None in plain Python, where nothing is displayed."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def brief() -> None:
    """Keep a place for the answer in brief: the first call of a notebook, above its parameters."""
    if shell():
        from IPython.display import Markdown, display

        display(Markdown(""), display_id=BRIEF)


def fill_brief(sentences: tuple[str, ...]) -> None:
    """Show three to five computed sentences, as a list, where `brief` was called. Raises
    InputError for another number of them, or an empty one."""
    if not 3 <= len(sentences) <= 5 or not all(s.strip() for s in sentences):
        raise InputError(
            f"{len(sentences)} sentences, an empty one perhaps, are no answer in brief: give "
            "three to five."
        )
    if shell():
        from IPython.display import Markdown, update_display

        lines = [f"- {' '.join(sentence.split())}" for sentence in sentences]
        update_display(Markdown("\n".join(["**In brief**", "", *lines])), display_id=BRIEF)


def picture(png: bytes, alt: str) -> None:
    """Display a PNG with its alternative text, which also stands where no pictures can be."""
    if shell():
        from IPython.display import display

        data = {"image/png": base64.b64encode(png).decode(), "text/plain": alt or "figure"}
        display(data, raw=True, metadata={"image/png": {"alt": alt}} if alt else {})


def show(table: pd.DataFrame, digits: int = 3):
    """A table as it should be read: rounded, without index, column names in words."""
    from IPython.display import HTML
    from pandas.io.formats.style import Styler

    view = table.rename(columns=lambda c: str(c).replace("_", " "))
    formats = dict.fromkeys(
        view.select_dtypes("float").columns,
        lambda v: f"{v:,.{digits}g}" if abs(v) >= 10**6 else f"{v:,.{digits}f}",
    )
    # One rule a column instead of one a cell, and no ids: half the bytes.
    styled = Styler(view, cell_ids=False).format(formats, na_rep="–").hide(axis="index")
    words = [
        {"selector": "th", "props": "text-align: left"},
        {"selector": "td", "props": "text-align: left; white-space: normal; vertical-align: top"},
    ]
    styled = styled.set_table_styles(
        dict.fromkeys(view.select_dtypes(exclude="number").columns, words), overwrite=False
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
