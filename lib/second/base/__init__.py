"""What every room stands on: errors in one sentence, paths, one progress bar, the cache, the
profiles, argument checks.

The house style of figures (`lib.second.base.style`), the cache (`lib.second.base.cache`) and the loop over cached
steps (`lib.second.base.steps`) are imported as modules. All is light, so that a plan of runs can be made
without loading a deep-learning library."""

from lib.second.base.bars import progress
from lib.second.base.errors import InputError, unknown
from lib.second.base.kept import committed, kept, seal, unlike
from lib.second.base.names import RANDOM, TINY, label, slugify
from lib.second.base.paths import DATA, ROOT, sha256, whole
from lib.second.base.profiles import PROFILES, Profile, get_profile

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
