"""Which cells of the map have been visited: counts, coverage of the reachable cells, entropy, and a picture of it."""

from functools import cached_property

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure


class VisitCounts:
    """Visits per grid cell over the whole run and all environments.

    `envs.cells` turns (B, 2) positions into (B, 2) integer cells, `envs.reachable_cells` returns a (K, 2) integer array
    (and may start a simulator for it, so it is not asked before a count is).
    """

    def __init__(self, envs):
        self.envs = envs
        self.counts = {}

    @cached_property
    def reachable(self):
        return {tuple(cell) for cell in np.asarray(self.envs.reachable_cells()).tolist()}

    def add(self, positions):
        """positions: (B, 2) map coordinates, those after a step; where an episode starts is no visit."""
        for cell in map(tuple, self.envs.cells(positions).tolist()):
            self.counts[cell] = self.counts.get(cell, 0) + 1

    def unique_cells(self):
        return len(self.counts)

    def coverage(self):
        """Share of the reachable cells that have been visited."""
        return len(self.reachable & self.counts.keys()) / len(self.reachable)

    def entropy(self):
        """Entropy of the visit distribution in nats; log(number of cells) if all are visited equally often."""
        share = np.array(list(self.counts.values()), dtype=float)
        share /= share.sum()
        return float(-(share * np.log(share)).sum())

    def heat_map(self):
        """A picture (H, W, 3) uint8: visits in colour (log scale) over the map, whose reachable cells are grey."""
        map_cells = np.array(sorted(self.reachable | self.counts.keys()))
        low, high = map_cells.min(axis=0), map_cells.max(axis=0)
        floor, visits = np.full((2, *(high - low + 1)), np.nan)
        floor[tuple((np.array(sorted(self.reachable)) - low).T)] = 1
        if self.counts:
            visits[tuple((np.array(list(self.counts)) - low).T)] = list(self.counts.values())
        figure = Figure(figsize=(8, 6), dpi=100, layout="constrained")
        canvas, axis = FigureCanvasAgg(figure), figure.subplots()
        extent = (low[0] - 0.5, high[0] + 0.5, low[1] - 0.5, high[1] + 0.5)
        show = {"origin": "lower", "extent": extent, "interpolation": "nearest"}
        axis.imshow(floor.T, cmap="Greys", vmin=0, vmax=5, **show)
        if self.counts:
            norm = LogNorm(1, max(2, np.nanmax(visits)))
            figure.colorbar(axis.imshow(visits.T, cmap="viridis", norm=norm, **show), ax=axis, label="visits")
        axis.set_title(f"{self.coverage():.1%} of {len(self.reachable)} reachable cells visited")
        axis.set_xlabel("cells")
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[:, :, :3]

    def state_dict(self):
        return {
            "cells": torch.tensor(list(self.counts), dtype=torch.int64).reshape(-1, 2),
            "counts": torch.tensor(list(self.counts.values()), dtype=torch.int64),
        }

    def load_state_dict(self, state):
        self.counts = dict(zip(map(tuple, state["cells"].tolist()), state["counts"].tolist()))
