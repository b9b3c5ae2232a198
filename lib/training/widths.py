"""Where in depth the FFN's width goes: Ikeda's placements, Tapered's schedules, their controls.

Every allocation is a list of L widths. What cannot be met exactly is refused in one sentence that
names the nearest that can.
"""

import math

import numpy as np

from lib.errors import InputError, unknown

PLACES = ("first", "middle", "final", "evenly", "ends")
SCHEDULES = ("linear", "cosine", "sigmoid", "steps")


def ffn_layers(n_layers: int, ratio: float, place: str) -> list[int]:
    """The layers (from 0) that keep an FFN: ⌊ratio · n_layers⌋ of them (Ikeda §3.2, §4.2).

    "middle" as the paper's example has it (30% of 12: layers 6, 7, 8, from 1), the extra one in the
    latter half. Controls: "evenly" spaced; both "ends", the extra one at the start.
    """
    if place not in PLACES:
        raise unknown("place", place, PLACES)
    if n_layers not in range(1, 100_000):
        raise InputError(f"{n_layers} layers are not possible: give a whole number from 1 up.")
    if not 0 < ratio <= 1:
        raise InputError(f"a ratio of {ratio} is not possible: give one above 0 and at most 1.")
    n = math.floor(n_layers * ratio + 1e-9)
    if not 1 <= n <= n_layers:
        raise InputError(
            f"a ratio of {ratio} leaves {n} of {n_layers} layers an FFN: give at least "
            f"{math.ceil(1_000 / n_layers) / 1_000} and at most 1."
        )
    if place == "middle" and n_layers % 2 and n < n_layers:
        raise InputError(
            f"{n_layers} layers have no defined middle: give {n_layers - 1} or {n_layers + 1}."
        )
    start = {"first": 0, "final": n_layers - n, "middle": n_layers // 2 - n // 2}
    if place in start:
        return list(range(start[place], start[place] + n))
    if place == "ends":
        return [*range(n - n // 2), *range(n_layers - n // 2, n_layers)]
    return [math.floor((k + 0.5) * n_layers / n) for k in range(n)]


def ffn_widths(
    n_layers: int, d_ff: int, ratio: float, place: str, expand: bool = True
) -> list[int]:
    """Ikeda's widths: 0 in the layers without an FFN, in the others as wide as the parameters ask,
    rounded up; a removed FFN's norm is worth a third of a unit. `expand=False` only removes."""
    there = ffn_layers(n_layers, ratio, place)
    n, removed = len(there), n_layers - len(there)
    width = -(-(3 * n_layers * d_ff + removed) // (3 * n)) if expand else d_ff
    return [width if layer in there else 0 for layer in range(n_layers)]


def taper(
    n_layers: int, d_ff: int, start: float, end: float, schedule: str, multiple: int = 16
) -> list[int]:
    """Tapered's widths, from start · d_ff to end · d_ff (Eq. 4–6, sigmoid with k = 10): each a
    `multiple`, exact at both ends, monotone, their sum exactly n_layers · d_ff.

    One half is rounded and mirrored about d_ff, so that no width has to take up a remainder;
    "steps" has three equal groups: start, 1 and end (our reading of Figure 1). start < end gives
    the reversed taper.
    """
    if schedule not in SCHEDULES:
        raise unknown("schedule", schedule, SCHEDULES)
    if n_layers not in range(2, 100_000):
        raise InputError(f"{n_layers} layers cannot be tapered: give a whole number from 2 up.")
    if not abs(start + end - 2) <= 1e-9:
        raise InputError(
            f"widths from {start} to {end} do not average 1: give an end of {2 - start:g}."
        )
    if end < 0 or start < 0:
        raise InputError(f"a width of {min(start, end)} is below 0: give ends between 0 and 2.")
    first = start * d_ff
    if abs(first - multiple * round(first / multiple)) > 1e-9 or d_ff % multiple:
        near = multiple * max(1, round(d_ff / multiple))
        raise InputError(
            f"{start} and 1 times {d_ff} are not both multiples of {multiple}: give d_ff = {near} "
            f"and a start of {multiple * round(start * near / multiple) / near:g}."
        )
    if schedule == "steps" and n_layers % 3:
        raise _thirds(n_layers)
    half = n_layers // 2
    t = np.arange(half) / max(1, n_layers - 1)
    shape = {
        "linear": 1 - t,
        "cosine": (1 + np.cos(np.pi * t)) / 2,
        "sigmoid": 1 / (1 + np.exp(10 * (t - 0.5))),
        "steps": np.where(np.arange(half) < n_layers // 3, 1.0, 0.5),
    }[schedule]
    raw = d_ff * (end + (start - end) * shape)
    upper = (multiple * np.round(raw / multiple)).astype(int).tolist()
    upper[:1] = [round(first)]  # the sigmoid's raw ends miss by 0.7% of the range
    middle = [d_ff] if n_layers % 2 else []
    return upper + middle + [2 * d_ff - w for w in reversed(upper)]


def grouped(n_layers: int, d_ff: int, shares: tuple[float, float, float]) -> list[int]:
    """Three equal groups of layers, early, middle, late, with these shares of d_ff (Tapered,
    Figure 2)."""
    if n_layers % 3:
        raise _thirds(n_layers)
    if len(shares) != 3 or min(shares) < 0:
        raise InputError(f"shares of {shares} are not three from 0 up: give early, middle, late.")
    if not abs(sum(shares) - 3) <= 1e-9:
        raise InputError(
            f"shares of {shares} do not average 1: give a last one of {3 - sum(shares[:2]):g}."
        )
    widths = [share * d_ff for share in shares]
    if any(abs(w - round(w)) > 1e-9 for w in widths):
        raise InputError(f"{shares} of {d_ff} are no whole widths: give a d_ff divisible by 8.")
    return [round(w) for w in widths for _ in range(n_layers // 3)]


def shuffled(widths: list[int], seed: int) -> list[int]:
    """The same widths, given to the layers at random."""
    return np.random.default_rng(seed).permutation(widths).tolist()


def share_moved(widths: list[int]) -> float:
    """The share of all width that lies in another layer than in the uniform model."""
    w = np.asarray(widths, float)
    return float(np.abs(w - w.mean()).sum() / 2 / w.sum())


def importance(
    improvements: dict[tuple[str, float], float], n_layers: int, standardized: bool = True
) -> np.ndarray:
    """Ikeda's layerwise importance (Eq. 5–7), [n_layers]: what a configuration (place, ratio)
    loses is spread evenly over the layers that have no FFN in it. Raw, it is linear in the
    improvements."""
    total, count = np.zeros(n_layers), np.zeros(n_layers)
    for (place, ratio), improvement in improvements.items():
        gone = sorted({*range(n_layers)} - {*ffn_layers(n_layers, ratio, place)})
        if gone:
            total[gone] -= improvement / len(gone)
            count[gone] += 1
    raw = np.divide(total, count, out=np.zeros(n_layers), where=count > 0)
    return (raw - raw.mean()) / raw.std() if standardized else raw


def _thirds(n_layers: int) -> InputError:
    near = 3 * max(1, round(n_layers / 3))
    return InputError(f"{n_layers} layers are not three equal groups: give {near}.")
