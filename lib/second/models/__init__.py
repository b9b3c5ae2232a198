"""A language model as a Subject: uniform blocks whatever the architecture, and hooks that
record, swap and resume; masked mixers, linear and not."""

from lib.second.models.blocks import Block
from lib.second.models.companions import companions
from lib.second.models.composed import Composed, compose, count_next, identities, sum_depth
from lib.second.models.hooks import capture, forward_body, get_block, record, resume, swap
from lib.second.models.loading import load_subject
from lib.second.models.mixers import KINDS, Mixer, build_mixer
from lib.second.models.names import EMBEDDED, PRESETS, check_subject
from lib.second.models.null import draw
from lib.second.models.rollout import agreement
from lib.second.models.subjects import Subject, as_subject

__all__ = [
    "EMBEDDED",
    "KINDS",
    "PRESETS",
    "Block",
    "Composed",
    "Mixer",
    "Subject",
    "agreement",
    "as_subject",
    "build_mixer",
    "capture",
    "check_subject",
    "companions",
    "compose",
    "count_next",
    "draw",
    "forward_body",
    "get_block",
    "identities",
    "load_subject",
    "record",
    "resume",
    "sum_depth",
    "swap",
]
