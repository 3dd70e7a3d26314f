"""Which cells of the map have been visited, and when: counts, coverage of the reachable cells, entropy."""

from collections import Counter
from functools import cached_property

import numpy as np
import torch

MOST_PERIODS = 64  # that a run's history is cut into, however long it is


class VisitCounts:
    """Visits per grid cell over the whole run and all environments.

    `envs.cells` turns (B, 2) positions into (B, 2) integer cells, `envs.reachable_cells` returns a (K, 2) integer array
    and `envs.world` what a map shows beside them (both may start a simulator for it, so they are not asked before a
    count is).
    """

    def __init__(self, envs):
        self.envs = envs
        self.counts = Counter()
        self.history = [Counter()]  # the same visits period by period

    @cached_property
    def map(self):
        """What is needed to draw it without the simulator: `envs.world()`, and the reachable cells."""
        world = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in self.envs.world().items()}
        return {**world, "reachable": cells_tensor(np.asarray(self.envs.reachable_cells()).tolist())}

    @cached_property
    def reachable(self):
        return set(map(tuple, self.map["reachable"].tolist()))

    def add(self, positions):
        """positions: (B, 2) map coordinates, those after a step; where an episode starts is no visit."""
        cells = list(map(tuple, self.envs.cells(positions).tolist()))
        self.counts.update(cells)
        lengths = [sum(period.values()) for period in (self.history[0], self.history[-1])]
        if lengths[1] >= max(lengths[0], 4096):  # periods are about as long as the first one
            self.history.append(Counter())
        if len(self.history) > MOST_PERIODS:
            self.history = [a + b for a, b in zip(self.history[:-1:2], self.history[1:-1:2])] + self.history[-1:]
        self.history[-1].update(cells)

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
        """The counts, their history, and the map, None until the simulators run."""
        periods = [torch.full((len(period),), i) for i, period in enumerate(self.history)]
        history = {
            "periods": torch.cat(periods).to(torch.int32),
            "cells": torch.cat([cells_tensor(period) for period in self.history]).to(torch.int32),
            "counts": torch.tensor([n for period in self.history for n in period.values()], dtype=torch.int32),
        }
        counts = torch.tensor(list(self.counts.values()), dtype=torch.int64)
        known_map = vars(self).get("map")
        return {"cells": cells_tensor(self.counts), "counts": counts, "history": history, "map": known_map}

    def load_state_dict(self, state):
        self.counts = Counter(dict(zip(map(tuple, state["cells"].tolist()), state["counts"].tolist())))
        if state["map"] is not None:
            self.map = state["map"]
        self.history = [Counter()]
        columns = (state["history"][name].tolist() for name in ("periods", "cells", "counts"))
        for period, cell, count in zip(*columns):
            while len(self.history) <= period:
                self.history.append(Counter())
            self.history[period][tuple(cell)] = count


def cells_tensor(cells):
    return torch.tensor(list(cells), dtype=torch.int64).reshape(-1, 2)
