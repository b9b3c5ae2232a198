"""Every budget of every notebook, by profile (one frozen dataclass each)."""

from dataclasses import dataclass, replace

from lib.second.base.errors import unknown


@dataclass(frozen=True)
class Profile:
    """Budgets of one run. Tokens are counted in windows of `seq_len` (128 in Whipp §4)."""

    name: str
    subject: str = "smollm2-135m"
    """language model used where the reader names none"""
    corpus: str = "wikipedia"
    seq_len: int = 128
    seeds: tuple[int, ...] = (42, 43, 44)
    in_order: bool = False
    """whether windows stand in the corpus' own order and the held-out part is its contiguous tail,
    as in the papers; else windows are sampled over all documents and split by document"""
    fit_tokens: int = 122_880
    """tokens whose statistics are measured for every block (Whipp §4: 15-30 k)"""
    segments: int = 5
    """budgets of the learning curve: each twice the one before, the last all of `fit_tokens`"""
    eval_tokens: int = 6_144
    """tokens of other documents on which perplexity is measured"""
    descent_steps: int = 4_000
    """steps of the trained linear baselines (Whipp §5.1 reads them at 3,000; exact descent
    continues the curve)"""
    descent_blocks: int = 3
    """how many blocks the trained baseline is run on"""
    domains: tuple[str, ...] = ("wikipedia", "king-james", "python-stdlib")
    """corpora of the cross-domain work, the reference first"""
    domain_tokens: int = 12_800
    """tokens measured on each domain (Whipp §5.7: 15 k)"""
    sweep_tokens: int = 4_096
    """tokens on which a swapped or healed layer is priced, on each of two domains"""
    probe_tokens: int = 20_480
    """rows captured per block for probes and candidates (Whipp §5.5: 30 k)"""
    probe_steps: int = 500
    """steps of the direct solver of product branches"""
    adamw_steps: int = 8_000
    """steps of the paper's solver of product branches (Whipp §9)"""
    adamw_blocks: int | None = 3
    """how many blocks, evenly spaced, the paper's solver is run on; None: all"""
    candidate_steps: int = 1_500
    """steps of a trained candidate (Whipp §9: 8,000)"""
    heal_steps: int = 60
    """fine-tuning steps of a swapped layer (Whipp §4: 200)"""
    heal_windows: int = 1
    """windows in each of these steps (Whipp does not say how many)"""
    training_steps: int = 600
    """steps of each small model trained on the spot"""
    training_windows: int = 8
    """windows in each of these steps"""
    held_out_tokens: int = 4_096
    """tokens on which the loss of such a model is measured"""
    gate_tokens: int = 16_384
    """tokens that gates learn from (Balogh §3.5: 20 k)"""
    choose_tokens: int = 2_048
    """tokens of other documents on which one of several gates is chosen"""
    route_tokens: int = 4_096
    """tokens of other documents on which a gated layer is priced (Balogh §3.2: 12 k)"""
    router_tokens: int = 3_072
    """of these, tokens on which a block's many routers are compared"""
    gate_blocks: int | None = None
    """how many blocks, evenly spaced, are gated; None: all"""
    linear_shares: tuple[float, ...] = (0.1, 0.2, 0.35, 0.6, 0.9)
    """shares of the FFN evaluations that routers over the whole network send to the linear maps"""
    label_shares: tuple[float, ...] = (0.1, 0.35)
    """those at which further labels and routers are compared"""
    refit_tokens: int = 16_384
    """tokens on which maps are refitted for a router, or in order"""
    effect_windows: int = 8
    """windows in which single evaluations are priced, one a block"""
    speed_repeats: int = 30
    """paired repetitions of a timing"""
    switch_steps: int = 600
    """training steps of each small model whose blocks are parallel or sequential"""
    across_blocks: int | None = None
    """as `gate_blocks`, where several models are laid beside each other"""
    token_tokens: int = 32_768
    """tokens on which δ is read by token (Balogh §4.3: 50 k)"""
    list_corpora: tuple[str, ...] = ("king-james", "python-stdlib")
    """other domains on which routing lists are looked up (Balogh §4.3.3: LAMBADA)"""
    simple_corpus: str = "king-james"
    """the simplest text at hand, for the linear language models (Badger: TinyStories)"""
    mixer_vocab: int = 512
    """tokens of the vocabulary of their widths' comparison (Badger: 4,096)"""
    mixer_context: int = 64
    """positions of a mixing matrix, and tokens of a window"""
    mixer_steps: int = 300
    """training steps of each, in three thirds that stand for Badger's three epochs"""
    mixer_windows: int = 8
    """windows in each of these steps"""
    mixer_rates: tuple[float, ...] = (3e-3, 1e-2, 3e-2, 1e-1)
    """learning rates that each width of each linear and nearly linear model is tried at"""
    layer_rates: tuple[float, ...] = (3e-3, 1e-2, 3e-2)
    """those of the one-layer mixer and the one-layer Llama"""
    mixer_widths: tuple[float, ...] = (0.125, 0.25, 0.5, 1, 4, 8)
    """hidden dimensions of the linear mixer, in units of the vocabulary"""
    nearly_widths: tuple[float, ...] = (0.25, 0.5, 1)
    """those of the nearly linear models"""
    layer_widths: tuple[float, ...] = (0.25, 0.5)
    """those of the one-layer mixer and the one-layer Llama"""
    mixer_eval_tokens: int = 8_192
    """tokens on which a learning rate is chosen, and as many on which the loss is read"""
    vocabularies: tuple[int, ...] = (256, 512, 1_024, 2_048)
    """vocabularies of the bits per byte (Badger's are on a figure alone)"""
    bits_steps: int = 240
    """training steps of each model whose bits per byte are counted"""
    bits_rates: tuple[float, ...] = (3e-3, 1e-2, 3e-2)
    """learning rates that each of them is tried at"""
    bits_documents: int = 12
    """documents on which a rate is chosen, and as many on which bits are counted"""


STUDY = Profile("study")
PROFILES = {
    "smoke": replace(
        STUDY,
        name="smoke",
        subject="tiny-gpt2",
        corpus="wikipedia-sample",
        seeds=(42, 43),
        fit_tokens=5_120,
        segments=2,
        eval_tokens=1_024,
        descent_steps=300,
        descent_blocks=2,
        domains=("wikipedia-sample", "python-stdlib"),
        domain_tokens=5_120,
        sweep_tokens=1_024,
        probe_tokens=5_120,
        probe_steps=60,
        adamw_steps=120,
        adamw_blocks=2,
        candidate_steps=40,
        heal_steps=3,
        training_steps=8,
        held_out_tokens=512,
        gate_tokens=2_048,
        choose_tokens=1_024,
        route_tokens=1_024,
        linear_shares=(0.1, 0.35),
        label_shares=(0.35,),
        refit_tokens=2_048,
        effect_windows=4,
        speed_repeats=5,
        switch_steps=2,
        across_blocks=3,
        router_tokens=1_024,
        token_tokens=4_096,
        list_corpora=("python-stdlib",),
        simple_corpus="wikipedia-sample",
        mixer_vocab=256,
        mixer_context=16,
        mixer_steps=6,
        mixer_rates=(3e-2, 1e-1),
        layer_rates=(1e-2, 3e-2),
        mixer_widths=(0.25, 1, 4, 8),
        nearly_widths=(0.25, 0.5),
        layer_widths=(0.25, 0.5),
        mixer_eval_tokens=1_024,
        vocabularies=(256, 320, 384),
        bits_steps=6,
        bits_rates=(1e-2, 3e-2),
        bits_documents=2,
    ),
    "laptop": replace(
        STUDY,
        name="laptop",
        seeds=(42, 43),
        fit_tokens=12_288,
        segments=3,
        eval_tokens=1_280,
        descent_steps=1_000,
        descent_blocks=1,
        domain_tokens=6_144,
        sweep_tokens=1_280,
        probe_tokens=10_240,
        probe_steps=300,
        adamw_steps=2_000,
        adamw_blocks=2,
        candidate_steps=300,
        heal_steps=8,
        training_steps=24,
        held_out_tokens=512,
        gate_tokens=4_096,
        choose_tokens=1_280,
        route_tokens=1_280,
        router_tokens=1_280,
        gate_blocks=6,
        refit_tokens=4_096,
        effect_windows=10,
        switch_steps=24,
        across_blocks=6,
        token_tokens=8_192,
        mixer_steps=120,
        mixer_rates=(3e-2, 1e-1),
        layer_rates=(1e-2, 3e-2),
        mixer_widths=(0.25, 0.5, 1, 4, 8),
        nearly_widths=(0.25, 0.5),
        mixer_eval_tokens=4_096,
        vocabularies=(256, 512, 1_024),
        bits_steps=120,
        bits_rates=(1e-2, 3e-2),
        bits_documents=6,
    ),
    "study": STUDY,
    "paper": replace(
        STUDY,
        name="paper",
        subject="gpt2",
        corpus="wikitext-2",
        in_order=True,
        fit_tokens=30_720,
        eval_tokens=245_760,
        descent_steps=50_000,
        domains=("wikitext-2", "moby-dick", "amusements-in-mathematics"),
        domain_tokens=15_360,
        sweep_tokens=245_760,
        gate_tokens=20_480,
        choose_tokens=12_288,
        route_tokens=12_288,
        refit_tokens=24_576,
        token_tokens=49_152,
        list_corpora=("lambada",),
        router_tokens=12_288,
        adamw_blocks=None,
        candidate_steps=8_000,
        heal_steps=200,
        heal_windows=8,
        training_steps=1_500,
        switch_steps=1_500,
        training_windows=16,
        simple_corpus="tinystories",
        mixer_vocab=4_096,
        mixer_context=512,
        mixer_steps=30_000,
        mixer_windows=32,
        mixer_rates=(3e-4, 1e-3, 3e-3, 1e-2),
        layer_rates=(1e-4, 3e-4, 1e-3, 3e-3),
        nearly_widths=(1, 2, 4),
        layer_widths=(1, 2),
        mixer_eval_tokens=245_760,
        vocabularies=(256, 512, 1_024, 2_048, 4_096, 8_192),
        bits_steps=30_000,
        bits_rates=(3e-4, 1e-3, 3e-3, 1e-2),
        bits_documents=1_000,
    ),
}


def get_profile(name: str) -> Profile:
    """The profile of that name. Raises InputError if there is none."""
    if not isinstance(name, str) or name not in PROFILES:
        raise unknown("profile", name, list(PROFILES))
    return PROFILES[name]
