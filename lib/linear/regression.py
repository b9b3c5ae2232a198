"""Linear recoverability of every FFN (Whipp §3, §5.1), and its repair off massive activations.

A massive activation is one of the few positions, mostly first in their window, whose FFN output is
over 20 times as long as the block's median. Least squares bends to them, so a plain map may fit
nothing else; a repaired map is fitted on all other positions and keeps the FFN on them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import accumulate

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from lib.errors import InputError
from lib.hooks import forward
from lib.keys import later, seal
from lib.linear.affine import AffineMap, Handle, MassiveKeptMap, constant
from lib.linear.moments import BlockSample, Moments, collect, join
from lib.models.blocks import Subject
from lib.stats import Interval, intervals, sums
from lib.store import cached, kept, load
from lib.text.windows import Windows

MASSIVE = 20.0
"""a position is massive where its output norm exceeds so many of the block's medians (fit text)"""


@dataclass(frozen=True, eq=False)
class Fits:
    """The closed-form maps of every FFN of a subject, fitted on one sample of text."""

    at_budget: dict[int, dict[int, AffineMap]]
    """{positions: {block: map}}: least squares on nested prefixes of the sample"""
    massive_kept: dict[int, MassiveKeptMap]
    """{block: map} of those blocks that have massive activations in the fit text"""
    limit: np.ndarray
    """[blocks]: the output norm beyond which a position is massive"""
    massive: np.ndarray
    """[blocks]: share of the fit positions that are massive"""
    variance_ratio: np.ndarray
    """[blocks]: largest over median variance of the output features"""
    condition: np.ndarray
    """[blocks, 2]: largest over smallest eigenvalue of the input covariance; then without the
    smallest"""
    provenance: str | None = None
    """which fit it is, for keys"""

    @property
    def plain(self) -> dict[int, AffineMap]:
        """{block: map}: the paper's map, least squares over all positions of the sample."""
        return self.at_budget[max(self.at_budget)]

    @property
    def repaired(self) -> dict[int, AffineMap]:
        """{block: map}: the repaired map where the block has massive activations, else the plain
        one."""
        return {**self.plain, **self.massive_kept}


def fit_maps(subject: Subject, windows: Windows) -> Fits:
    """Each FFN's affine map in closed form, from one pass over `windows`; also on their first
    eighth, quarter and half, for the learning curve. Raises InputError below 8 windows."""
    with subject.unchanging():
        key, fits = _fit_maps.key(subject, windows), _fit_maps(subject, windows)
    if key is None:
        return fits
    words = f"{key.name} {key.digest}"
    for n_positions, maps in fits.at_budget.items():
        for b, affine in maps.items():
            seal(affine, f"{words} on {n_positions} positions, block {b}")
    for b, affine in fits.massive_kept.items():
        seal(affine, f"{words}, FFN kept at massive activations, block {b}")
    return replace(fits, provenance=words)


@cached("affine maps", 1)
def _fit_maps(subject: Subject, windows: Windows) -> Fits:
    """`fit_maps` itself."""
    if len(windows) < 8:
        raise InputError(
            f"{windows.name}: {len(windows)} windows are too few to fit maps: give at least 8."
        )
    at_budget: dict[int, dict[int, AffineMap]] = {}
    massive_kept: dict[int, MassiveKeptMap] = {}
    n_blocks = len(subject)
    limit = np.empty(n_blocks, np.float32)
    massive_share = np.empty(n_blocks)
    variance_ratio = np.empty(n_blocks)
    condition = np.empty((n_blocks, 2))
    pieces = _pieces(subject, windows)  # [piece][block]
    for b in tqdm(range(n_blocks), desc="fits", delay=2, leave=False):
        # Nested prefixes of the windows; three quarters are in no learning curve.
        prefixes = accumulate([piece[b] for piece in pieces], join)
        eighth, quarter, half, _three_quarters, whole = prefixes
        for prefix in (eighth, quarter, half, whole):
            n_positions = int(prefix.moments.n)
            if n_positions not in at_budget:
                at_budget[n_positions] = {}
            at_budget[n_positions][b] = single(prefix.moments.fit())
        # Massive activations, and a map of all other positions where there are any.
        limit[b] = MASSIVE * np.median(whole.norm)
        is_massive = whole.norm.flatten()[whole.heavy] > limit[b]  # [h], of the kept rows
        if is_massive.any() and is_massive.sum() < whole.moments.n / 10:
            massive_kept[b] = repair(bulk_moments(whole, limit[b]), whole.x[is_massive])
        massive_share[b] = is_massive.sum() / whole.moments.n
        # How uneven the output features and the input directions are.
        variance = whole.moments.syy
        variance_ratio[b] = float(variance.max() / variance.median())
        eigenvalues, _ = whole.moments.eigen  # ascending
        if len(eigenvalues) < 2:
            raise InputError(
                f"block {b} of {subject.name}: the FFN's inputs vary in {len(eigenvalues)} "
                f"direction(s) of {subject.d_model}, too few for a map: choose a wider model."
            )
        condition[b, 0] = float(eigenvalues[-1] / eigenvalues[0])
        condition[b, 1] = float(eigenvalues[-1] / eigenvalues[1])
    return Fits(at_budget, massive_kept, limit, massive_share, variance_ratio, condition)


@dataclass(frozen=True, eq=False)
class AffineFit:
    """What can take each FFN's place, fitted on one sample of text when it is first used."""

    maps: dict[int, Handle]
    """{block: affine map}: least squares over all positions"""
    massive_kept: dict[int, Handle]
    """{block: affine map} of blocks with massive activations, fitted without these, which stay with
    the FFN"""
    mean_output: dict[int, Handle]
    """{block: the FFN's mean output}"""
    facts: pd.DataFrame
    """block; massive: share of its positions that are; limit: the output norm beyond which; largest
    over median variance of the output features; condition of the input covariance, and without its
    smallest eigenvalue"""
    windows: Windows
    provenance: str | None
    """which fit it is, for keys"""

    @property
    def massive_blocks(self) -> list[int]:
        """Blocks with massive activations in the fit text."""
        return [*self.massive_kept]


def fit(subject: Subject, windows: Windows) -> AffineFit:
    """Affine maps of every FFN, those that leave massive activations to the FFN, and mean outputs.

    What is known of them at once is kept (`facts`); weights are fitted when they are first used.
    Raises InputError below 8 windows.
    """
    facts = fit_facts(subject, windows)
    key = _fit_maps.key(subject, windows)
    said = key and f"{_fit_maps.version}, of {subject.provenance} on {windows.provenance}"

    def maps() -> Fits:
        if windows.n_tokens > 20_000 and (key is None or load(key) is None):
            print(f"fitting the maps of {len(subject)} FFNs on {windows.n_tokens:,} tokens")
        return fit_maps(subject, windows)

    asked = dict(model=subject, text=windows)
    fits = later(maps, **asked)
    means = later(lambda: mean_ablation(subject, windows), **asked)

    def handles(what: str, blocks: Sequence[int], module_of: Callable) -> dict[int, Handle]:
        of_block = {b: said and f"{what} of block {b}; {said}" for b in blocks}
        return {b: Handle(of_block[b], partial(module_of, b)) for b in blocks}

    every, massive = [*facts.block], [*facts.block[facts.is_massive]]
    return AffineFit(
        handles("affine map", every, lambda b: fits(lambda of: of.plain[b])),
        handles(
            "affine map, FFN kept at massive activations",
            massive,
            lambda b: fits(lambda of: of.massive_kept[b]),
        ),
        handles("mean output", every, lambda b: means(lambda of: of[b])),
        facts,
        windows,
        said,
    )


@kept("facts of fits", 1)
def fit_facts(subject: Subject, windows: Windows) -> pd.DataFrame:
    """What is known of a fit of every FFN: see AffineFit.facts."""
    fits = fit_maps(subject, windows)
    return pd.DataFrame(
        {
            "block": range(len(subject)),
            "massive": fits.massive,
            "is_massive": [b in fits.massive_kept for b in range(len(subject))],
            "limit": fits.limit.astype(float),
            "variance_ratio": fits.variance_ratio,
            "condition": fits.condition[:, 0],
            "condition_without_smallest": fits.condition[:, 1],
        }
    )


@kept("errors of affine maps", 1, windows="test text", fit="maps")
def errors(subject: Subject, windows: Windows, fit: AffineFit) -> pd.DataFrame:
    """Squared errors of a fit's maps on unseen windows, summed by block and document.

    error: Σ‖y-ŷ‖²; spread: Σ‖y-ȳ‖² about each feature's mean; spread_scalar: about one mean over
    all positions and features (Whipp's figures); error_off_massive and spread_off_massive: of the
    maps that leave massive activations to the FFN, off these; positions: how many there are.
    """
    scores = score(subject, windows, fit_maps(subject, fit.windows))
    by_block = {
        "error": scores.error["plain"],
        "spread": scores.total,
        "spread_scalar": scores.total_scalar,
        "error_off_massive": scores.error["bulk"],
        "spread_off_massive": scores.total_bulk,
        "positions": np.full(scores.total.shape, scores.norm.shape[-1]),
    }
    documents = np.unique(scores.document)
    columns = {name: sums(v[..., None], scores.document).ravel() for name, v in by_block.items()}
    index = pd.MultiIndex.from_product(
        [range(len(subject)), documents], names=["block", "document"]
    )
    return pd.DataFrame(columns, index=index).reset_index()


def r2(subject: Subject, windows: Windows, fit: AffineFit) -> pd.DataFrame:
    """How well each block's map fits on unseen windows, a row a block: held-out R² about each
    feature's mean, about one scalar mean (Whipp's figures) and off massive activations, and the
    root mean square of the error's entries."""
    total = errors(subject, windows, fit).groupby("block").sum()
    return pd.DataFrame(
        {
            "r2": 1 - total.error / total.spread,
            "r2_scalar_mean": 1 - total.error / total.spread_scalar,
            "r2_off_massive": 1 - total.error_off_massive / total.spread_off_massive,
            "rms_error": np.sqrt(total.error / (total.positions * subject.d_model)),
        }
    ).reset_index()


def _pieces(subject: Subject, windows: Windows) -> list[list[BlockSample]]:
    """Five consecutive pieces of the windows, each a cached step and a sample for each block. The
    first one to five of them together are an eighth, a quarter, a half, three quarters and all."""
    pieces, start = [], 0
    for eighths in (1, 2, 4, 6, 8):
        end = len(windows) * eighths // 8
        pieces.append(collect(subject, windows[start:end]))
        start = end
    return pieces


def gather(subject: Subject, windows: Windows) -> list[BlockSample]:
    """A sample of every FFN on all windows, from the same passes as `fit_maps`."""
    pieces = _pieces(subject, windows)
    return [reduce(join, [piece[b] for piece in pieces]) for b in range(len(subject))]


def mean_ablation(subject: Subject, windows: Windows) -> dict[int, AffineMap]:
    """{block: map}: in each FFN's place its mean output on `windows`."""
    made_of = subject.provenance
    means = {}
    for b, sample in enumerate(gather(subject, windows)):
        words = made_of and f"mean output of block {b} of {made_of} on {windows.provenance}"
        means[b] = constant(sample.moments.mean_y.float(), words)
    return means


def zero_ablation(subject: Subject) -> dict[int, AffineMap]:
    """{block: map}: in each FFN's place nothing."""
    return {b: constant(torch.zeros(subject.d_model), "zero") for b in range(len(subject))}


def bulk_moments(sample: BlockSample, limit: float) -> Moments:
    """Moments without the massive positions, those of an output norm beyond `limit`."""
    massive = sample.norm.flatten()[sample.heavy] > limit
    if not massive.any():
        return sample.moments
    return sample.moments - Moments.of(sample.x[massive], sample.y[massive])


def single(affine: AffineMap) -> AffineMap:
    """The map in float32, in which models run."""
    return AffineMap(affine.weight.float(), affine.bias.float())


def repair(bulk: Moments, massive_x: torch.Tensor) -> MassiveKeptMap:
    """The map of the bulk, with the direction that finds the massive rows massive_x [h, d]."""
    affine = bulk.fit()
    direction, threshold = massive_direction(bulk, massive_x)
    return MassiveKeptMap(affine.weight.float(), affine.bias.float(), direction, threshold)


def massive_direction(bulk: Moments, x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """One direction [d] and a threshold that separate massive rows x [h, d] from the bulk: Fisher's
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
    """{name: [blocks, n]}: Σ‖y-ŷ‖² of "plain", of "bulk" (the repaired maps, off massive positions
    only), and of the plain map at each smaller budget ("15360", …)"""
    feature_total: np.ndarray
    """[blocks, n, d]: Σ(y-ȳ)² of each feature, ȳ its held-out mean"""
    total_scalar: np.ndarray
    """[blocks, n]: the same about one mean over all positions and features (Whipp's figures)"""
    total_bulk: np.ndarray
    """[blocks, n]: off massive positions, about their own mean of each feature"""
    norm: np.ndarray
    """[blocks, n, position]: ‖y‖"""
    massive: np.ndarray
    """[blocks, n, position], bool: beyond the fit text's limit"""
    predicted_massive: np.ndarray
    """[blocks, n, position], bool: what the repaired map's direction says of x"""
    document: np.ndarray
    """[n]"""

    @property
    def total(self) -> np.ndarray:
        """[blocks, n]: Σ‖y-ȳ‖², ȳ the held-out mean of each feature."""
        return self.feature_total.sum(-1)

    def r2(self, name: str = "plain", joint: bool = True) -> list[Interval]:
        """Held-out R² of each block with its interval over documents, joint over blocks unless
        said otherwise.

        name: "plain"; a smaller budget ("15360"); "bulk", off massive positions; or "scalar", the
        plain map's error over the spread about one scalar mean.
        """
        error, total = self._sums(name)
        found = intervals(error, total, of=lambda left: 1 - left, joint=joint)
        return [r2.cut(high=1.0) for r2 in found]  # no R² is above 1

    def value(self, name: str = "plain") -> np.ndarray:
        """Held-out R² of each block, [blocks]."""
        error, total = self._sums(name)
        return 1 - error.sum(1) / total.sum(1)

    @property
    def documents(self) -> np.ndarray:
        """[documents]: their numbers, for statistics of sums by document."""
        return np.unique(self.document)

    def on_profile(
        self, f: Callable[[np.ndarray], np.ndarray], name: str = "plain"
    ) -> Callable[[np.ndarray], np.ndarray]:
        """f of the profile (R² [draws, blocks] -> [draws]) as a statistic of weights [draws,
        documents], for lib.stats.interval and paired."""
        error, total = self._sums(name)
        return lambda w: f(1 - (w @ error.T) / (w @ total.T))

    def of_windows(self, rows: np.ndarray) -> "Scores":
        """The scores of some of the windows; spreads stay about the means of all."""
        return replace(
            self,
            error={name: values[:, rows] for name, values in self.error.items()},
            feature_total=self.feature_total[:, rows],
            total_scalar=self.total_scalar[:, rows],
            total_bulk=self.total_bulk[:, rows],
            norm=self.norm[:, rows],
            massive=self.massive[:, rows],
            predicted_massive=self.predicted_massive[:, rows],
            document=self.document[rows],
        )

    def _sums(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Error and spread by block and document, each [blocks, documents]."""
        totals = {"bulk": self.total_bulk, "scalar": self.total_scalar}
        error = self.error["plain" if name == "scalar" else name]
        total = totals.get(name, self.total)
        return sums(error[..., None], self.document), sums(total[..., None], self.document)


class _FeatureSums:
    """Σy and Σy² of each feature and the positions they go over, by block and window."""

    def __init__(self, n_blocks: int, n_windows: int, d: int):
        self.total = np.empty((n_blocks, n_windows, d))
        self.square = np.empty((n_blocks, n_windows, d))
        self.count = np.empty((n_blocks, n_windows), int)

    def add(self, b: int, batch: slice, y: torch.Tensor, counted: torch.Tensor) -> None:
        """Enter a batch of windows: y [batch, position, d], counted [batch, position] bool."""
        chosen = y.double() * counted[..., None]
        self.total[b, batch] = chosen.sum(1).cpu().numpy()
        self.square[b, batch] = chosen.square().sum(1).cpu().numpy()
        self.count[b, batch] = counted.sum(1).cpu().numpy()

    def spread(self, one_mean: bool = False) -> np.ndarray:
        """Σ(y-ȳ)² by block, window and feature, [blocks, n, d]. ȳ is each feature's mean over all
        windows or, with `one_mean`, the mean of these over the features."""
        count = self.count[..., None]  # [blocks, n, 1]
        mean = self.total.sum(1, keepdims=True) / count.sum(1, keepdims=True)  # [blocks, 1, d]
        if one_mean:
            mean = mean.mean(-1, keepdims=True)
        return self.square - 2 * self.total * mean + count * mean**2


@cached("scores of affine maps", 2, fits="maps")
def score(subject: Subject, windows: Windows, fits: Fits) -> Scores:
    """Score the maps of `fits` on `windows`, whose documents they have not seen, in one pass."""
    largest = max(fits.at_budget)
    maps_of = {f"{n} positions": maps for n, maps in fits.at_budget.items() if n != largest}
    maps_of["plain"] = fits.plain
    n_blocks, n_windows = len(subject), len(windows)
    n_positions = windows.tokens.shape[1] - subject.n_start
    norm = np.empty((n_blocks, n_windows, n_positions), np.float32)
    massive = np.empty(norm.shape, bool)
    predicted_massive = np.empty(norm.shape, bool)
    error = {name: np.empty((n_blocks, n_windows)) for name in (*maps_of, "bulk")}
    everywhere = _FeatureSums(n_blocks, n_windows, subject.d_model)
    off_massive = _FeatureSums(n_blocks, n_windows, subject.d_model)
    n_scored = [0] * n_blocks  # windows of each block so far

    def add(b: int, x: torch.Tensor, y: torch.Tensor) -> None:  # [batch, position, d_model]
        x, y = x.float(), y.float()
        batch = slice(n_scored[b], n_scored[b] + len(x))
        n_scored[b] += len(x)
        # Which positions are massive, and which are predicted to be.
        y_norm = y.norm(dim=-1)
        is_massive = y_norm > float(fits.limit[b])
        repaired = fits.repaired[b].to(x.device)
        norm[b, batch] = y_norm.cpu().numpy()
        massive[b, batch] = is_massive.cpu().numpy()
        predicted_massive[b, batch] = repaired.massive(x).cpu().numpy()
        # Squared errors, summed over each window.
        for name, maps in maps_of.items():
            squares = squared(y - maps[b].to(x.device)(x))
            error[name][b, batch] = squares.sum((1, 2)).cpu().numpy()
        of_repaired = squared(y - repaired(x)).sum(-1) * ~is_massive  # [batch, position]
        error["bulk"][b, batch] = of_repaired.sum(1).cpu().numpy()
        # What the spread about a mean is made of.
        everywhere.add(b, batch, y, torch.ones_like(is_massive))
        off_massive.add(b, batch, y, ~is_massive)

    forward(subject, windows, on_ffn=add, desc="scoring maps")
    return Scores(
        error=error,
        feature_total=everywhere.spread(),
        total_scalar=everywhere.spread(one_mean=True).sum(-1),
        total_bulk=off_massive.spread().sum(-1),
        norm=norm,
        massive=massive,
        predicted_massive=predicted_massive,
        document=windows.document,
    )


def squared(values: torch.Tensor) -> torch.Tensor:
    """Squares in float64."""
    return values.double().square()


def cross_validate(subject: Subject, windows: Windows, k: int = 5) -> np.ndarray:
    """Held-out R² [blocks, k] of the map fitted on all folds of documents but one (Whipp §5.7)."""
    fold = windows.folds(k)
    samples = [collect(subject, windows[fold == f]) for f in range(k)]
    r2 = np.empty((len(subject), k))
    for b in range(len(subject)):
        moments = [sample[b].moments for sample in samples]
        total = reduce(Moments.__add__, moments)
        for f, held_out in enumerate(moments):
            r2[b, f] = held_out.r2((total - held_out).fit())
    return r2


@kept("R² over folds", 1, k="folds")
def folds(subject: Subject, windows: Windows, k: int = 5) -> pd.DataFrame:
    """`cross_validate` as a tidy table: block, fold, r2 about each feature's mean."""
    r2_of = cross_validate(subject, windows, k)
    index = pd.MultiIndex.from_product([range(len(subject)), range(k)], names=["block", "fold"])
    return pd.DataFrame({"r2": r2_of.ravel()}, index).reset_index()
