"""What the library's files, the ledger and the set-up files say of one another."""

import ast
import json
import re
import sys
import tomllib
from itertools import chain
from pathlib import Path

import jupyter_client
import pytest

import lib
from lib.models.names import PAPERS, notebooks, plan

ROOT = Path(lib.__file__).resolve().parents[1]
LIB = ROOT / "lib"
FILES = {
    ".".join(path.relative_to(LIB).with_suffix("").parts): path
    for path in sorted(LIB.rglob("[a-z]*.py"))
}
"""{"linear.rank": its path}"""


def in_order() -> list[str]:
    """The files in the order of the map in lib/__init__.py."""
    found, plan = [], re.search(r"in a line:\n\n(.*)", lib.__doc__, re.DOTALL)[1]
    for line in plan.splitlines():
        names = line.partition(":")[0].split()
        room = names.pop(0).replace("/", ".") if names and names[0].endswith("/") else ""
        found += [room + name for name in names]
    return found


def imports(name: str) -> set[str]:
    """Files of lib that `name` imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lib":
            room = node.module[4:]
            for alias in node.names:
                full = f"{room}.{alias.name}" if room else alias.name
                found.add(full if full in FILES else room)
        elif isinstance(node, ast.Import):
            found |= {a.name[4:] for a in node.names if a.name.startswith("lib.")}
    return found


def test_the_map_names_every_file_and_the_site_documents_it():
    assert sorted(in_order()) == sorted(FILES)
    api = (LIB.parent / "notebooks" / "api.md").read_text(encoding="utf-8")
    assert re.findall(r"automodule:: lib\.(\S+)", api) == in_order()


@pytest.mark.parametrize("name", FILES)
def test_imports_only_point_up_the_map(name):
    above = in_order()[: in_order().index(name)]
    assert not imports(name) - {*above}, f"{name} imports {imports(name) - {*above}}"


def test_the_rooms_are_empty_and_packed():
    """A command that only checks names loads no torch through a room."""
    rooms = {path.parent.name for path in LIB.glob("*/__init__.py")}
    assert all(not (LIB / room / "__init__.py").read_text() for room in rooms)
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert {*packed} == {"lib"} | {f"lib.{room}" for room in rooms}


@pytest.mark.parametrize("name", notebooks())
def test_every_figure_on_a_page_is_finished(name):
    """Each says in a sentence what it shows; one that a cell left half drawn has none."""
    page = json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text())
    for cell in page["cells"]:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                assert output["metadata"].get("image/png", {}).get("alt"), cell["source"]


def test_every_dependency_is_pinned():
    def name(line):
        return re.match(r"[\w.-]+", line)[0].lower().replace("_", "-")

    lines = (ROOT / "constraints.txt").read_text().split()
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    pinned = {name(line) for line in lines}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [*chain(*project["optional-dependencies"].values())]
    assert not {name(line) for line in wanted} - pinned


def test_conda_installs_the_same_pins():
    text = (ROOT / "environment.yml").read_text()
    assert "--constraint constraints.txt" in text and "--editable .[test]" in text


def test_numbers_and_papers_choose_notebooks():
    everything = notebooks()
    assert everything[0].startswith("01") and everything[-1].startswith("00")
    assert [n[:2] for n in notebooks("01,03-05")] == ["01", "03", "04", "05"]
    of_papers = [notebook for paper in PAPERS for notebook in notebooks(paper=paper)]
    assert sorted(of_papers) == sorted(n for n in everything if "01" <= n[:2] <= "28")


def test_a_series_has_a_report_for_each_model_and_seed():
    runs = plan(dict(number="01", model="tiny-gpt2,tiny-neox", seed="42,43", profile="smoke"))
    assert len(runs) == 4
    assert runs["smoke-tiny-neox-seed43/01_linear_recoverability"] == {
        "profile": "smoke",
        "seed": 43,
        "model": "tiny-neox",
    }
    assert [*plan(dict(number="1"))] == ["laptop/01_linear_recoverability"]


def test_the_kernel_of_the_lab_imports_lib(tmp_path):
    manager, client = jupyter_client.manager.start_new_kernel(kernel_name="python3", cwd=tmp_path)
    try:
        heard = []
        code = "import sys, lib, lib.errors; print(sys.executable, lib.__file__, sep=chr(10))"
        client.execute_interactive(code, timeout=60, output_hook=heard.append)
        told = "".join(m["content"].get("text", "") for m in heard)
        assert told.splitlines() == [sys.executable, lib.__file__]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_the_tiny_models_share_one_tokenizer():
    paths = sorted((ROOT / "data" / "models").glob("*/tokenizer.json"))
    seeds = {f"tiny-{family}{seed}" for family in ("gpt2", "neox") for seed in ("", -43, -44, -45)}
    assert {path.parent.name for path in paths} == seeds | {"tiny-llama", "tiny-ungated"}
    assert len({path.read_bytes() for path in paths}) == 1


@pytest.mark.parametrize("name", FILES)
def test_files_are_read_and_written_in_utf_8_whatever_the_locale(name):
    source = FILES[name].read_text("utf-8")
    calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)]
    for call in calls:
        method = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if method in ("read_text", "write_text"):
            given = call.args[1:] if method == "write_text" else call.args
            assert given or "encoding" in {k.arg for k in call.keywords}, ast.unparse(call)
