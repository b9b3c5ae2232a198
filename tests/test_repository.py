"""The files around the code: pins that agree, notebooks that are what was executed."""

import ast
import json
import re
import subprocess
import tomllib
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import yaml

import lib
from lib.base import DATA, ROOT, TINY
from lib.reports import render

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def pins() -> dict[str, str]:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[\w.!]+", line) for line in lines), (
        "constraints.txt pins exact versions only"
    )
    return {
        name.lower().replace("_", "-"): version
        for name, version in (line.split("==") for line in lines)
    }


def test_environment_files_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = sum(project["optional-dependencies"].values(), project["dependencies"])
    assert not {n.lower() for n in wanted} - set(pins()), "a dependency without an exact pin"
    assert pins()["torch"] == "2.13.0"
    conda = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    python = next(d for d in conda if isinstance(d, str) and d.startswith("python="))
    assert project["requires-python"] == ">=" + python.removeprefix("python=")
    (pip,) = [d["pip"] for d in conda if isinstance(d, dict)]
    assert pip == ["--constraint constraints.txt", "--editable .[test]"]
    assert "--constraint constraints.txt --editable '.[test]'" in (ROOT / "Makefile").read_text()


def test_what_is_installed_is_what_is_pinned():
    from importlib.metadata import version

    for name in (
        "torch",
        "transformers",
        "numpy",
        "pandas",
        "scikit-learn",
        "papermill",
        "snakemake",
        "joblib",
    ):
        assert version(name).partition("+")[0] == pins()[name]


def test_imports_go_down_only():
    """A file imports from its own room and from the rooms below it, never upwards, no cycles."""
    (chain,) = re.findall(r"^    (base -> .*)$", lib.__doc__, re.M)
    rooms = chain.split(" -> ")
    found = [p.name for p in (ROOT / "lib").iterdir() if (p / "__init__.py").exists()]
    assert sorted(found) == sorted(rooms)
    needs: dict[str, set[str]] = {}
    for path in (ROOT / "lib").glob("*/*.py"):
        if path.name == "__init__.py":
            continue
        room, name = path.parent.name, f"{path.parent.name}.{path.stem}"
        needs[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lib."):
                theirs = node.module.split(".")[1]
                assert rooms.index(theirs) <= rooms.index(room), f"{name} imports {node.module}"
                full = node.module.removeprefix("lib.")
                files = [full] if "." in full else [f"{full}.{a.name}" for a in node.names]
                needs[name] |= {f for f in files if f.split(".")[0] == room}
    done: set[str] = set()
    while rest := {k for k in needs if k not in done}:
        ready = {k for k in rest if needs[k] <= done}
        assert ready, f"import cycle among {sorted(rest)}"
        done |= ready


def test_every_room_has_a_face():
    for room in (ROOT / "lib").glob("*/__init__.py"):
        assert ast.get_docstring(ast.parse(room.read_text())), room


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_committed_notebook_is_what_was_executed(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.get("executed_code_sha256") == render.code_digest(notebook), (
        "run make render: code changed since it was executed"
    )
    code = [c for c in notebook.cells if c.cell_type == "code"]
    assert all(c.execution_count for c in code) and not any(
        o.output_type == "error" for c in code for o in c.outputs
    )
    assert sum("parameters" in c.metadata.get("tags", []) for c in code) == 1
    assert not any("injected-parameters" in c.metadata.get("tags", []) for c in code)
    assert "widgets" not in notebook.metadata and path.stat().st_size < 1_500_000
    printed = json.dumps([o for c in code for o in c.outputs])
    assert "Warning" not in printed and not re.search(r"/(home|root|tmp)/", printed)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_parameters_are_plain_assignments(path):
    notebook = nbformat.read(path, as_version=4)
    cell = next(c for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
    assert all(re.match(r"\w+ = \S|# ", line) for line in cell.source.splitlines())


def test_the_digest_sees_code_and_nothing_else():
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    before = render.code_digest(notebook)
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell("words"))
    assert render.code_digest(notebook) == before
    next(c for c in notebook.cells if c.cell_type == "code").source += "\n1"
    assert render.code_digest(notebook) != before


@pytest.mark.parametrize("name", TINY)
def test_the_fixture_models_learned(name):
    curve = pd.read_csv(DATA / "models" / name / "loss.csv")
    assert (
        curve.held_out_loss.iloc[-1] < curve.held_out_loss.iloc[0] - 0.5
        and curve.held_out_loss.iloc[-1] < 5.6
    )


def test_nothing_of_this_machine_is_committed():
    files = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    for name in files:
        path = ROOT / name
        if (
            path.suffix in {".py", ".md", ".ipynb", ".csv", ".toml", ".yml", ".txt", ".json"}
            and path.exists()
        ):
            assert str(Path.home()) + "/" not in path.read_text() or str(Path.home()) == "/", name


def test_no_table_and_no_verdict_holds_the_clock():
    """A run's seconds stand in its provenance alone, or no second run would give the same bytes."""
    clock = re.compile(r"(^|_)(seconds?|minutes?|time|took|wall|elapsed|faster|slower|clock)$")
    tables = list((DATA / "results").glob("study/*/*/*.csv"))
    columns = {(p.name, c) for p in tables for c in pd.read_csv(p, nrows=0)}
    assert len(tables) > 40 and not [c for c in columns if clock.search(c[1])]
    ledger = pd.read_csv(DATA / "published" / "claims.csv", keep_default_na=False)
    assert not ledger.statistic.str.contains(r"\b(?:seconds|minutes|wall|clock)\b").any()


def test_the_readme_names_every_notebook():
    readme = (ROOT / "README.md").read_text()
    for path in NOTEBOOKS:
        assert f"notebooks/{path.name}" in readme


def test_figures_of_committed_notebooks_are_there_in_both_formats():
    png, svg = ({p.stem for p in (ROOT / "figures").glob(f"*.{kind}")} for kind in ("png", "svg"))
    assert png == svg and {p.stem for p in NOTEBOOKS} <= {
        name[: len(n)] for name in png for n in (p.stem for p in NOTEBOOKS) if name.startswith(n)
    }
