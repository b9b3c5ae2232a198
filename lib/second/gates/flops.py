"""What routing saves, by the paper's formula and counted (Balogh §4.5).

Multiplications with a weight or between queries, keys and values are counted; norms, activations
and additions are not.
"""

from dataclasses import dataclass

from torch import nn

from lib.second.models.subjects import Subject

PAPER_SAVED, PAPER_FFN = 7 / 8, 0.6
"""the paper's share of an FFN's work that a linear path saves (8d² less d²), and the FFNs' share of
a forward pass"""


@dataclass(frozen=True)
class Work:
    """Multiplications of a forward pass, for one token on average."""

    ffn: dict[int, int]
    """by block"""
    projections: int
    """of attention, all blocks"""
    scores: int
    """queries by keys and weights by values, all blocks, at the mean number of positions seen"""
    head: int
    """logits"""
    affine: int
    """d², one linear map"""

    @property
    def total(self) -> int:
        return sum(self.ffn.values()) + self.projections + self.scores + self.head

    @property
    def ffn_share(self) -> float:
        """Of the forward pass."""
        return sum(self.ffn.values()) / self.total


def work(subject: Subject, seq_len: int) -> Work:
    """Counted from the shapes of the weights; each weight matrix of a dense FFN is used once a
    token (2·d·d_ff for two matrices, 3·d·d_ff for SwiGLU)."""
    config = subject.model.config.get_text_config()
    ffn = {b.index: weights(b.ffn) for b in subject.blocks}
    layers = sum(weights(b.layer) for b in subject.blocks)
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    seen = (seq_len + 1) / 2  # causal: position t sees t + 1
    return Work(
        ffn,
        layers - sum(ffn.values()),
        round(2 * width * seen * len(subject)),
        weights(subject.model.get_output_embeddings()),
        subject.d_model**2,
    )


def decoder_work(d_model: int, n_blocks: int, vocab: int, seq_len: int) -> Work:
    """Of a decoder as the paper's formula has it: d_ff = 4 d, attention of 4 d² and no more heads
    than d has room for."""
    seen = (seq_len + 1) / 2
    return Work(
        dict.fromkeys(range(n_blocks), 8 * d_model**2),
        4 * d_model**2 * n_blocks,
        round(2 * d_model * seen * n_blocks),
        vocab * d_model,
        d_model**2,
    )


def weights(module: nn.Module) -> int:
    """Entries of the weight matrices of a module."""
    return sum(p.numel() for p in module.parameters() if p.dim() >= 2)


def paper_saved(linear_share: float) -> tuple[float, float]:
    """Shares of the FFNs' work and of the forward pass that are saved, by the paper's formula."""
    ffn = linear_share * PAPER_SAVED
    return ffn, ffn * PAPER_FFN
