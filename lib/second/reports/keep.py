"""What an executed notebook keeps: of its outputs no progress bar, of the committed one every
output that says the same."""

import base64
import copy
import hashlib
import re

from nbconvert.preprocessors import CoalesceStreamsPreprocessor

from lib.second.base.results import COLD
from lib.second.reports.pictures import pixels

# What passes from run to run without a change of content: the times of the provenance line and
# addresses in memory; and progress bars, which are for who waits.
BAR = re.compile(r"^.*\d+%\|.*\[\d\d:\d\d.*\n?", re.MULTILINE)
PASSING = re.compile(rf"{COLD} \d+ s \(this run \d+ s\)|(?<= at )0x[0-9a-f]+")


def drop_bars(notebook) -> None:
    """Take progress bars out of what an executed notebook printed, in place."""
    CoalesceStreamsPreprocessor().preprocess(notebook, {})
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream":
                output.text = BAR.sub("", output.text)
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("text") != ""]


def keep(executed, committed) -> None:
    """Put the committed outputs back, in place, wherever the executed ones say the same; cells
    are matched by id.

    A picture of equal pixels keeps its bytes even where the rest of its output is new.
    """
    before = {cell.id: cell.get("outputs", []) for cell in committed.cells}
    known = {
        _shown(output): output.data["image/png"]
        for outputs in before.values()
        for output in outputs
        if "image/png" in output.get("data", {})
    }
    for cell in executed.cells:
        if cell.cell_type != "code":
            continue
        old = before.get(cell.id, [])
        if _all_said(old) == _all_said(cell.outputs):
            cell.outputs = copy.deepcopy(old)
            continue
        for k, output in enumerate(cell.outputs):
            same = next((o for o in old if said(o) == said(output)), None)
            if same is not None:
                cell.outputs[k] = copy.deepcopy(same)
            elif "image/png" in output.get("data", {}):
                data = output.data
                data["image/png"] = known.get(_shown(output), data["image/png"])


def said(output) -> dict:
    """What an output says: its pictures as their pixels, and without what passes."""
    plain = copy.deepcopy(dict(output))
    plain.pop("execution_count", None)
    if output.output_type == "stream":
        plain["text"] = PASSING.sub("", BAR.sub("", output.text))
    data = plain.get("data", {})
    for kind, value in data.items():
        if kind == "image/png":
            data[kind] = _shown(output)
        elif isinstance(value, str):
            data[kind] = PASSING.sub("", value)
    return plain


def _all_said(outputs) -> list[dict]:
    """What several outputs say, a stream of progress bars alone being nothing."""
    every = [said(output) for output in outputs]
    return [o for o in every if o["output_type"] != "stream" or o["text"]]


def _shown(output) -> str:
    """Digest of the pixels of an output's PNG; a damaged one shows what no other does."""
    text = output.data["image/png"]
    try:
        size, values = pixels(base64.b64decode(text))
    except (OSError, ValueError):
        return text
    return hashlib.sha256(repr(size).encode() + values).hexdigest()
