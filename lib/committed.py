"""The committed pages: how one report is executed, and `make render`, `read`, `train` and
`check-measured`."""

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from lib.errors import InputError
from lib.files import DATA, ROOT, atomic_write, cache_folder
from lib.models.names import NOTEBOOKS, PROFILES, label, notebooks
from lib.store import unpack
from lib.tables import entry

RUNS = ROOT / "runs"


def execute(
    source: Path, target: Path, parameters: dict, on_cell_start: Callable | None = None
) -> None:
    """papermill, with what the kernel says of its own transport kept off the terminal."""
    import papermill

    os.environ["TQDM_DISABLE"] = "1"  # bars are for who waits, not for who reads
    os.environ["NONLINEARITY_COMMAND"] = "1"
    terminal = os.dup(2)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        papermill.execute_notebook(
            source,
            target,
            parameters,
            kernel_name="python3",
            progress_bar=False,
            cwd=ROOT,
            on_cell_start=on_cell_start,
        )
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def as_read(done, name: str, parameters: dict, target: Path):
    """A finished report as it is read: what is written about the committed run is left out of
    another one's, which gets a first cell of its own."""
    import nbformat

    from lib import page
    from lib.report import Run  # takes ten seconds to load

    usual = PROFILES[parameters["profile"]]
    chosen = {what: parameters.get(what) or usual[what] for what in ("model", "corpus")}
    run = Run(name, parameters["profile"], chosen["model"], chosen["corpus"], parameters["seed"])
    about = {"folder": run.folder, "profile": run.profile, **chosen}
    cells = page.of_another_run(done.cells, name, about, target)
    done.cells = [nbformat.from_dict(cell) for cell in cells]
    return done


@contextlib.contextmanager
def alone(folders: list[Path]) -> Iterator[None]:
    """While open, no other command writes into these folders: two would delete each other's
    reports. Locks are taken in one order, before anything is written."""
    with contextlib.ExitStack() as locks:
        for folder in folders:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                locks.enter_context(FileLock(folder / ".lock").acquire(timeout=0))
            except Timeout:
                raise InputError(
                    f"another run is writing {folder}: wait for it, or choose other settings."
                ) from None
            except OSError as error:
                raise InputError(
                    f"the folder {folder} cannot be made or written ({error.strerror}): remove "
                    "what stands in its place, or give this user the right to write there."
                ) from None
        yield


def render(config: dict) -> None:
    """Execute committed notebooks at `study`: the only writer of figures/ and data/results. On
    another model than the default the report goes into runs/ and only its tables into data/results;
    the committed page is then rendered again to show them."""
    names = notebooks(config.get("number", ""), config.get("paper", ""))
    os.environ["NONLINEARITY_RENDER"] = "1"
    model = config.get("model", "")
    elsewhere = bool(model) and model != PROFILES["study"]["model"]
    folder = RUNS / (f"render-{label(model)}" if elsewhere else "render")
    with alone([folder]):
        for name in names:
            began = time.time()
            _render_one(name, folder, {"model": model} if elsewhere else {})
            print(f"{name}: {time.time() - began:.0f} s", flush=True)


def _render_one(name: str, folder: Path, given: dict) -> None:
    """Execute a page; it takes the place of the committed one only where that is still the file
    that was executed."""
    import nbformat

    from lib import page

    source, part = NOTEBOOKS / f"{name}.ipynb", folder / f".{name}.part.ipynb"
    before = source.read_bytes()
    execute(source, part, given)
    notebook = nbformat.read(part, 4)
    notebook.metadata.pop("papermill", None)
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        # A warning names the file that it comes from, as seen from the repository.
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = output.text.replace(f"{ROOT}/", "")
    # What papermill injected is no part of the committed notebook.
    notebook.cells = [
        c for c in notebook.cells if "injected-parameters" not in c.metadata.get("tags", [])
    ]
    target = folder / f"{name}.ipynb" if given else source
    if given:
        notebook = as_read(notebook, name, {"seed": 42, "profile": "study"} | given, target)
    nbformat.write(notebook, part)
    if source.read_bytes() != before:
        os.replace(part, folder / f"{name}.ipynb")
        raise InputError(
            f"{source.name} was saved while it was rendered: what was rendered is in "
            f"{folder / source.name}, and your words are where they were; render it again."
        )
    os.replace(part, target)
    if not given:
        for fault in filter(None, [page.unread(notebook, name), *page.unquotable(notebook, name)]):
            print(fault)


def read(config: dict) -> None:
    """Pin the words of pages to the numbers of their summaries, once a person has read them.
    Raises InputError for a page whose words quote an interval that is not there."""
    import nbformat

    from lib import page

    for name in notebooks(config.get("number", ""), config.get("paper", "")):
        path = NOTEBOOKS / f"{name}.ipynb"
        notebook = nbformat.read(path, 4)
        if faults := page.unquotable(notebook, name):
            raise InputError("\n".join(faults))
        notebook.cells[0].metadata["summary"] = page.pin_of(name)
        with atomic_write(path) as part:
            nbformat.write(notebook, part)
        print(f"{name}: its words are pinned to {page.pin_of(name)}")


def train(config: dict) -> None:
    """Run the trainings of some notebooks and nothing else: their cells up to the last one with the
    tag `runs`. What is trained is kept in data/measured, so a killed run goes on from there.
    Raises InputError for a notebook without such a cell."""
    import nbformat

    os.environ["NONLINEARITY_TRAIN"] = "1"
    given = {k: config[k] for k in ("profile", "model", "corpus") if k in config}
    for name in notebooks(config.get("number", ""), config.get("paper", "")):
        notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)
        tagged = [k for k, c in enumerate(notebook.cells) if "runs" in c.metadata.get("tags", [])]
        if not tagged:
            raise InputError(
                f"notebook {name} trains nothing under `make train`: it has no cell with the tag "
                f"runs; use make render N={name[:2]}."
            )
        notebook.cells = notebook.cells[: tagged[-1] + 1]
        with tempfile.TemporaryDirectory() as own:
            source = Path(own) / f"{name}.ipynb"
            nbformat.write(notebook, source)
            execute(source, source, given)
        print(f"{name}: trained", flush=True)


CHECKED_A_PAGE = 4
"""entries that `check_measured` chooses of each page; the maps that they need are made once"""


def check_measured(config: dict) -> None:
    """Measure a few kept entries of each page again, chosen at random, in a cache that is empty but
    for model files, and compare: they may differ by 10⁻⁴ nats a token, or of their size. Raises
    InputError where they differ by more."""
    import pandas as pd

    models = cache_folder() / "models"
    models.mkdir(parents=True, exist_ok=True)
    for name in notebooks(config.get("number", ""), config.get("paper", "")):
        keys = DATA / "results/study" / PROFILES["study"]["model"] / name / "measured.csv"
        if not keys.exists():
            continue
        used = pd.read_csv(keys, dtype=str)
        family_of = dict(used.sample(min(CHECKED_A_PAGE, len(used)))[["key", "family"]].to_numpy())
        for digest, family in family_of.items():
            print(f"{name}: measuring {family} {digest} again", flush=True)
        with tempfile.TemporaryDirectory() as own:
            os.environ |= {"NONLINEARITY_CACHE": own, "NONLINEARITY_CHECK": " ".join(family_of)}
            cache_folder().mkdir()
            (cache_folder() / "models").symlink_to(models)
            execute(NOTEBOOKS / f"{name}.ipynb", Path(own) / f"{name}.ipynb", {})
            again = {
                digest: unpack(path.read_bytes())["table"]
                for digest in family_of
                for path in cache_folder().glob(f"*/*-{digest}.*")
            }
        for digest, family in family_of.items():
            if digest not in again:
                raise InputError(f"{name} asks for {digest} no more: render the page again.")
            difference = difference_of(entry(family, digest), again[digest])
            print(f"{name}: {family} {digest}: {difference:.1e} from what is kept", flush=True)
            if not difference <= 1e-4:
                raise InputError(
                    f"{family} {digest} of {name} is now {difference:.1e} away from what is kept: "
                    "restore data/measured from git, or render the page again."
                )


def difference_of(before, after) -> float:
    """The largest difference of two tables' numbers: of sums of losses a prediction, of others by
    their size; infinite where texts or shapes differ. Missing numbers are equal."""
    numbers = before.select_dtypes("number").columns
    texts = before.columns.difference(numbers)
    if before.shape != after.shape or not before[texts].equals(after[texts]):
        return float("inf")
    size = before[numbers].abs().clip(lower=1.0)
    if "predictions" in numbers:
        size = size.clip(lower=before.predictions, axis=0)
    same = (before[numbers] == after[numbers]) | (before[numbers].isna() & after[numbers].isna())
    relative = (before[numbers] - after[numbers]).abs() / size
    return float(relative.mask(same, 0.0).fillna(float("inf")).to_numpy().max(initial=0.0))
