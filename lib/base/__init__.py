"""What every room stands on: errors in one sentence, paths, one progress bar, the cache, the
profiles, argument checks.

The house style of figures (`lib.base.style`), the cache (`lib.base.cache`) and the loop over cached
steps (`lib.base.steps`) are imported as modules. All is light, so that a plan of runs can be made
without loading a deep-learning library."""

from lib.base.bars import progress
from lib.base.errors import InputError, unknown
from lib.base.kept import committed, kept, seal, unlike
from lib.base.names import RANDOM, TINY, label, slugify
from lib.base.paths import DATA, ROOT, sha256, whole
from lib.base.profiles import PROFILES, Profile, get_profile

__all__ = [
    "DATA",
    "PROFILES",
    "RANDOM",
    "ROOT",
    "TINY",
    "InputError",
    "Profile",
    "committed",
    "get_profile",
    "kept",
    "label",
    "progress",
    "seal",
    "sha256",
    "slugify",
    "unknown",
    "unlike",
    "whole",
]
