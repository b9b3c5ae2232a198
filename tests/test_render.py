"""Rendering: light pictures that say what they show, an answer in brief at the top, and files that
stay as they are while nothing new is said."""

import base64
import copy
import hashlib
import json

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from nbconvert import HTMLExporter
from nbformat import v4

from lib.base import ROOT, InputError, style
from lib.linear.figures import domains_figure
from lib.reports import display, pictures, render, report
from lib.reports.keep import keep

CELLS = [
    "from lib.reports import brief\n\nbrief()",
    'profile = "smoke"\nseed = 42',
    "import time\nfrom pathlib import Path\n\nimport matplotlib.pyplot as plt\n\n"
    "from lib.base import progress\nfrom lib.reports import report\n\n"
    "report.ROOT = report.DATA = Path.cwd()\n"
    'run = report.start("99_tiny", profile, seed=seed)\n'
    "run.started -= time.time_ns() % 99_991",  # a run never takes the same time twice
    "for _ in progress(range(3), desc='steps'):\n    time.sleep(0.01)\n"
    "figure, ax = plt.subplots()\nax.plot([1, 2, 4])\n"
    'run.figure(figure, "line", alt="A line that rises & bends.")',
    "run.brief('One.', f'Two is {1 + 1}.', 'Three.')\nprint(run.provenance(documents=1234))",
]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """A tiny notebook rendered twice in a folder of its own: (the folder, the files with their
    contents after each time, what each time said)."""
    home = tmp_path_factory.mktemp("home")
    source = home / "notebooks" / "99_tiny.ipynb"
    source.parent.mkdir()
    notebook = v4.new_notebook(cells=[v4.new_code_cell(c, id=f"c{i}") for i, c in enumerate(CELLS)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    notebook.cells[1].metadata["tags"] = ["parameters"]
    nbformat.write(notebook, source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render, "ROOT", home)
        patch.setenv("PYTHONPATH", str(ROOT))
        said, states = [], []
        for _ in range(2):
            said.append(render.commit(source))
            files = [p for p in home.rglob("*") if p.is_file() and "runs" not in p.parts]
            states.append({p.relative_to(home): (p.read_bytes(), p.stat().st_ino) for p in files})
    return home, states, said


def test_a_second_render_rewrites_nothing(rendered):
    home, (first, second), said = rendered
    assert {p.suffix for p in first} == {".ipynb", ".png", ".svg", ".json"}
    assert second == first
    assert "rewritten, " in said[0] and "; 2 of 2 figure files rewritten" in said[0]
    assert ": unchanged, " in said[1] and "; 0 of 2 figure files rewritten" in said[1]
    executed = nbformat.read(home / "runs" / "render" / "99_tiny.ipynb", as_version=4)
    committed = nbformat.read(home / "notebooks" / "99_tiny.ipynb", as_version=4)
    assert executed.cells[-1].outputs != committed.cells[-1].outputs, "the time was the same"


def test_what_is_committed_is_whole(rendered):
    home, _, _ = rendered
    notebook = nbformat.read(home / "notebooks" / "99_tiny.ipynb", as_version=4)
    assert [c.id for c in notebook.cells] == [f"c{i}" for i in range(len(CELLS))]
    assert [c.execution_count for c in notebook.cells] == [1, 2, 3, 4, 5]
    assert notebook.metadata.executed_code_sha256 == render.code_digest(notebook)
    (brief,) = notebook.cells[0].outputs
    assert brief.data["text/markdown"] == "**In brief**\n\n- One.\n- Two is 2.\n- Three."
    (picture,) = notebook.cells[3].outputs  # neither the bar nor the figure drawn a second time
    shown, _ = pictures.pixels(base64.b64decode(picture.data["image/png"]))
    assert shown[0] <= pictures.SCREEN_WIDTH + 40
    assert "cold time" in notebook.cells[4].outputs[0].text


def test_alternative_texts_reach_the_pages(rendered):
    home, _, _ = rendered
    notebook = nbformat.read(home / "notebooks" / "99_tiny.ipynb", as_version=4)
    page, _ = HTMLExporter(template_name="classic").from_notebook_node(notebook)
    assert 'alt="A line that rises &amp; bends."' in page
    assert notebook.cells[3].metadata["mystnb"]["image"]["alt"] == "A line that rises & bends."


def test_stale_alternative_texts_go():
    cell = v4.new_code_cell("1", metadata={"mystnb": {"image": {"alt": "old", "width": "9"}}})
    render.tidy(v4.new_notebook(cells=[cell]))
    assert cell.metadata["mystnb"]["image"] == {"width": "9"}


def png(value: int, level: int = 9) -> str:
    """A PNG of one grey, in base64, whose bytes differ by the level of compression."""
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), (value,) * 3).save(buffer, "PNG", compress_level=level)
    return base64.b64encode(buffer.getvalue()).decode()


def notebook_with(*outputs, **metadata):
    cell = v4.new_code_cell("1", id="a", outputs=list(outputs), execution_count=7)
    return v4.new_notebook(cells=[cell], metadata=metadata)


def stream(text: str):
    return v4.new_output("stream", name="stdout", text=text)


def picture(data: str, alt: str = "grey"):
    metadata = {"image/png": {"alt": alt}}
    return v4.new_output("display_data", {"image/png": data}, metadata=metadata)


BAR = "fits: 100%|███| 12/12 [00:06<00:00,  1.89model/s]\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (stream("R² 0.9, cold time 40 s (this run 9 s)\n"),) * 2,
        (
            stream("R² 0.9, cold time 40 s (this run 9 s)\n"),
            stream("R² 0.9, cold time 41 s (this run 40 s)\n"),
        ),
        (stream(BAR + "R² 0.9\n"), stream("R² 0.9\n")),
        (stream(BAR), stream(BAR.replace("00:06", "00:01"))),
        (picture(png(9)), picture(png(9, level=0))),
    ],
)
def test_what_says_the_same_is_kept(old, new):
    executed, committed = notebook_with(copy.deepcopy(new)), notebook_with(old)
    keep(executed, committed)
    assert executed == committed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (stream("R² 0.9\n"), stream("R² 0.8\n")),
        (stream(BAR + "R² 0.9\n"), stream(BAR + "R² 0.8\n")),
        (stream("| 90%| [1]\n"), stream("| 80%| [1]\n")),
        (picture(png(9)), picture(png(10))),
        (picture(png(9)), picture(png(9), alt="another")),
        (stream("R² 0.9\n"), v4.new_output("stream", name="stderr", text="R² 0.9\n")),
    ],
)
def test_what_says_something_new_is_not(old, new):
    executed = notebook_with(copy.deepcopy(new))
    keep(executed, notebook_with(old))
    assert executed.cells[0].outputs == [new]


def test_a_picture_keeps_its_bytes_under_a_new_text():
    executed = notebook_with(picture(png(9, level=0), alt="another"), stream("more\n"))
    keep(executed, notebook_with(picture(png(9))))
    first = executed.cells[0].outputs[0]
    assert first.data["image/png"] == png(9) != png(9, level=0)
    assert first.metadata["image/png"]["alt"] == "another"


@pytest.mark.parametrize(
    "text",
    ["FutureWarning: soon\n", f"{ROOT}/lib\n", *(f"in /{d}/x\n" for d in ("home", "root", "tmp"))],
)
def test_blemishes_are_refused(text):
    with pytest.raises(InputError, match=r"99_x\.ipynb prints"):
        render.check(notebook_with(stream(text)), "99_x.ipynb")
    render.check(notebook_with(stream("a warning; https://x.org/home/\n")), "99_x.ipynb")


def largest_figure():
    """The tallest figure of the reports, on random data."""
    rng, blocks = np.random.default_rng(0), np.arange(30)

    def walk():
        steps = rng.normal(size=30).cumsum()
        return (steps - steps.min()) / np.ptp(steps)

    def table(domains, scale, **names):
        frames = []
        for domain in domains:
            frame = pd.DataFrame({"domain": domain, "block": blocks})
            for column, (low, high) in names.items():
                values, width = scale * (0.2 + walk()), scale * rng.random(30) / 10
                frame[column], frame[low], frame[high] = values, values - width, values + width
            frames.append(frame)
        return pd.concat(frames)

    domains = ["wikipedia", "wikipedia, other articles", "king-james", "python-stdlib"]
    profiles = table(domains, 1, mean=("low", "high"))
    ends = {name: (f"{name}_low", f"{name}_high") for name in ("cost_linear", "saved")}
    return domains_figure(profiles, table(domains[::2], 100, **ends), "a-model")


def test_pictures_are_light():
    style.style()
    figure = largest_figure()
    screen, paper = pictures.screen_png(figure), pictures.print_png(figure)
    plt.close(figure)
    assert len(screen) < 45_000 and len(paper) < 150_000
    assert pictures.pixels(paper)[0][0] > 1_500


def test_the_same_figure_gives_the_same_bytes():
    style.style()
    made = []
    for _ in range(2):
        figure, ax = plt.subplots(figsize=(4, 3))
        ax.scatter([1, 2], [3, 4], label="dots", rasterized=True)
        ax.fill_between([1, 2], [3, 3], [4, 5], alpha=0.3)
        ax.legend()
        made.append([pictures.screen_png(figure), pictures.print_png(figure), pictures.svg(figure)])
        plt.close(figure)
    assert made[0] == made[1]
    assert b"<dc:date>" not in made[0][2] and b"Matplotlib v" not in made[0][2]


def test_few_colours_lose_nothing_visible():
    rng = np.random.default_rng(0)
    figure = plt.figure(figsize=(1, 1))
    figure.figimage(rng.random((100, 100, 3)))  # noise needs every colour it has
    image = pictures._drawn(figure, 160)
    assert pictures._lost(image, pictures._few(image, 256)) > 1e-4
    assert pictures.pixels(pictures.print_png(figure)) == (image.size, image.tobytes())
    plt.close(figure)


def test_a_figure_file_is_written_only_for_new_pixels(tmp_path):
    def save(height):
        figure, ax = plt.subplots(figsize=(3, 2))
        ax.plot([0, height])
        ax.set_ylim(0, 3)
        pictures.save(figure, tmp_path, "x")
        plt.close(figure)

    target = tmp_path / "x.png"
    save(1)
    first = target.read_bytes()
    target.write_bytes(base64.b64decode(repacked := repack(first)))
    save(1)
    assert target.read_bytes() == base64.b64decode(repacked) != first
    save(2)
    assert pictures.pixels(target.read_bytes()) != pictures.pixels(first)
    target.write_bytes(b"damaged")
    save(1)
    assert target.read_bytes() == first


def repack(data: bytes) -> str:
    """The same pixels in other bytes."""
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.open(io.BytesIO(data)).convert("RGB").save(buffer, "PNG", compress_level=1)
    return base64.b64encode(buffer.getvalue()).decode()


def test_committing_asks_for_an_alternative_text(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "DATA", tmp_path)
    monkeypatch.setattr(report, "ROOT", tmp_path)
    run = report.start("99_tiny", "smoke")
    figure = plt.figure()
    run.figure(figure, "line")
    assert not plt.fignum_exists(figure.number) and (run.folder / "99_tiny_line.svg").exists()
    monkeypatch.setenv(report.COMMITTING, "1")
    with pytest.raises(InputError, match="'line' has no alternative text"):
        run.figure(plt.figure(), "line", alt=" ")
    run.figure(plt.figure(), alt="Nothing.")
    assert (tmp_path / "figures" / "99_tiny.png").exists()
    plt.close("all")


def test_a_brief_has_three_to_five_sentences():
    display.fill_brief(("One.", "Two.", "Three."))
    for wrong in (("One.", "Two."), ("x.",) * 6, ("One.", "Two.", " ")):
        with pytest.raises(InputError, match="three to five"):
            display.fill_brief(wrong)


def test_provenance_says_what_the_run_was(tmp_path, monkeypatch, tiny_gpt2):
    monkeypatch.setattr(report, "DATA", tmp_path)
    monkeypatch.setattr(report.cache, "cold_seconds", lambda: {"fit": 300.0, "sweep": 112.4})
    run = report.start("99_tiny", "smoke")
    line = run.provenance(tiny_gpt2, documents=1234)
    stored = run.folder / "provenance.json"
    assert " · weights float32 · " in line and " · documents 1,234 · " in line
    assert line.endswith("cold time 412 s (this run 0 s)")
    assert json.loads(stored.read_text())["cold time"] == "412 s (this run 0 s)"
    before = hashlib.sha256(stored.read_bytes()).hexdigest()
    run.started -= 1000
    assert run.provenance(tiny_gpt2, documents=1234).endswith("cold time 1000 s (this run 1000 s)")
    assert hashlib.sha256(stored.read_bytes()).hexdigest() == before
    run.provenance(tiny_gpt2, documents=1235)
    assert json.loads(stored.read_text())["documents"] == 1235
    embedded = report.start("99_tiny", "smoke", "smollm2-135m").provenance()
    assert "weights SmolLM2-135M-Instruct, 4-bit GGUF (Q4_1) dequantised to float32" in embedded
