"""Every budget of every notebook, by profile (one frozen dataclass each)."""

from dataclasses import dataclass

from lib.base.errors import unknown


@dataclass(frozen=True)
class Profile:
    """Budgets of one run. Tokens are counted in windows of `seq_len` (128 in Whipp §4)."""

    name: str
    subject: str
    """language model used where the reader names none"""
    corpus: str
    fit_tokens: int
    """tokens captured per block for fitting; the last fifth is held out (Whipp §4: 15-30 k)"""
    eval_tokens: int
    """tokens of a disjoint split on which perplexity is measured"""
    descent_steps: int
    """steps of the trained linear baselines (Whipp §5.1 reads them at 3,000; exact descent
    continues the curve)"""
    descent_blocks: int
    """how many blocks the trained baseline is run on"""
    domains: tuple[str, ...] = ("wikipedia", "king-james", "python-stdlib")
    """corpora of the cross-domain work, the reference first"""
    domain_tokens: int = 30_720
    """tokens captured per block on each domain (Whipp §5.7: 15 k)"""
    sweep_tokens: int = 12_288
    """tokens on which a swapped or healed layer is priced, on each of two domains"""
    probe_tokens: int = 30_720
    """rows captured per block for probes and candidates (Whipp §5.5: 30 k)"""
    probe_steps: int = 800
    """steps of the direct solver of product branches"""
    adamw_steps: int = 8_000
    """steps of the paper's solver of product branches (Whipp §9)"""
    adamw_blocks: int | None = 6
    """how many blocks, evenly spaced, the paper's solver is run on; None: all"""
    candidate_steps: int = 3_000
    """steps of a trained candidate (Whipp §9: 8,000)"""
    heal_steps: int = 200
    """fine-tuning steps of a swapped layer (Whipp §4: 200)"""
    heal_windows: int = 1
    """windows in each of these steps (Whipp does not say how many)"""
    training_steps: int = 1_500
    """steps of each small model trained on the spot (as many as the committed ones had)"""
    held_out_tokens: int = 4_096
    """tokens on which the loss of such a model is measured"""
    seeds: tuple[int, ...] = (42, 43, 44)
    seq_len: int = 128
    n_folds: int = 5
    batch_windows: int = 16
    """windows in one forward pass"""


PROFILES = {
    p.name: p
    for p in (
        Profile(
            "smoke",
            "tiny-gpt2",
            "wikipedia-sample",
            5_120,
            1_024,
            300,
            2,
            ("wikipedia-sample", "python-stdlib"),
            5_120,
            1_024,
            5_120,
            60,
            120,
            2,
            40,
            heal_steps=3,
            training_steps=8,
            held_out_tokens=512,
            seeds=(42, 43),
        ),
        Profile(
            "laptop",
            "smollm2-135m",
            "wikipedia",
            15_360,
            2_048,
            3_000,
            2,
            domain_tokens=6_144,
            sweep_tokens=512,
            probe_tokens=10_240,
            adamw_blocks=3,
            probe_steps=500,
            candidate_steps=300,
            heal_steps=10,
            training_steps=24,
            held_out_tokens=512,
            seeds=(42, 43),
        ),
        Profile("study", "smollm2-135m", "wikipedia", 153_600, 12_288, 10_000, 3),
        Profile(
            "paper",
            "gpt2",
            "wikitext-2",
            30_720,
            245_760,
            50_000,
            3,
            ("wikitext-2", "moby-dick", "amusements-in-mathematics"),
            15_360,
            candidate_steps=8_000,
            adamw_blocks=None,
            sweep_tokens=245_760,
            heal_windows=8,
        ),
    )
}


def get_profile(name: str) -> Profile:
    """The profile of that name. Raises InputError if there is none."""
    if name not in PROFILES:
        raise unknown("profile", name, list(PROFILES))
    return PROFILES[name]
