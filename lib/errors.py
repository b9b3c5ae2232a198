"""The one exception raised for bad input."""

import difflib
from collections.abc import Sequence


class InputError(ValueError):
    """One sentence that names the value, the reason and a way out."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows for it: the sentence alone (IPython's hook)."""
        return [f"{type(self).__name__}: {self}"]


def unknown(kind: str, name: object, known: Sequence[str]) -> InputError:
    """The error for a name that is not in a list, with the nearest known one."""
    shown = name if not isinstance(name, str) or len(name) <= 100 else f"{name[:80]}…"
    near = difflib.get_close_matches(str(name)[:100].lower(), [k.lower() for k in known], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return InputError(f"unknown {kind} {shown!r}: {hint}known are {', '.join(known)}.")
