"""README's snippet runs as it stands."""

import re
from pathlib import Path


def test_readme_snippet_runs(capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    exec(re.search(r"```python\n(.*?)```", text, re.S)[1], {})
    assert capsys.readouterr().out.count("\n") == 2
