"""The five documents that the reports reproduce: title, authors, and what each asks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """One source document, as its page on the site introduces it."""

    name: str
    """as in the column `paper` of the claims, capitalised"""
    title: str
    authors: str
    asks: str
    """two sentences: the question and how the document goes about it"""


PAPERS = (
    Paper(
        "Whipp",
        "How Linear Is a Transformer Feed-Forward Block? Per-Block Linear Recoverability Is "
        "Learned, Not Architectural",
        "Stuart Whipp, 2026",
        "How much of what a trained feed-forward block does is captured by the best single affine "
        "map? Whipp measures it exactly, by least squares on held-out activations, for every "
        "block of three small models, asks what kind of computation the residual is, and swaps "
        "the affine maps into the live model.",
    ),
    Paper(
        "Balogh",
        "Half the Nonlinearity Is Wasted: Measuring and Reallocating the Transformer's MLP Budget",
        "Peter Balogh",
        "When does a token need the nonlinear path of a feed-forward network, and can a tiny gate "
        "decide it? Balogh routes tokens to a precomputed linear matrix in six models, looks for "
        "what predicts the need, and replaces whole middle layers step by step.",
    ),
    Paper(
        "Ikeda",
        "Layerwise Importance Analysis of Feed-Forward Networks in Transformer-based Language "
        "Models",
        "Wataru Ikeda, Kazuki Yano, Ryosuke Takahashi, Jaesung Lee, Keigo Shibata and Jun Suzuki",
        "Which layers need a feed-forward network while a model is pretrained? At a fixed number "
        "of parameters Ikeda et al. widen it in some layers and remove it from the others, train "
        "from scratch, and compare early, middle and late placements.",
    ),
    Paper(
        "Tapered",
        "Tapered Language Models",
        "Reza Bayat, Ali Behrouz and Aaron Courville, 2026",
        "Should early layers have more capacity than late ones? Under a fixed budget the width of "
        "the feed-forward networks falls along a schedule over depth, on three scales and four "
        "architectures.",
    ),
    Paper(
        "Badger",
        "Linear Language Models",
        "Badger",
        "Can a fully linear, or nearly linear, causal language model be trained? Badger takes a "
        "masked mixer, removes one nonlinearity after another, and compares what is left by loss "
        "and by bits per byte.",
    ),
)
