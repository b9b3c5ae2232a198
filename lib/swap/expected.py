"""What a swap is expected to cost, without a swap: from one backward pass (ours)."""

import contextlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from lib.linear.affine import AffineMap
from lib.linear.regression import AffineFit
from lib.models.blocks import Subject
from lib.stats import sums
from lib.store import cached, kept
from lib.swap.sweep import check_predictions
from lib.text.windows import Windows


@cached("expected costs", 1)
def expected_added_loss(
    subject: Subject, windows: Windows, maps: Mapping[int, AffineMap]
) -> np.ndarray:
    """What each map would add to the loss, guessed without a swap from one backward pass (ours):
    two terms of each block and window in nats a prediction, [blocks, 2, n].

    With g the gradient of a window's summed loss at the FFN's output, and e the map's error there:
    Σ g·e over positions, and ½ Σ (g·e)², where the squared gradient stands for the curvature.
    """
    check_predictions(subject, windows)
    terms = np.zeros((len(maps), 2, len(windows)))
    bar = tqdm(windows.tokens.split(1), desc="gradients", unit="window", delay=2, leave=False)
    for n, tokens in enumerate(bar):
        at = output_gradients(subject, tokens)
        n_predictions = tokens.shape[1] - 1 - subject.n_start
        for k, (b, module) in enumerate(maps.items()):
            x, y, leaf = at[b]  # [1, position, d_model]
            error = (module.to(x.device)(x) - y) * ~module.massive(x)[..., None]
            along = (leaf.grad * error).double().sum(-1)[:, subject.n_start :]  # g·e, [1, position]
            terms[k, 0, n] = float(along.sum()) / n_predictions
            terms[k, 1, n] = float(along.square().sum()) / 2 / n_predictions
    return terms


@kept("predicted costs", 1, fit="maps")
def predicted_cost_terms(subject: Subject, windows: Windows, fit: AffineFit) -> pd.DataFrame:
    """The two terms of `expected_added_loss` for each map of a fit, summed by document: block,
    document, first, second (nats), predictions."""
    of_window = expected_added_loss(subject, windows, fit.maps)  # [blocks, 2, n], a prediction
    n_predictions = windows.tokens.shape[1] - 1 - subject.n_start
    documents, n_windows = np.unique(windows.document, return_counts=True)
    rows = []
    for block, (first, second) in zip(fit.maps, of_window):
        rows.append(
            pd.DataFrame(
                {
                    "block": block,
                    "document": documents,
                    "first": n_predictions * sums(first[:, None], windows.document),
                    "second": n_predictions * sums(second[:, None], windows.document),
                    "predictions": n_predictions * n_windows,
                }
            )
        )
    return pd.concat(rows)


def predicted_cost(subject: Subject, windows: Windows, fit: AffineFit) -> pd.DataFrame:
    """What each map of a fit is expected to add to the loss, from one backward pass (ours), a row a
    block, nats a token: first = E[g·e], second = ½ E[(g·e)²], and their sum `predicted`, with g the
    loss's gradient at the FFN's output and e the map's error there."""
    total = predicted_cost_terms(subject, windows, fit).groupby("block").sum()
    terms = total[["first", "second"]].div(total.predictions, axis=0)
    return terms.assign(predicted=terms.sum(axis=1)).reset_index()


def output_gradients(subject: Subject, tokens: torch.Tensor) -> dict:
    """{block: (x, y, leaf)} of one window's tokens [1, position], each [1, position, d]; leaf.grad
    is the gradient of the window's summed loss at the FFN's output."""
    with torch.enable_grad(), _output_leaves(subject) as at:
        logits = subject.model(tokens.to(subject.device), use_cache=False).logits
        predicted = logits[0, subject.n_start : -1]
        target = tokens[0, 1 + subject.n_start :].to(subject.device)
        nn.functional.cross_entropy(predicted, target, reduction="sum").backward()
    return at


@contextlib.contextmanager
def _output_leaves(subject: Subject) -> Iterator[dict]:
    """While open, {block: (x, y, leaf)} of the last forward pass; zeros are added to y, whose
    gradient is the loss's at the FFN's output."""
    at: dict = {}

    def hook_of(index: int) -> Callable:
        def hook(_, args: tuple, y: torch.Tensor) -> torch.Tensor:
            leaf = torch.zeros_like(y, requires_grad=True)
            at[index] = (args[0].detach(), y.detach(), leaf)
            return y + leaf

        return hook

    handles = [b.ffn.register_forward_hook(hook_of(b.index)) for b in subject.blocks]
    try:
        yield at
    finally:
        for handle in handles:
            handle.remove()
