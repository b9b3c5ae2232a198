"""README's snippet runs as it stands, and its answers are those of the committed reports."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_readme_snippet_runs(capsys):
    exec(re.search(r"```python\n(.*?)```", README, re.S)[1], {})
    assert capsys.readouterr().out.count("\n") == 2


def first_sentence(answer: str) -> str:
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", answer.strip(), maxsplit=1)[0]


def answer_of(notebook: Path) -> str:
    """The answer that a committed report shows at its top."""
    cells = json.loads(notebook.read_text())["cells"]
    outputs = [o for cell in cells for o in cell.get("outputs", [])]
    texts = ["".join(o.get("data", {}).get("text/markdown", "")) for o in outputs]
    answer = next(t for t in texts if t.startswith("> **The answer.**"))
    return answer.removeprefix("> **The answer.**")


def test_readme_answers_are_those_of_the_reports():
    rows = re.findall(r"^\| (\d\d) \| \[(.+?)\]\((.+?)\) \| (.+?) \|$", README, re.M)
    reports = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    assert [number for number, *_ in rows] == [p.name[:2] for p in reports]
    for _, title, link, answer in rows:
        notebook = ROOT / link
        cells = json.loads(notebook.read_text())["cells"]
        assert "".join(cells[0]["source"]).splitlines()[0] == f"# {title}"
        assert first_sentence(answer_of(notebook)) == answer, link
