"""A language model as a Subject: uniform blocks whatever the architecture, and hooks that
record, swap and resume."""

from lib.models.blocks import Block
from lib.models.companions import companions
from lib.models.hooks import capture, forward_body, get_block, record, resume, swap
from lib.models.loading import load_subject
from lib.models.names import EMBEDDED, PRESETS, check_subject
from lib.models.null import draw
from lib.models.subjects import Subject, as_subject

__all__ = [
    "EMBEDDED",
    "PRESETS",
    "Block",
    "Subject",
    "as_subject",
    "capture",
    "check_subject",
    "companions",
    "draw",
    "forward_body",
    "get_block",
    "load_subject",
    "record",
    "resume",
    "swap",
]
