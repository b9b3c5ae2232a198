"""Greedy decoding at batch 1, composed, uncomposed and with a key-value cache, timed in pairs, and
how far a map is from additive (Badger, "Background", "Linear models inference")."""

import time
from collections.abc import Callable, Mapping

import pandas as pd
import torch

from lib.second.models.composed import Composed
from lib.second.models.mixers import MixerLM

Decoder = Callable[[list[int], int], list[int]]
"""(prompt, n) → n tokens"""


def composed_decoder(composed: Composed) -> Decoder:
    """Of a, at most n entries are not 0, so Q a is a sum of n of Q's columns."""
    both = (composed.q.T, composed.mixing)
    columns, mixing = (torch.from_numpy(m).float().contiguous() for m in both)

    @torch.no_grad()
    def decode(prompt: list[int], n: int) -> list[int]:
        text = torch.tensor([*prompt, *[0] * n])
        for i in range(len(prompt), len(text)):
            text[i] = (mixing[i - 1, :i] @ columns[text[:i]]).argmax()
        return text[len(prompt) :].tolist()

    return decode


def mixer_decoder(model: MixerLM) -> Decoder:
    """The same mixer uncomposed: rows of W, mixed, then the head; only the last position."""
    mixing = model.mixing[0].matrix.detach()

    @torch.no_grad()
    def decode(prompt: list[int], n: int) -> list[int]:
        text = torch.tensor([*prompt, *[0] * n])
        for i in range(len(prompt), len(text)):
            mixed = mixing[i - 1, :i] @ model.table.weight[text[:i]]
            text[i] = (model.head.weight @ mixed).argmax()
        return text[len(prompt) :].tolist()

    return decode


def cached_decoder(model) -> Decoder:
    """A transformer with its key-value cache."""

    @torch.no_grad()
    def decode(prompt: list[int], n: int) -> list[int]:
        text, past, new = [], None, torch.tensor([prompt])
        for _ in range(n):
            out = model(new, past_key_values=past, use_cache=True)
            past, new = out.past_key_values, out.logits[:, -1:].argmax(-1)
            text.append(int(new))
        return text

    return decode


def paired_speeds(
    decoders: Mapping[str, Decoder], prompts: list[list[int]], n: int
) -> pd.DataFrame:
    """Tokens per second, a row a prompt, a column a decoder. Each prompt is decoded by all in
    turn, in an order that moves on by one each time, so that a ratio in a row is a paired one."""
    names, rows = list(decoders), []
    for name in names:  # the first call of each is slower
        decoders[name](prompts[0], 2)
    for k, prompt in enumerate(prompts):
        row = {}
        for name in names[k % len(names) :] + names[: k % len(names)]:
            begun = time.perf_counter()
            decoders[name](prompt, n)
            row[name] = n / (time.perf_counter() - begun)
        rows.append(row)
    return pd.DataFrame(rows, columns=names)


def additivity(
    f: Callable[[torch.Tensor], torch.Tensor], a: torch.Tensor, b: torch.Tensor
) -> float:
    """‖f(a + b) - f(a) - f(b) + f(0)‖ / ‖f(a + b)‖: 0 up to rounding for an affine map, and for no
    other."""
    with torch.no_grad():
        both = f(a + b)
        left = both - f(a) - f(b) + f(torch.zeros_like(a))
    return float(left.norm() / both.norm())


def from_tokens(model, a: torch.Tensor, b: torch.Tensor) -> float:
    """`additivity` of a language model's logits as a function of one-hot tokens: `a`, `b` [1, n]
    are two texts, and their sum is what no text is."""
    if isinstance(model, MixerLM):
        return additivity(model.body, model.table(a), model.table(b))
    table = model.get_input_embeddings()
    return additivity(lambda x: model(inputs_embeds=x, use_cache=False).logits, table(a), table(b))
