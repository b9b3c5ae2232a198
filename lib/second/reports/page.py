"""An executed notebook as the site sees it: its place, its title, how it ended."""

import re
from dataclasses import dataclass
from pathlib import Path

import nbformat

from lib.second.base.errors import InputError


@dataclass(frozen=True)
class Page:
    """An executed notebook as a page of the site."""

    docname: str
    """its path below the source folder, without suffix: `<notebook>` or `<run>/<notebook>`"""
    title: str
    error: str = ""
    """what it stopped with, if it did"""

    @property
    def notebook(self) -> str:
        return self.docname.rpartition("/")[2]

    @property
    def run(self) -> str:
        """the run's folder, empty for a committed notebook"""
        return self.docname.rpartition("/")[0]

    @property
    def short(self) -> str:
        """the title up to its colon or question mark"""
        return re.split(r": |\?", self.title)[0]

    @classmethod
    def of(cls, path: Path, source: Path) -> "Page":
        """Read title and outcome of a notebook under `source`. Raises InputError if it is none."""
        try:
            cells = nbformat.read(path, as_version=4).cells
        except Exception as error:  # nbformat raises whatever its parts raise
            raise InputError(
                f"{path.name} is not a whole notebook ({type(error).__name__}): run it again."
            ) from error
        prose = "\n".join(c.source for c in cells if c.cell_type == "markdown")
        heading = re.search(r"^# (.+)$", prose, re.M)
        errors = [o for c in cells for o in c.get("outputs", []) if o.output_type == "error"]
        docname = path.relative_to(source).with_suffix("").as_posix()
        return cls(
            docname,
            heading[1].strip() if heading else path.stem,
            errors[0].ename if errors else "",
        )


def plain(text: str) -> str:
    """Text that means itself in MyST, in a table cell too."""
    return re.sub(r"([\\`*_{}\[\]<>()#|!$~^&])", r"\\\1", " ".join(str(text).split()))
