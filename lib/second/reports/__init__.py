"""One run of one notebook: checked parameters, a place for its results, claims as it judges
them, and pages to read; and series of such runs.

What a notebook uses is imported when it is asked for: the plan of a series stays light, and
Snakemake reads it in every job."""

import importlib

_FROM = {
    "lib.second.reports.display": ("brief", "say", "show"),
    "lib.second.reports.parameters": ("blocks_named", "domains_named"),
    "lib.second.reports.report": ("Report", "start"),
}

__all__ = ["Report", "blocks_named", "brief", "domains_named", "say", "show", "start"]


def __getattr__(name: str):
    module = next((m for m, names in _FROM.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
