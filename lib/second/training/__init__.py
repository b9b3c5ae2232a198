"""Small decoders trained on the spot, and how their recoverability develops along training
(Whipp §5.2); linear and nearly linear language models by width (Badger)."""

from lib.second.training.across import (
    blocks_of,
    depth_trends,
    models_to_decide,
    pairs_apart,
    share_above,
)
from lib.second.training.apart import across_less_within, gap, kind_less_others, leads, rank_between
from lib.second.training.development import develop, untrained
from lib.second.training.drawn import initial_scores, rank_with_drawn, same_inputs
from lib.second.training.loop import FAMILIES, TrainingRun, build, make_fixture, train, train_tokenizer
from lib.second.training.mixers import (
    PROMPTS,
    Splits,
    at_the_edge,
    sweep,
    train_one,
    window_losses,
)
from lib.second.training.repeats import (
    between_bounds,
    change,
    courses,
    design_shares,
    family_share,
    one_apart,
    rise_and_fall,
    seed_ratio,
    settling,
    text_effect,
    unshared,
    untrained_range,
    wide,
)
from lib.second.training.switched import SEQUENTIAL, trained_models
from lib.second.training.widths import agreement_by_token

__all__ = [
    "FAMILIES",
    "PROMPTS",
    "SEQUENTIAL",
    "Splits",
    "TrainingRun",
    "across_less_within",
    "agreement_by_token",
    "at_the_edge",
    "between_bounds",
    "blocks_of",
    "build",
    "change",
    "courses",
    "depth_trends",
    "design_shares",
    "develop",
    "family_share",
    "gap",
    "initial_scores",
    "kind_less_others",
    "leads",
    "make_fixture",
    "models_to_decide",
    "one_apart",
    "pairs_apart",
    "rank_between",
    "rank_with_drawn",
    "rise_and_fall",
    "same_inputs",
    "seed_ratio",
    "settling",
    "share_above",
    "sweep",
    "text_effect",
    "train",
    "train_one",
    "train_tokenizer",
    "trained_models",
    "unshared",
    "untrained",
    "untrained_range",
    "wide",
    "window_losses",
]
