"""The committed excerpt of Wikipedia on which the tiny models are measured.

`python -m lib.second.texts.sample` writes it again.
"""

import json
import re

from lib.second.base.kept import seal
from lib.second.base.paths import DATA, whole
from lib.second.texts.corpora import load_corpus

EXCERPT = 6_800  # characters
N_EXCERPTS = 3
N_EVAL = 4
"""articles at the end that make the `eval` part"""


def excerpts(article: str, size: int = EXCERPT) -> list[str]:
    """Up to N_EXCERPTS excerpts of at most `size` characters, of whole paragraphs where these are
    not longer; between two of them some text is left out. A short article is one excerpt."""
    n = min(N_EXCERPTS, max(1, int(len(article) / (1.05 * size))))
    found = []
    for i in range(n):
        start = article.find("\n\n", i * len(article) // n) if i else 0
        stop = min(start + size, (i + 1) * len(article) // n)
        whole_paragraphs = article.rfind("\n\n", start + 2, stop)
        end = whole_paragraphs if whole_paragraphs > 0 and stop < len(article) else stop
        # Nor does an excerpt end with a heading whose text is not in it.
        found.append(re.sub(r"(?:\n\n[^.\n]{1,60})+$", "", article[start:end].strip()))
    return found


def write_sample() -> None:
    """Excerpts of all articles of the Wikipedia corpus' `eval` part, each one a document.

    There are too few articles for a document each, so long ones give several; all that come from
    one article stand in the same part.
    """
    articles = load_corpus("wikipedia").eval
    parts = {
        "fit": [e for article in articles[:-N_EVAL] for e in excerpts(article)],
        "eval": [e for article in articles[-N_EVAL:] for e in excerpts(article)],
    }
    with whole(DATA / "corpora") as folder:
        folder.mkdir()
        text = json.dumps(parts, ensure_ascii=False, indent=0) + "\n"
        (folder / "wikipedia-sample.json").write_text(text, encoding="utf-8")
        seal(folder, {"corpus": "wikipedia"})


if __name__ == "__main__":
    write_sample()
