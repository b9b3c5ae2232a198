"""The one exception this package raises for bad input."""


class InputError(ValueError):
    """One sentence that names the value, the reason and a way out."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows for it: the sentence alone (IPython's hook)."""
        return [f"{type(self).__name__}: {self}"]


def unknown(kind: str, name: object, known: list[str]) -> InputError:
    """The error for a name that is not in a list, with the nearest known name when there is one."""
    import difflib

    plain = {k.lower(): k for k in known}
    near = difflib.get_close_matches(str(name).lower(), plain, n=1)
    hint = f"did you mean {plain[near[0]]!r}? " if near else ""
    return InputError(f"unknown {kind} {name!r}: {hint}known are {', '.join(known)}.")
