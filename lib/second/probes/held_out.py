"""What fitted replacements leave over on each held-out document (Whipp §5.5): what an interval over
documents needs."""

import copy
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
import torch
from torch import nn

from lib.second.base.cache import as_numpy, cached, digest
from lib.second.base.steps import Item, each
from lib.second.probes.rows import BlockRows


def by_document(rows: BlockRows, modules: Mapping[tuple[int, str, int], nn.Module]) -> pd.DataFrame:
    """Sums over the tokens of each held-out document: one row a block, candidate, seed and
    document, with error Σ‖y-ŷ‖² and deviation Σ‖y-ȳ‖² about the mean of all held-out rows.

    modules: by (block, candidate, seed), as `fit_candidates` gives them. Each block is cached when
    it is done.
    """
    items, names = [], []
    for block in dict.fromkeys(block for block, *_ in modules):
        of_block = {key: module for key, module in modules.items() if key[0] == block}
        states = [digest(module) for module in of_block.values()]
        work = (rows, block, list(of_block.values()))
        items.append(Item({**rows.key(block), "modules": states}, work, len(of_block)))
        names.append(list(of_block))
    found = each(_of_block, items, total=len(modules), desc="held-out documents", unit="fit")
    tables = []
    for keys, sums in zip(names, found, strict=True):
        for (block, candidate, seed), errors in zip(keys, sums["errors"], strict=True):
            table = document_sums(errors, sums["deviation"], sums["document"])
            tables.append(table.assign(block=block, candidate=candidate, seed=seed))
    return pd.concat(tables, ignore_index=True)


def document_sums(errors, deviation, document) -> pd.DataFrame:
    """Sums of windows' errors and deviations, each [n_windows], by document: columns document,
    error, deviation."""
    windows = pd.DataFrame({"document": document, "error": errors, "deviation": deviation})
    return windows.groupby("document", as_index=False).sum(min_count=1)  # a nan stays nan


@cached
def _of_block(work: tuple, tick: Callable[[], None]) -> dict:
    rows, block, modules = work
    split = rows(block)
    errors = []
    for module in modules:
        module = copy.deepcopy(module).to(split.x.device)  # the caller's stays where it is
        with torch.no_grad():
            left = module(split.x_test).double() - split.y_test.double()
        errors.append(as_numpy(left.square().sum((1, 2))))
        tick()
    return {
        "errors": np.stack(errors),  # [n_modules, n_windows]
        "deviation": as_numpy(split.deviation()),
        "document": split.document,
    }
