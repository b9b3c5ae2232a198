"""README's snippet runs as it stands, and its answers are those of the committed reports."""

import json
import re
from pathlib import Path

import pytest

from lib.page import answer_of as answer_in

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_readme_snippet_runs(capsys):
    exec(re.search(r"```python\n(.*?)```", README, re.S)[1], {})
    assert capsys.readouterr().out.count("\n") == 2


def first_sentence(answer: str) -> str:
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", answer.strip(), maxsplit=1)[0]


def answer_of(notebook: Path) -> str:
    """The answer that a committed report shows at its top."""
    return answer_in(json.loads(notebook.read_text()))


def test_readme_answers_are_those_of_the_reports():
    rows = re.findall(r"^\| (\d\d) \| \[(.+?)\]\((.+?)\) \| (.+?) \|$", README, re.M)
    reports = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    assert [number for number, *_ in rows] == [p.name[:2] for p in reports]
    for _, title, link, answer in rows:
        notebook = ROOT / link
        cells = json.loads(notebook.read_text())["cells"]
        assert "".join(cells[0]["source"]).splitlines()[0] == f"# {title}"
        assert first_sentence(answer_of(notebook)) == answer, link


NUMBER = re.compile(r"(?<![\w.–-])[+−×]?\d[\d,]*(?:\.\d+)?%?(?![\w-]|\.\d)")
NOT_MEASURED = re.compile(
    r"blocks? \d+(?:[–,]? ?(?:and )?\d+)*|§ ?[\d.]+|\]\([^)]*\)|Tables? \d+|Figures? \d+|\d+-bit"
    r"|\bnotebooks? \d+|95%"
)
"""numbers that name something: a block, a section, a link, the level of an interval"""


def numbers_in(text: str) -> list[str]:
    """The numbers that a text states, as written; those that name a block, a section or a model are
    none."""
    return NUMBER.findall(NOT_MEASURED.sub(" ", text))


def unsupported(words: str, *tables: str) -> list[str]:
    """Numbers of `words` that stand, as written, in none of the tables."""
    known = {number for table in tables for number in NUMBER.findall(table)}
    return [number for number in numbers_in(words) if number not in known]


@pytest.mark.parametrize(
    "text, found",
    [
        ("+2.2% to +34% in 28 blocks, ×7.5", ["+2.2%", "+34%", "28", "×7.5"]),
        ("SmolLM2-135M-Instruct, 4-bit files, block 11, blocks 0–3, §5.6, Table 4", []),
        ("0.26 [−0.17, 0.60] of R²", ["0.26", "−0.17", "0.60"]),
        ("at 1,200 of 3,000 steps.", ["1,200", "3,000"]),
    ],
)
def test_which_numbers_a_text_states(text, found):
    assert numbers_in(text) == found


def findings() -> list[str]:
    return re.findall(r"^- (\*\*.+)$", README.split("## What was found")[1].split("\n## ")[0], re.M)


def shown_on(page: Path) -> str:
    """What a finding may quote of a report: its top."""
    return "".join(json.loads(page.read_text())["cells"][0]["source"])


@pytest.mark.parametrize("finding", findings(), ids=lambda finding: finding[2:30])
def test_a_finding_is_short_and_its_numbers_stand_on_the_pages_that_it_cites(finding):
    pages = re.findall(r"\]\((notebooks/[^)]+)\)", finding)
    said = re.sub(r"\(?\[\d\d\]\([^)]*\)(, )?\)?", "", finding)
    assert pages and len(said.replace("*", "").split()) <= 33
    shown = "\n".join(shown_on(ROOT / page) for page in pages)
    assert not unsupported(said, shown)
