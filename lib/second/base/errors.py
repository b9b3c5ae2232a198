"""The one exception this package raises for bad input, and what others raise told in one line."""

import re


class InputError(ValueError):
    """One sentence that names the value, the reason and a way out."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows for it: the sentence alone (IPython's hook)."""
        return [f"{type(self).__name__}: {self}"]


def unknown(kind: str, name: object, known: list[str]) -> InputError:
    """The error for a name that is not in a list, with the nearest known name when there is one."""
    import difflib

    plain = {k.lower(): k for k in known}
    near = difflib.get_close_matches(str(name)[:100].lower(), plain, n=1)
    hint = f"did you mean {plain[near[0]]!r}? " if near else ""
    shown = name if not isinstance(name, str) or len(name) <= 100 else f"{name[:80]}…"
    return InputError(f"unknown {kind} {shown!r}: {hint}known are {', '.join(known)}.")


LONGEST = 400
"""characters of a library's text that are handed on, and then to the end of the sentence"""
_MARKS = re.compile(r"\x1b\[[0-9;]*m")  # colours of a terminal
_ELSEWHERE = re.compile(r"above|below|trust_remote_code|ignore_mismatched|Request ID|stack ?trace")
_TELLING = (OSError, ValueError, RuntimeError)
"""kinds of errors whose text stands for itself; others are named before it"""


def reason(error: BaseException) -> str:
    """What a library says went wrong, in one line of whole sentences.

    Left out are colours, and sentences that point to what the reader cannot see or should not do.
    """
    text = " ".join(_MARKS.sub("", str(error)).split())
    sentences = re.split(r"(?<=[.!?]) (?=[A-Z`'\"])", text)
    kept = ""
    for sentence in (s for s in sentences if not _ELSEWHERE.search(s)):
        if kept and len(kept) + len(sentence) > LONGEST:
            break
        kept = f"{kept} {sentence}".strip()
    kept, kind = kept.rstrip(".!: "), type(error).__name__
    if not kept:
        return kind
    plain = isinstance(error, _TELLING) and not isinstance(error, UnicodeError)
    return kept if plain else f"{kind}: {kept}"
