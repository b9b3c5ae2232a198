"""A model whose weights are rounded to a few bits: what do findings owe to a file's precision?"""

import math
from dataclasses import replace

import torch

from lib.errors import InputError
from lib.keys import fingerprint, own
from lib.models.blocks import Subject
from lib.models.parts import copy_of


def rounded(subject: Subject, bits: int, group: int = 32) -> Subject:
    """A copy whose weight matrices in the blocks are rounded to the nearest of 2^bits - 1 levels
    from -s to s, s the largest of `group` neighbours in a row of the matrix as it is stored (fewer,
    where its length asks for it); embeddings, biases and norms stay. Raises InputError below two
    bits, and for rows that have no groups of eight."""
    if bits < 2:
        raise InputError(f"{bits} bits have no levels on both sides of zero: give at least 2.")
    copied = copy_of(subject)
    for weight in copied.layers.parameters():
        if weight.ndim == 2:
            weight.data = _to_levels(weight.data, bits, group)
    if subject.provenance is None:
        return copied
    # Who changes how weights are rounded changes these words, by which results are kept.
    words = f"{subject.provenance}, weights of its blocks rounded to {bits} bits by {group}"
    for block in copied.blocks:
        own(block.original, f"FFN of block {block.index} of {words}")
    return replace(copied, loaded_as=words, loaded=fingerprint(copied.model, whole=True))


def _to_levels(weight: torch.Tensor, bits: int, group: int) -> torch.Tensor:  # [rows, columns]
    size = math.gcd(group, weight.shape[1])
    if size < 8:
        raise InputError(
            f"rows of {weight.shape[1]} weights have no groups of 8 to {group}: give a group that "
            "divides them."
        )
    groups = weight.reshape(len(weight), -1, size)
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
    step = largest / (2 ** (bits - 1) - 1)
    return (groups / step).round().mul(step).view_as(weight)
