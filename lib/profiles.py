"""Every budget of every notebook, by profile (one frozen dataclass each)."""

from dataclasses import dataclass

from lib.errors import unknown


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
    """steps of the trained linear baselines (Whipp §5.1 reads them at 3,000; exact descent continues the curve)"""
    descent_blocks: int
    """how many blocks the trained baseline is run on"""
    domains: tuple[str, ...] = ("wikipedia", "king-james", "python-stdlib")
    """corpora of the cross-domain work, the reference first"""
    domain_tokens: int = 30_720
    """tokens captured per block on each domain (Whipp §5.7: 15 k)"""
    sweep_tokens: int = 4_096
    """tokens of the swap sweep on each of two domains"""
    seeds: tuple[int, ...] = (42, 43, 44)
    seq_len: int = 128
    n_folds: int = 5
    batch_windows: int = 16
    """windows in one forward pass"""


PROFILES = {
    p.name: p
    for p in (
        Profile("smoke", "tiny-gpt2", "wikipedia-sample", 5_120, 1_024, 300, 2, ("wikipedia-sample", "python-stdlib"), 5_120, 1_024, seeds=(42, 43)),
        Profile("laptop", "smollm2-135m", "wikipedia", 15_360, 2_048, 3_000, 2, domain_tokens=15_360, sweep_tokens=1_024, seeds=(42, 43)),
        Profile("study", "smollm2-135m", "wikipedia", 153_600, 12_288, 10_000, 3),
        Profile("paper", "gpt2", "wikitext-2", 30_720, 245_760, 50_000, 3, ("wikitext-2", "moby-dick", "amusements-in-mathematics"), 15_360),
    )
}


def get_profile(name: str) -> Profile:
    """The profile of that name. Raises InputError if there is none."""
    if name not in PROFILES:
        raise unknown("profile", name, list(PROFILES))
    return PROFILES[name]
