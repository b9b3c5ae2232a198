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
    from -s to s, s the largest of `group` neighbours in a row; embeddings, biases and norms stay.
    Raises InputError below two bits."""
    if bits < 2:
        raise InputError(f"{bits} bits have no levels on both sides of zero: give at least 2.")
    copied = copy_of(subject)
    for weight in copied.layers.parameters():
        if weight.ndim == 2:
            weight.data = _to_levels(weight.data, bits, group)
    if subject.provenance is None:
        return copied
    words = f"{subject.provenance}, weights of its blocks rounded to {bits} bits by {group}"
    for block in copied.blocks:
        own(block.original, f"FFN of block {block.index} of {words}")
    return replace(copied, loaded_as=words, loaded=fingerprint(copied.model, whole=True))


def _to_levels(weight: torch.Tensor, bits: int, group: int) -> torch.Tensor:  # [rows, columns]
    groups = weight.reshape(len(weight), -1, math.gcd(group, weight.shape[1]))
    largest = groups.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
    step = largest / (2 ** (bits - 1) - 1)
    return (groups / step).round().mul(step).view_as(weight)
