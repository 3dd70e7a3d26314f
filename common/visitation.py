"""Which cells of the map have been visited: counts, coverage of the reachable cells, and their entropy."""

import numpy as np
import torch


class VisitCounts:
    """Visits per grid cell over the whole run and all environments. `reachable_cells` is a (K, 2) integer array."""

    def __init__(self, cell_size, reachable_cells):
        self.cell_size = cell_size
        self.reachable = {tuple(cell) for cell in np.asarray(reachable_cells).tolist()}
        self.counts = {}

    def add(self, positions):
        """positions: (B, 2) map coordinates."""
        cells = np.floor(np.asarray(positions) / self.cell_size).astype(int)
        cells, counts = np.unique(cells, axis=0, return_counts=True)
        for cell, count in zip(map(tuple, cells.tolist()), counts.tolist()):
            self.counts[cell] = self.counts.get(cell, 0) + count

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

    def state_dict(self):
        return {
            "cells": torch.tensor(list(self.counts), dtype=torch.int64).reshape(-1, 2),
            "counts": torch.tensor(list(self.counts.values()), dtype=torch.int64),
        }

    def load_state_dict(self, state):
        self.counts = dict(zip(map(tuple, state["cells"].tolist()), state["counts"].tolist()))
