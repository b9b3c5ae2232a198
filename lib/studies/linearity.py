"""What the FFNs of trained decoders do: how affine they are, what it costs to route them, FFNs made
affine after training (notebook 28); how what they add lies to the stream (23)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from lib.errors import InputError
from lib.gating import routers, routing
from lib.linear.affine import AffineMap
from lib.linear.moments import Moments, collect
from lib.linear.regression import zero_ablation
from lib.models.blocks import Subject
from lib.models.parts import as_subject
from lib.store import kept
from lib.studies.decoder_study import (
    MOST_MEASURED,
    DecoderStudy,
    Training,
    losses_by_token,
    tables_of_seeds,
    trained,
    trained_subject,
)
from lib.studies.study import losses_by_half, odd_windows
from lib.swap.novelty import PAIRS, cosines
from lib.swap.sweep import token_sweep
from lib.text.windows import Windows
from lib.training.decoder import Decoder, Gated, Shape, build_decoder
from lib.training.loop import train

FITTED = 2_000
"""windows of the training text on which affine maps and routers are fitted"""
MEASURED = dict(
    most="windows of each test text at most", fitted="windows of the training text to fit on"
)


def linearity(
    study: DecoderStudy, widths: Sequence[int], seeds: Sequence[int], fitted: int = FITTED
) -> pd.DataFrame:
    """How affine each layer of trained decoders is, a row a seed and layer: seed, layer, r2 (of the
    FFN's affine map, on unseen text), swap_cost and zero_cost (what that map, and nothing, in the
    FFN's place add to the loss, nats a token), opening (mean, of gated FFNs)."""
    return tables_of_seeds(
        seeds, lambda seed: layer_linearity(study.training(widths, seed), MOST_MEASURED, fitted)
    )


@kept("affine maps of decoders", 1, **MEASURED)
def layer_linearity(
    training: Training,
    most: int,
    fitted: int,
) -> pd.DataFrame:
    """See `linearity`: a row a layer, on up to `most` odd windows of each text."""
    subject = trained_subject(training)
    maps = _maps(subject, training.data[:fitted])
    nothing = zero_ablation(subject)
    unseen: dict[int, Moments] = {}
    openings: dict[int, list[float]] = {b: [] for b in maps}
    costs = {"swap_cost": np.zeros(len(maps)), "zero_cost": np.zeros(len(maps))}
    for windows in training.tests.values():
        some = odd_windows(windows, most)
        # The fit on unseen text, all texts together.
        for b, sample in enumerate(collect(subject, some)):
            unseen[b] = unseen[b] + sample.moments if b in unseen else sample.moments
        # What the map, and nothing, add to the loss, in the mean over the texts.
        modules = {(b, "swap_cost"): affine for b, affine in maps.items()}
        modules |= {(b, "zero_cost"): zero for b, zero in nothing.items()}
        swept = token_sweep(subject, some, modules)
        for b, name in modules:
            costs[name][b] += (swept[b, name] - swept[None]).mean() / len(training.tests)
        # How far the gates are open.
        with torch.no_grad():
            subject.model(some.tokens.to(subject.device))
        for b, gate in _gates(subject).items():
            openings[b].append(float(gate.opening.mean()))
    opening = [np.mean(openings[b]) if openings[b] else np.nan for b in maps]
    r2 = [unseen[b].r2(affine) for b, affine in maps.items()]
    return pd.DataFrame({"layer": [*maps], "r2": r2, **costs, "opening": opening})


def routed(
    study: DecoderStudy,
    widths: Sequence[int],
    seeds: Sequence[int],
    share: float,
    fitted: int = FITTED,
) -> pd.DataFrame:
    """Losses of trained decoders with `share` of each window's positions affine in every layer, a
    row a seed and router: seed, router, loss, nats a token, mean over the texts.

    Routers: at random; "error" (ridge regression of the map's log error on x); for gated FFNs their
    own "gate", the map being their own Wx + b. Maps are refitted in order of depth on what a router
    sends them (lib.gating.routing.refit) but for "…, not refitted"; "none": as trained.
    """
    return tables_of_seeds(
        seeds,
        lambda seed: routed_losses(study.training(widths, seed), MOST_MEASURED, fitted, share),
    )


@kept("losses of routed decoders", 1, **MEASURED, share="share of positions affine")
def routed_losses(
    training: Training,
    most: int,
    fitted: int,
    share: float,
) -> pd.DataFrame:
    """See `routed`: router, loss."""
    subject = trained_subject(training)
    to_fit = training.data[:fitted]
    maps = _maps(subject, to_fit)
    gates = {b: GateScore(gate) for b, gate in _gates(subject).items()}
    own = {b: own_map(subject.blocks[b].original) for b in gates}
    errors = routers.learned_errors(subject, to_fit, maps)
    by_error = routing.routed(subject, maps, errors, share)
    by_gate = routing.routed(subject, own, gates, share)
    models = {
        "error, not refitted": by_error,
        "error": routing.refit(subject, to_fit, by_error),
        "gate, not refitted": by_gate,
        "gate": routing.refit(subject, to_fit, by_gate) if gates else {},
    }
    chance = routing.routed(subject, maps, routers.random_scores(to_fit, maps), share)
    refitted = {b: module.surrogate for b, module in routing.refit(subject, to_fit, chance).items()}
    total: dict[str, float] = {}
    for windows in training.tests.values():
        some = odd_windows(windows, most)
        scores = routers.random_scores(some, maps)
        random = {"random": routing.routed(subject, refitted, scores, share)}
        found = routing.sweep(
            subject, some, random | {name: of for name, of in models.items() if of}
        )
        n = found.predictions.sum() * len(training.tests)
        for router, losses in ({"none": found.unchanged} | found.changed).items():
            total[str(router)] = total.get(str(router), 0.0) + float(losses.sum() / n)
    return pd.DataFrame({"router": [*total], "loss": [*total.values()]})


class GateScore(nn.Module):
    """Scores of a gated FFN's own gate: high where it is closed."""

    def __init__(self, gated: Gated):
        super().__init__()
        self.gate = gated.gate

    def score(self, x: torch.Tensor) -> torch.Tensor:  # [.., position, d] -> [.., position]
        return -self.gate(x)[..., 0]


def own_map(gated: Gated) -> AffineMap:
    """The Wx + b inside a gated FFN."""
    return AffineMap(gated.affine.weight.T, gated.affine.bias)


def made_affine(
    study: DecoderStudy,
    widths: Sequence[int],
    seeds: Sequence[int],
    layers: Sequence[int],
    share: float = 0.1,
    lr: float = 2e-3,
    fitted: int = FITTED,
) -> pd.DataFrame:
    """Losses of trained decoders whose FFNs in `layers` are replaced by their affine maps and that
    are then trained on as a whole, for `share` of a pass: a row a seed, columns before and after,
    nats a token, mean over the texts. No layers: trained on as they are."""
    rows = []
    for seed in tqdm(seeds, desc="made affine", delay=2, leave=False):
        steps = max(1, round(share * study.steps_per_epoch))
        found = losses_made_affine(study.training(widths, seed), fitted, [*layers], steps, lr)
        odd = found[found.half == "odd"].groupby("step").loss.mean()
        rows.append({"seed": seed, "before": odd.loc[0], "after": odd.loc[steps]})
    return pd.DataFrame(rows)


@kept(
    "decoders made affine",
    1,
    fitted=MEASURED["fitted"],
    layers="layers made affine",
    steps="steps of training afterwards",
    lr="rate afterwards",
)
def losses_made_affine(
    training: Training,
    fitted: int,
    layers: list[int],
    steps: int,
    lr: float,
) -> pd.DataFrame:
    """See `made_affine`: text, half, step (0 and the last), loss."""
    n_layers = len(training.widths)
    if any(layer not in range(n_layers) for layer in layers):
        raise InputError(
            f"layers {layers} are not all among the {n_layers} of the decoder: give numbers "
            f"from 0 to {n_layers - 1}."
        )
    before = trained(training)
    model = before
    if layers:
        maps = _maps(as_subject(before, name="a trained decoder"), training.data[:fitted])
        model = with_affine_layers(before, training.shape, {layer: maps[layer] for layer in layers})
    rows = _by_half(model, training.tests, step=0)
    # Another order of the text; the rate falls to 0 from the first step on.
    order = training.recipe.seed + 1_000_000
    onward = replace(training.recipe, steps=steps, lr=lr, warmup=1, decay=steps - 1, seed=order)
    train(model.requires_grad_(True), training.data, onward)
    return pd.DataFrame(rows + _by_half(model, training.tests, step=steps))


def with_affine_layers(model: Decoder, shape: Shape, maps: Mapping[int, AffineMap]) -> Decoder:
    """A decoder with the weights of another, but for affine layers where `maps` has one."""
    widths = model.config.intermediate_sizes
    kinds = [*model.config.ffn_kinds]
    for layer in maps:
        kinds[layer] = "affine"
    affine = build_decoder(widths, replace(shape, kinds=tuple(kinds)))
    old = model.state_dict()
    for name, p in affine.named_parameters():
        if name in old and old[name].shape == p.shape:
            p.data.copy_(old[name])
    for layer, of_layer in maps.items():
        mlp = affine.model.layers[layer].mlp
        mlp.weight.data.copy_(of_layer.weight.T)
        mlp.bias.data.copy_(of_layer.bias)
    return affine.eval()


def update_cosines(
    study: DecoderStudy, widths: Sequence[int], seeds: Sequence[int]
) -> pd.DataFrame:
    """Mean cosines of what each layer of trained decoders adds (lib.swap.novelty.PAIRS), a row a
    seed and layer, over the positions of up to MOST_MEASURED odd windows of each text."""
    return tables_of_seeds(
        seeds, lambda seed: layer_cosines(study.training(widths, seed), MOST_MEASURED)
    )


@kept("cosines of decoders", 1, most=MEASURED["most"])
def layer_cosines(
    training: Training,
    most: int,
) -> pd.DataFrame:
    """See `update_cosines`: a row a layer."""
    subject = trained_subject(training)
    of_texts = [cosines(subject, odd_windows(windows, most)) for windows in training.tests.values()]
    total = pd.concat(of_texts).groupby("block").sum()
    means = total[[*PAIRS]].div(total.positions, axis=0)
    return means.rename_axis("layer").reset_index()


def _maps(subject: Subject, windows: Windows) -> dict[int, AffineMap]:
    """{block: affine map}, least squares on these windows, in float32."""
    found = {}
    for b, sample in enumerate(collect(subject, windows)):
        exact = sample.moments.fit()
        found[b] = AffineMap(exact.weight.float(), exact.bias.float())
    return found


def _gates(subject: Subject) -> dict[int, Gated]:
    """{block: its gated FFN}, of those that are."""
    every = {block.index: block.original for block in subject.blocks}
    return {b: ffn for b, ffn in every.items() if isinstance(ffn, Gated)}


def _by_half(model: Decoder, tests: Mapping[str, Windows], step: int) -> list[dict]:
    """Rows of test losses by text and half of its documents."""
    rows: list[dict] = []
    for text, windows in tests.items():
        losses = losses_by_token(model, windows).numpy()
        rows += losses_by_half(losses, windows, text, step)
    return rows
