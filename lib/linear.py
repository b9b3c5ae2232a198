"""Linear recoverability of every FFN (Whipp §3, §5.1), and its repair off massive tokens.

A massive token is one of the handful, mostly first in their window, whose FFN output is orders
longer than the median. Least squares bends to them, so a plain map may fit nothing else; a repaired
map is fitted on all other tokens, and the FFN is kept where a direction of x says "massive".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from lib.cache import step
from lib.errors import InputError
from lib.hooks import forward
from lib.model import Subject
from lib.moments import AffineMap, BlockSample, Moments, collect, join
from lib.stats import Interval, intervals, sums
from lib.text import Windows

MASSIVE = 20.0
"""a token is massive where its output norm exceeds so many times the block's median (fit text)"""


class RepairedMap(nn.Module):
    """`ffn` on tokens whose x along `direction` [d] exceeds `threshold`, `affine` on the others."""

    def __init__(
        self, ffn: nn.Module, affine: AffineMap, direction: torch.Tensor, threshold: float
    ):
        super().__init__()
        self.ffn, self.affine, self.threshold = ffn, affine, threshold
        self.register_buffer("direction", direction)
        self.recipe = affine.recipe

    def massive(self, x: torch.Tensor) -> torch.Tensor:  # [..., d] -> [...] bool
        return x.float() @ self.direction > self.threshold

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, massive = self.affine(x), self.massive(x)
        if massive.any():
            y[massive] = self.ffn(x[massive])
        return y


def with_affine(surrogate: nn.Module, affine: AffineMap) -> nn.Module:
    """A plain or repaired map with another affine part, the FFN kept on the same tokens."""
    if not isinstance(surrogate, RepairedMap):
        return affine
    return RepairedMap(surrogate.ffn, affine, surrogate.direction, surrogate.threshold)


def constant(value: torch.Tensor, recipe: str | None = None) -> AffineMap:
    """The map that always gives `value` [d]."""
    return AffineMap(torch.zeros(len(value), len(value)).to(value), value, recipe)


@dataclass(frozen=True, eq=False)
class Fits:
    """The closed-form maps of every FFN of a subject, fitted on one sample of text."""

    plain: dict[int, AffineMap]
    """the paper's: least squares over all tokens"""
    repaired: dict[int, nn.Module]
    """a RepairedMap where the block has massive tokens in the fit text, else the plain map"""
    at_budget: dict[int, dict[int, AffineMap]]
    """{tokens: {block: map}}: plain maps fitted on nested prefixes of the sample"""
    limit: np.ndarray
    """[blocks]: the output norm beyond which a token is massive"""
    massive: np.ndarray
    """[blocks]: share of the fit tokens that are massive"""
    variance_ratio: np.ndarray
    """[blocks]: largest over median variance of the output features"""
    condition: np.ndarray
    """[2, blocks, 4]: largest over smallest eigenvalue of the input covariance, in each quarter of
    the sample; first with all directions that vary, then without the smallest"""
    recipe: str | None


def fit_maps(subject: Subject, windows: Windows) -> Fits:
    """Fit every FFN's affine map in closed form, in one pass over `windows`; also on their first
    eighth, quarter and half, for the learning curve."""
    if len(windows) < 8:
        raise InputError(
            f"{windows.name}: {len(windows)} windows are too few to fit maps: give at least 8."
        )
    found, recipe = _fit_maps(subject, windows), _fit_maps.recipe(subject, windows)
    named = lambda what: f"{recipe} {what}" if recipe else None

    def affine(key: str) -> AffineMap:
        w, b = (torch.from_numpy(found[f"{key}.{side}"]) for side in ("weight", "bias"))
        return AffineMap(w, b, named(key)).to(subject.device)

    budgets = {int(n): {b: affine(f"{n}.{b}") for b in range(len(subject))} for n in found["n"]}
    plain = budgets[max(budgets)]
    repaired = {
        b: RepairedMap(
            subject.blocks[b].ffn,
            affine(f"bulk.{b}"),
            torch.from_numpy(found[f"bulk.{b}.direction"]).to(subject.device),
            float(found[f"bulk.{b}.threshold"]),
        )
        if f"bulk.{b}.weight" in found
        else plain[b]
        for b in plain
    }
    rest = {name: found[name] for name in ("limit", "massive", "variance_ratio", "condition")}
    return Fits(plain, repaired, budgets, recipe=recipe, **rest)


@step(version=1)
def _fit_maps(subject: Subject, windows: Windows) -> dict:
    ends, parts = _ends(windows), _parts(subject, windows)
    found: dict = {"n": np.array([ends[k] for k in (0, 1, 2, 4)]) * windows.tokens.shape[1]}
    table: dict[str, list] = {n: [] for n in ("limit", "massive", "variance_ratio", "condition")}
    for b, pieces in enumerate(tqdm(zip(*parts), desc="fits", delay=2, leave=False)):
        upto = list(accumulate(pieces, join))
        for k, n in zip((0, 1, 2, 4), found["n"]):
            _keep(found, f"{n}.{b}", upto[k].moments.fit())
        sample, variance = upto[-1], upto[-1].moments.syy
        limit = MASSIVE * np.median(sample.norm)
        massive = sample.norm.flatten()[sample.heavy] > limit
        if massive.any() and massive.sum() < sample.moments.n / 10:
            bulk = bulk_moments(sample, limit)
            _keep(found, f"bulk.{b}", bulk.fit())
            direction, threshold = massive_direction(bulk, sample.x[massive])
            found |= {f"bulk.{b}.direction": direction, f"bulk.{b}.threshold": threshold}
        e = [m.moments.eigen[0] for m in (upto[1], *pieces[2:])]  # the quarters' eigenvalues
        table["condition"].append([[float(q[-1] / q[k]) for q in e] for k in (0, 1)])
        table["limit"].append(limit)
        table["massive"].append(massive.sum() / sample.moments.n)
        table["variance_ratio"].append(float(variance.max() / variance.median()))
    found |= {name: np.array(values) for name, values in table.items()}
    return found | {"condition": np.moveaxis(found["condition"], 1, 0)}


def _ends(windows: Windows) -> list[int]:
    return [len(windows) * eighths // 8 for eighths in (1, 2, 4, 6, 8)]


def _parts(subject: Subject, windows: Windows) -> list[list[BlockSample]]:
    """Moments on five pieces of the windows, each a cached step."""
    ends = _ends(windows)
    return [collect(subject, windows[a:b]) for a, b in zip([0, *ends], ends)]


def gather(subject: Subject, windows: Windows) -> list[BlockSample]:
    """Moments of every FFN on all windows, from the same pass as `fit_maps`."""
    return [reduce(join, pieces) for pieces in zip(*_parts(subject, windows))]


def bulk_moments(sample: BlockSample, limit: float) -> Moments:
    """Moments without the massive tokens, those of an output norm beyond `limit`."""
    massive = sample.norm.flatten()[sample.heavy] > limit
    if not massive.any():
        return sample.moments
    return sample.moments - Moments.of(sample.x[massive], sample.y[massive])


def _keep(found: dict, key: str, affine: AffineMap) -> None:
    found |= {f"{key}.weight": affine.weight.float(), f"{key}.bias": affine.bias.float()}


def massive_direction(bulk: Moments, x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """One direction [d] and a threshold that tell massive rows x [h, d] from the bulk: Fisher's
    discriminant, and half the way from the bulk's mean to the 5% quantile of the massive scores."""
    x, covariance = x.double(), bulk.sxx / bulk.n
    loading = 1e-3 * covariance.diagonal().mean() * torch.eye(len(covariance), dtype=x.dtype)
    direction = torch.linalg.solve(covariance + loading, x.mean(0) - bulk.mean_x)
    middle = (bulk.mean_x @ direction + (x @ direction).quantile(0.05)) / 2
    scale = direction.norm()
    return (direction / scale).float(), float(middle / scale)


@dataclass(frozen=True, eq=False)
class Scores:
    """Squared errors of fitted maps on unseen windows, by block and window."""

    error: dict[str, np.ndarray]
    """{name: [blocks, n]}: Σ‖y-ŷ‖² of "plain", of "bulk" (the repaired maps' affine part, off
    massive tokens only), and of the plain map at each smaller budget ("6144", …)"""
    total: np.ndarray
    """[blocks, n]: Σ‖y-ȳ‖², ȳ the held-out mean"""
    total_bulk: np.ndarray
    """[blocks, n]: the same off massive tokens, about their own mean"""
    norm: np.ndarray
    """[blocks, n, seq_len]: ‖y‖"""
    massive: np.ndarray
    """[blocks, n, seq_len], bool: beyond the fit text's limit"""
    told: np.ndarray
    """[blocks, n, seq_len], bool: said to be massive by the direction of x"""
    document: np.ndarray
    """[n]"""

    def r2(self, name: str = "plain", joint: bool = True) -> list[Interval]:
        """Held-out R² of each block with its interval over documents, joint over blocks unless
        said otherwise."""
        total = self.total_bulk if name == "bulk" else self.total
        by = (sums(a[..., None], self.document) for a in (self.error[name], total))
        return intervals(*by, of=lambda left: 1 - left, joint=joint)


def score(subject: Subject, windows: Windows, fits: Fits) -> Scores:
    """Score the maps of `fits` on `windows`, whose documents they have not seen, in one pass."""
    found = _score(subject, windows, fits)
    error = {k.removeprefix("error."): v for k, v in found.items() if k.startswith("error.")}
    rest = {k: v for k, v in found.items() if not k.startswith("error.")}
    return Scores(error, document=windows.document, **rest)


@step(version=1)
def _score(subject: Subject, windows: Windows, fits: Fits) -> dict:
    families = {str(n): maps for n, maps in fits.at_budget.items()}
    families["plain"] = families.pop(str(max(fits.at_budget)))
    parts: dict[str, list] = {name: [[] for _ in subject.blocks] for name in (
        *(f"error.{f}" for f in families), "error.bulk", "norm", "massive", "told", "y", "bulk"
    )}  # fmt: skip

    def add(b: int, x: torch.Tensor, y: torch.Tensor) -> None:
        keep = lambda name, value: parts[name][b].append(value.cpu().numpy())
        x, y = x.float(), y.float()
        norm = y.norm(dim=-1)
        massive = norm > float(fits.limit[b])
        for name, maps in families.items():
            keep(f"error.{name}", (y - maps[b](x)).double().square().sum((1, 2)))
        repaired = fits.repaired[b]
        told = repaired.massive(x) if isinstance(repaired, RepairedMap) else massive & False
        off = (y - getattr(repaired, "affine", repaired)(x)).double().square().sum(-1)
        keep("error.bulk", (off * ~massive).sum(1))
        for name, rows in (("y", ~(massive & False)), ("bulk", ~massive)):
            y64 = y.double() * rows[..., None]
            keep(
                name,
                torch.cat([y64.sum(1), y64.square().sum((1, 2))[:, None], rows.sum(1)[:, None]], 1),
            )
        for name, value in (("norm", norm), ("massive", massive), ("told", told)):
            keep(name, value)

    forward(subject, windows, on_ffn=add, desc="scoring maps")
    found = {name: np.stack([np.concatenate(p) for p in by]) for name, by in parts.items()}
    for name, of in (("total", "y"), ("total_bulk", "bulk")):
        s = found.pop(of)  # [blocks, n, d + 2]: Σy, Σ‖y‖², rows
        total, square, n = s[..., :-2], s[..., -2], s[..., -1]
        mean = total.sum(1, keepdims=True) / n.sum(1)[:, None, None]
        found[name] = square - 2 * (total * mean).sum(-1) + n * (mean**2).sum(-1)
    return found


def cross_validate(subject: Subject, windows: Windows, k: int = 5) -> np.ndarray:
    """Held-out R² [blocks, k] of the map fitted on all folds of documents but one (Whipp §5.7)."""
    fold = windows.folds(k)
    samples: Sequence[list[BlockSample]] = [collect(subject, windows[fold == f]) for f in range(k)]
    moments = [[s[b].moments for s in samples] for b in range(len(subject))]
    totals = [reduce(Moments.__add__, parts) for parts in moments]
    return np.array([[p.r2((t - p).fit()) for p in parts] for t, parts in zip(totals, moments)])
