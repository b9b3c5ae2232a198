"""Some forty numbers of the tiny model, each with the version of the function that makes it.

    python tests/golden.py        writes tests/golden.json anew

A number that moves while its step's version stays means that the arithmetic of a cached step was
changed and everybody's cache still holds the old numbers.
"""

import json
import os
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).with_suffix(".json")


def compute() -> dict[str, dict]:
    """{name: {"version": "affine maps 1", "value": 0.93}}, from an empty cache."""
    import numpy as np

    from lib.gating import routing
    from lib.gating.gates import Gate, Routed
    from lib.gating.routers import learn_errors
    from lib.gating.routing import _refit, refit
    from lib.hooks import Rows
    from lib.linear import regression
    from lib.linear.descent import descend
    from lib.linear.moments import collect
    from lib.linear.probes import train_layer, train_probe
    from lib.linear.rank import effective_rank, median_feature_r2, rank_gains, rank_r2
    from lib.linear.regression import cross_validate, errors, fit_maps
    from lib.models.loading import load_subject
    from lib.swap.healing import _heal, heal
    from lib.swap.sweep import _base, _swapped, token_sweep
    from lib.text.corpora import load_corpus
    from lib.text.windows import cut_windows

    subject, text = load_subject("tiny-gpt2", device="cpu"), load_corpus("wikipedia-sample")
    fit = cut_windows(text.fit, subject.tokenizer, 64, name="fit").take(4_096)
    test = cut_windows(text.test, subject.tokenizer, 64, name="test").take(1_536, evenly=True)
    found: dict[str, dict] = {}

    def keep(step, name: str, value) -> None:
        found[name] = {"version": step.version, "value": float(f"{float(value):.6g}")}

    fits = affine = regression.fit(subject, fit)
    of_maps = regression.r2(subject, test, affine)
    spread = errors(subject, test, affine).groupby("block").spread.sum()
    for b in range(6):
        keep(errors, f"r2 of block {b}", of_maps.r2[b])
        keep(fit_maps, f"condition of block {b}", fits.facts.condition_without_smallest[b])
    keep(errors, "r2 of block 1 off massive tokens", of_maps.r2_off_massive[1])
    keep(fit_maps, "variance ratio of block 0", fits.facts.variance_ratio[0])
    keep(fit_maps, "limit of block 5", fits.facts.limit[5])
    for b, values in enumerate(cross_validate(subject, fit, 3)[:3]):
        keep(collect, f"cross-validated r2 of block {b}", values.mean())

    ranks, ones = rank_gains(subject, affine, test), np.ones((1, len(test)))
    for b in (0, 2, 5):
        r2 = rank_r2(ranks, b, ones)
        keep(rank_gains, f"rank-8 r2 of block {b}", r2[0, 7])
        keep(rank_gains, f"effective rank of block {b}", effective_rank(r2)[0])
    keep(rank_gains, "median feature r2 of block 2", median_feature_r2(ranks, 2, ones)[0])

    prices = token_sweep(subject, test, fits.maps)
    keep(_base, "perplexity", np.exp(prices[None].mean()))
    for b in range(6):
        keep(_swapped, f"cost of block {b}", np.expm1((prices[b] - prices[None]).mean()))
    healed = token_sweep(subject, test, heal(subject, fit, {(2, "map"): fits.maps[2]}, steps=5))
    keep(_heal, "healed cost of block 2", np.expm1((healed[2, "map"] - healed[None]).mean()))

    learned = learn_errors(subject, fit, fits.repaired)
    modules = {}
    for b in (1, 4):
        keep(learn_errors, f"mean predicted log error of block {b}", learned.predicted[b].mean())
        keep(learn_errors, f"mean error of block {b}", learned.error[b].mean())
        cut = float(-learned.predicted[b].mean())
        router = Gate(learned.routers[b].weights, learned.routers[b].biases, cut)
        modules[b] = Routed(subject.blocks[b].ffn, fits.repaired[b], router)
    both = {"routed": modules, "refitted": refit(subject, fit, modules)}
    found_there = routing.sweep(subject, test, both)
    for name in both:
        step = routing.document_losses if name == "routed" else _refit
        keep(step, f"cost of two {name} blocks", found_there.change(name).value)
        keep(step, f"share of two {name} blocks", found_there.shares.affine[name])

    rows = Rows(subject, fit, test, [2])
    for kind in ("product", "gelu", "dense2x"):
        left = train_probe(rows, 2, fits.maps[2], kind, 60, at="best").errors.sum()
        gain = (left.error_closed_form - left.error) / left.spread
        keep(train_layer, f"gain of a {kind} in block 2", gain)
    for optimizer, rate in (("sgd", 1e-2), ("adamw", 1e-3)):
        run = descend(rows, 2, optimizer, rate, 100, 42)
        keep(descend, f"r2 by {optimizer}", 1 - run.error[-1].sum() / spread[2])
    return found


def compare(old: dict, new: dict) -> list[str]:
    """What is wrong between the kept numbers and new ones, in words."""
    found = []
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            found.append(f"{name} is only in the {'new' if name in new else 'kept'} numbers")
            continue
        (version, value), (now, got) = old[name].values(), new[name].values()
        if version != now:
            found.append(f"{name}: its step is now {now}, the kept number is of {version}")
        elif abs(got - value) > 1e-3 * abs(value) + 1e-6:
            found.append(f"{name} moved from {value} to {got}, but its step is still {version}")
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NONLINEARITY_CACHE"] = folder
        GOLDEN.write_text(json.dumps(compute(), indent=1) + "\n")
