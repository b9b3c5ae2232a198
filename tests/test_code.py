"""The digest of code: what must miss and what must cost nothing."""

import linecache
import shutil
import textwrap

import pytest
import torch

from lib.base import ROOT
from lib.base.code import code_digest, source_digest
from lib.base.live import brought

FILES = {
    "pack/__init__.py": "",
    "pack/room/__init__.py": "from pack.room.low import Fit\n",
    "pack/base/__init__.py": "",
    "pack/base/bars.py": """
        def progress(iterable=None, **options):
            return iterable
        """,
    "pack/base/checks.py": """
        def check(work):
            if not work:
                raise ValueError
        """,
    "pack/room/deep.py": '''
        """Two files away."""
        SCALE = 3.0
        OTHER = 5.0


        def double(f):
            return lambda *a: f(*a) * 2


        @double
        def scaled(x, by=2):
            """x, scaled."""
            if x < 0:
                raise ValueError(f"{x} is below {OTHER}: use more.")
            return x * by * SCALE


        def figure(x):
            return x + OTHER
        ''',
    "pack/room/low.py": """
        from dataclasses import dataclass
        from pack.room.deep import scaled


        class Base:
            def score(self, x):
                return x + 1

            def unused(self, x):
                return x


        @dataclass
        class Fit(Base):
            n: int
            name: str = "fit"

            def run(self, x):
                return scaled(x) + self.n

            def __repr__(self):
                return f"Fit({self.n})"
        """,
    "pack/top.py": '''
        import numpy as np
        from pack.base.bars import progress
        from pack.room import Fit


        def compute(work: tuple) -> float:
            """The value."""
            fit, total = Fit(1), 0.0
            for x in progress(work, desc="computing"):  # one by one
                total += fit.run(x) - fit.score(x)
            return np.float64(total)


        def drawn(value: float) -> str:
            return f"{value}"
        ''',
}


def pack(folder, *changes):
    """The digest of compute after `changes` (file, old, new), each of which must change
    something."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    for name, old, new in changes:
        path = folder / "pack" / name
        assert old in path.read_text(), old
        path.write_text(path.read_text().replace(old, new))
    return source_digest("pack.top", "compute", folder)


@pytest.mark.parametrize(
    "change",
    {
        "arithmetic two files away": ("room/deep.py", "x * by", "x + by"),
        "constant": ("room/deep.py", "SCALE = 3.0", "SCALE = 4.0"),
        "a constant changed in place": ("room/deep.py", "OTHER =", "SCALE += 1\nOTHER ="),
        "default argument": ("room/deep.py", "by=2", "by=3"),
        "decorator's code": ("room/deep.py", "* 2", "* 3"),
        "decorator gone": ("room/deep.py", "@double\n", ""),
        "method of a base class, by name": ("room/low.py", "x + 1", "x + 2"),
        "a new override": (
            "room/low.py",
            "    def run(",
            "    def score(self, x):\n        return x\n\n    def run(",
        ),
        "default of a field": ("room/low.py", '"fit"', '"fat"'),
        "a new special method": (
            "room/low.py",
            "    def run(",
            "    def __add__(self, x):\n        return x\n\n    def run(",
        ),
        "its own body": ("top.py", "Fit(1)", "Fit(2)"),
        "a local name that hides": ("room/deep.py", "x, by=2", "x, SCALE, by=2"),
        "a condition of an error": ("room/deep.py", "x < 0", "x < 1"),
        "the error raised": ("room/deep.py", "raise ValueError", "raise KeyError"),
        "another package": ("top.py", "np.float64", "np.float32"),
    }.items(),
    ids=lambda c: c[0],
)
def test_changed_code_misses(tmp_path, change):
    assert pack(tmp_path, change[1]) != pack(tmp_path)


@pytest.mark.parametrize(
    "changes",
    {
        "comment": [("top.py", "# one by one", "# slowly")],
        "layout": [("top.py", "fit, total = Fit(1), 0.0", "(fit,\n     total) = (Fit( 1 ), 0.0)")],
        "docstrings": [
            ("top.py", '"""The value."""', '"""A value."""'),
            ("room/deep.py", '    """x, scaled."""\n', ""),
        ],
        "a field's documentation": [("room/low.py", "n: int\n", 'n: int\n    """how many"""\n')],
        "annotations": [
            ("top.py", "work: tuple) -> float:", "work: list):"),
            ("room/low.py", "n: int", "n: float"),
            ("room/low.py", "name: str", "name: object"),
        ],
        "error text, and names used there alone": [
            ("room/deep.py", "is below {OTHER}", "is {figure(x)}"),
            ("room/deep.py", "OTHER = 5.0", "OTHER = 6.0"),
        ],
        "a figure function": [("room/deep.py", "x + OTHER", "x - OTHER")],
        "another function of the file": [("top.py", 'f"{value}"', 'f"{value:.1f}"')],
        "repr": [("room/low.py", '"Fit({self.n})"', '"a fit of {self.n}"')],
        "an unused method": [("room/low.py", "return x\n", "return -x\n")],
        "a check": [
            (
                "top.py",
                "import numpy as np",
                "import numpy as np\nfrom pack.base.checks import check",
            ),
            ("top.py", "    fit, total", "    check(work)\n    fit, total"),
        ],
        "what a bar says": [("top.py", 'desc="computing"', 'desc="work", unit="x"')],
        "what a bar does": [("base/bars.py", "return iterable", "return list(iterable)")],
        "order of definitions": [
            ("room/deep.py", "SCALE = 3.0\nOTHER = 5.0\n", "OTHER = 5.0\nSCALE = 3.0\n"),
            (
                "room/low.py",
                "    def unused(self, x):\n        return x\n",
                "",
            ),
            (
                "room/low.py",
                "class Base:\n",
                "class Base:\n    def unused(self, x):\n        return x\n\n",
            ),
        ],
        "import style": [
            ("top.py", "from pack.room import Fit\n", "from pack.room import low as other\n"),
            ("top.py", "Fit(1)", "other.Fit(1)"),
            ("top.py", "import numpy as np", "from numpy import float64"),
            ("top.py", "np.float64", "float64"),
        ],
        "import inside": [
            ("top.py", "from pack.room import Fit\n", ""),
            ("top.py", "    fit, total", "    from .room import Fit as F\n    fit, total"),
            ("top.py", "Fit(1)", "F(1)"),
        ],
        "whole import": [
            ("top.py", "from pack.room import Fit\n", "import pack.room.low\n"),
            ("top.py", "Fit(1)", "pack.room.low.Fit(1)"),
        ],
    }.items(),
    ids=lambda c: c[0],
)
def test_what_does_not_compute_costs_nothing(tmp_path, changes):
    assert pack(tmp_path, *changes[1]) == pack(tmp_path)


def test_moved_files_cost_nothing(tmp_path):
    before = pack(tmp_path / "a")
    pack(tmp_path / "b")
    folder = tmp_path / "b" / "pack"
    (folder / "cellar").mkdir()
    (folder / "room/deep.py").rename(folder / "cellar/zero.py")
    (folder / "room/low.py").write_text(
        (folder / "room/low.py").read_text().replace("pack.room.deep", "pack.cellar.zero")
    )
    (folder / "top.py").rename(folder / "start.py")
    (tmp_path / "b" / "pack").rename(tmp_path / "b" / "sack")
    for path in (tmp_path / "b").rglob("*.py"):
        path.write_text(path.read_text().replace("from pack", "from sack"))
    assert source_digest("sack.start", "compute", tmp_path / "b") == before


def test_two_functions_of_one_name_are_told_apart(tmp_path):
    (tmp_path / "pack").mkdir()
    for name, text in {
        "__init__": "",
        "a": "def f(x):\n    return x + 1\n",
        "b": "def f(x):\n    return x + 2\n",
        "top": "from pack import a, b\ndef run(x):\n    return a.f(x) - b.f(b.f(x))\n",
        "other": "from pack import a, b\ndef run(x):\n    return b.f(x) - a.f(a.f(x))\n",
        "mixed": "from pack import a, b\ndef run(x):\n    return a.f(x) - b.f(a.f(x))\n",
    }.items():
        (tmp_path / "pack" / f"{name}.py").write_text(text)
    found = {source_digest(f"pack.{name}", "run", tmp_path) for name in ("top", "other", "mixed")}
    assert len(found) == 3


def test_a_name_hidden_in_a_lambda_is_followed_elsewhere(tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/__init__.py").write_text("")
    text = (
        "def score(x):\n    return x\n\n\n"
        "def run(x):\n    best = lambda score: -score\n    return best(score(x))\n"
    )
    (tmp_path / "pack/top.py").write_text(text)
    before = source_digest("pack.top", "run", tmp_path)
    (tmp_path / "pack/top.py").write_text(text.replace("return x\n", "return 2 * x\n"))
    assert source_digest("pack.top", "run", tmp_path) != before


STEPS = {
    "fold": ("lib.linear.survey", "_moments"),
    "measure": ("lib.linear.survey", "_measure"),
    "sweep": ("lib.swaps.sweep", "_sweep_batch"),
    "fit": ("lib.probes.candidates", "_fit"),
    "heal": ("lib.swaps.healing", "_heal"),
}


CHANGES = [
    ("linear/moments.py", "sign * other.syy", "other.syy", {"fold", "measure"}),
    ("linear/affine.py", "/ (n * len(total))", "/ n", {"measure", "fit"}),
    ("swaps/losses.py", ".double()", ".float()", {"sweep"}),
    ("models/hooks.py", "use_cache=False", "use_cache=True", {"fold", "measure"}),
    ("probes/candidates.py", "CHECKS = 20", "CHECKS = 10", {"fit"}),
    ("linear/affine.py", "eps * max(x.shape)", "eps", set()),  # svd_ridge is an oracle
    ("linear/moments.py", 'f"Moments(n=', 'f"M(n=', set()),
    ("linear/survey.py", 'desc="closed-form fits"', 'desc="fits"', set()),
    ("linear/survey.py", "statistics of {", "moments of {", set()),
    ("models/hooks.py", "does not exist", "is not there", set()),
    ("linear/figures.py", "0.5", "0.25", set()),
]


def test_steps_of_this_package_miss_what_reaches_them(tmp_path):
    shutil.copytree(ROOT / "lib", tmp_path / "lib")

    def digests():
        return {name: source_digest(*step, tmp_path) for name, step in STEPS.items()}

    before = digests()
    for file, old, new, missed in CHANGES:
        path = tmp_path / "lib" / file
        text = path.read_text()
        assert old in text, old
        path.write_text(text.replace(old, new) + "\n# the end\n")
        after = digests()
        path.write_text(text)
        assert {name for name in STEPS if before[name] != after[name]} == missed, (file, old)


def test_the_code_of_what_a_step_is_handed_belongs_to_its_key(tiny_gpt2, tiny_windows):
    """A Subject or rows in `work` are named nowhere in the step."""
    from lib.linear.survey import _moments
    from lib.models import Block, Subject
    from lib.probes import BlockRows

    def names(*work):
        return {getattr(t, "__name__", "") for t in brought(work, set())}

    rows = BlockRows(tiny_gpt2, tiny_windows, [1])
    assert names(rows, 3, torch.zeros(2)) >= {"BlockRows", "Subject", "Block", "Tensor"}
    assert names(lambda: rows(1)) >= {"<lambda>", "BlockRows"}
    kinds = {code_digest(_moments, w) for w in (None, Subject, Block, rows, lambda: rows(1))}
    assert len(kinds) == 5
    assert code_digest(_moments, (tiny_gpt2, 3)) == code_digest(_moments, (tiny_gpt2, 4))


def test_functions_of_a_notebook():
    """Their own source counts, what they use of theirs, and what they use of lib."""

    def cell(text):
        name = f"<cell {abs(hash(text))}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec"), space)

    space = {"__name__": "__main__"}
    cell("from lib.linear import svd_ridge\nRIDGE = (0.1, 1)\ndef half(x):\n    return x / 2\n")
    text = "def fit(work):\n    return svd_ridge(*work, half(RIDGE[0]))\n"
    cell(text)
    before = code_digest(space["fit"])
    cell(text.replace("return", "# the map\n    return"))
    assert code_digest(space["fit"]) == before
    cell("RIDGE = (0.2, 1)\n")
    changed = code_digest(space["fit"])
    cell("def half(x):\n    return x / 3\n")
    assert len({before, changed, code_digest(space["fit"])}) == 3
    cell(text.replace("svd_ridge(*work", "min(*work"))
    assert code_digest(space["fit"]) not in {before, changed}
