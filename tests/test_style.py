"""The house style draws one picture of one table."""

import time

import adjustText
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from lib.base.style import number_points


def test_labels_stand_where_they_stood_however_slow_the_machine(monkeypatch):
    drawn = np.random.default_rng(0)
    table = pd.DataFrame({"block": range(12), "x": drawn.random(12), "y": drawn.random(12)})

    def places(clock) -> np.ndarray:
        monkeypatch.setattr(adjustText, "timer", clock, raising=False)
        figure, ax = plt.subplots(figsize=(3, 3))
        ax.scatter(table.x, table.y)
        number_points(ax, table, "x", "y")
        plt.close(figure)
        return np.array([text.get_position() for text in ax.texts])

    hours = iter(range(0, 10**9, 3600))
    usual, slow = places(time.perf_counter), places(lambda: next(hours))
    assert np.array_equal(usual, slow)
    assert not np.allclose(usual, table[["x", "y"]]), "the labels were moved"
